"""What a later attempt tells again is dropped, and nothing else."""

from __future__ import annotations

import pytest

from app.core.events import Event, PhaseProgress, Resumed, StepDone, Warned
from worker.replays import without_replays


def step(number: int) -> StepDone:
    return StepDone(step=number, max_steps=9, source="fresh", tokens=1, tokens_per_s=1, eta_s=1, metrics={})


COURSE: list[Event] = [step(1), Warned(code="w", message="m", step=1), step(2), step(3), step(4)]
LOADING = PhaseProgress(phase="loading")


@pytest.mark.parametrize("stored", range(len(COURSE) + 1))
@pytest.mark.parametrize("behind", [None, *range(len(COURSE) + 1)])
def test_stored_and_new_are_the_whole_course(stored: int, behind: int | None) -> None:
    """`behind`: how many events the checkpoint had counted; None is a run that starts from nothing."""
    if behind is not None and behind > stored:
        return  # such a checkpoint is not gone on from
    told: list[Event] = []
    emit = without_replays(told.append, stored=stored)
    emit(LOADING)
    if behind is not None:
        emit(Resumed(step=1, training_events=behind))
    for event in COURSE[behind or 0 :]:
        emit(event)
    assert told[0] == LOADING
    assert COURSE[:stored] + told[1 if behind is None else 2 :] == COURSE
