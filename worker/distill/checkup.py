"""One evaluation of a student: all the measures that a job's `evaluation` section asks for.

Knows which measures there are and what each needs. Does not know when it is called or what is done with the numbers.
Every random number comes from a generator of its own, so an evaluation changes no run that it is part of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from app.core.job_config import EvaluationConfig
from app.core.prompt_encoder import PromptEncoder
from worker.distill.answers import Answered, answer_metrics, answer_rows, over_seeds
from worker.distill.assembly import Assembly
from worker.distill.data import Row
from worker.distill.evaluate import HeldOut, evaluate
from worker.distill.exposure import own_sample_metrics
from worker.distill.generate import SamplingSettings
from worker.distill.models import SplitModel
from worker.distill.objective import Objective


@dataclass(frozen=True)
class CheckUp:
    """Metrics by name (`eval/...`), and the greedy answers to the first `rouge_rows` held-out prompts."""

    metrics: dict[str, float]
    answers: list[Answered]


@dataclass(frozen=True)
class Examiner:
    """How a student is examined: the same teacher, rows, limits and seeds for all that are to be compared.

    `settings` gives the length limit and the end tokens; temperature and top-p are the measures' own.
    """

    teacher: SplitModel
    held_out: HeldOut
    objective: Objective
    encoder: PromptEncoder
    settings: SamplingSettings
    evaluation: EvaluationConfig
    batch_size: int
    chunk_positions: int | None
    # Called before each round of sampling: an evaluation may take long, and someone may want to see that it is alive.
    on_round: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, run: Assembly, *, on_round: Callable[[], None] = lambda: None) -> Examiner:
        """As the job's description says."""
        return cls(
            teacher=run.teacher,
            held_out=run.held_out,
            objective=run.objective,
            encoder=run.encoder,
            settings=run.settings,
            evaluation=run.config.evaluation,
            batch_size=run.config.training.batch_size,
            chunk_positions=run.chunk_positions,
            on_round=on_round,
        )

    def examine(self, student: SplitModel) -> CheckUp:
        """Teacher-forced measures and greedy answers always; sampled ones if `temperatures` or `own_samples` say so.

        Sampled ones are `eval/t<temperature>/<measure>` and `eval/<measure>` of `own_sample_metrics`, each a mean over
        `seeds` seeds, with `<name>_std` beside it when there is more than one.
        """
        metrics = evaluate(
            self.teacher, student, self.held_out, objective=self.objective, chunk_positions=self.chunk_positions
        )
        rows = self.held_out.rows[: self.evaluation.rouge_rows]
        if not rows:
            return CheckUp(metrics, [])
        answers = self._answers(student, rows, temperature=0.0, seed=0)
        metrics |= self._answer_metrics(answers)
        own = self._samples(student, rows, 1.0) if self.evaluation.own_samples else []
        for temperature in self.evaluation.temperatures:
            sampled = own if own and temperature == 1 else self._samples(student, rows, temperature)
            found = over_seeds([self._answer_metrics(samples) for samples in sampled])
            metrics |= {f"eval/t{temperature:g}/{name.removeprefix('eval/')}": value for name, value in found.items()}
        if own:
            metrics |= self._own_sample_metrics(student, own)
        return CheckUp(metrics, answers)

    @cached_property
    def _teacher_samples(self) -> list[list[Answered]]:
        """One list per seed, drawn once: they are the same for every student."""
        return self._samples(self.teacher, self.held_out.rows[: self.evaluation.rouge_rows], 1.0)

    def _own_sample_metrics(self, student: SplitModel, own: Sequence[list[Answered]]) -> dict[str, float]:
        return over_seeds(
            [
                own_sample_metrics(
                    self.teacher,
                    student,
                    student_samples=student_samples,
                    teacher_samples=teacher_samples,
                    batch_size=self.batch_size,
                    pad_id=self.settings.pad_id,
                )
                for student_samples, teacher_samples in zip(own, self._teacher_samples, strict=True)
            ]
        )

    def _samples(self, lm: SplitModel, rows: Sequence[Row], temperature: float) -> list[list[Answered]]:
        """One list of answers per seed."""
        return [self._answers(lm, rows, temperature=temperature, seed=seed) for seed in range(self.evaluation.seeds)]

    def _answers(self, lm: SplitModel, rows: Sequence[Row], *, temperature: float, seed: int) -> list[Answered]:
        self.on_round()
        return answer_rows(
            lm,
            rows,
            encoder=self.encoder,
            settings=replace(self.settings, temperature=temperature, top_p=1.0, ignore_eos=False),
            batch_size=self.batch_size,
            seed=seed,
        )

    def _answer_metrics(self, answers: Sequence[Answered]) -> dict[str, float]:
        return answer_metrics(answers, eos_ids=self.settings.eos_ids, exact_match=self.evaluation.exact_match)
