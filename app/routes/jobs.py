"""/v1/jobs: submit, list, read, cancel. Knows HTTP; `submission` checks, `core.db.jobs` stores."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse

from app import submission
from app.core.db import jobs
from app.core.schemas import DryRunOut, JobIn, JobOut, JobStatus, Page
from app.deps import AfterQuery, LimitQuery, ServicesDep
from app.errors import problems

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_REPLAY_OR_DRY_RUN = {"model": JobOut | DryRunOut, "description": "The job of an earlier request, or a dry run."}


@router.post("", status_code=201, response_model=JobOut, responses={200: _REPLAY_OR_DRY_RUN, **problems(409, 422)})
def submit_job(
    services: ServicesDep,
    job_in: JobIn,
    response: Response,
    dry_run: Annotated[bool, Query(description="Only check, and estimate parameters and memory.")] = False,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> Response | JobOut:
    """Queue a job. A request that is repeated with its Idempotency-Key answers 200 and the job it made before."""
    if dry_run:
        checked = submission.check(job_in.config, sessions=services.sessions)
        return JSONResponse(submission.dry_run(checked).model_dump(mode="json"))
    with services.sessions.begin() as session:
        earlier = submission.find_replay(session, job_in, idempotency_key=idempotency_key)
    if earlier is not None:
        response.status_code = 200
        return jobs.as_shape(earlier)
    checked = submission.check(job_in.config, sessions=services.sessions)
    with services.sessions.begin() as session:
        job = submission.store(session, job_in, checked, idempotency_key=idempotency_key, now=services.clock())
        job_out = jobs.as_shape(job)
    services.doorbell.ring_training(job_out.id)
    return job_out


@router.get("", responses=problems(422))
def list_jobs(
    services: ServicesDep,
    status: Annotated[JobStatus | None, Query(description="Only jobs in this status.")] = None,
    limit: LimitQuery = 100,
    after: AfterQuery = None,
) -> Page[JobOut]:
    """Newest first."""
    with services.sessions.begin() as session:
        rows, has_more = jobs.list_page(session, status=status, limit=limit, after=after)
        return Page(data=[jobs.as_shape(row) for row in rows], has_more=has_more)


@router.get("/{job_id}", responses=problems(404, 422))
def read_job(services: ServicesDep, job_id: str) -> JobOut:
    with services.sessions.begin() as session:
        return jobs.as_shape(jobs.get(session, job_id))


@router.post("/{job_id}/cancel", responses=problems(404, 409, 422))
def cancel_job(services: ServicesDep, job_id: str) -> JobOut:
    """A queued job is cancelled at once; a running one stops at its next step. 409 when it has ended."""
    with services.sessions.begin() as session:
        return jobs.as_shape(jobs.request_cancel(session, job_id=job_id, now=services.clock()))
