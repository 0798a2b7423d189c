from __future__ import annotations

import pytest

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.tabs import divergence


@pytest.fixture
def ids(api: StillhouseClient, seeded: SeededService) -> list[str]:
    return list(api.comparison(seeded.ids.comparison).request.model_ids)


def test_the_students_answer_is_offered_with_its_pair(
    api: StillhouseClient, seeded: SeededService, ids: list[str]
) -> None:
    found = divergence.choices(api, seeded.ids.comparison)
    assert [found[name]["value"] for name in divergence.CHOICES] == [ids[2], ids[0], ids[2]]
    assert [value for _, value in found["of"]["choices"]] == ids
    assert divergence.choices(api, "")["of"]["choices"] == []


def test_a_kept_reading_is_shown_and_a_new_one_is_waited_for(
    api: StillhouseClient, seeded: SeededService, ids: list[str]
) -> None:
    kept = divergence.read(api, seeded.ids.comparison, [ids[2], ids[0], ids[2]])
    assert "sh-tokens" in kept["view"]
    assert not kept["timer"].active
    new = divergence.read(api, seeded.ids.comparison, [ids[0], ids[0], ids[1]])
    assert "read the answer" in new["view"]
    assert new["timer"].active


def test_what_cannot_be_read_is_said(api: StillhouseClient, nobody: StillhouseClient, seeded: SeededService) -> None:
    refused = divergence.read(api, seeded.ids.comparison, ["mdl_x", "mdl_y", "mdl_z"])
    assert "cannot be read" in refused["view"]
    assert not refused["timer"].active
    assert divergence.read(api, "", [None, None, None])["view"] == divergence.divergence.EMPTY
    assert set(divergence.read(nobody, "cmp_1", ["a", "b", "c"])) == {"banner"}


def test_without_answers_nothing_is_chosen() -> None:
    assert divergence.default_pair([], {}) == {"of": None, "teacher_id": None, "student_id": None}
    assert divergence.default_pair(["mdl_a", "job_1@20"], {})["student_id"] == "job_1@20"
