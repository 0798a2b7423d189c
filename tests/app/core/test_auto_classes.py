"""The first requests of a fresh API process come at the same moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from app.core.model_facts import read_facts

with ThreadPoolExecutor(8) as pool:
    facts = list(pool.map(lambda _: read_facts(sys.argv[1], field="teacher.model"), range(8)))
print(len({fact.parameters for fact in facts}))
"""


@pytest.mark.slow
def test_many_threads_may_be_the_first_to_read_a_model(tiny_teacher: Path) -> None:
    """In a process of its own, for here transformers is loaded already. Without the lock, most threads fail."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny_teacher)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
