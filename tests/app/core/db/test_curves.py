"""Curves of any length: exact while they are short, thinned out with every peak kept when they are long."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import curves, jobs
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine, make_sessions
from app.core.db.tables import MetricRange
from tests.app.conftest import Clock, make_config

Sessions = sessionmaker[Session]


def make_job(sessions: Sessions, clock: Clock) -> str:
    with sessions.begin() as session:
        return jobs.create(session, name="a", config=make_config(), priority=0, now=clock()).id


@pytest.fixture
def job_id(sessions: Sessions, clock: Clock) -> str:
    return make_job(sessions, clock)


def store(sessions: Sessions, job_id: str, values: dict[tuple[int, str], float]) -> None:
    with sessions.begin() as session:
        curves.store(session, job_id=job_id, values=values)


def read(sessions: Sessions, job_id: str, max_points: int = 500, names: list[str] | None = None) -> dict[str, list]:
    with sessions.begin() as session:
        found = curves.read(session, job_id=job_id, names=names, max_points=max_points)
        return {series.name: list(series.points) for series in found}


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300),
    max_points=st.integers(4, 40),
)
def test_thinning_out_keeps_ends_and_extremes(values: list[float], max_points: int) -> None:
    points = list(enumerate(values))
    kept = curves.down_sample(points, max_points)
    assert len(kept) <= max_points
    assert kept == sorted(set(kept))
    assert set(kept) <= set(points)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert min(value for _, value in kept) == min(values)
    assert max(value for _, value in kept) == max(values)


def test_a_short_curve_is_whole(sessions: Sessions, job_id: str) -> None:
    store(sessions, job_id, {(step, "a"): step / 7 for step in range(500)})
    assert read(sessions, job_id) == {"a": [(step, step / 7) for step in range(500)]}


def test_a_long_curve_keeps_its_ends_and_its_peaks(sessions: Sessions, job_id: str) -> None:
    """Stored in batches of every size, as a recorder does; some of the peaks are in the newest steps."""
    noise = random.Random(1)
    values = {step: noise.gauss(0, 1) for step in range(1, 9001)}
    peaks = {3: 50.0, 777: -60.0, 4321: 90.0, 8998: 70.0, 8999: -80.0}
    values |= peaks
    step = 1
    while step <= 9000:
        batch = range(step, min(step + noise.randint(1, 900), 9001))
        store(sessions, job_id, {(step, "loss"): values[step] for step in batch})
        step = batch.stop
    curve = read(sessions, job_id)["loss"]
    assert 250 <= len(curve) <= 500
    assert curve == sorted(set(curve))
    assert all(values[step] == value for step, value in curve)
    assert (curve[0], curve[-1]) == ((1, values[1]), (9000, values[9000]))
    assert set(peaks.items()) <= set(curve)


def test_a_sparse_curve_beside_a_dense_one_keeps_its_ends(sessions: Sessions, job_id: str) -> None:
    """Evaluations come after the step that they belong to, some long after its stretch is full."""
    for step in range(1, 3001):
        if step % 100 == 1:
            store(sessions, job_id, {(later, "loss"): 1.0 for later in range(step, step + 100)})
            store(sessions, job_id, {(max(step - 50, 0), "eval"): float(step)})
    found = read(sessions, job_id, max_points=100)
    assert found["eval"][0] == (0, 1.0)
    assert found["eval"][-1] == (2851, 2901.0)
    assert found["eval"] == [(max(step - 50, 0), float(step)) for step in range(1, 3001, 100)]
    assert len(found["loss"]) <= 100


@pytest.mark.parametrize("max_points", [4, 10])
def test_a_step_that_is_measured_again_changes_every_range_around_it(
    sessions: Sessions, job_id: str, max_points: int
) -> None:
    store(sessions, job_id, {(step, "a"): 1.0 for step in range(300)})
    store(sessions, job_id, {(77, "a"): 9.0})
    assert (77, 9.0) in read(sessions, job_id, max_points)["a"]
    store(sessions, job_id, {(77, "a"): 0.5, (300, "a"): 1.0})
    points = read(sessions, job_id, max_points)["a"]
    assert (77, 0.5) in points
    assert max(value for _, value in points) == 1.0


def test_only_the_named_curves(sessions: Sessions, job_id: str, clock: Clock) -> None:
    other = make_job(sessions, clock)
    store(sessions, job_id, {(step, name): 1.0 for step in range(50) for name in "abc"})
    store(sessions, other, {(step, "a"): 2.0 for step in range(50)})
    assert set(read(sessions, job_id, 10, ["a", "c", "unknown"])) == {"a", "c"}
    assert {value for _, value in read(sessions, job_id, 10)["a"]} == {1.0}


def test_removed_curves_leave_nothing(sessions: Sessions, job_id: str) -> None:
    store(sessions, job_id, {(step, "a"): 1.0 for step in range(50)})
    with sessions.begin() as session:
        curves.remove(session, job_id=job_id)
    assert read(sessions, job_id) == {}
    with sessions.begin() as session:
        assert session.query(MetricRange).count() == 0


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """A database for many examples."""
    url = f"sqlite:///{tmp_path_factory.mktemp('curves') / 'test.db'}"
    upgrade(url)
    engine = make_engine(url)
    yield make_sessions(engine)
    engine.dispose()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_however_points_arrive_the_curve_is_the_same(lasting: Sessions, data: st.DataObject) -> None:
    """Random points in a random order and random batches: what is read is what one thinned-out batch would give."""
    sessions, clock = lasting, Clock()
    first, second = make_job(sessions, clock), make_job(sessions, clock)
    steps = data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=60, unique=True))
    values = {(step, "a"): float(data.draw(st.integers(-5, 5))) for step in steps}
    store(sessions, first, values)
    items = data.draw(st.permutations(list(values.items())))
    while items:
        size = data.draw(st.integers(1, len(items)))
        store(sessions, second, dict(items[:size]))
        items = items[size:]
    for max_points in (4, 9, 50):
        assert read(sessions, first, max_points) == read(sessions, second, max_points)
        points = read(sessions, first, max_points)["a"]
        assert points[0] == (min(steps), values[min(steps), "a"])
        assert points[-1] == (max(steps), values[max(steps), "a"])
        assert max(value for _, value in points) == max(values.values())
        assert min(value for _, value in points) == min(values.values())


@settings(max_examples=25, deadline=None)
@given(data=st.data(), max_points=st.integers(4, 60))
def test_what_is_read_is_what_the_points_themselves_come_down_to(
    lasting: Sessions, data: st.DataObject, max_points: int
) -> None:
    """A dense curve and a sparse one, with many equal values, against the plain way: look at every point."""
    steps = range(data.draw(st.integers(0, 3)), data.draw(st.integers(4, 700)))
    some = st.sets(st.sampled_from(steps), min_size=1)
    curves_of = {name: sorted(data.draw(some) if name == "sparse" else steps) for name in ("dense", "sparse")}
    chance = data.draw(st.randoms(use_true_random=False))
    plain = {name: [(step, float(chance.randint(-3, 3))) for step in kept] for name, kept in curves_of.items()}
    job_id = make_job(lasting, Clock())
    store(lasting, job_id, {(step, name): value for name, points in plain.items() for step, value in points})
    assert read(lasting, job_id, max_points) == {
        name: plainly_read(points, newest=steps[-1], max_points=max_points) for name, points in plain.items()
    }


def plainly_read(points: list[tuple[int, float]], *, newest: int, max_points: int) -> list[tuple[int, float]]:
    """The lowest and highest point (the first of equals) of each full range, the ends, and thinned out what is left."""
    width, start = 1, 0
    while newest >= width * max_points:
        width *= 4
    kept = {points[0], points[-1]}
    while width > 1:
        end = newest // width * width
        for low in range(start, end, width):
            if inside := [point for point in points if low <= point[0] < low + width]:
                kept |= {min(inside, key=lambda point: point[1]), max(inside, key=lambda point: point[1])}
        width, start = width // 4, end
    kept |= {point for point in points if point[0] >= start}
    return curves.down_sample(sorted(kept), max_points)


def test_the_migration_fills_the_ranges_of_older_curves(sessions: Sessions, engine: Engine, job_id: str) -> None:
    """What the program would have stored: compared after the ranges are dropped and the migration's statement ran."""
    from importlib import import_module

    revision = import_module("app.core.db.migrations.versions.0003_workers")
    noise = random.Random(2)
    store(sessions, job_id, {(step, name): noise.gauss(0, 1) for step in range(1, 300) for name in "ab"})
    stored = "SELECT * FROM metric_ranges ORDER BY job_id, width, bucket, name"
    with engine.begin() as connection:
        expected = connection.execute(text(stored)).all()
        connection.execute(text("DELETE FROM metric_ranges"))
        for width in (4, 16, 64, 256):
            connection.execute(text(revision._FILL_RANGES.format(width=width)))
        assert connection.execute(text(stored)).all() == expected
    assert len(expected) > 150
    assert not any(math.isnan(row.low) for row in expected)


def test_reading_follows_the_primary_keys(lasting: Sessions) -> None:
    """Each stretch of a run is one range of a primary key, whatever the table's size."""
    queries = list(curves._stretches("job_1", None, newest=300, max_points=100))
    with lasting.begin() as session:
        engine = session.get_bind()
        plans = []
        for query in queries:
            sql = query.compile(engine, compile_kwargs={"literal_binds": True})
            plans += [row.detail for row in session.execute(text(f"EXPLAIN QUERY PLAN {sql}"))]
    assert [plan.partition("(")[2] for plan in plans] == [
        "job_id=? AND width=? AND bucket>? AND bucket<?)",
        "job_id=? AND step>? AND step<?)",
    ]
