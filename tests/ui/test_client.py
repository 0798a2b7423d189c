from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from app.core.compare_schemas import Answer
from tests.ui.conftest import SeededService
from ui.client import UNREACHABLE, ApiProblem, FieldProblem, StillhouseClient


def test_reads_jobs_newest_first(api: StillhouseClient, seeded: SeededService) -> None:
    page = api.jobs(limit=2)
    assert [job.id for job in page.data] == [seeded.ids.queued, seeded.ids.running]
    assert page.has_more


def test_reads_everything_of_a_job(api: StillhouseClient, seeded: SeededService) -> None:
    job_id = seeded.ids.succeeded
    assert api.job(job_id).status == "succeeded"
    assert "loss/total" in {one.name for one in api.metrics(job_id, max_points=100).series}
    first = api.events(job_id, after=0, limit=3)
    assert ([row.seq for row in first.data], first.has_more) == ([1, 2, 3], True)
    assert api.events(job_id, after=3, limit=1).data[0].seq == 4


def test_reads_data_sets_models_and_comparisons(api: StillhouseClient, seeded: SeededService) -> None:
    assert seeded.ids.dataset in [one.id for one in api.datasets()]
    comparison = api.comparison(seeded.ids.comparison)
    assert isinstance(comparison.answers[0], Answer)
    assert api.model(comparison.request.model_ids[0]) in api.models()
    assert "properties" in api.config_schema().json_schema


def test_uploads_a_file(api: StillhouseClient, tiny_rows: Path) -> None:
    found = api.upload_dataset(tiny_rows, name="mine")
    assert (found.name, found.rows, found.format) == ("mine", 24, "messages")


def test_a_refusal_names_its_fields(api: StillhouseClient) -> None:
    job = {"name": "x", "config": {"teacher": {"model": "t"}, "student": {"kind": "from_teacher", "layers": 0}}}
    with pytest.raises(ApiProblem) as caught:
        api.dry_run(job)
    assert (caught.value.code, caught.value.status) == ("invalid_request", 422)
    paths = [error.path for error in caught.value.errors]
    assert "config.student.layers" in paths
    assert "config.data" in paths
    assert isinstance(caught.value.errors[0], FieldProblem)


def test_conflict_and_missing_keep_their_codes(api: StillhouseClient, seeded: SeededService) -> None:
    with pytest.raises(ApiProblem) as conflict:
        api.cancel(seeded.ids.succeeded)
    assert (conflict.value.code, conflict.value.status) == ("conflict", 409)
    with pytest.raises(ApiProblem) as missing:
        api.job("job_00000000000000000000000000")
    assert (missing.value.code, missing.value.status) == ("not_found", 404)


@pytest.mark.parametrize("identifier", ["", "..", "a/b", "job_1?x=1", "%2e%2e", "<script>"])
def test_no_id_from_the_address_reaches_another_route(api: StillhouseClient, identifier: str) -> None:
    with pytest.raises(ApiProblem, match="is not an id"):
        api.job(identifier)


def test_nobody_there(nobody: StillhouseClient) -> None:
    with pytest.raises(ApiProblem) as caught:
        nobody.jobs()
    assert (caught.value.code, caught.value.status) == (UNREACHABLE, 0)
    assert nobody.url in caught.value.detail


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (httpx.Response(502, text="<html>Bad gateway</html>"), "http_error"),
        (httpx.Response(200, text="<html>Welcome</html>"), "bad_answer"),
        (httpx.Response(200, json={"data": [{"id": 1}], "has_more": False}), "bad_answer"),
    ],
)
def test_an_answer_of_something_else_is_a_problem_too(answer: httpx.Response, code: str) -> None:
    http = httpx.Client(base_url="http://api", transport=httpx.MockTransport(lambda request: answer))
    with pytest.raises(ApiProblem) as caught:
        StillhouseClient(http).jobs()
    assert caught.value.code == code
