"""Events survive the way through JSON, and nothing else is taken for one."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from app.core.events import Evaluated, Event, PhaseProgress, StatusChanged, StepDone, Warned, parse_event

EVENTS: list[Event] = [
    StatusChanged(status="failed", code="out_of_memory", message="lower training.batch_size"),
    PhaseProgress(phase="teacher_responses", done=3, total=9),
    StepDone(
        step=1, max_steps=2, source="fresh", tokens=5, tokens_per_s=1.5, eta_s=2, metrics={"loss/total": 0.1 + 0.2}
    ),
    Evaluated(step=1, metrics={"eval/kl_ts": 1e-9}),
    Warned(code="x", message="y"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_round_trip(event: Event) -> None:
    assert parse_event(json.loads(event.model_dump_json())) == event


@pytest.mark.parametrize("payload", [{}, {"kind": "gossip"}, {"kind": "warning", "code": "x"}])
def test_anything_else_is_refused(payload: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        parse_event(payload)
