"""Reading what the Progress tab shows: the job, its curves, its events, and the jobs laid over it.

Knows the API's client. Does not know Gradio or HTML. A tick stays short: what is long is read over several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.core.schemas import JobOut, MetricsOut
from ui.client import ApiProblem, StillhouseClient
from ui.event_view import EventView, fold

MAX_POINTS = 400
EVENTS_PER_PAGE = 500
# A page that opens on a long run catches up over a few ticks.
EVENT_PAGES_PER_TICK = 4


@dataclass(frozen=True)
class Snapshot:
    """One reading of the API for job `job_id`; `is_behind` when there are more events to read; `problem` is set where
    reading stopped."""

    job: JobOut | None = None
    metrics: MetricsOut = field(default_factory=lambda: MetricsOut(series=()))
    overlays: tuple[tuple[JobOut, MetricsOut], ...] = ()
    view: EventView = field(default_factory=EventView)
    is_behind: bool = False
    problem: ApiProblem | None = None


def read(api: StillhouseClient, job_id: str, view: EventView, overlays: Sequence[str] = ()) -> Snapshot:
    """Everything the tab shows. Never raises: what was read before a problem is still shown."""
    snapshot = Snapshot(view=view if view.job_id == job_id else EventView(job_id=job_id))
    try:
        if job_id:
            snapshot = replace(snapshot, job=api.job(job_id), metrics=api.metrics(job_id, max_points=MAX_POINTS))
            pages = EVENT_PAGES_PER_TICK if snapshot.view.cursor else 1  # the first reading is waited for
            seen, is_behind = _read_events(api, snapshot.view, pages=pages)
            snapshot = replace(snapshot, view=seen, is_behind=is_behind)
            others = [job for other in overlays if other != job_id for job in found(api, other)]
            curves = tuple((job, api.metrics(job.id, max_points=MAX_POINTS)) for job in others)
            snapshot = replace(snapshot, overlays=curves)
    except ApiProblem as problem:
        return replace(snapshot, problem=problem)
    return snapshot


def found(api: StillhouseClient, job_id: str) -> list[JobOut]:
    """The job, or nothing when it is gone: a link may be older than it."""
    try:
        return [api.job(job_id)]
    except ApiProblem as problem:
        if problem.status == 404:
            return []
        raise


def _read_events(api: StillhouseClient, view: EventView, *, pages: int) -> tuple[EventView, bool]:
    """The view after so many pages at most, and whether there are more."""
    for _ in range(pages):
        page = api.events(view.job_id, after=view.cursor, limit=EVENTS_PER_PAGE)
        view = fold(view, page.data)
        if not page.has_more:
            return view, False
    return view, True
