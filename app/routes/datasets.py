"""/v1/datasets: upload, list, read, preview.

Knows HTTP; `dataset_files` knows files, `dataset_preview` knows tokens, `core.db.datasets` knows rows of the table.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from fastapi import APIRouter, Form, Query, UploadFile

from app.core.db import datasets
from app.core.errors import NotFound
from app.core.ids import new_id
from app.core.preview_schemas import DatasetRow, PreviewIn, PreviewOut
from app.core.schemas import DatasetOut, Page
from app.dataset_files import normalise
from app.dataset_preview import preview, read_rows
from app.deps import AfterQuery, LimitQuery, Services, ServicesDep
from app.errors import problems

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])


@router.post("", status_code=201, responses=problems(413, 422))
def upload_dataset(
    services: ServicesDep, file: UploadFile, name: Annotated[str | None, Form(min_length=1, max_length=200)] = None
) -> DatasetOut:
    """Upload JSONL, a JSON array, CSV or Parquet with prompts (and responses), messages, Alpaca or ShareGPT rows.

    A file with a row that has no prompt is refused, and the row is named. Rows that are unusable for another reason
    are left out and listed in `problems`.
    """
    dataset_id, file_name = new_id("ds"), file.filename or "upload"
    with TemporaryDirectory() as folder:
        rows_file = Path(folder) / "rows.jsonl"
        found = normalise(file.file, file_name, rows_file)
        services.store.put_file(rows_file, datasets.storage_key(dataset_id))
    with services.sessions.begin() as session:
        dataset = datasets.create(
            session,
            dataset_id=dataset_id,
            name=name or file_name,
            format=found.format,
            rows=found.rows,
            rows_with_response=found.rows_with_response,
            problems=found.problems,
            sha256=found.sha256,
            now=services.clock(),
        )
        return datasets.as_shape(dataset)


@router.get("", responses=problems(422))
def list_datasets(services: ServicesDep, limit: LimitQuery = 100, after: AfterQuery = None) -> Page[DatasetOut]:
    """Newest first."""
    with services.readers.begin() as session:
        rows, has_more = datasets.list_page(session, limit=limit, after=after)
        return Page(data=[datasets.as_shape(row) for row in rows], has_more=has_more)


@router.get("/{dataset_id}", responses=problems(404, 422))
def read_dataset(services: ServicesDep, dataset_id: str) -> DatasetOut:
    with services.readers.begin() as session:
        return datasets.as_shape(datasets.get(session, dataset_id))


@router.get("/{dataset_id}/rows", responses=problems(404, 422))
def read_dataset_rows(
    services: ServicesDep, dataset_id: str, limit: Annotated[int, Query(ge=1, le=100)] = 5
) -> Page[DatasetRow]:
    """The first rows, as the trainer reads them."""
    key = _rows_key(services, dataset_id)
    with services.store.open(key) as lines:
        rows = list(islice(read_rows(lines), limit + 1))
    return Page(data=rows[:limit], has_more=len(rows) > limit)


@router.post("/{dataset_id}/preview", responses=problems(404, 422))
def preview_dataset(services: ServicesDep, dataset_id: str, request: PreviewIn) -> PreviewOut:
    """One row's exact token ids after the template, with the loss mask, and a histogram of lengths in tokens."""
    key = _rows_key(services, dataset_id)
    with services.store.open(key) as lines:
        return preview(lines, request)


def _rows_key(services: Services, dataset_id: str) -> str:
    """Where the rows are. Raises NotFound, also when the file of a known data set is gone."""
    with services.readers.begin() as session:
        key = datasets.storage_key(datasets.get(session, dataset_id).id)
    if not services.store.exists(key):
        raise NotFound(f"the rows of {dataset_id} are no longer in the artifact store; upload the file again")
    return key
