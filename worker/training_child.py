"""`python -m worker.training_child FD`: trains one student for the process at the other end of the connection FD.

Knows that connection: an Order comes in, then wishes to stop; events, signs of life, and at last a TrainedStudent or a
StillhouseError go out. Does not know jobs or databases. It never outlives its parent: the connection's end stops it,
and on Linux the kernel does too (PR_SET_PDEATHSIG), which also ends a process that hangs or is stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from worker.distill.allocator import keep_few_kernels, keep_freed_memory
from worker.endings import as_told
from worker.training import Stop, train_here

ALIVE = "alive"
_ALIVE_EVERY_S = 1.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Order:
    config: DistillConfig
    out: Path
    checkpoints: Path
    states: FolderCache | None
    parent: int


class Wishes:
    """What the parent wants of the run, read in a thread of its own; the last word counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wish: Stop | None = None
        self._told_at = time.monotonic()
        threading.Thread(target=self._listen, name="wishes", daemon=True).start()

    def should_stop(self) -> Stop | None:
        """Asked at every step boundary, so each question is a sign of life, also between events."""
        if time.monotonic() - self._told_at >= _ALIVE_EVERY_S:
            self._told_at = time.monotonic()
            self._connection.send(ALIVE)
        return self._wish

    def _listen(self) -> None:
        try:
            while True:
                self._wish = self._connection.recv()
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone: nobody would store what comes out


def main() -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C and a service manager's stop reach the parent, which decides
    connection = Connection(int(sys.argv[1]))
    order: Order = connection.recv()
    _end_with(order.parent)
    wishes = Wishes(connection)
    keep_freed_memory()
    keep_few_kernels()
    try:
        student = train_here(
            order.config,
            out=order.out,
            checkpoints=order.checkpoints,
            states=order.states,
            emit=connection.send,
            should_stop=wishes.should_stop,
        )
    except BrokenPipeError:
        os._exit(1)
    except Exception as error:
        told = as_told(error, log_name="training")
        if told is not error:
            traceback.print_exc()
        connection.send(told)
    else:
        connection.send(student)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do: taking torch apart piece by piece would only keep the device for seconds


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was told


if __name__ == "__main__":
    main()
