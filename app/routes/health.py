"""/healthz and /readyz. Knows which parts must answer; does not know how they work."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response

from app.core.db.migrate import is_current
from app.core.schemas import Health
from app.deps import Services, ServicesDep

router = APIRouter(tags=["health"])


@router.get("/healthz")
def live() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health, "description": "Something is away; `checks` says what."}})
def ready(services: ServicesDep, response: Response) -> Health:
    """Database (reachable and migrated), broker and artifact store."""
    checks = {
        "database": _outcome(lambda: _check_database(services)),
        "broker": _outcome(services.queue.check),
        "storage": _outcome(services.store.check),
    }
    if all(outcome == "ok" for outcome in checks.values()):
        return Health(status="ok", checks=checks)
    response.status_code = 503
    return Health(status="unavailable", checks=checks)


def _check_database(services: Services) -> None:
    if not is_current(services.engine):
        raise RuntimeError("its tables are not of this version: run `stillhouse migrate`")


def _outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:  # drivers raise what they like; whatever it is belongs into the answer
        return f"{type(error).__name__}: {error}".split("\n")[0]
    return "ok"
