"""The schema that forms are made of."""

from __future__ import annotations

from fastapi.testclient import TestClient

from app.core.recipes import RECIPES


def test_schema_defaults_and_recipes(client: TestClient) -> None:
    answer = client.get("/v1/config/schema").json()
    training = answer["json_schema"]["$defs"]["TrainingConfig"]["properties"]
    assert training["batch_size"]["default"] == 8
    kinds = answer["json_schema"]["$defs"]["DacKlLoss"]["properties"]["kind"]
    assert kinds["const"] == "dac_kl"
    assert set(answer["recipes"]) == set(RECIPES)
