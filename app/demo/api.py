"""The few REST calls of the demo, typed by app.core.schemas.

Knows paths and problem+json. Does not know what the demo tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from app.core.compare_schemas import ComparisonOut
from app.core.errors import StillhouseError
from app.core.schemas import DatasetOut, EventOut, JobOut, ModelOut, Page

T = TypeVar("T", bound=BaseModel)
# A submission reads the teacher's header, on a fresh machine from the hub.
TIMEOUT_S = 120.0


class ApiFailed(StillhouseError):
    """The API answered with a problem (the message holds it), or did not answer."""

    code = "api_failed"


class DemoApi:
    """Every method raises ApiFailed, and nothing else."""

    def __init__(self, base_url: str) -> None:
        # The environment's proxies are not asked: the API is on this machine.
        self._http = httpx.Client(base_url=base_url, timeout=TIMEOUT_S, trust_env=False)

    def upload(self, file: Path, *, name: str) -> DatasetOut:
        with file.open("rb") as content:
            return self._call(DatasetOut, "POST", "/v1/datasets", files={"file": content}, data={"name": name})

    def submit(self, job: Mapping[str, Any]) -> JobOut:
        return self._call(JobOut, "POST", "/v1/jobs", json=job)

    def job(self, job_id: str) -> JobOut:
        return self._call(JobOut, "GET", f"/v1/jobs/{job_id}")

    def events(self, job_id: str, *, after: int) -> Sequence[EventOut]:
        params = {"after": after, "limit": 100}
        return self._call(Page[EventOut], "GET", f"/v1/jobs/{job_id}/events", params=params).data

    def model(self, model_id: str) -> ModelOut:
        return self._call(ModelOut, "GET", f"/v1/models/{model_id}")

    def compare(self, request: Mapping[str, Any]) -> ComparisonOut:
        return self._call(ComparisonOut, "POST", "/v1/comparisons", json=request)

    def comparison(self, comparison_id: str) -> ComparisonOut:
        return self._call(ComparisonOut, "GET", f"/v1/comparisons/{comparison_id}")

    def _call(self, shape: type[T], method: str, path: str, **request: Any) -> T:
        try:
            answer = self._http.request(method, path, **request)
        except httpx.TransportError as error:
            raise ApiFailed(f"{method} {path}: no answer ({error}); see logs/api.log in the state folder") from error
        if not answer.is_success:
            raise ApiFailed(f"{method} {path} was refused with {answer.status_code}: {answer.text}")
        return shape.model_validate_json(answer.content)
