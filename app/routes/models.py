"""/v1/models: teachers and students. Knows HTTP; `core.db.models` knows rows, `archive` knows tar."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from app import archive
from app.core.db import models
from app.core.db.tables import Model
from app.core.errors import Conflict, NotFound
from app.core.schemas import ModelOut, Page, RenameIn
from app.deps import AfterQuery, LimitQuery, Services, ServicesDep
from app.errors import problems

router = APIRouter(prefix="/v1/models", tags=["models"])
_TAR = "application/x-tar"
_ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {"description": "A tar file with the student's folder.", "content": {_TAR: {}}}
}


@router.get("", responses=problems(422))
def list_models(
    services: ServicesDep,
    kind: Annotated[models.ModelKind | None, Query(description="Only models of this kind.")] = None,
    job_id: Annotated[str | None, Query(max_length=64, description="Only the models that this job made.")] = None,
    limit: LimitQuery = 100,
    after: AfterQuery = None,
) -> Page[ModelOut]:
    """Newest first: teachers, students before training, and distilled students."""
    with services.readers.begin() as session:
        rows, has_more = models.list_page(session, kind=kind, job_id=job_id, limit=limit, after=after)
        return Page(data=[models.as_shape(session, row) for row in rows], has_more=has_more)


@router.get("/{model_id}", responses=problems(404, 422))
def read_model(services: ServicesDep, model_id: str) -> ModelOut:
    """The card; of a distilled student also the size of its files."""
    with services.sessions.begin() as session:
        row = models.get(session, model_id)
    num_bytes = _size(services, row) if row.kind == "student" else None
    with services.sessions.begin() as session:
        return models.as_shape(session, row, num_bytes=num_bytes)


@router.patch("/{model_id}", responses=problems(404, 422))
def rename_model(services: ServicesDep, model_id: str, body: RenameIn) -> ModelOut:
    with services.sessions.begin() as session:
        return models.as_shape(session, models.rename(session, model_id=model_id, name=body.name))


@router.delete("/{model_id}", status_code=204, responses=problems(404, 409, 422))
def delete_model(services: ServicesDep, model_id: str) -> Response:
    """Removes a student and its files, or a teacher that no job names. 409 while something uses it."""
    with services.sessions.begin() as session:
        row = models.delete(session, model_id)
    if row.kind == "student":  # after the commit: files without a row waste space, a row without files is broken
        services.store.delete(row.source)
    return Response(status_code=204)


@router.get("/{model_id}/archive", response_class=StreamingResponse, responses=_ARCHIVE | problems(404, 409, 422))
def download_model(services: ServicesDep, model_id: str) -> StreamingResponse:
    """The student as an ordinary Hugging Face folder in a tar file, streamed: no copy is made anywhere."""
    with services.readers.begin() as session:
        row = models.get(session, model_id)
    if row.kind != "student":
        raise Conflict(f"{model_id} has no files of its own; only a distilled student can be downloaded")
    members = archive.members(services.store, row.source, folder=row.id)
    if not members:
        raise NotFound(f"the files of {model_id} are not in the artifact store any more")
    headers = {
        "Content-Length": str(archive.size(members)),
        "Content-Disposition": f'attachment; filename="{row.id}.tar"',  # the name is the user's: an id is always safe
    }
    return StreamingResponse(archive.stream(services.store, members), media_type=_TAR, headers=headers)


def _size(services: Services, row: Model) -> int:
    return sum(services.store.size(key) for key in services.store.files(row.source))
