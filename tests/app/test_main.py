"""The contract: what OpenAPI promises is what is answered, for generated requests too."""

from __future__ import annotations

from typing import Any

import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from app.deps import Services
from app.main import create_app

EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def test_generated_requests_are_answered_as_described(services: Services) -> None:
    """schemathesis makes requests from the description, valid and invalid ones, and checks status, headers and body."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(services=services))
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:

        @EXAMPLES
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            # A schema cannot say that a file holds rows or a model exists: those are 422 and tested route by route.
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        check()


def test_errors_are_described_as_problems(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    described = paths["/v1/jobs"]["post"]["responses"]
    assert set(described) == {"200", "201", "409", "422"}
    for status in ("409", "422"):
        assert list(described[status]["content"]) == ["application/problem+json"]
    every = [answer for path in paths.values() for call in path.values() for answer in call["responses"].values()]
    assert not any("HTTPValidationError" in str(answer) for answer in every)
