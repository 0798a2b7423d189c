"""/v1/workers: who is there, and what each does. Knows HTTP; `core.db.workers` knows rows."""

from __future__ import annotations

from fastapi import APIRouter

from app.core.db import workers
from app.core.schemas import WorkersOut
from app.deps import ServicesDep

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.get("")
def list_workers(services: ServicesDep) -> WorkersOut:
    """Every worker by name. One that stopped reporting is `lost`, and leaves the list after a day."""
    with services.readers.begin() as session:
        return WorkersOut(data=workers.list_all(session, now=services.clock(), lease_s=services.lease_s))
