"""/v1/jobs/{id}/metrics (a run's curves) and /metrics (the service's own, for Prometheus)."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from app.core.db import curves, jobs
from app.core.schemas import JobStatus, MetricsOut
from app.deps import ServicesDep
from app.errors import problems

router = APIRouter()


@router.get("/v1/jobs/{job_id}/metrics", tags=["jobs"], response_model=MetricsOut, responses=problems(404, 422))
def read_metrics(
    services: ServicesDep,
    job_id: str,
    names: Annotated[list[str] | None, Query(description="Only these, e.g. loss/total; repeat for more.")] = None,
    max_points: Annotated[int, Query(ge=4, le=10_000, description="Of each curve.")] = 500,
) -> Response:
    """One curve per metric, thinned out so that every peak stays."""
    with services.readers.begin() as session:
        jobs.get(session, job_id)
        found = curves.read(session, job_id=job_id, names=names, max_points=max_points)
    # Written here: FastAPI would look at each of ten thousand points in Python.
    return Response(MetricsOut.model_construct(series=found).model_dump_json(), media_type="application/json")


@router.get("/metrics", tags=["health"], response_class=Response)
def read_service_metrics(services: ServicesDep, request: Request) -> Response:
    """Requests by route and jobs by status, in Prometheus' text format."""
    with services.readers.begin() as session:
        counts = jobs.count_by_status(session)
    fresh = CollectorRegistry()  # of this answer alone: any process that is asked reads the database
    gauge = Gauge("stillhouse_jobs", "Jobs by status.", ["status"], registry=fresh)
    for status in get_args(JobStatus):
        gauge.labels(status).set(counts.get(status, 0))
    text = generate_latest(request.app.state.registry) + generate_latest(fresh)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
