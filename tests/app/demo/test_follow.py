"""The progress bar tells what the events say and ends with the job."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console

from app.core.events import Evaluated, Event, PhaseProgress, RunStarted, StatusChanged, StepDone, Warned
from app.core.schemas import EventOut
from app.demo.api import DemoApi
from app.demo.follow import follow

STARTED = RunStarted(
    teacher_parameters=135,
    student_parameters=99,
    vocabulary_size=320,
    train_rows=8,
    dev_rows=2,
    max_steps=2,
    device="cpu",
    precision="float32",
)
STORY: Sequence[Event] = (
    StatusChanged(status="running"),
    PhaseProgress(phase="loading"),
    STARTED,
    Evaluated(step=0, metrics={"eval/kl_ts": 2.5, "eval/rouge_l": 0.25, "eval/loss": 9.0}),
    StepDone(
        step=1, max_steps=2, source="fresh", tokens=5, tokens_per_s=12.4, eta_s=30, metrics={"loss/sft": 1.25, "x/y": 7}
    ),
    Warned(code="x", message="the mask has collapsed"),
    StatusChanged(status="failed", code="out_of_memory", message="lower training.batch_size"),
)


class ToldApi(DemoApi):
    """Hands out two events per call instead of asking a service."""

    def events(self, job_id: str, *, after: int) -> Sequence[EventOut]:
        return [
            EventOut(seq=seq, attempt=1, created_at=datetime.now(UTC), event=event.model_dump(mode="json"))
            for seq, event in enumerate(STORY, start=1)
            if after < seq <= after + 2
        ]


def test_the_story_is_told_in_order_and_ends_with_the_job() -> None:
    console = Console(file=io.StringIO(), width=100)
    ticks: list[float] = []
    started = follow(ToldApi("http://127.0.0.1:1"), "job_1", console=console, tick=ticks.append)
    assert started == STARTED
    assert len(ticks) == 4  # two events a time
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    lines = [
        "step 0: held-out KL(teacher‖student) 2.500, ROUGE-L 0.250",
        "step 1/2: sft 1.250  12 tokens/s  30 s left",
        "warning: the mask has collapsed",
        "failed: lower training.batch_size",
    ]
    places = [told.index(line) for line in lines]
    assert places == sorted(places)
