"""The API as an object: routes, error answers, limits and the sweeper around the services it is given.

Knows which routers there are. Reads no settings and opens nothing: `asgi.py` and tests hand everything in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry

from app.background import Repeated
from app.deps import Services
from app.errors import install_error_handlers, problem_media_type
from app.middleware import BodyLimit, RequestMetrics
from app.routes import (
    batches,
    chat,
    comparisons,
    config,
    datasets,
    divergences,
    events,
    health,
    jobs,
    metrics,
    models,
    votes,
    workers,
)
from app.sweeper import Sweeper

ROUTERS = (
    datasets.router,
    config.router,
    jobs.router,
    events.router,
    metrics.router,
    models.router,
    comparisons.router,
    divergences.router,
    votes.router,
    batches.router,
    chat.router,
    workers.router,
    health.router,
)


def create_app(*, services: Services, sweeper: Sweeper | None = None, cleaning: Repeated | None = None) -> FastAPI:
    """The application. While it runs, `sweeper` and `cleaning` do too (one process of several may go without)."""
    helpers = [helper for helper in (sweeper, cleaning) if helper is not None]

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        for helper in helpers:
            helper.start()
        try:
            yield
        finally:
            for helper in helpers:
                await run_in_threadpool(helper.stop)
            services.engine.dispose()

    app = FastAPI(
        title="Stillhouse",
        version="1",
        description="Distillation of large language models: submit jobs, watch them, compare what comes out.",
        lifespan=lifespan,
    )
    app.state.services = services
    app.state.event_tail = events.make_event_tail(services)
    app.state.registry = CollectorRegistry()  # this application's counters, not the process's
    for router in ROUTERS:
        app.include_router(router)
    install_error_handlers(app)
    problem_media_type(app)
    app.add_middleware(BodyLimit, max_upload_bytes=services.max_upload_bytes)
    app.add_middleware(RequestMetrics, registry=app.state.registry)
    return app
