"""Ends the children of a supervisor that was killed and could not do it itself.

Knows process groups. Does not know what they do. `python -m app.guardian` reads `+PID` and `-PID`, the groups that its
supervisor has started and ended; when its input ends, which a killed supervisor's does too, it kills those that are
left. The kernel's own way (PR_SET_PDEATHSIG) reaches one process, not a group, and exists on Linux only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress


class Guardian:
    """The supervisor's side. `close` ends the guardian; every group has to be ended and told before."""

    def __init__(self) -> None:
        # In a session of its own, where no terminal's Ctrl-C ends it before the supervisor is done.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app.guardian"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, group: int) -> None:
        self._say(f"+{group}")

    def forget(self, group: int) -> None:
        self._say(f"-{group}")

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # somebody killed the guardian: then the supervisor is on its own, as before
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
