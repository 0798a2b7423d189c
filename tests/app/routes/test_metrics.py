"""A run's curves, and the service's own numbers."""

from __future__ import annotations

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from app.core.db import events, jobs
from app.core.events import StepDone
from app.deps import Services


def samples(client: TestClient) -> dict[tuple[str, ...], float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


def test_curves_are_thinned_out_with_their_peaks(client: TestClient, services: Services, job_id: str) -> None:
    steps = [
        StepDone(
            step=i,
            max_steps=1000,
            source="fresh",
            tokens=1,
            tokens_per_s=1.0,
            eta_s=0.0,
            metrics={"loss/total": 99.0 if i == 333 else 1.0, "loss/sft": 0.5},
        )
        for i in range(1, 1001)
    ]
    with services.sessions.begin() as session:
        jobs.claim_next(session, worker="w", now=services.clock())
        events.append(session, job_id=job_id, attempt=1, events=steps, now=services.clock())
    answer = client.get(f"/v1/jobs/{job_id}/metrics", params={"max_points": 50}).json()
    curves = {series["name"]: series["points"] for series in answer["series"]}
    assert set(curves) == {"loss/total", "loss/sft"}
    assert len(curves["loss/total"]) <= 50
    assert [333, 99.0] in curves["loss/total"]
    assert (curves["loss/total"][0][0], curves["loss/total"][-1][0]) == (1, 1000)
    only = client.get(f"/v1/jobs/{job_id}/metrics", params={"names": ["loss/sft"]}).json()
    assert [series["name"] for series in only["series"]] == ["loss/sft"]


def test_a_job_without_steps_has_no_curves(client: TestClient, job_id: str) -> None:
    assert client.get(f"/v1/jobs/{job_id}/metrics").json() == {"series": []}


def test_requests_are_counted_by_route_and_jobs_by_status(client: TestClient, job_id: str) -> None:
    client.get(f"/v1/jobs/{job_id}")
    client.get("/v1/jobs/job_none")
    client.get("/wp-login.php")
    found = samples(client)
    assert found["stillhouse_jobs", "queued"] == 1
    assert found["stillhouse_jobs", "failed"] == 0
    assert found["stillhouse_http_requests_total", "GET", "/v1/jobs/{job_id}", "200"] == 1
    assert found["stillhouse_http_requests_total", "GET", "/v1/jobs/{job_id}", "404"] == 1
    assert found["stillhouse_http_requests_total", "GET", "unmatched", "404"] == 1
    assert found["stillhouse_http_request_seconds_count", "GET", "/v1/jobs/{job_id}"] == 2
