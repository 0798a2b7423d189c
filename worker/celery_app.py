"""The worker's composition root: `celery -A worker.celery_app worker -Q training` (or comparing).

Knows settings and what a worker adds to the shared Celery application. Does not know tasks: Celery imports them.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog
from celery.signals import after_setup_logger

from app.core.queue import make_celery
from app.core.settings import ServiceSettings

settings = ServiceSettings()
app = make_celery(settings)
app.conf.update(
    include=["worker.tasks"],
    # A child that starts beside three other processes on two cores may need more than the usual 4 seconds.
    worker_proc_alive_timeout=120.0,
)


@after_setup_logger.connect
def _log_through_celery(logger: logging.Logger, **_: Any) -> None:
    """Structured entries go the way of every other one: through the worker's handlers, with its time and process."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.dev.ConsoleRenderer(colors=False, pad_event=0, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
