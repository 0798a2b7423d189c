"""Checkpoints as panes, with files that the trainer's own code wrote: the right weights, or a clear end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import BatchIn, DivergenceIn, DivergenceOut
from app.core.db import batches, comparison_view, divergences, models
from app.core.db.jobs import checkpoints_key
from app.core.job_config import FromTeacherStudent
from app.core.storage import ArtifactStore
from tests.worker.comparing import NOW, ask, read
from worker.comparisons import ComparisonRunner
from worker.distill.checkpoint import CheckpointFolder, Moment
from worker.distill.compare import ModelCache
from worker.distill.export import weights_sha256
from worker.distill.models import build_student, load_model, load_tokenizer
from worker.distill.training_state import WEIGHTS, trained_tensors, write_state
from worker.judging import work

CPU = torch.device("cpu")
LAYERS = FromTeacherStudent(layers=3)


@dataclass(frozen=True)
class Job:
    """The job of the fixture `model_ids`, and where its first attempt keeps checkpoints."""

    id: str
    teacher: Path
    folder: Path

    def save(self, step: int, *, moved: int | None = None, keep_last: int = 9) -> str:
        """A checkpoint of the job's student, all weights moved by so many thousandths (or by `step`); their hash."""
        student = build_student(LAYERS, load_model(str(self.teacher), device=CPU), load_tokenizer(str(self.teacher)))
        with torch.no_grad():
            for parameter in student.parameters():
                parameter += (moved or step) / 1000
        CheckpointFolder(self.folder, keep_last=keep_last).save(
            Moment(phase="training", step=step, training_events=step),
            about={},
            needed_bytes=1,
            write=lambda folder: write_state(folder, weights=trained_tensors(student), state={}),
        )
        return weights_sha256(student)

    def pane(self, step: int) -> str:
        return f"{self.id}@{step}"


@pytest.fixture
def job(sessions: sessionmaker[Session], store: ArtifactStore, model_ids: Sequence[str], tiny_teacher: Path) -> Job:
    with sessions.begin() as session:
        job_id = str(models.get(session, model_ids[1]).job_id)
    folder = store.local_folder(checkpoints_key(job_id))
    assert folder is not None
    return Job(job_id, tiny_teacher, folder / "1")


def test_each_pane_has_the_weights_of_its_step(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str], job: Job
) -> None:
    saved = {step: job.save(step) for step in (20, 40)}
    panes = [model_ids[0], model_ids[1], job.pane(20), job.pane(40)]
    comparison_id = ask(sessions, panes)
    runner.run_next(worker="w")
    found = read(sessions, comparison_id)
    assert (found.status, found.error_message) == ("succeeded", None)
    assert [answer["model_id"] for answer in found.answers] == panes
    _teacher, untrained, early, late = found.answers
    assert [early["weights_sha256"], late["weights_sha256"]] == [saved[20], saved[40]]
    assert len({answer["weights_sha256"] for answer in found.answers}) == 4
    assert early["parameters"] == late["parameters"] == untrained["parameters"]
    assert early["template"] == "chat"


def test_other_weights_in_the_same_place_are_another_model(
    runner: ComparisonRunner, sessions: sessionmaker[Session], job: Job
) -> None:
    """A job that was started anew writes step 20 again: nothing that was kept in memory may stand for it."""
    hashes = []
    for moved in (20, 21):
        hashes.append(job.save(20, moved=moved))
        comparison_id = ask(sessions, [job.pane(20)])
        runner.run_next(worker="w")
        assert read(sessions, comparison_id).answers[0]["weights_sha256"] == hashes[-1]
    assert hashes[0] != hashes[1]


def altered(job: Job) -> None:
    path = job.folder / "step-00000020" / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def thinned_away(job: Job) -> None:
    job.save(40, keep_last=1)


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        (altered, "model_unreadable", "not what was written"),
        (thinned_away, "not_found", r"model_ids.1: .* no checkpoint of step 20 \(any more\): it has those of steps 40"),
    ],
)
def test_a_checkpoint_that_is_not_what_was_asked_for_is_not_shown(
    runner: ComparisonRunner,
    sessions: sessionmaker[Session],
    model_ids: Sequence[str],
    job: Job,
    what: Callable[[Job], None],
    code: str,
    said: str,
) -> None:
    job.save(20)
    comparison_id = ask(sessions, [model_ids[0], job.pane(20)])
    what(job)
    runner.run_next(worker="w")
    found = read(sessions, comparison_id)
    assert (found.status, found.error_code, found.answers) == ("failed", code, [])
    assert re.search(said, found.error_message)


def test_one_that_goes_while_it_is_about_to_be_read_is_told_with_its_cure(
    sessions: sessionmaker[Session], store: ArtifactStore, model_ids: Sequence[str], job: Job
) -> None:
    job.save(20)

    class LateCache(ModelCache):
        def get(self, source):  # type: ignore[no-untyped-def]
            thinned_away(job)
            return super().get(source)

    comparison_id = ask(sessions, [job.pane(20)])
    ComparisonRunner(sessions=sessions, store=store, cache=LateCache, heartbeat_s=0.05).run_next(worker="w")
    found = read(sessions, comparison_id)
    assert (found.status, found.error_code) == ("failed", "not_found")
    assert "training.keep_last" in found.error_message


def test_one_that_was_read_answers_to_its_end_though_its_files_go(
    sessions: sessionmaker[Session], store: ArtifactStore, job: Job
) -> None:
    """Weights lie in memory: what a running comparison has read, no thinning takes away."""
    saved = job.save(20)

    class EarlyCache(ModelCache):
        def get(self, source):  # type: ignore[no-untyped-def]
            loaded = super().get(source)
            thinned_away(job)
            return loaded

    comparison_id = ask(sessions, [job.pane(20)])
    ComparisonRunner(sessions=sessions, store=store, cache=EarlyCache, heartbeat_s=0.05).run_next(worker="w")
    found = read(sessions, comparison_id)
    assert not (job.folder / "step-00000020").exists()
    assert (found.status, found.answers[0]["weights_sha256"]) == ("succeeded", saved)


def test_a_checkpoint_is_read_token_by_token_and_only_while_it_is_the_same(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str], job: Job
) -> None:
    saved = job.save(20)
    comparison_id = ask(sessions, [model_ids[0], job.pane(20)])
    runner.run_next(worker="w")

    def reading(teacher_id: str, student_id: str) -> DivergenceOut:
        wanted = DivergenceIn(of=job.pane(20), teacher_id=teacher_id, student_id=student_id)
        with sessions.begin() as session:
            row, _ = divergences.ask(session, comparison_id=comparison_id, request=wanted, now=NOW)
        assert runner.run_next(worker="w") == row.id
        with sessions.begin() as session:
            return comparison_view.as_divergence(divergences.get(session, row.id))

    found = reading(model_ids[0], job.pane(20)).result
    assert found is not None
    assert found.student_weights_sha256 == saved
    assert len(found.tokens) == read(sessions, comparison_id).answers[1]["tokens"]
    job.save(20, moved=21)  # the job was started anew
    error = reading(job.pane(20), model_ids[0]).error
    assert error is not None
    assert (error.code, "compare again" in error.message) == ("conflict", True)


def test_a_batch_measures_a_checkpoint_against_the_teacher(
    runner: ComparisonRunner, sessions: sessionmaker[Session], model_ids: Sequence[str], job: Job
) -> None:
    job.save(20)
    request = BatchIn(dataset_id="ds_1", model_ids=[model_ids[0], job.pane(20)], max_new_tokens=6)
    row = batches.DataRow(messages=[{"role": "user", "content": "the dog"}], reference="the dog sings")
    with sessions.begin() as session:
        batch_id = batches.create(session, request=request, rows=[row], now=NOW)[0].id
    assert work(runner, worker="w") == 1
    with sessions.begin() as session:
        (done,) = batches.rows(session, batch_id)
    assert [score.model_id for score in done.scores] == [model_ids[0], job.pane(20)]
    kl = done.scores[1].kl
    assert kl is not None
    assert kl > 0
