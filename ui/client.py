"""HTTP client of the REST API: one method per call, typed by app.core.schemas.

Knows paths, time limits and problem+json. Does not know Gradio, nor where the API is (an httpx.Client is handed in).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from app.core.compare_schemas import (
    BatchOut,
    BatchRow,
    ComparisonLine,
    ComparisonOut,
    DivergenceOut,
    VotesOut,
)
from app.core.preview_schemas import DatasetRow, PreviewOut
from app.core.schemas import (
    CheckpointOut,
    CheckpointsOut,
    ConfigSchemaOut,
    DatasetOut,
    DryRunOut,
    EventOut,
    JobOut,
    MetricsOut,
    ModelOut,
    Page,
    Problem,
)

T = TypeVar("T", bound=BaseModel)
UNREACHABLE = "unreachable"
# A dry run may read a hub's answer or a large GGUF header; an upload is read row by row before it answers.
SLOW_S = 120.0


@dataclass(frozen=True)
class FieldProblem:
    """One `errors[]` entry: the field's dotted path (`config.student.layers`) and what is wrong with it."""

    path: str
    message: str


class ApiProblem(Exception):
    """Anything but a good answer. `code` is the API's own (or `unreachable`, `bad_answer`), `status` 0 without HTTP."""

    def __init__(self, code: str, detail: str, *, status: int = 0, errors: Sequence[FieldProblem] = ()) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.errors = tuple(errors)


def make_http(api_url: str) -> httpx.Client:
    """The client that talks to `api_url`. The environment's proxies are not asked: the API is a neighbour."""
    return httpx.Client(base_url=api_url, timeout=httpx.Timeout(10.0, connect=3.0), trust_env=False)


class StillhouseClient:
    """Every method raises ApiProblem and nothing else. Safe to share between threads, as httpx.Client is."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    @property
    def url(self) -> str:
        return str(self._http.base_url)

    def config_schema(self) -> ConfigSchemaOut:
        return self._call(ConfigSchemaOut, "GET", "/v1/config/schema")

    def datasets(self, *, limit: int = 100) -> Sequence[DatasetOut]:
        return self._call(Page[DatasetOut], "GET", "/v1/datasets", params={"limit": limit}).data

    def upload_dataset(self, file: Path, *, name: str) -> DatasetOut:
        with file.open("rb") as content:
            return self._call(
                DatasetOut,
                "POST",
                "/v1/datasets",
                files={"file": (file.name, content)},
                data={"name": name},
                timeout=SLOW_S,
            )

    def dataset_rows(self, dataset_id: str, *, limit: int = 3) -> Page[DatasetRow]:
        return self._call(Page[DatasetRow], "GET", f"/v1/datasets/{segment(dataset_id)}/rows", params={"limit": limit})

    def preview(self, dataset_id: str, request: Mapping[str, Any]) -> PreviewOut:
        """`request` has PreviewIn's fields."""
        path = f"/v1/datasets/{segment(dataset_id)}/preview"
        return self._call(PreviewOut, "POST", path, json=request, timeout=SLOW_S)

    def dry_run(self, job: Mapping[str, Any]) -> DryRunOut:
        return self._call(DryRunOut, "POST", "/v1/jobs", params={"dry_run": True}, json=job, timeout=SLOW_S)

    def submit(self, job: Mapping[str, Any], *, idempotency_key: str) -> JobOut:
        headers = {"Idempotency-Key": idempotency_key}
        return self._call(JobOut, "POST", "/v1/jobs", json=job, headers=headers, timeout=SLOW_S)

    def jobs(self, *, limit: int = 50, status: str = "", q: str = "", after: str = "") -> Page[JobOut]:
        """Newest first, behind the job `after`; `q` is looked for in names and more, empty filters take all."""
        wanted = {name: value for name, value in (("status", status), ("q", q), ("after", after)) if value}
        return self._call(Page[JobOut], "GET", "/v1/jobs", params={"limit": limit, **wanted})

    def job(self, job_id: str) -> JobOut:
        return self._call(JobOut, "GET", f"/v1/jobs/{segment(job_id)}")

    def cancel(self, job_id: str) -> JobOut:
        return self._call(JobOut, "POST", f"/v1/jobs/{segment(job_id)}/cancel")

    def pause(self, job_id: str) -> JobOut:
        return self._call(JobOut, "POST", f"/v1/jobs/{segment(job_id)}/pause")

    def resume(self, job_id: str) -> JobOut:
        return self._call(JobOut, "POST", f"/v1/jobs/{segment(job_id)}/resume")

    def retry(self, job_id: str, *, from_checkpoint: bool) -> JobOut:
        body = {"from_checkpoint": from_checkpoint}
        return self._call(JobOut, "POST", f"/v1/jobs/{segment(job_id)}/retry", json=body)

    def delete_job(self, job_id: str) -> None:
        self._answer("DELETE", f"/v1/jobs/{segment(job_id)}")

    def checkpoints(self, job_id: str) -> Sequence[CheckpointOut]:
        """Newest first."""
        return self._call(CheckpointsOut, "GET", f"/v1/jobs/{segment(job_id)}/checkpoints").data

    def events(self, job_id: str, *, after: int, limit: int) -> Page[EventOut]:
        """Oldest first, those with seq > `after`."""
        params = {"after": after, "limit": limit}
        return self._call(Page[EventOut], "GET", f"/v1/jobs/{segment(job_id)}/events", params=params)

    def metrics(self, job_id: str, *, max_points: int) -> MetricsOut:
        return self._call(MetricsOut, "GET", f"/v1/jobs/{segment(job_id)}/metrics", params={"max_points": max_points})

    def models(self, *, limit: int = 100, kind: str = "") -> Sequence[ModelOut]:
        """Newest first; an empty `kind` takes all."""
        wanted = {"kind": kind} if kind else {}
        return self._call(Page[ModelOut], "GET", "/v1/models", params={"limit": limit, **wanted}).data

    def model(self, model_id: str) -> ModelOut:
        return self._call(ModelOut, "GET", f"/v1/models/{segment(model_id)}")

    def compare(self, request: Mapping[str, Any]) -> ComparisonOut:
        """`request` has ComparisonIn's fields; the API says what is wrong with them, by path."""
        return self._call(ComparisonOut, "POST", "/v1/comparisons", json=request)

    def comparison(self, comparison_id: str) -> ComparisonOut:
        return self._call(ComparisonOut, "GET", f"/v1/comparisons/{segment(comparison_id)}")

    def comparisons(self, *, limit: int = 30) -> Page[ComparisonLine]:
        """Newest first."""
        return self._call(Page[ComparisonLine], "GET", "/v1/comparisons", params={"limit": limit})

    def stop_comparison(self, comparison_id: str) -> ComparisonOut:
        return self._call(ComparisonOut, "POST", f"/v1/comparisons/{segment(comparison_id)}/cancel")

    def vote(self, comparison_id: str, choice: str) -> ComparisonOut:
        body = {"choice": choice}
        return self._call(ComparisonOut, "POST", f"/v1/comparisons/{segment(comparison_id)}/vote", json=body)

    def votes(self) -> VotesOut:
        return self._call(VotesOut, "GET", "/v1/votes/summary")

    def divergence(self, comparison_id: str, request: Mapping[str, str]) -> DivergenceOut:
        """Asked for once, then kept: repeat it until it has ended. `request` has DivergenceIn's fields."""
        path = f"/v1/comparisons/{segment(comparison_id)}/divergence"
        return self._call(DivergenceOut, "POST", path, json=request)

    def start_batch(self, request: Mapping[str, Any]) -> BatchOut:
        """`request` has BatchIn's fields."""
        return self._call(BatchOut, "POST", "/v1/batches", json=request)

    def batches(self, *, limit: int = 20) -> Page[BatchOut]:
        """Newest first."""
        return self._call(Page[BatchOut], "GET", "/v1/batches", params={"limit": limit})

    def batch(self, batch_id: str) -> BatchOut:
        return self._call(BatchOut, "GET", f"/v1/batches/{segment(batch_id)}")

    def batch_rows(self, batch_id: str, *, sort: str, limit: int) -> Page[BatchRow]:
        params = {"sort": sort, "limit": limit}
        return self._call(Page[BatchRow], "GET", f"/v1/batches/{segment(batch_id)}/rows", params=params)

    def cancel_batch(self, batch_id: str) -> BatchOut:
        return self._call(BatchOut, "POST", f"/v1/batches/{segment(batch_id)}/cancel")

    def rename_model(self, model_id: str, name: str) -> ModelOut:
        return self._call(ModelOut, "PATCH", f"/v1/models/{segment(model_id)}", json={"name": name})

    def delete_model(self, model_id: str) -> None:
        self._answer("DELETE", f"/v1/models/{segment(model_id)}")

    @contextmanager
    def download(self, path: str) -> Iterator[httpx.Response]:
        """A file of the API, open and not read yet; `path` is one of this client's making."""
        try:
            with self._http.stream("GET", path, timeout=SLOW_S) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _problem(answer)
                yield answer
        except httpx.HTTPError as error:
            raise ApiProblem(UNREACHABLE, f"{self.url} does not answer ({type(error).__name__}).") from error

    def _answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise ApiProblem(UNREACHABLE, f"{self.url} does not answer ({type(error).__name__}).") from error
        if not answer.is_success:
            raise _problem(answer)
        return answer

    def _call(self, shape: type[T], method: str, path: str, **request: Any) -> T:
        answer = self._answer(method, path, **request)
        try:
            return TypeAdapter(shape).validate_json(answer.content)
        except ValidationError as error:
            message = f"{path} answered in a shape this page does not know; are API and UI of one version?"
            raise ApiProblem("bad_answer", message, status=answer.status_code) from error


def segment(identifier: str) -> str:
    """An id from the address bar must not reach another route: `..` and `/` never name a job."""
    if not identifier or not identifier.replace("_", "").isalnum():
        raise ApiProblem("not_found", f"“{identifier[:60]}” is not an id.", status=404)
    return identifier


def _problem(answer: httpx.Response) -> ApiProblem:
    """RFC 9457 problem+json; another body (a proxy's page) still gives a readable problem."""
    try:
        told = Problem.model_validate_json(answer.content)
    except ValidationError:
        return ApiProblem("http_error", f"The API answered {answer.status_code}.", status=answer.status_code)
    errors = [FieldProblem(".".join(map(str, item.loc)), item.msg) for item in told.errors]
    return ApiProblem(told.code, told.detail, status=answer.status_code, errors=errors)
