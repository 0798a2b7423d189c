"""Before a job runs: about how long it will take, and how much disk.

Knows a count of operations, what finished jobs of this installation took, and sizes. Does not know devices beyond the
names that workers report. With N parameters, a pass reads a token in 2N operations and learns from it in 6N (Kaplan et
al. 2020, Sec. 2.1); L is the mean row's length in tokens, of which stored rows have about one in four bytes.

    training     S L (6 N_student + 2 N_teacher)      S sequences in all steps; no teacher pass where no loss reads it,
                 nor over rows of the data whose states are kept: the given ones are read once instead
    sampling     share S G (2 N_student)              G = sampling.max_new_tokens, the most that may be sampled
    candidates   tried (2 N_student L + 2 N_teacher L)    rows that are looked at; kept states spare the teacher
                 tried (2 N_student G + 2 N_teacher L)    prompts that have no response, so that samples are compared
    correction   share S rounds (2 N_teacher L + N_student G)     half a response is written again, on average; where
                 the first mismatch is corrected, half of what the round before left
    responses    those that are missing, at their longest, by the teacher
    evaluation   the held-out rows by both models, and the answers that are written for ROUGE-L

Operations per second are the median of what the newest finished jobs reached, counted in the same way, so that much of
what the count simplifies cancels out. Until a job has finished they are assumed, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from app.core.db import datasets
from app.core.db.datasets import storage_key
from app.core.db.tables import Dataset, Job, Model, Worker
from app.core.errors import NotFound
from app.core.job_config import DistillConfig, ScrgConfig
from app.core.queue import TRAINING_QUEUE
from app.core.storage import ArtifactStore
from app.core.teacher_states import looks, reads_teacher, sampled_share, visits, worth_keeping

PAST_JOBS = 10
# Before anything was measured: what two cores of a server reach in float32, and a careful guess for an accelerator.
ASSUMED = {"cpu": 3e10, "accelerator": 3e13}
BYTES_PER_TOKEN = 4
# Of a stored row, braces and names; of a sequence, what a chat template adds.
ROW_OVERHEAD_BYTES, TEMPLATE_TOKENS = 70, 12


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the count of operations needs; lengths in tokens."""

    config: DistillConfig
    teacher_parameters: int
    student_parameters: int
    row_tokens: float
    rows: int
    missing_responses: int

    @property
    def keeps_states(self) -> bool:
        return worth_keeping(self.config, rows_to_read=self.rows - self.missing_responses)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """`basis` says in a sentence what `seconds` rests on."""

    seconds: float
    basis: str
    disk_bytes: dict[str, int]
    free_bytes: int | None


def look_ahead(
    session: Session,
    store: ArtifactStore,
    *,
    config: DistillConfig,
    dataset: Dataset,
    teacher_parameters: int,
    student_parameters: int,
    state_bytes: int,
    states_limit_bytes: int,
) -> Outlook:
    """`state_bytes`: of one of the teacher's states. Raises FileNotFoundError when the data set's rows are gone."""
    work = _work(store, config, dataset, teacher_parameters, student_parameters)
    speeds = _past_speeds(session, store, config.sampling.kind)
    if speeds:
        speed = median(speeds)
        jobs = "the last finished job" if len(speeds) == 1 else f"the last {len(speeds)} finished jobs"
        basis = f"An estimate from {jobs} of this kind here ({speed / 1e9:,.3g} GFLOP/s)."
    else:
        device = _device(session)
        speed = ASSUMED[device]
        basis = f"A guess: no job of this kind has finished here; {speed / 1e9:,.3g} GFLOP/s are assumed ({device})."
    return Outlook(
        seconds=operations(work) / speed,
        basis=basis,
        disk_bytes=disk_bytes(
            config,
            student_parameters=student_parameters,
            states=_states_bytes(work, state_bytes=state_bytes, limit_bytes=states_limit_bytes),
        ),
        free_bytes=store.free_bytes(),
    )


def operations(work: Work) -> float:
    """Floating-point operations of the whole run, by the module's formulas."""
    config, training, evaluation = work.config, work.config.training, work.config.evaluation
    teacher, student, length = work.teacher_parameters, work.student_parameters, work.row_tokens
    sequences = training.max_steps * training.batch_size * training.gradient_accumulation
    sampled, written = sampled_share(config) * sequences, config.sampling.max_new_tokens
    looked = looks(config)
    read = 0.0
    if reads_teacher(config):
        read = sequences + looked
        if work.keeps_states:
            read += work.rows - work.missing_responses - visits(config) - looked
    warmup = config.warmup
    passes = training.max_steps // evaluation.every_steps + 2
    held_out = config.data.dev_rows * length * 2 * student
    answers = min(evaluation.rouge_rows, config.data.dev_rows) * written * 2 * student
    return (
        sequences * length * 6 * student
        + read * length * 2 * teacher
        + sampled * written * 2 * student
        + looked * length * 2 * student
        + _prompts_tried(config, sampled) * (2 * student * written + 2 * teacher * length)
        + sampled * _halves_corrected(config.scrg) * (2 * teacher * length + student * written)
        + work.missing_responses * config.data.max_response_tokens * 2 * teacher
        + passes * (held_out + answers)
        + config.data.dev_rows * length * 2 * teacher
        + training.batch_size * length * 6 * (warmup.teacher_sft_steps * teacher + warmup.student_sft_steps * student)
    )


def disk_bytes(config: DistillConfig, *, student_parameters: int, states: int = 0) -> dict[str, int]:
    """The finished student in float32, and the checkpoints at their most: weights and AdamW's two moments each, those
    that are kept, the best, and the one that is being written; and the teacher's `states`, which a cache keeps."""
    kept = config.training.keep_last + 1 + (config.evaluation.select == "best")
    parts = {"student": 4 * student_parameters, "checkpoints": kept * 12 * student_parameters, "states": states}
    return {**parts, "total": sum(parts.values())}


def _states_bytes(work: Work, *, state_bytes: int, limit_bytes: int) -> int:
    """Of all response tokens, written ones at their most; 0 where they are not kept or would be too many."""
    longest = work.config.data.max_response_tokens
    given = min(work.row_tokens, longest)  # prompt and response: more than the response alone
    size = int((work.missing_responses * longest + (work.rows - work.missing_responses) * given) * state_bytes)
    return size if work.keeps_states and size <= limit_bytes else 0


def _halves_corrected(scrg: ScrgConfig) -> float:
    """How many halves of a response all rounds of correction read and write again."""
    return 2 - 0.5 ** (scrg.rounds - 1) if scrg.position == "first" else float(scrg.rounds)


def _prompts_tried(config: DistillConfig, sampled: float) -> float:
    """Prompts that the student answers only so that some are chosen, for `sampled` sequences of its own."""
    tried = config.sampling.candidates
    return sampled * tried if tried > 1 and config.data.responses == "student" else 0.0


def _work(
    store: ArtifactStore, config: DistillConfig, dataset: Dataset, teacher_parameters: int, student_parameters: int
) -> Work:
    """Raises FileNotFoundError when the rows are gone."""
    longest = config.data.max_prompt_tokens + config.data.max_response_tokens
    stored = store.size(storage_key(dataset.id)) / dataset.rows - ROW_OVERHEAD_BYTES
    without = dataset.rows - dataset.rows_with_response
    # Of `student` the held-out rows alone are completed.
    missing = {"teacher": dataset.rows, "given": without, "student": min(without, config.data.dev_rows)}[
        config.data.responses
    ]
    read = max(stored, 0) / BYTES_PER_TOKEN + TEMPLATE_TOKENS
    return Work(
        config=config,
        teacher_parameters=teacher_parameters,
        student_parameters=student_parameters,
        row_tokens=min(read + missing / dataset.rows * config.data.max_response_tokens, longest),
        rows=dataset.rows if config.data.responses != "student" else dataset.rows - without + missing,
        missing_responses=missing,
    )


def _past_speeds(session: Session, store: ArtifactStore, sampling_kind: str) -> Sequence[float]:
    """Operations per second of the newest jobs that succeeded, those of them that sampled in the same way."""
    teacher, student = aliased(Model), aliased(Model)
    query = (
        select(Job, teacher.parameters, student.parameters)
        .join(teacher, Job.teacher_id == teacher.id)
        .join(student, Job.untrained_id == student.id)
        .where(Job.status == "succeeded")
        .order_by(Job.id.desc())
        .limit(PAST_JOBS)
    )
    speeds = []
    for job, teacher_parameters, student_parameters in session.execute(query):
        if job.config["sampling"]["kind"] == sampling_kind and teacher_parameters and student_parameters:
            # A description of an older version, a data set that is gone: this job says nothing.
            with suppress(ValidationError, FileNotFoundError, NotFound, ZeroDivisionError):
                config = DistillConfig.stored(job.config)
                dataset = datasets.get(session, job.config["data"]["dataset_id"])
                work = _work(store, config, dataset, teacher_parameters, student_parameters)
                speeds.append(operations(work) / _seconds(job))
    return speeds


def _seconds(job: Job) -> float:
    """Running time without pauses."""
    begun = job.attempt_started_at or job.started_at
    last = (job.finished_at - begun).total_seconds() if job.finished_at and begun else 0.0
    return job.used_s + last


def _device(session: Session) -> str:
    """What the training workers say they compute on; the processor when none has said anything."""
    devices = set(session.scalars(select(Worker.device).where(Worker.queue.contains(TRAINING_QUEUE))))
    return "accelerator" if devices - {"cpu"} else "cpu"
