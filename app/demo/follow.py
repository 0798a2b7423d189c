"""A running job as a progress bar: phase, step, loss, tokens per second, time left, all from its events.

Knows events and rich. Does not know how a job was submitted or what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from app.core.events import Evaluated, Event, PhaseProgress, RunStarted, StatusChanged, StepDone, Warned, parse_event
from app.demo.api import DemoApi

PHASES: Mapping[str, str] = {
    "loading": "loading models",
    "teacher_sft": "fine-tuning the teacher",
    "teacher_responses": "teacher writes responses",
    "teacher_states": "teacher reads the data",
    "student_sft": "fine-tuning the student",
    "evaluating": "evaluating",
    "training": "training",
    "exporting": "writing the student",
}
ENDED = frozenset({"succeeded", "failed", "cancelled"})


def follow(api: DemoApi, job_id: str, *, console: Console, tick: Callable[[float], None]) -> RunStarted | None:
    """Shows the job until it ended; returns what it said about its models' sizes, if it came so far.

    `tick` waits so many seconds (and raises when the demo should stop).
    """
    started, status, seen = None, "queued", 0
    bar = _Bar(console)
    with Live(bar.picture, console=console):
        while status not in ENDED:
            tick(0.3)
            for row in api.events(job_id, after=seen):
                seen, event = row.seq, parse_event(row.event)
                if isinstance(event, StatusChanged):
                    status = event.status
                elif isinstance(event, RunStarted):
                    started = event
                bar.show(event)
    return started


class _Bar:
    """The bar, and below it the newest step's numbers: together they would not fit into 80 columns."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("waiting for the worker", total=None)
        self._note = Text()
        self.picture = Group(self._progress, self._note)

    def show(self, event: Event) -> None:
        """What changes stays in the picture; what stays true (evaluations, warnings) becomes a line above it."""
        if isinstance(event, PhaseProgress):
            words, total = PHASES[event.phase], event.total or None
            self._progress.update(self._task, description=words, completed=event.done, total=total)
            self._note.plain = ""
        elif isinstance(event, StepDone):
            self._progress.update(self._task, description="training", completed=event.step, total=event.max_steps)
            self._note.plain = _step_note(event)
            if not self._console.is_terminal and event.step % max(1, event.max_steps // 10) == 0:
                self._console.print(f"  step {event.step}/{event.max_steps}: {self._note}", soft_wrap=True)
        elif isinstance(event, Evaluated):
            self._console.print(f"  step {event.step}: held-out {_metrics_note(event.metrics)}")
        elif isinstance(event, Warned):
            self._console.print(f"  warning: {event.message}", style="yellow")
        elif isinstance(event, StatusChanged) and event.message:
            self._console.print(f"  {event.status}: {event.message}", style="yellow")


def _step_note(event: StepDone) -> str:
    losses = " ".join(
        f"{name.removeprefix('loss/')} {value:.3f}" for name, value in event.metrics.items() if name.startswith("loss/")
    )
    return f"{losses}  {event.tokens_per_s:.0f} tokens/s  {event.eta_s:.0f} s left"


def _metrics_note(metrics: Mapping[str, Any]) -> str:
    wanted = {"eval/kl_ts": "KL(teacher‖student)", "eval/rouge_l": "ROUGE-L"}
    return ", ".join(f"{words} {metrics[name]:.3f}" for name, words in wanted.items() if name in metrics)
