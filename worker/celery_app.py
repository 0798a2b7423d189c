"""The worker's composition root: `celery -A worker.celery_app worker -Q training` (or comparing).

Knows settings and what a worker adds to the shared Celery application. Does not know tasks: Celery imports them.
"""

from __future__ import annotations

import atexit
import logging
import threading
from typing import Any

import structlog
from celery.signals import after_setup_logger, worker_ready, worker_shutting_down

from app.core.db.session import make_engine, make_sessions
from app.core.queue import make_celery
from app.core.settings import ServiceSettings
from worker.presence import Presence

settings = ServiceSettings()
app = make_celery(settings)
app.conf.update(include=["worker.tasks"])
# Set once this worker was asked to end: its training job is then handed back.
leaving = threading.Event()


@worker_shutting_down.connect
def _leave(**_: Any) -> None:
    leaving.set()


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


@worker_ready.connect
def _report_presence(sender: Any, **_: Any) -> None:
    """In the worker's own process, not in those of its tasks: it is there between tasks too."""
    presence = Presence(
        sessions=make_sessions(make_engine(settings.resolved_database_url)),
        name=sender.hostname,
        queue=",".join(sorted(sender.app.amqp.queues.consume_from)),
        heartbeat_s=settings.heartbeat_s,
    )
    presence.start()
    atexit.register(presence.stop)
