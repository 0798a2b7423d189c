"""A run's curves: every number as it was measured, and the same thinned out for reading.

Knows the tables `metrics` (all points) and `metric_ranges` (what the points of 4, 16, 64, ... steps come down to). Does
not know events: `events.py` brings the numbers that are in them.

Own code because no query over the points is fast enough: a run of 200,000 steps has 4 million of them. A range keeps
its first, last, lowest and highest point, as in M4 (Jugel et al., "M4: A Visualization-Oriented Time Series Data
Aggregation", VLDB 2014), and exists for every full stretch of its width before the newest step, so that a run of any
length is read in a few hundred rows per curve: ranges of the width that suits the reader, then ever narrower ones, then
the last few points.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import FromClause, Select, delete, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.core.db.tables import Metric, MetricRange
from app.core.schemas import Series

Point = tuple[int, float]
_FACTOR = 4  # each width is so many times the one before
_KEYS = ["job_id", "width", "bucket", "name"]
_POINTS = ["first_step", "first", "last_step", "last", "low_step", "low", "high_step", "high"]


def store(session: Session, *, job_id: str, values: Mapping[tuple[int, str], float]) -> None:
    """Stores `values` by (step, name); a step that is measured again keeps the newer value."""
    if not values:
        return
    newest_before = _newest_step(session, job_id)
    rows = [{"job_id": job_id, "step": step, "name": name, "value": value} for (step, name), value in values.items()]
    statement = _dialect(session).insert(Metric)
    keys = ["job_id", "step", "name"]
    session.execute(
        statement.on_conflict_do_update(index_elements=keys, set_={"value": statement.excluded.value}), rows
    )
    steps = {step for step, _ in values}
    if newest_before is not None:
        steps.add(newest_before)  # its stretch may be full now
    fill_ranges(session, job_id, steps, newest=max(steps))


def remove(session: Session, *, job_id: str) -> None:
    """Removes all curves of a job."""
    session.execute(delete(MetricRange).where(MetricRange.job_id == job_id))
    session.execute(delete(Metric).where(Metric.job_id == job_id))


def remove_oldest(session: Session, *, job_id: str, steps: int) -> bool:
    """Removes the points of the job's first `steps` steps, and after the last points the ranges. True when there was
    anything to remove. For a job that ended: its curves are not to be read or stored to meanwhile."""
    oldest = session.scalar(select(func.min(Metric.step)).where(Metric.job_id == job_id))
    if oldest is None:
        ranges = delete(MetricRange).where(MetricRange.job_id == job_id).returning(MetricRange.width)
        return session.execute(ranges, execution_options={"synchronize_session": False}).first() is not None
    session.execute(delete(Metric).where(Metric.job_id == job_id, Metric.step < oldest + steps))
    return True


def read(session: Session, *, job_id: str, names: Sequence[str] | None, max_points: int) -> list[Series]:
    """One curve per metric name (all names when `names` is None), in order of name. Each has at most `max_points`
    (>= 4) of the points that were measured: its first, last, lowest and highest, and the peaks between them."""
    newest = _newest_step(session, job_id)
    if newest is None:
        return []
    curves: defaultdict[str, _Curve] = defaultdict(_Curve)
    connection = session.connection()  # gives rows one by one; the ORM would first make objects of them all
    for query in _stretches(job_id, names, newest=newest, max_points=max_points):
        for name, *points in connection.execute(query):
            curves[name].extend(points)
    # Not validated: they are the database's own numbers, ten thousand of them.
    return [Series.model_construct(name=name, points=curves[name].thinned_out(max_points)) for name in sorted(curves)]


def down_sample(points: Sequence[Point], max_points: int) -> list[Point]:
    """At most `max_points` (>= 4) of `points` (sorted by step): the first, the last, and of every stretch between
    them its lowest and its highest, so that a spike is never averaged away."""
    curve = _Curve()
    for point in points:
        curve.extend(point)
    return curve.thinned_out(max_points)


class _Curve:
    """The points of one curve, added in order of step. Lists of numbers, because the garbage collector looks at every
    tuple, and ranges come by the thousand."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._end: Sequence[Any] = ()

    def extend(self, points: Sequence[Any]) -> None:
        """Adds one point, or what a range tells (the values of _POINTS). The last point of a range is one of the
        curve only when nothing comes after it."""
        if len(points) == 2:
            self._add(*points)
            self._end = points
            return
        first_step, first, last_step, last, low_step, low, high_step, high = points
        if not self._steps:
            self._add(first_step, first)
        if low_step <= high_step:
            self._add(low_step, low)
            self._add(high_step, high)
        else:
            self._add(high_step, high)
            self._add(low_step, low)
        self._end = last_step, last

    def _add(self, step: int, value: float) -> None:
        if not self._steps or step > self._steps[-1]:  # a range's points may be the same one
            self._steps.append(step)
            self._values.append(value)

    def thinned_out(self, max_points: int) -> list[Point]:
        self._add(*self._end)
        steps, values = self._steps, self._values
        if len(steps) <= max_points:
            return list(zip(steps, values, strict=True))
        num_inner, num_stretches = len(steps) - 2, (max_points - 2) // 2
        kept = [0]
        for i in range(num_stretches):
            start, end = (1 + j * num_inner // num_stretches for j in (i, i + 1))
            stretch = values[start:end]
            extremes = {start + stretch.index(min(stretch)), start + stretch.index(max(stretch))}
            kept += sorted(extremes)
        kept.append(len(steps) - 1)
        return [(steps[i], values[i]) for i in kept]


def _newest_step(session: Session, job_id: str) -> int | None:
    return session.scalar(select(func.max(Metric.step)).where(Metric.job_id == job_id))


def _stretches(job_id: str, names: Sequence[str] | None, *, newest: int, max_points: int) -> Iterator[Select[Any]]:
    """What to read, in order of step: the narrowest ranges of which `max_points` cover the run; where their last full
    one ends, narrower ones; at the end single points. Rows are a name and the values of _POINTS, for single points
    only the first two."""
    width, start = 1, 0
    while newest >= width * max_points:
        width *= _FACTOR
    while width >= 1:
        source = _ranges(width)
        end = newest // width if width > 1 else newest + 1
        columns = _POINTS if width > 1 else _POINTS[:2]
        query = select(source.c.name, *(source.c[column] for column in columns)).order_by(source.c.bucket)
        query = query.where(source.c.job_id == job_id, source.c.bucket >= start // width, source.c.bucket < end)
        yield query if names is None else query.where(source.c.name.in_(names))
        width, start = width // _FACTOR, end * width


def _ranges(width: int) -> FromClause:
    """The ranges of this width; the points themselves are those of width 1."""
    if width > 1:
        return select(MetricRange).where(MetricRange.width == width).subquery()
    step, value = Metric.step, Metric.value
    points = [(value if name in ("first", "last", "low", "high") else step).label(name) for name in _POINTS]
    return select(Metric.job_id, step.label("bucket"), Metric.name, *points).subquery()


def fill_ranges(session: Session, job_id: str, steps: Collection[int], *, newest: int) -> None:
    """Computes the ranges around `steps` that are full now, each width from the one before."""
    width = _FACTOR
    while width <= newest:
        full = {step // width for step in steps if step // width < newest // width}
        if full:
            source = _ranges(width // _FACTOR)
            parts = [bucket * _FACTOR + i for bucket in full for i in range(_FACTOR)]
            query = _merged(source, width).where(source.c.job_id == job_id, source.c.bucket.in_(parts))
            insert = _dialect(session).insert(MetricRange).from_select([*_KEYS, *_POINTS], query)
            values = {column: insert.excluded[column] for column in _POINTS}
            session.execute(insert.on_conflict_do_update(index_elements=_KEYS, set_=values))
        width *= _FACTOR


def _merged(source: FromClause, width: int) -> Select[Any]:
    """Ranges of `width`, each from those of `source` in it."""
    c, bucket = source.c, source.c.bucket // _FACTOR
    orders = {
        "first": (c.bucket,),
        "last": (c.bucket.desc(),),
        "low": (c.low, c.low_step),
        "high": (c.high.desc(), c.high_step),
    }
    points = [
        func.first_value(c[column]).over(partition_by=(bucket, c.name), order_by=orders[column.removesuffix("_step")])
        for column in _POINTS
    ]
    return select(c.job_id, literal(width), bucket, c.name, *points).distinct()


def _dialect(session: Session) -> Any:
    """Both can insert or update in one statement, each with a function of its own."""
    return postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
