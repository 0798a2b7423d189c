"""Error answers: one shape, stable codes, paths without pydantic's own words."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from app.core.errors import Cancelled, Conflict, InvalidRequest, NotFound, TooManyLayers
from app.core.schemas import Problem
from app.errors import field_path, install_error_handlers


@pytest.fixture
def raising() -> tuple[FastAPI, TestClient]:
    app = FastAPI()
    install_error_handlers(app)
    return app, TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFound("no job"), 404, "not_found"),
        (Conflict("it ended"), 409, "conflict"),
        (InvalidRequest("bad"), 422, "invalid_request"),
        (TooManyLayers("too many", "student.layers"), 422, "too_many_layers"),
        (OperationalError("SELECT", {}, Exception("gone")), 503, "unavailable"),
        (Cancelled("should not get here"), 500, "internal_error"),
        (ZeroDivisionError("secret detail"), 500, "internal_error"),
    ],
)
def test_every_error_is_a_problem(
    raising: tuple[FastAPI, TestClient], error: Exception, status: int, code: str
) -> None:
    app, client = raising

    @app.get("/")
    def fail() -> None:
        raise error

    answer = client.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = Problem.model_validate(answer.json())
    assert (problem.status, problem.code) == (status, code)
    assert "secret" not in answer.text


def test_a_dotted_field_becomes_a_path(raising: tuple[FastAPI, TestClient]) -> None:
    app, client = raising

    @app.get("/")
    def fail() -> None:
        raise InvalidRequest("bad", "config.losses.1.weight")

    assert client.get("/").json()["errors"] == [
        {"loc": ["config", "losses", 1, "weight"], "msg": "bad", "type": "invalid_request"}
    ]


def test_unknown_paths_and_methods(raising: tuple[FastAPI, TestClient]) -> None:
    app, client = raising
    app.get("/known")(lambda: None)
    unknown, wrong = client.get("/unknown"), client.delete("/known")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["code"], wrong.headers["allow"]) == (405, "method_not_allowed", "GET")


@pytest.mark.parametrize(
    ("loc", "body", "path"),
    [
        (("student", "from_teacher", "layers"), {"student": {"kind": "from_teacher"}}, ["student", "layers"]),
        (("losses", 0, "sft", "weight"), {"losses": [{"kind": "sft", "weight": 0}]}, ["losses", 0, "weight"]),
        (("student", "layers"), {"student": {"layers": 1}}, ["student", "layers"]),
        (("a", "kind"), {"a": {"kind": "kind"}}, ["a", "kind"]),
        (("a", 3, "b"), {"a": []}, ["a", 3, "b"]),
        (("a", "b"), {"a": "text"}, ["a", "b"]),
        (("a",), None, ["a"]),
    ],
)
def test_union_tags_are_no_fields(loc: tuple[str | int, ...], body: Any, path: list[str | int]) -> None:
    assert field_path(loc, body) == path
