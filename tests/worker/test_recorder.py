"""The recorder on a real SQLite file: batches, heartbeats, stopping, a database that goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from app.core.db.session import make_engine, make_sessions
from app.core.errors import AttemptLost, Cancelled
from app.core.events import Event, PhaseProgress
from tests.lost_confirmations import losing_confirmations
from tests.waiting import until
from worker.recorder import Recorder, Stop, in_transaction


@pytest.fixture
def sessions(tmp_path: Path) -> sessionmaker[Session]:
    made = make_sessions(make_engine(f"sqlite:///{tmp_path / 'test.db'}"))
    with made.begin() as session:
        session.execute(text("CREATE TABLE seen (done INTEGER)"))
    return made


class Writer:
    """Writes the events' `done` into the table; `wants_stop` and `error` are what the test sets meanwhile."""

    def __init__(self) -> None:
        self.wants_stop: Stop | bool | None = None
        self.error: Exception | None = None
        self.batches: list[int] = []

    def __call__(self, session: Session, events: Sequence[Event], num_stored: int) -> Stop | bool | None:
        if self.error is not None:
            raise self.error
        if events:  # as `app.core.db.events.append` does it: what is stored already is left out
            events = events[session.scalar(text("SELECT count(*) FROM seen")) - num_stored :]
        for event in events:
            assert isinstance(event, PhaseProgress)
            session.execute(text("INSERT INTO seen VALUES (:done)"), {"done": event.done})
        self.batches.append(len(events))
        return self.wants_stop


def progress(done: int) -> PhaseProgress:
    return PhaseProgress(phase="training", done=done)


def seen(sessions: sessionmaker[Session]) -> list[int]:
    with sessions.begin() as session:
        return list(session.scalars(text("SELECT done FROM seen ORDER BY rowid")))


def recorder(sessions: sessionmaker[Session], write: Writer, **changes: float) -> Recorder:
    return Recorder(sessions=sessions, write=write, **{"heartbeat_s": 60.0, "flush_s": 0.02, **changes})


def run(recorder: Recorder, work: Callable[[Recorder], None]) -> None:
    with recorder as running:
        work(running)


def test_events_are_written_in_order_while_the_work_goes_on(sessions: sessionmaker[Session]) -> None:
    write = Writer()
    with recorder(sessions, write) as running:
        for i in range(50):
            running.emit(progress(i))
        until(lambda: seen(sessions) == list(range(50)))
        running.emit(progress(50))
    assert seen(sessions) == list(range(51))


def test_leaving_writes_what_is_left(sessions: sessionmaker[Session]) -> None:
    with recorder(sessions, Writer(), flush_s=60.0) as running:
        running.emit(progress(7))
    assert seen(sessions) == [7]


def test_leaving_after_an_error_writes_what_is_left_and_keeps_the_error(sessions: sessionmaker[Session]) -> None:
    def work(running: Recorder) -> None:
        running.emit(progress(1 // 1))
        running.emit(progress(1 // 0))

    with pytest.raises(ZeroDivisionError):
        run(recorder(sessions, Writer(), flush_s=60.0), work)
    assert seen(sessions) == [1]


def test_heartbeats_without_events(sessions: sessionmaker[Session]) -> None:
    write = Writer()
    with recorder(sessions, write, heartbeat_s=0.05):
        until(lambda: len(write.batches) >= 3)
    assert sum(write.batches) == 0


def test_wish_to_stop_reaches_the_work_and_may_be_taken_back(sessions: sessionmaker[Session]) -> None:
    write = Writer()
    with recorder(sessions, write, heartbeat_s=0.02) as running:
        until(lambda: len(write.batches) > 0)
        assert not running.should_stop()
        for wish, told in ((True, "cancel"), ("pause", "pause"), (None, None), ("cancel", "cancel"), (False, None)):
            write.wants_stop = wish
            until(lambda told=told: running.should_stop() == told)


def test_lost_claim_stops_the_work_and_is_raised_at_the_end(sessions: sessionmaker[Session]) -> None:
    def work(running: Recorder) -> None:
        until(running.should_stop)
        raise Cancelled("stopped at a step boundary")

    write = Writer()
    write.error = AttemptLost("attempt 1 is over")
    with pytest.raises(AttemptLost) as caught:
        run(recorder(sessions, write, heartbeat_s=0.02), work)
    assert isinstance(caught.value.__cause__, Cancelled)
    assert seen(sessions) == []


def test_claim_lost_at_the_last_write_is_raised(sessions: sessionmaker[Session]) -> None:
    write = Writer()

    def work(_running: Recorder) -> None:
        write.error = AttemptLost("attempt 1 is over")

    with pytest.raises(AttemptLost):
        run(recorder(sessions, write, flush_s=60.0), work)


def test_events_survive_a_database_that_is_away(sessions: sessionmaker[Session]) -> None:
    write = Writer()
    with recorder(sessions, write) as running:
        write.error = OperationalError("UPDATE", {}, Exception("connection refused"))
        running.emit(progress(1))
        time.sleep(0.1)
        running.emit(progress(2))
        assert not running.should_stop()
        write.error = None
        until(lambda: seen(sessions) == [1, 2])


@pytest.mark.parametrize("flush_s", [0.02, 60.0], ids=["while it works", "at the end"])
def test_a_commit_whose_confirmation_is_lost_repeats_nothing(sessions: sessionmaker[Session], flush_s: float) -> None:
    with losing_confirmations(sessions), recorder(sessions, Writer(), flush_s=flush_s) as running:
        for i in range(30):
            running.emit(progress(i))
            time.sleep(0.01)
    assert seen(sessions) == list(range(30))


def test_leaving_waits_for_a_database_that_is_away(sessions: sessionmaker[Session]) -> None:
    write = Writer()
    write.error = OperationalError("UPDATE", {}, Exception("connection refused"))
    back = threading.Timer(0.3, lambda: setattr(write, "error", None))
    back.start()
    with recorder(sessions, write) as running:
        running.emit(progress(1))
    assert seen(sessions) == [1]
    back.join()


def test_patience_ends(sessions: sessionmaker[Session]) -> None:
    def always_away(session: Session) -> None:
        raise OperationalError("UPDATE", {}, Exception("connection refused"))

    with pytest.raises(OperationalError):
        in_transaction(sessions, always_away, patience_s=0.0)


def test_emit_never_waits_for_a_slow_database(sessions: sessionmaker[Session]) -> None:
    gate = threading.Event()

    def slow(session: Session, events: Sequence[Event], num_stored: int) -> bool:
        gate.wait(10)
        return False

    with Recorder(sessions=sessions, write=slow, heartbeat_s=0.01) as running:
        time.sleep(0.05)
        started = time.perf_counter()
        for i in range(1000):
            running.emit(progress(i))
        assert time.perf_counter() - started < 1.0
        assert not gate.is_set()
        gate.set()
