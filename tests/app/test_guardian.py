"""A supervisor that is killed takes its children, and theirs, along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from app.guardian import Guardian
from tests.app.test_supervisor import LEADER, read_pids
from tests.waiting import is_alive, until

SUPERVISOR = """
import sys
from pathlib import Path
from app.supervisor import Child, Supervisor

child = Child(name="child", command=[sys.executable, "-c", sys.argv[1], sys.argv[2]])
with Supervisor([child], logs=Path(sys.argv[2]).parent).running() as supervisor:
    print(supervisor._guardian.pid, flush=True)
    while True:
        supervisor.tick()
"""


def test_children_of_a_killed_supervisor_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUPERVISOR, LEADER, str(tmp_path / "pids")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        guardian = int(supervisor.stdout.readline())
        pids = [guardian, *read_pids(tmp_path / "pids")]
        assert all(map(is_alive, pids))
        os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not any(map(is_alive, pids)))


def test_what_it_should_forget_stays_and_signals_of_a_terminal_do_not_end_it() -> None:
    group = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    guardian = Guardian()
    try:
        guardian.watch(group.pid)
        guardian.forget(group.pid)
        until(lambda: "SigIgn:\t0000000000000000" not in Path(f"/proc/{guardian.pid}/status").read_text())
        os.kill(guardian.pid, signal.SIGINT)
        guardian.close()
        assert is_alive(group.pid)
    finally:
        group.kill()
        group.wait()
