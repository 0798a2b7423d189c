from __future__ import annotations

from tests.ui.conftest import SeededService
from ui.client import StillhouseClient
from ui.model_names import kind_of, label_of, labelled, list_of_models


def test_kinds_and_names(api: StillhouseClient, seeded: SeededService) -> None:
    models = {model.id: model for model in api.models()}
    labels = [label_of(one, models) for one in models]
    assert "Teacher: SmolLM2-135M-Instruct" in labels
    assert "Untrained student: sky 10 layers" in labels
    assert "Student: sky 10 layers" in labels
    assert label_of(f"{seeded.ids.succeeded}@1200", models) == "Checkpoint: sky 10 layers · step 1,200"


def test_what_nobody_knows_is_called_by_its_id() -> None:
    assert (kind_of("A", {}), label_of("A", {})) == (None, "A")
    assert label_of("job_1@20", {}) == "Checkpoint: job_1 · step 20"


def test_those_of_one_name_are_told_apart(api: StillhouseClient) -> None:
    twice = [one for model in api.models() if model.kind == "untrained" for one in (model, model)]
    renamed = {f"mdl_00000{i}": model for i, model in enumerate(twice)}
    assert [label.endswith(f" · {one[-6:]}") for label, one in labelled(list(renamed), renamed)] == [True] * len(twice)
    assert labelled(["job_aaaaaa1@20", "job_aaaaaa1@40"], {})[1][0] == "Checkpoint: job_aaaaaa1 · step 40"


def test_a_list_to_choose_from_has_the_checkpoints_that_are_chosen(api: StillhouseClient) -> None:
    models = api.models()
    found = list_of_models(models, [models[0].id, "job_1@20", "job_1@20", "mdl_gone"])
    assert [one for _, one in found] == [*(model.id for model in models), "job_1@20"]
