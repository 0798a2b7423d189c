"""`python -m tests.worker.distill.killed_run N config.json out/`: a run that kills itself with SIGKILL.

It dies when it asks the system for the N-th time to do something with a file in `out/`: open, rename, remove, make.
With N = 0 it lives, and the last line it prints is how often it asked.
"""

from __future__ import annotations

import os
import signal
import sys

from worker.distill.__main__ import main

_ASKS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def run(at: int, config: str, out: str) -> int:
    asked = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal asked
        if event in _ASKS and args and str(args[0]).startswith(out):
            asked += 1
            if asked == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    status = main([config, out])
    print(asked)
    return status


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
