"""/v1/jobs: submit, clone, list, read, and everything a person does to one.

Knows HTTP; `submission` checks, `core.db.jobs` stores, `core.db.job_requests` knows which status allows what.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse

from app import checkpoints, submission
from app.core.db import job_requests, jobs
from app.core.schemas import CheckpointsOut, CloneIn, DryRunOut, JobIn, JobOut, JobStatus, Page, RetryIn
from app.deps import AfterQuery, LimitQuery, Services, ServicesDep
from app.errors import problems, validated

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
KeyHeader = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=200)]
_REPLAY = {"model": JobOut, "description": "The job of an earlier request."}
_REPLAY_OR_DRY_RUN = {"model": JobOut | DryRunOut, "description": "The job of an earlier request, or a dry run."}


@router.post("", status_code=201, response_model=JobOut, responses={200: _REPLAY_OR_DRY_RUN, **problems(409, 422)})
def submit_job(
    services: ServicesDep,
    job_in: JobIn,
    response: Response,
    dry_run: Annotated[bool, Query(description="Only check, and estimate parameters, memory, time and disk.")] = False,
    idempotency_key: KeyHeader = None,
) -> Response | JobOut:
    """Queue a job. A request that is repeated with its Idempotency-Key answers 200 and the job it made before."""
    if dry_run:
        checked = submission.check(job_in.config, sessions=services.sessions)
        with services.sessions.begin() as session:
            found = submission.dry_run(
                session, checked, store=services.store, states_limit_bytes=services.states_limit_bytes
            )
        return JSONResponse(found.model_dump(mode="json"))
    return _submit(services, job_in, response, idempotency_key)


def _submit(services: Services, job_in: JobIn, response: Response, idempotency_key: str | None) -> JobOut:
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
    q: Annotated[str | None, Query(max_length=200, description="Part of a name or id, in any case.")] = None,
    limit: LimitQuery = 100,
    after: AfterQuery = None,
) -> Page[JobOut]:
    """Newest first."""
    with services.readers.begin() as session:
        rows, has_more = jobs.list_page(session, status=status, q=q, limit=limit, after=after)
        return Page(data=[jobs.as_shape(row) for row in rows], has_more=has_more)


@router.get("/{job_id}", responses=problems(404, 422))
def read_job(services: ServicesDep, job_id: str) -> JobOut:
    with services.readers.begin() as session:
        return jobs.as_shape(jobs.get(session, job_id))


@router.get("/{job_id}/checkpoints", responses=problems(404, 422))
def list_checkpoints(services: ServicesDep, job_id: str) -> CheckpointsOut:
    """What the job could go on from, newest first."""
    with services.readers.begin() as session:
        jobs.get(session, job_id)
    return CheckpointsOut(data=checkpoints.of_job(services.store, job_id))


@router.post("/{job_id}/cancel", responses=problems(404, 409, 422))
def cancel_job(services: ServicesDep, job_id: str) -> JobOut:
    """A queued or paused job is cancelled at once; a running one stops at its next step. 409 when it has ended."""
    with services.sessions.begin() as session:
        return jobs.as_shape(job_requests.request_cancel(session, job_id=job_id, now=services.clock()))


@router.post("/{job_id}/pause", responses=problems(404, 409, 422))
def pause_job(services: ServicesDep, job_id: str) -> JobOut:
    """A queued job is paused at once; a running one keeps a checkpoint, stops at its next step and frees its device.
    409 for any other."""
    with services.sessions.begin() as session:
        return jobs.as_shape(job_requests.request_pause(session, job_id=job_id, now=services.clock()))


@router.post("/{job_id}/resume", responses=problems(404, 409, 422))
def resume_job(services: ServicesDep, job_id: str) -> JobOut:
    """Queues a paused job again; it goes on from its last checkpoint. 409 for any other."""
    with services.sessions.begin() as session:
        job_out = jobs.as_shape(job_requests.resume(session, job_id=job_id, now=services.clock()))
    return _rung(services, job_out)


@router.post("/{job_id}/retry", responses=problems(404, 409, 422))
def retry_job(services: ServicesDep, job_id: str, how: RetryIn | None = None) -> JobOut:
    """Queues a failed or cancelled job again, from its last checkpoint or from nothing. 409 for any other."""
    how = how or RetryIn()
    with services.sessions.begin() as session:
        job = job_requests.retry(session, job_id=job_id, from_checkpoint=how.from_checkpoint, now=services.clock())
        if not how.from_checkpoint:
            # Before the commit: nobody may claim the job while what it must not go on from is still there.
            services.store.delete(jobs.checkpoints_key(job_id))
        job_out = jobs.as_shape(job)
    return _rung(services, job_out)


@router.post("/{job_id}/clone", status_code=201, responses={200: _REPLAY, **problems(404, 409, 422)})
def clone_job(
    services: ServicesDep,
    job_id: str,
    changes: CloneIn,
    response: Response,
    idempotency_key: KeyHeader = None,
) -> JobOut:
    """Queue a new job: a stored one with changes, checked like any other."""
    with services.sessions.begin() as session:
        body = submission.changed(jobs.get(session, job_id), changes)
    return _submit(services, validated(JobIn, body), response, idempotency_key)


@router.delete("/{job_id}", status_code=204, responses=problems(404, 409, 422))
def delete_job(services: ServicesDep, job_id: str) -> None:
    """Removes a job that has ended or is paused, with its events, curves, checkpoints and student. 409 while it is
    queued or running, or somebody is asking its student."""
    with services.sessions.begin() as session:
        folders = job_requests.remove(session, job_id=job_id)
    for key in (jobs.checkpoints_key(job_id), *folders):
        services.store.delete(key)  # a file that is left behind is nobody's, and retention finds it


def _rung(services: Services, job_out: JobOut) -> JobOut:
    if job_out.status == "queued":
        services.doorbell.ring_training(job_out.id)
    return job_out
