"""What stays for good is looked at once by a full garbage collection, and what becomes garbage still goes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, json, weakref
from app.collector import keep_collections_short

class Ring:
    def __init__(self):
        self.me = self

keep_collections_short()
keep_collections_short()
gc.disable()  # so that the collections are those below
tracked = [len(gc.get_objects())]
modules = [[i] for i in range(100_000)]
tracked.append(len(gc.get_objects()))
gc.collect()
tracked.append(len(gc.get_objects()))
few = [[i] for i in range(1_000)]
ring = Ring()
found = weakref.ref(ring)
gc.collect()
tracked.append(len(gc.get_objects()))
del ring
gc.collect()
print(json.dumps({"tracked": tracked, "ring": repr(found()), "callbacks": len(gc.callbacks)}))
"""


def test_what_piles_up_is_frozen_and_rings_are_still_freed() -> None:
    """In a process of its own: the collector is one for all of it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    told = json.loads(done.stdout)
    at_start, imported, after_import, later = told["tracked"]
    assert at_start < 1_000
    assert imported > 100_000
    assert after_import < 1_000
    assert 1_000 < later < 5_000  # a few are left alone: they may be a request's
    assert told["ring"] == "None"
    assert told["callbacks"] == 1


def test_the_api_freezes_what_it_loaded(tmp_path: Path) -> None:
    program = "import gc, app.asgi; print(gc.get_freeze_count() > 50_000, len(gc.get_objects()) < 5_000)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "", "STILLHOUSE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["True", "True"]
