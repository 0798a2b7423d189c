"""How models are asked: each student by its job's template, the teacher as its students if they agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import jobs, models
from app.core.db.jobs import checkpoints_key
from app.core.errors import NotFound
from app.core.ids import new_id
from app.core.job_config import DistillConfig
from app.core.storage import ArtifactStore
from worker.distill.models import CheckpointedStudent
from worker.distill.training_state import WEIGHTS
from worker.model_sources import resolve

NOW = datetime.now(UTC)


@pytest.fixture
def ids(sessions: sessionmaker[Session], store: ArtifactStore) -> dict[str, str]:
    """A teacher, and an untrained student of a job for each template."""
    found = {}
    with sessions.begin() as session:
        found["teacher"] = models.ensure_teacher(session, source="some/teacher", parameters=None, now=NOW).id
        for template in ("chat", "alpaca", "plain"):
            config = DistillConfig.model_validate(
                {
                    "teacher": {"model": "some/teacher"},
                    "student": {"kind": "from_teacher", "layers": 2},
                    "data": {"kind": "dataset", "dataset_id": "ds_1", "template": template},
                    "scrg": {"position": "first"},
                }
            )
            job = jobs.create(session, name=template, config=config, priority=0, now=NOW)
            found[template] = models.create_untrained(
                session, job_id=job.id, name=template, source="some/teacher", parameters=None, now=NOW
            ).id
    return found


def templates(
    sessions: sessionmaker[Session], store: ArtifactStore, asked: Sequence[str], choice: str = "auto"
) -> list[str | None]:
    with sessions.begin() as session:
        return [one.template for one in resolve(session, store, asked, template=choice)]  # type: ignore[arg-type]


def test_a_student_is_asked_as_it_was_trained(
    sessions: sessionmaker[Session], store: ArtifactStore, ids: dict[str, str]
) -> None:
    asked = [ids["alpaca"], ids["plain"], ids["chat"]]
    assert templates(sessions, store, asked) == ["alpaca", "plain", "chat"]


def test_the_teacher_joins_students_that_agree(
    sessions: sessionmaker[Session], store: ArtifactStore, ids: dict[str, str]
) -> None:
    assert templates(sessions, store, [ids["teacher"], ids["alpaca"]]) == ["alpaca", "alpaca"]
    assert templates(sessions, store, [ids["teacher"], ids["alpaca"], ids["plain"]]) == [None, "alpaca", "plain"]
    assert templates(sessions, store, [ids["teacher"]]) == [None]


def test_a_template_that_is_asked_for_is_everybodys(
    sessions: sessionmaker[Session], store: ArtifactStore, ids: dict[str, str]
) -> None:
    assert templates(sessions, store, [ids["teacher"], ids["alpaca"]], "plain") == ["plain", "plain"]


def test_a_students_card_outlives_its_job_but_its_files_must_be_there(
    sessions: sessionmaker[Session], store: ArtifactStore, ids: dict[str, str]
) -> None:
    student_id = new_id("mdl")
    with sessions.begin() as session:
        models.create_student(
            session,
            model_id=student_id,
            job_id="job_gone",
            name="n",
            parameters=1,
            weights_sha256="ab",
            card={"config": {"data": {"template": "alpaca"}, "scrg": {"teacher_token": "greedy"}}},
            now=NOW,
        )
    with pytest.raises(NotFound, match=student_id), sessions.begin() as session:
        resolve(session, store, [student_id], template="auto")
    with store.open(f"{models.storage_key(student_id)}/config.json", "w") as file:
        file.write("{}")
    with sessions.begin() as session:
        (found,) = resolve(session, store, [student_id], template="auto")
    assert (found.template, found.scrg.teacher_token, found.weights_sha256) == ("alpaca", "greedy", "ab")


def put_checkpoint(store: ArtifactStore, job_id: str, step: int, *, tuned: bool = False) -> None:
    folder = f"{checkpoints_key(job_id)}/1"
    moment = {"step": step, "phase": "training", "training_events": step, "best_step": None}
    manifest = {"moment": moment, "files": {WEIGHTS: {"bytes": 1, "sha256": "ab" * 32}}}
    files = {f"step-{step:08d}/{WEIGHTS}": "w", f"step-{step:08d}/manifest.json": json.dumps(manifest)}
    for name, content in (files | ({"teacher/config.json": "{}"} if tuned else {})).items():
        with store.open(f"{folder}/{name}", "w") as file:
            file.write(content)


@pytest.mark.parametrize("url", ["file://{folder}", "memory://{folder}"])
def test_a_checkpoint_is_asked_as_its_job_trained_it(
    sessions: sessionmaker[Session], ids: dict[str, str], tmp_path: Path, url: str
) -> None:
    """In a store that is no folder the weights are fetched. Its shape is the job's teacher's, of a tuned one first."""
    store = ArtifactStore(url.format(folder=tmp_path / "store"), cache_folder=tmp_path / "cache")
    with sessions.begin() as session:
        job_id = str(models.get(session, ids["alpaca"]).job_id)
        put_checkpoint(store, job_id, 20)
        (found,) = resolve(session, store, [f"{job_id}@20"], template="auto")
        put_checkpoint(store, job_id, 40, tuned=True)
        (tuned,) = resolve(session, store, [f"{job_id}@40"], template="auto")
    assert (found.kind, found.template, found.scrg.position) == ("checkpoint", "alpaca", "first")
    assert isinstance(found.source, CheckpointedStudent)
    assert (found.source.teacher, found.source.sha256) == ("some/teacher", "ab" * 32)
    assert (Path(found.source.folder) / WEIGHTS).read_text() == "w"
    assert isinstance(tuned.source, CheckpointedStudent)
    assert (Path(tuned.source.teacher) / "config.json").is_file()


def test_what_is_gone_is_named_by_its_place(
    sessions: sessionmaker[Session], store: ArtifactStore, ids: dict[str, str]
) -> None:
    with sessions.begin() as session:
        job_id = models.get(session, ids["chat"]).job_id
        for missing in (f"{job_id}@20", "job_none@20", "mdl_none"):
            with pytest.raises(NotFound) as raised:
                resolve(session, store, [ids["teacher"], missing], template="auto", field="model_ids")
            assert raised.value.field == "model_ids.1"
