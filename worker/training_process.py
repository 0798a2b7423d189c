"""Training in a process of its own, from outside: started, listened to, told to stop, and gone before anybody says so.

Knows processes, signals and the kernel's count of processes it killed for memory. Does not know jobs or databases.

A process of its own, because an ending can then be written by somebody who is still there: whatever kills a training,
be it the kernel for memory, a hung device or a person, its parent sees it, and its memory is free again by then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import structlog

from app.core.errors import Cancelled, Hung, StillhouseError, WorkerLost
from app.core.events import Emit
from app.core.folder_cache import FolderCache
from app.core.job_config import DistillConfig
from worker.training import KilledForMemory, Stop, TrainedStudent
from worker.training_child import ALIVE, Order

log = structlog.stdlib.get_logger(__name__)

COMMAND = (sys.executable, "-m", "worker.training_child")
_LOOK_S = 0.2
_LONGEST_LOOK_S = 2.0
_LAST_WORDS_S = 30.0  # between a process's last message and its end


@dataclass(kw_only=True)
class _Run:
    """What the parent knows of one child. `quiet_s` counts only time in which this process ran itself: one that was
    stopped for an hour has not waited for an hour."""

    process: subprocess.Popen[bytes]
    connection: Connection
    told: Stop | None = None
    told_s: float = 0.0
    quiet_s: float = 0.0
    looked_at: float = field(default_factory=time.monotonic)
    result: TrainedStudent | StillhouseError | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingProcess:
    """A `Train` that starts a child for every call. `step_timeout_s`: a child that says nothing for so long hangs.
    `states` is where states of teachers are kept.
    `grace_s`: what one that is to be cancelled may use for its current step."""

    step_timeout_s: float
    states: FolderCache | None = None
    grace_s: float = 10.0
    command: Sequence[str] = COMMAND

    def __call__(
        self,
        config: DistillConfig,
        *,
        out: Path,
        checkpoints: Path,
        emit: Emit,
        should_stop: Callable[[], Stop | None],
    ) -> TrainedStudent:
        """Raises what the training raised, Hung, KilledForMemory or WorkerLost. The child is gone by then."""
        killed_before = kills_for_memory()
        with self._child() as run:
            order = Order(config=config, out=out, checkpoints=checkpoints, states=self.states, parent=os.getpid())
            run.connection.send(order)
            self._listen(run, emit, should_stop)
        if isinstance(run.result, TrainedStudent):
            return run.result
        raise run.result or _ended_by_itself(run.process.returncode, kills_for_memory() - killed_before)

    @contextmanager
    def _child(self) -> Iterator[_Run]:
        """A started child; it has ended, and its memory is free, when the block has."""
        ours, theirs = Pipe()
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [*self.command, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
            try:
                yield _Run(process=process, connection=ours)
                process.wait(_LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                log.warning("the training process did not end after its last message; it is killed", pid=process.pid)
            finally:
                process.kill()
                process.wait()

    def _listen(self, run: _Run, emit: Emit, should_stop: Callable[[], Stop | None]) -> None:
        """Until the child's last message, its end, or until it has to be killed."""
        while run.result is None:
            try:
                heard = run.connection.recv() if run.connection.poll(_LOOK_S) else None
            except (EOFError, OSError):
                return
            if isinstance(heard, TrainedStudent | StillhouseError):
                run.result = heard
            elif heard is not None and heard != ALIVE:
                emit(heard)
            self._count(run, heard=heard is not None)
            self._tell(run, should_stop())
            if run.told == "cancel" and run.told_s > self.grace_s:
                run.process.kill()
                run.result = run.result or Cancelled("stopped in the middle of a step that took too long to wait for")
            elif run.quiet_s > self.step_timeout_s and run.result is None:
                run.process.kill()
                run.result = Hung(
                    f"nothing was heard of the training for {run.quiet_s:.0f} s, so its process was killed "
                    "(STILLHOUSE_STEP_TIMEOUT_S is how long a step may take)"
                )

    def _count(self, run: _Run, *, heard: bool) -> None:
        passed = min(time.monotonic() - run.looked_at, _LONGEST_LOOK_S)
        run.looked_at = time.monotonic()
        run.quiet_s = 0.0 if heard else run.quiet_s + passed
        run.told_s += passed

    def _tell(self, run: _Run, wish: Stop | None) -> None:
        if wish == run.told:
            return
        run.told, run.told_s = wish, 0.0
        try:
            run.connection.send(wish)
        except OSError:
            return  # it has ended; the next look says how


def _ended_by_itself(status: int, kills: int) -> StillhouseError:
    """A child that ended without a last message."""
    if status == -signal.SIGKILL and kills > 0:
        return KilledForMemory("the kernel ended the training process because the machine's memory was used up")
    if status < 0:
        return WorkerLost(f"the training process was ended by {signal.Signals(-status).name}")
    return WorkerLost(f"the training process ended with status {status} and no word; see the worker's log")


def kills_for_memory(
    files: Sequence[Path] = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat")),
) -> int:
    """How many processes the kernel has killed for memory: of this control group if it counts, else of the machine;
    0 where nobody counts."""
    for file in files:
        try:
            counts = dict(line.split() for line in file.read_text().splitlines())
        except (OSError, ValueError):
            continue
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return 0
