"""The demo: a real model distilled through the REST API, with a progress bar, numbers and answers side by side.

Knows the order of the story and when it counts as a success. Does not know how the service runs: it is handed `tick`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.core.compare_schemas import ComparisonOut
from app.core.errors import StillhouseError
from app.core.schemas import JobOut, ModelOut
from app.demo.api import DemoApi
from app.demo.follow import follow

_FOLDER = Path(__file__).parent
DATA = _FOLDER / "data.jsonl"
# The held-out divergence has to fall by this share, or the demo has shown nothing.
CLEAR_FALL = 0.10
# None of these is in the training data; the teacher answers each of them sensibly.
QUESTIONS: Sequence[str] = (
    "What is the capital of Italy, and what is it known for?",
    "What does a doctor do?",
    "Write two sentences about a cat that likes rain.",
)
ANSWER_TOKENS = 64


class DemoFailed(StillhouseError):
    """The job did not succeed, or did not clearly improve the student."""

    code = "demo_failed"


@dataclass(frozen=True, kw_only=True)
class Demo:
    """`tick` waits so many seconds and raises when the demo should stop; it is called in every waiting loop."""

    api: DemoApi
    console: Console
    tick: Callable[[float], None]
    storage_url: str

    def run(self, *, data: Path, job: Mapping[str, Any]) -> None:
        """Uploads `data`, submits `job` with it, follows, compares, prints. Raises DemoFailed or ApiFailed."""
        dataset = self.api.upload(data, name="demo")
        self._say(f"Data set {dataset.id}: {dataset.rows} prompts, {dataset.rows_with_response} with a response")
        described = {**job, "config": {**job["config"], "data": {**job["config"]["data"], "dataset_id": dataset.id}}}
        submitted = self.api.submit(described)
        self._say(f"Job {submitted.id}; teacher {job['config']['teacher']['model']}")
        self._tell(submitted.id)

    def _tell(self, job_id: str) -> None:
        started = follow(self.api, job_id, console=self.console, tick=self.tick)
        job = self.api.job(job_id)
        if job.student_id is None or started is None:
            raise DemoFailed(f"{job.id} ended as {job.status}: {job.error.message if job.error else 'no student'}")
        student = self.api.model(job.student_id)
        self._show_numbers(job, student, teacher_parameters=started.teacher_parameters)
        for question in QUESTIONS:
            self._show_answers(question, self._compare(question, job))
        check_fall(student.card["metrics"])

    def _show_numbers(self, job: JobOut, student: ModelOut, *, teacher_parameters: int) -> None:
        metrics, folder = student.card["metrics"], f"{self.storage_url}/{student.source}".removeprefix("file://")
        table = Table("", "before", "after", title=f"{job.id} → {student.id}")
        for name, words in (("kl_ts", "held-out KL(teacher‖student)"), ("rouge_l", "held-out ROUGE-L")):
            if f"after/eval/{name}" in metrics:
                table.add_row(words, *(f"{metrics[f'{when}/eval/{name}']:.4f}" for when in ("before", "after")))
        self.console.print(table)
        self._say(f"Parameters: teacher {teacher_parameters:,}, student {student.parameters:,}")
        self._say(f"Student's folder: {folder}")

    def _compare(self, question: str, job: JobOut) -> ComparisonOut:
        comparison = self.api.compare(
            {
                "model_ids": [job.teacher_id, job.untrained_id, job.student_id],
                "messages": [{"role": "user", "content": question}],
                "max_new_tokens": ANSWER_TOKENS,
            }
        )
        with self.console.status(f"asking: {question}"):
            while comparison.status not in ("succeeded", "failed"):
                self.tick(0.3)
                comparison = self.api.comparison(comparison.id)
        if comparison.error is not None:
            raise DemoFailed(f"{comparison.id} failed: {comparison.error.message}")
        return comparison

    def _show_answers(self, question: str, comparison: ComparisonOut) -> None:
        table = Table("", "answer", "tokens/s", title=question, show_lines=True, min_width=72)
        for who, answer in zip(("teacher", "untrained student", "distilled student"), comparison.answers, strict=True):
            table.add_row(who, answer.text.strip(), f"{answer.tokens_per_s:.0f}")
        self.console.print(table)

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, highlight=False)


def demo_job(*, teacher: str, max_steps: int | None) -> Mapping[str, Any]:
    """`job.json` with what only the run knows, but for the data set's id."""
    job = json.loads((_FOLDER / "job.json").read_text(encoding="utf-8"))
    job["config"]["teacher"] = {"model": teacher}
    if max_steps is not None:
        job["config"]["training"]["max_steps"] = max_steps
    return job


def check_fall(metrics: Mapping[str, float]) -> None:
    """Raises DemoFailed unless the held-out KL fell clearly."""
    before, after = metrics["before/eval/kl_ts"], metrics["after/eval/kl_ts"]
    if not after <= before * (1 - CLEAR_FALL):
        raise DemoFailed(
            f"the held-out KL(teacher‖student) did not fall clearly: {before:.4f} before, {after:.4f} after "
            f"(at least {CLEAR_FALL:.0%} expected)"
        )
