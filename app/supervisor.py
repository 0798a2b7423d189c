"""Child processes: started together, watched, and ended without a survivor.

Knows commands, process groups and log files. Does not know what the children do; `app/service.py` lists them.

Own code because honcho's Manager reads its children's output through pipes: when a child is killed while its own
children hold the pipe, it neither notices nor ends those. Here each child leads a process group, output goes to files,
and what is ended is always the whole group. A guardian ends the groups of a supervisor that is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from app.core.errors import StillhouseError
from app.guardian import Guardian

# A child that ends by itself sooner than this is broken, not unlucky: starting it again would only loop.
MIN_UPTIME_S = 20.0
# What most children may use to end on their own.
GRACE_S = 5.0


class ChildFailed(StillhouseError):
    """A child process ended right after its start. The message holds its exit status and the end of its log."""

    code = "child_failed"


class StopRequested(Exception):
    """The user pressed Ctrl-C, or the process got SIGTERM or SIGHUP. `exit_status` says so in the shell's way."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status = 128 + number


@dataclass(frozen=True, kw_only=True)
class Child:
    """How to start one process. `nice` is added to its priority number: 0 as usual, more yields to the others.
    `grace_s` is what it may use to end on its own; then the rest of its group is killed."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    grace_s: float = GRACE_S


@dataclass(kw_only=True)
class _Running:
    child: Child
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    started_at: float


class Supervisor:
    """Runs `children` in process groups of their own; each writes to `logs/{name}.log`.

    A child that ends by itself is started again (so a worker that the kernel killed for memory comes back), unless it
    lived for less than `min_uptime_s`: then `tick` raises ChildFailed. Leaving the `running` block ends everything.
    """

    def __init__(self, children: Sequence[Child], *, logs: Path, min_uptime_s: float = MIN_UPTIME_S) -> None:
        self._children = children
        self._logs = logs
        self._min_uptime_s = min_uptime_s
        self._running: dict[str, _Running] = {}
        self._stop_signal: int | None = None
        self._guardian: Guardian | None = None

    @contextmanager
    def running(self) -> Iterator[Supervisor]:
        """Starts the children; ends them, and whatever they started, on the way out. Main thread only."""
        with self._signals_noted():
            self._guardian = Guardian()
            try:
                for child in self._children:
                    self._start(child)
                yield self
            finally:
                self.stop()
                self._guardian.close()

    def tick(self, seconds: float = 0.2) -> None:
        """Waits a moment and looks around. Raises StopRequested or ChildFailed; call it in every waiting loop."""
        time.sleep(seconds)
        if self._stop_signal is not None:
            raise StopRequested(self._stop_signal)
        for running in list(self._running.values()):
            if running.process.poll() is not None:
                self._replace(running)

    def pids(self) -> Mapping[str, int]:
        """Process ids (each leads the group of the same number) by name."""
        return {name: running.process.pid for name, running in self._running.items()}

    def log_file(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def stop(self) -> None:
        """Asks every leader to end, waits as long as each may take, then kills what is left of each group."""
        for running in self._running.values():
            with suppress(ProcessLookupError):
                running.process.terminate()
        asked_at = time.monotonic()
        for running in sorted(self._running.values(), key=lambda running: running.child.grace_s):
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, asked_at + running.child.grace_s - time.monotonic()))
            self._end(running)
        self._running.clear()

    def _start(self, child: Child) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self.log_file(child.name).open("ab")
        process = subprocess.Popen(
            child.command,
            env={**os.environ, **child.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running[child.name] = _Running(child=child, process=process, log=log, started_at=time.monotonic())
        if self._guardian is not None:
            self._guardian.watch(process.pid)
        if child.nice:
            with suppress(ProcessLookupError):  # it may have ended already; `tick` will say so
                os.setpriority(os.PRIO_PGRP, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + child.nice)

    def _replace(self, ended: _Running) -> None:
        self._end(ended)
        name, status = ended.child.name, ended.process.returncode
        if time.monotonic() - ended.started_at < self._min_uptime_s:
            tail = "\n".join(self.log_file(name).read_text(errors="replace").splitlines()[-15:])
            log = self.log_file(name)
            raise ChildFailed(f"{name} ended with status {status} right after its start; its log ({log}) ends:\n{tail}")
        with self.log_file(name).open("a") as file:
            file.write(f"--- {name} ended with status {status}; starting it again ---\n")
        self._start(ended.child)

    def _end(self, running: _Running) -> None:
        """Kills every process that is left in the group, its leader included."""
        with suppress(ProcessLookupError, PermissionError):  # an empty group; macOS denies one of zombies
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
        running.log.close()
        if self._guardian is not None:
            self._guardian.forget(running.process.pid)

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Notes a request to stop instead of raising in the middle of anything, so that no child is ever lost."""

        def note(number: int, _frame: FrameType | None) -> None:
            self._stop_signal = number

        # What is ignored stays ignored: nohup means that a closed terminal is no reason to stop.
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
