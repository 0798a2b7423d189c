"""Real processes: started, watched, started again, and ended with everything that they started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from app.supervisor import Child, ChildFailed, StopRequested, Supervisor
from tests.waiting import is_alive, until

# A leader that starts a process of its own, writes both ids, and stays.
LEADER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text("0")
time.sleep(600)
"""


def python_child(source: str, *arguments: str, nice: int = 0) -> Child:
    return Child(name="child", command=[sys.executable, "-c", source, *arguments], nice=nice)


@contextmanager
def supervised(child: Child, *, logs: Path, min_uptime_s: float = 0.0) -> Iterator[Supervisor]:
    with Supervisor([child], logs=logs, min_uptime_s=min_uptime_s).running() as supervisor:
        yield supervisor


def read_pids(file: Path) -> Sequence[int]:
    until(file.exists)
    return [int(pid) for pid in file.read_text().split()]


def test_end_takes_grandchildren_along(tmp_path: Path) -> None:
    with supervised(python_child(LEADER, str(tmp_path / "pids")), logs=tmp_path / "logs"):
        pids = read_pids(tmp_path / "pids")
        assert all(map(is_alive, pids))
    until(lambda: not any(map(is_alive, pids)))


def test_killed_leader_is_started_again_and_its_children_end(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with supervised(python_child(LEADER, str(file)), logs=tmp_path / "logs") as supervisor:
        leader, grandchild = read_pids(file)
        file.unlink()
        os.kill(leader, signal.SIGKILL)
        until(file.exists, tick=supervisor.tick)
        second = read_pids(file)
        until(lambda: not is_alive(grandchild))
        assert supervisor.pids()["child"] == second[0] != leader
    until(lambda: not any(map(is_alive, second)))
    assert "ended with status -9; starting it again" in (tmp_path / "logs/child.log").read_text()


def test_child_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    child = python_child("import sys; sys.exit('no such database')")
    with (
        pytest.raises(ChildFailed, match=r"(?s)child ended with status 1 .*no such database"),
        supervised(child, logs=tmp_path, min_uptime_s=60) as supervisor,
    ):
        until(lambda: False, tick=supervisor.tick)


def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    child = replace(python_child(STUBBORN, str(file)), grace_s=0.2)
    with supervised(child, logs=tmp_path / "logs") as supervisor:
        until(file.exists)
        (pid,) = supervisor.pids().values()
        supervisor.stop()
        assert not is_alive(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_is_noted_and_handlers_come_back(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    child = python_child(LEADER, str(tmp_path / "pids"))
    with pytest.raises(StopRequested) as caught, supervised(child, logs=tmp_path / "logs") as supervisor:
        signal_self(supervisor, number, after=tmp_path / "pids")
    assert caught.value.exit_status == 128 + number
    assert signal.getsignal(number) == before
    until(lambda: not any(map(is_alive, read_pids(tmp_path / "pids"))))


def signal_self(supervisor: Supervisor, number: signal.Signals, *, after: Path) -> None:
    until(after.exists)
    os.kill(os.getpid(), number)
    until(lambda: False, tick=supervisor.tick)


def test_nice_child_yields(tmp_path: Path) -> None:
    child = python_child("import time; time.sleep(600)", nice=3)
    with supervised(child, logs=tmp_path) as supervisor:
        (pid,) = supervisor.pids().values()
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 3


def test_child_that_cannot_start_ends_the_others(tmp_path: Path) -> None:
    good = python_child(LEADER, str(tmp_path / "pids"))
    bad = Child(name="bad", command=[str(tmp_path / "no-such-program")])
    supervisor = Supervisor([good, bad], logs=tmp_path / "logs")
    with pytest.raises(FileNotFoundError), supervisor.running():
        pass
    assert supervisor.pids() == {}
