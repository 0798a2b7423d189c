from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from app.core.events import (
    CheckpointSaved,
    Correction,
    Event,
    PhaseProgress,
    Resumed,
    SampleDrawn,
    StatusChanged,
    StepDone,
    Warned,
)
from app.core.schemas import EventOut
from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.event_view import ERROR_BIN, ERROR_BINS, MAX_LINES, MAX_SAMPLES, EventView, fold


def rows(events: Sequence[Event], *, first: int = 1) -> list[EventOut]:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        EventOut(seq=first + i, attempt=1, created_at=now, event=event.model_dump(mode="json"))
        for i, event in enumerate(events)
    ]


def step(number: int) -> StepDone:
    return StepDone(
        step=number, max_steps=9, source="fresh", tokens=1, tokens_per_s=2.0, eta_s=3.0, metrics={"loss/total": 1.5}
    )


def test_steps_and_phases_fold_into_one_line() -> None:
    phases = [PhaseProgress(phase="teacher_responses", done=done, total=3) for done in range(4)]
    view = fold(EventView("job_1"), rows([*phases, step(1), step(2)]))
    assert [line.text for line in view.lines] == ["Teacher writes responses, 3 of 3", "Step 2 of 9 done, loss 1.50"]
    assert (view.cursor, view.phase) == (6, None)


def test_pages_one_after_the_other_give_what_one_page_gives() -> None:
    events = [PhaseProgress(phase="loading"), step(1), Warned(code="c", message="m"), step(2)]
    whole = fold(EventView("job_1"), rows(events))
    assert fold(fold(EventView("job_1"), rows(events[:2])), rows(events[2:], first=3)) == whole


def test_a_second_attempt_forgets_where_the_first_one_stood() -> None:
    view = fold(EventView("job_1"), rows([StatusChanged(status="running"), step(5), StatusChanged(status="queued")]))
    assert view.step is None


def test_checkpoints_and_what_goes_on_from_them_have_lines() -> None:
    told = [CheckpointSaved(step=2, bytes=2**20, best=True), Resumed(step=2, training_events=4)]
    view = fold(EventView("job_1"), rows(told))
    assert [line.text for line in view.lines] == [
        "Checkpoint at step 2: 1.0 MiB, the best so far",
        "Goes on from the checkpoint of step 2",
    ]
    assert view.checkpoint == told[0]


def test_corrections_are_counted_by_their_place() -> None:
    fields = {"step": 1, "prompt": "p", "before": "", "student_token": "a", "teacher_token": "b", "dropped": ""}
    told = [
        Correction.model_validate({**fields, "regenerated": "", "error_position": at, "kl": 1.0})
        for at in (0, ERROR_BIN - 1, ERROR_BIN, 10**6)
    ]
    bins = fold(EventView("job_1"), rows(told)).error_bins
    assert (bins[0], bins[1], bins[-1], sum(bins), len(bins)) == (2, 1, 1, 4, ERROR_BINS)


def test_an_event_of_a_newer_version_is_a_line_and_no_error() -> None:
    row = EventOut(seq=1, attempt=1, created_at=datetime(2026, 1, 1, tzinfo=UTC), event={"kind": "telepathy"})
    view = fold(EventView("job_1"), [row])
    assert "telepathy" in view.lines[0].text
    assert view.cursor == 1


def test_a_long_run_leaves_a_bounded_view() -> None:
    samples = [SampleDrawn(step=i, prompt="p", text="t") for i in range(MAX_SAMPLES + 5)]
    warnings = [Warned(code="c", message=str(i)) for i in range(MAX_LINES + 5)]
    view = fold(EventView("job_1"), rows([*samples, *warnings]))
    assert (len(view.samples), len(view.lines)) == (MAX_SAMPLES, MAX_LINES)
    assert view.samples[-1].step == MAX_SAMPLES + 4
    assert len(view.warnings) < MAX_LINES


def test_a_real_jobs_events(api: StillhouseClient, seeded: SeededService) -> None:
    view = fold(EventView(seeded.ids.failed), api.events(seeded.ids.failed, after=0, limit=500).data)
    assert view.started is not None
    assert view.lines[0].text == "Job is queued"
    assert view.lines[-1].text.startswith("Job is failed (out_of_memory: ")
