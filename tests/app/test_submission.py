"""Warnings of a dry run; refusals are tested over HTTP (routes/test_jobs.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from app import submission
from app.core.db import datasets
from app.core.storage import ArtifactStore
from tests.app.conftest import Clock, make_config

Sessions = sessionmaker[Session]


@pytest.fixture
def complete(sessions: Sessions, clock: Clock) -> None:
    """The data set ds_1: 40 rows, each with a response."""
    with sessions.begin() as session:
        datasets.create(
            session,
            dataset_id="ds_1",
            name="n",
            format="prompt_response",
            rows=40,
            rows_with_response=40,
            problems=[],
            sha256="ab",
            now=clock(),
        )


@pytest.mark.usefixtures("complete")
@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({}, None),
        ({"data": {"responses": "teacher"}}, "writes all 40 responses"),
        ({"data": {"max_prompt_tokens": 200}}, "prompts longer than 128 tokens"),
        ({"student": {"layers": 4}}, "as large as its teacher"),
    ],
)
def test_warnings(
    sessions: Sessions, tiny_teacher: Path, tmp_path: Path, sections: dict[str, Any], words: str | None
) -> None:
    store = ArtifactStore(f"file://{tmp_path}")
    with store.open("datasets/ds_1.jsonl", "wb") as rows:
        rows.write(b"{}\n" * 40)
    config = make_config(
        teacher={"model": str(tiny_teacher)},
        student={"kind": "from_teacher", "layers": 1, **sections.get("student", {})},
        data={"kind": "dataset", "dataset_id": "ds_1", "max_prompt_tokens": 64, **sections.get("data", {})},
    )
    checked = submission.check(config, sessions=sessions)
    with sessions.begin() as session:
        warnings = submission.dry_run(session, checked, store=store).warnings
    assert len(warnings) == (words is not None)
    assert words is None or words in warnings[0]
