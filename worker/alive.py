"""`python -m worker.alive NAME`: exit status 0 while the worker NAME (training@host) reports itself; for health checks.

Knows the table of workers and the lease. Asks the database, because a worker does not answer Celery while it works.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from app.core.db import workers
from app.core.db.session import make_engine, make_sessions
from app.core.settings import ServiceSettings


def is_alive(settings: ServiceSettings, name: str, *, now: datetime) -> bool:
    engine = make_engine(settings.resolved_database_url)
    try:
        with make_sessions(engine, read_only=True).begin() as session:
            return name in [worker.name for worker in workers.seen(session, now=now, lease_s=settings.lease_s)]
    finally:
        engine.dispose()


if __name__ == "__main__":
    sys.exit(0 if is_alive(ServiceSettings(), sys.argv[1], now=datetime.now(UTC)) else 1)
