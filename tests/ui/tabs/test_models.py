from __future__ import annotations

from tests.ui.conftest import SeededService
from tests.ui.seed import HOSTILE
from ui.client import StillhouseClient
from ui.tabs import models
from ui.text import esc


def student_of(api: StillhouseClient, job_id: str) -> str:
    return api.job(job_id).student_id or ""


def test_every_student_has_a_card(api: StillhouseClient, seeded: SeededService) -> None:
    found = models.read(api)["cards"]
    assert found.count("<article") == 2
    assert esc(HOSTILE) in found
    assert "<script" not in found


def test_the_pair_is_the_teacher_and_the_student(api: StillhouseClient, seeded: SeededService) -> None:
    student = student_of(api, seeded.ids.succeeded)
    assert models.pair(api, student) == [api.job(seeded.ids.succeeded).teacher_id, student]
    assert models.pair(api, "mdl_gone") == ["mdl_gone"]


def test_renaming_and_deleting(api: StillhouseClient, seeded: SeededService) -> None:
    student = student_of(api, seeded.ids.hostile)
    assert models.act(api, student, "rename", "<i>new</i>") == ""
    assert "&lt;i&gt;new&lt;/i&gt;" in models.read(api)["cards"]
    used = student_of(api, seeded.ids.succeeded)  # the seeded batch has a row that waits
    refused = models.act(api, used, "delete", "")
    assert "could not be deleted" in refused
    assert seeded.ids.batch in refused
    assert models.act(api, student, "delete", "") == ""
    assert models.read(api)["cards"].count("<article") == 1


def test_an_api_that_is_away_gets_a_banner(nobody: StillhouseClient) -> None:
    assert set(models.read(nobody)) == {"banner"}
