"""Turns errors into RFC 9457 answers (application/problem+json) with a stable `code`.

Knows which class of error has which HTTP status, and how a pydantic location becomes a path in the request. Does not
know what routes do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from app.core.errors import Conflict, InvalidRequest, NotFound, StillhouseError
from app.core.schemas import Problem, ProblemItem

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T", bound=BaseModel)

MEDIA_TYPE = "application/problem+json"
_PROBLEM_REF = "#/components/schemas/Problem"
_STATUSES: Mapping[type[StillhouseError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
}


class PayloadTooLarge(HTTPException):
    """Raised while a body is being read, where only HTTP exceptions pass through."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request is larger than {limit_bytes / 2**20:g} MiB; split the file",
        )


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: the error answers it may give."""
    return {status: {"model": Problem, "description": HTTPStatus(status).phrase} for status in statuses}


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(StillhouseError, _stillhouse_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(OperationalError, _database_away)
    app.add_exception_handler(PoolTimeout, _database_away)
    app.add_exception_handler(Exception, _unexpected)


def as_problem(request: Request, error: Exception) -> JSONResponse:
    """The answer to an error that a route meets, for one that answers in another shape."""
    if isinstance(error, StillhouseError):
        return _stillhouse_error(request, error)
    if isinstance(error, RequestValidationError):
        return _validation_error(request, error)
    return _http_exception(request, error)


def problem_media_type(app: FastAPI) -> None:
    """Makes the OpenAPI description say application/problem+json for error answers, as they are sent."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        is_new = app.openapi_schema is None
        schema = described()
        if is_new:
            operations = (operation for path in schema["paths"].values() for operation in path.values())
            for answer in (answer for operation in operations for answer in operation["responses"].values()):
                content = answer.get("content", {})
                if content.get("application/json", {}).get("schema", {}).get("$ref") == _PROBLEM_REF:
                    content[MEDIA_TYPE] = content.pop("application/json")
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def validated(shape: type[T], body: Mapping[str, Any]) -> T:
    """`body` as a `shape`, refused like the body of a request: for requests that a route completes itself."""
    try:
        return shape.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError([{**e, "loc": ("body", *e["loc"])} for e in error.errors()], body=body) from error


def field_path(loc: Sequence[str | int], body: Any) -> list[str | int]:
    """pydantic's `loc` as a path in `body`. pydantic also names the union member it tried (`student`, `from_teacher`,
    `layers`); that tag is the value of the object's own `kind`, not one of its keys, so walking the body finds it."""
    path: list[str | int] = []
    current = body
    for part in loc:
        if isinstance(current, Mapping):
            if part not in current and part == current.get("kind"):
                continue
            current = current.get(part)
        elif isinstance(current, list) and isinstance(part, int) and part < len(current):
            current = current[part]
        else:
            current = None
        path.append(part)
    return path


def _answer(
    status: int, *, code: str, detail: str, errors: Sequence[ProblemItem] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, code=code, errors=errors)
    return JSONResponse(problem.model_dump(mode="json"), status, headers=headers, media_type=MEDIA_TYPE)


def _stillhouse_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StillhouseError)
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), None)
    if status is None:  # one that no route should let through
        return _unexpected(request, error)
    items = []
    if error.field is not None:
        loc = [int(part) if part.isdigit() else part for part in error.field.split(".")]
        items = [ProblemItem(loc=loc, msg=error.message, type=error.code)]
    return _answer(status, code=error.code, detail=str(error), errors=items)


def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    items = []
    for raw in _without_echoes(error.errors()):
        where, *loc = raw["loc"]  # where: body, query, path or header
        path = field_path(loc, error.body if where == "body" else None)
        if raw["type"] in ("union_tag_invalid", "union_tag_not_found"):
            path.append("kind")
        items.append(ProblemItem(loc=path, msg=raw["msg"].removeprefix("Value error, "), type=raw["type"]))
    detail = "; ".join(f"{'.'.join(map(str, item.loc)) or 'request'}: {item.msg}" for item in items)
    return _answer(HTTPStatus.UNPROCESSABLE_ENTITY, code="invalid_request", detail=detail, errors=items)


def _without_echoes(errors: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """pydantic counts only the valid elements of a tuple, so a bad element also makes it "too short"."""
    for error in errors:
        loc = error["loc"]
        inner = any(len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in errors)
        if not (error["type"] == "too_short" and inner):
            yield error


def _http_exception(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_").replace("-", "_")
    return _answer(error.status_code, code=code, detail=str(error.detail), headers=error.headers)


def _database_away(_request: Request, error: Exception) -> JSONResponse:
    log.error("the database does not answer", error=repr(error))
    detail = "the database does not answer; try again, and see /readyz"
    return _answer(HTTPStatus.SERVICE_UNAVAILABLE, code="unavailable", detail=detail, headers={"Retry-After": "5"})


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error", method=request.method, path=request.url.path, exc_info=error)
    detail = "an error that nobody expected; the service's log has the traceback"
    return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, code="internal_error", detail=detail)
