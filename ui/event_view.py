"""What the Progress tab remembers of a job's events: a value that grows page by page of the event stream.

Knows event kinds and how to say each in a line. Does not know HTTP or HTML. Bounded: a run of a million steps leaves a
view of the same size, since steps and phases fold into one line and only the newest samples are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from app.core.events import (
    CheckpointSaved,
    Correction,
    Evaluated,
    Event,
    PhaseProgress,
    Resumed,
    RunStarted,
    SampleDrawn,
    StatusChanged,
    StepDone,
    StudentExported,
    Warned,
    parse_event,
)
from app.core.schemas import EventOut
from ui.charts import label
from ui.text import count, number, size

MAX_LINES = 300
MAX_SAMPLES = 120
MAX_CORRECTIONS = 24
MAX_WARNINGS = 20
# Corrected tokens are counted by their place in the response: bins of so many tokens, the last one open.
ERROR_BIN = 8
ERROR_BINS = 64
PHASES = {
    "loading": "Loading models",
    "teacher_sft": "Fine-tuning the teacher",
    "teacher_responses": "Teacher writes responses",
    "teacher_states": "Teacher reads the data",
    "student_sft": "Fine-tuning the student",
    "evaluating": "Evaluating",
    "training": "Training",
    "exporting": "Exporting the student",
}


@dataclass(frozen=True)
class Line:
    """One line of the event log. Lines with the same `fold` that follow each other are one line, the latest."""

    seq: int
    at: datetime
    kind: str
    text: str
    fold: str = ""


@dataclass(frozen=True)
class EventView:
    """Everything seen up to event `cursor` of `job_id`, as far as the page shows it.

    `error_bins[i]` counts the corrections at tokens from `i * ERROR_BIN` on.
    """

    job_id: str = ""
    cursor: int = 0
    started: RunStarted | None = None
    phase: PhaseProgress | None = None
    step: StepDone | None = None
    exported: StudentExported | None = None
    samples: tuple[SampleDrawn, ...] = ()
    corrections: tuple[Correction, ...] = ()
    warnings: tuple[Warned, ...] = ()
    checkpoint: CheckpointSaved | None = None
    error_bins: tuple[int, ...] = ()
    lines: tuple[Line, ...] = ()


def fold(view: EventView, page: Sequence[EventOut]) -> EventView:
    """`view` after the events of `page`, which must follow its cursor."""
    for row in page:
        try:
            event = parse_event(row.event)
        except ValidationError:
            unknown = f"“{row.event.get('kind')}”: an event of a newer version than this page."
            view = _with_line(view, Line(row.seq, row.created_at, "unknown", unknown))
        else:
            view = _with_event(view, row, event)
        view = replace(view, cursor=row.seq)
    return view


def _with_event(view: EventView, row: EventOut, event: Event) -> EventView:
    view = replace(view, **_kept(view, event))
    said = _SAY[type(event)](event)
    if said is None:
        return view
    text, folds = said
    return _with_line(view, Line(row.seq, row.created_at, event.kind, text, folds))


def _kept(view: EventView, event: Event) -> dict[str, Any]:
    match event:
        case StatusChanged():
            # A second attempt starts over: what the first one reached is no longer where the run stands.
            return {"phase": None, "step": None} if event.status in ("queued", "running") else {"phase": None}
        case RunStarted():
            return {"started": event}
        case PhaseProgress():
            return {"phase": event}
        case StepDone():
            return {"step": event, "phase": None}
        case SampleDrawn():
            return {"samples": (*view.samples, event)[-MAX_SAMPLES:]}
        case Correction():
            kept = (*view.corrections, event)[-MAX_CORRECTIONS:]
            return {"corrections": kept, "error_bins": _counted(view.error_bins, event.error_position)}
        case CheckpointSaved():
            return {"checkpoint": event}
        case Warned():
            return {"warnings": (*view.warnings, event)[-MAX_WARNINGS:]}
        case StudentExported():
            return {"exported": event}
        case _:
            return {}


def _counted(bins: tuple[int, ...], position: int) -> tuple[int, ...]:
    place = min(position // ERROR_BIN, ERROR_BINS - 1)
    wide = (*bins, *([0] * (place + 1 - len(bins))))
    return (*wide[:place], wide[place] + 1, *wide[place + 1 :])


def _with_line(view: EventView, line: Line) -> EventView:
    lines = view.lines
    if lines and line.fold and lines[-1].fold == line.fold:
        lines = lines[:-1]
    return replace(view, lines=(*lines, line)[-MAX_LINES:])


def _say_status(event: StatusChanged) -> tuple[str, str]:
    reason = ": ".join(part for part in (event.code, event.message) if part)
    return f"Job is {event.status}" + (f" ({reason})" if reason else ""), ""


def _say_phase(event: PhaseProgress) -> tuple[str, str]:
    return phase_text(event), f"phase {event.phase}"


def _say_started(event: RunStarted) -> tuple[str, str]:
    models = f"teacher {count(event.teacher_parameters)}, student {count(event.student_parameters)} parameters"
    rows = f"{event.train_rows:,} rows to train on, {event.dev_rows:,} held out"
    return f"Started on {event.device} in {event.precision}: {models}; {rows}", ""


def _say_step(event: StepDone) -> tuple[str, str]:
    total = event.metrics.get("loss/total")
    loss = f", loss {number(total)}" if total is not None else ""
    return f"Step {event.step:,} of {event.max_steps:,} done{loss}", "step"


def _say_evaluated(event: Evaluated) -> tuple[str, str]:
    values = ", ".join(f"{label(name)} {number(value)}" for name, value in event.metrics.items())
    return f"Evaluated at step {event.step:,}: {values}", ""


def _say_exported(event: StudentExported) -> tuple[str, str]:
    return f"Student exported: {count(event.parameters)} parameters, weights {event.weights_sha256[:12]}", ""


def _say_checkpoint(event: CheckpointSaved) -> tuple[str, str]:
    best = ", the best so far" if event.best else ""
    return f"Checkpoint at step {event.step:,}: {size(event.bytes)}{best}", "checkpoint"


def _say_resumed(event: Resumed) -> tuple[str, str]:
    return f"Goes on from the checkpoint of step {event.step:,}", ""


# None: not worth a line, the Samples view shows it.
_SAY: dict[type, Callable[[Any], tuple[str, str] | None]] = {
    StatusChanged: _say_status,
    PhaseProgress: _say_phase,
    RunStarted: _say_started,
    StepDone: _say_step,
    Evaluated: _say_evaluated,
    SampleDrawn: lambda event: (f"Sample answers drawn at step {event.step:,}", f"sample {event.step}"),
    Correction: lambda event: None,
    CheckpointSaved: _say_checkpoint,
    Resumed: _say_resumed,
    Warned: lambda event: (f"{event.message} [{event.code}]", ""),
    StudentExported: _say_exported,
}


def phase_text(event: PhaseProgress) -> str:
    """`Teacher writes responses, 24 of 300`."""
    of = f", {event.done:,} of {event.total:,}" if event.total else ""
    return PHASES[event.phase] + of
