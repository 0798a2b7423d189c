"""What routes are given: one object with everything outside the process, made by the composition root.

Knows how a route gets at it. Does not know how any of it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Query, Request
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from app.core.db.session import make_sessions
from app.core.queue import JobQueue
from app.core.storage import ArtifactStore
from app.core.teacher_states import DEFAULT_LIMIT_GIB
from app.doorbell import Doorbell


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Services:
    """`sessions` belong to `engine`. `lease_s`: who has not reported for so long counts as lost. `stream_poll_s`: how
    often a live stream looks for new events. `has_judge`: the comparing worker is told whom to ask."""

    engine: Engine
    sessions: sessionmaker[Session]
    queue: JobQueue
    doorbell: Doorbell
    store: ArtifactStore
    clock: Callable[[], datetime] = utc_now
    lease_s: float = 60.0
    max_upload_bytes: int = 512 * 2**20
    states_limit_bytes: int = DEFAULT_LIMIT_GIB * 2**30
    stream_poll_s: float = 0.5
    stream_ping_s: float = 15.0
    has_judge: bool = False

    @cached_property
    def readers(self) -> sessionmaker[Session]:
        """Sessions for what only reads: however many there are, no worker waits for them."""
        return make_sessions(self.engine, read_only=True)


def get_services(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


ServicesDep = Annotated[Services, Depends(get_services)]
LimitQuery = Annotated[int, Query(ge=1, le=1000, description="Most elements of one page.")]
AfterQuery = Annotated[str | None, Query(max_length=64, description="Continue after the element with this id.")]
