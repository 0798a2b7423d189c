"""The API's composition root: `uvicorn app.asgi:app`. Reads the environment and makes every outside dependency."""

from __future__ import annotations

from fastapi import FastAPI

from app.background import Repeated
from app.cleaner import Cleaner
from app.collector import keep_collections_short
from app.core.db.session import make_engine, make_sessions
from app.core.queue import CeleryQueue, make_celery
from app.core.settings import ServiceSettings
from app.core.storage import ArtifactStore
from app.deps import Services, utc_now
from app.doorbell import Doorbell
from app.main import create_app
from app.sweeper import Sweeper

CLEAN_S = 900.0


def build(settings: ServiceSettings) -> FastAPI:
    """The API for `settings`. The database is expected to be migrated (`stillhouse migrate`); /readyz says if not."""
    engine = make_engine(settings.resolved_database_url)
    sessions = make_sessions(engine)
    queue = CeleryQueue(make_celery(settings))
    doorbell = Doorbell(queue=queue, sessions=sessions, clock=utc_now)
    services = Services(
        engine=engine,
        sessions=sessions,
        queue=queue,
        doorbell=doorbell,
        store=ArtifactStore(settings.resolved_storage_url),
        lease_s=settings.lease_s,
        max_upload_bytes=settings.max_upload_mib * 2**20,
        states_limit_bytes=settings.teacher_states_bytes,
        has_judge=settings.judge_url is not None,
    )
    sweeper = Sweeper(
        sessions=sessions,
        doorbell=doorbell,
        lease_s=settings.lease_s,
        sweep_s=settings.sweep_s,
        clock=utc_now,
        free_bytes=services.store.free_bytes,
    )
    cleaner = Cleaner.of(settings, sessions=sessions)
    cleaning = Repeated(cleaner.clean_some, name="cleaner", pause_s=CLEAN_S)
    return create_app(services=services, sweeper=sweeper, cleaning=cleaning)


app = build(ServiceSettings())
keep_collections_short()
