"""Model rows: one per teacher, and those that a job makes."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app.core.db import models
from app.core.errors import NotFound
from app.core.ids import new_id
from tests.app.conftest import Clock, at_once

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
