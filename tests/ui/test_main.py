from __future__ import annotations

import subprocess
import sys


def test_the_page_needs_no_torch_no_database_and_no_queue() -> None:
    heavy = ("torch", "transformers", "sqlalchemy", "celery", "worker")
    code = f"import sys, ui.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
