"""Model rows: one per teacher, and those that a job makes."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.compare_schemas import ChatMessage, ComparisonIn
from app.core.db import comparisons, jobs, models
from app.core.errors import Conflict, NotFound
from app.core.ids import new_id
from tests.app.conftest import Clock, at_once, make_config

Sessions = sessionmaker[Session]


def test_a_teacher_has_one_row_however_many_ask(sessions: Sessions, clock: Clock) -> None:
    def ask() -> str:
        with sessions.begin() as session:
            return models.ensure_teacher(session, source="some/teacher", parameters=7_000_000_000, now=clock()).id

    made = at_once(ask, 6)
    assert len(set(made)) == 1
    with sessions.begin() as session:
        assert models.ensure_teacher(session, source="another", parameters=None, now=clock()).id not in made
        assert models.get(session, made[0]).parameters == 7_000_000_000  # more than 32 bits


def test_students_of_a_job(sessions: Sessions, clock: Clock) -> None:
    student_id = new_id("mdl")
    with sessions.begin() as session:
        teacher = models.ensure_teacher(session, source="t", parameters=9, now=clock())
        untrained = models.create_untrained(
            session, job_id="job_1", name="n (untrained)", source="t", parameters=5, now=clock()
        )
        models.create_student(
            session,
            model_id=student_id,
            job_id="job_1",
            name="n",
            parameters=5,
            weights_sha256="ab",
            card={"after/eval/kl_ts": 0.5},
            now=clock(),
        )
        ids = [teacher.id, untrained.id]
    with sessions.begin() as session:
        shape = models.as_shape(session, models.get(session, student_id))
        assert (shape.kind, shape.source, shape.weights_sha256) == ("student", f"students/{student_id}", "ab")
        assert shape.card == {"after/eval/kl_ts": 0.5}
        assert models.storage_key(student_id) == shape.source
        made, _ = models.list_page(session, kind=None, job_id="job_1", limit=10, after=None)
        assert {model.id for model in made} == {student_id, ids[1]}
        teachers, _ = models.list_page(session, kind="teacher", job_id=None, limit=10, after=None)
        assert [model.id for model in teachers] == [ids[0]]
        with pytest.raises(NotFound):
            models.get(session, "mdl_none")


def test_a_student_is_renamed_and_deleted_unless_something_needs_it(sessions: Sessions, clock: Clock) -> None:
    with sessions.begin() as session:
        job = jobs.create(session, name="n", config=make_config(), priority=0, now=clock())
        teacher = models.ensure_teacher(session, source="t", parameters=9, now=clock())
        untrained = models.create_untrained(session, job_id=job.id, name="n", source="t", parameters=5, now=clock())
        student = models.create_student(
            session,
            model_id=new_id("mdl"),
            job_id=job.id,
            name="n",
            parameters=5,
            weights_sha256="ab",
            card={},
            now=clock(),
        )
        job.teacher_id, job.untrained_id, job.student_id = teacher.id, untrained.id, student.id
        job.status = "succeeded"
        asked = ComparisonIn(model_ids=[student.id], messages=[ChatMessage(role="user", content="hi")])
        waiting = comparisons.create(session, request=asked, now=clock()).id
    with sessions.begin() as session:
        assert models.rename(session, model_id=student.id, name="better").name == "better"
        assert models.as_shape(session, models.get(session, student.id)).teacher_id == teacher.id
        models.note_speed(session, {student.id: 12.5})
        assert models.get(session, student.id).tokens_per_s == 12.5
    for model_id, why in ((student.id, waiting), (untrained.id, "delete the job"), (teacher.id, job.id)):
        with pytest.raises(Conflict, match=why), sessions.begin() as session:
            models.delete(session, model_id)
    with sessions.begin() as session:
        comparisons.request_cancel(session, comparison_id=waiting, now=clock())
        models.delete(session, student.id)
    with sessions.begin() as session:
        assert jobs.get(session, job.id).student_id is None
        with pytest.raises(NotFound):
            models.get(session, student.id)
