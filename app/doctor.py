"""Looks at everything that the service stands on, and says what is wrong and what to do about it.

Knows the parts and their usual troubles. Mends nothing: it does not even make a database that is not there.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

import httpx
from sqlalchemy import Engine, make_url, text

from app.core.db import workers
from app.core.db.migrate import is_current
from app.core.db.session import make_engine, make_sessions
from app.core.folder_cache import FolderCache
from app.core.queue import COMPARING_QUEUE, TRAINING_QUEUE, CeleryQueue, make_celery
from app.core.schemas import WorkerOut
from app.core.settings import ServiceSettings
from app.core.storage import ArtifactStore

GIB = 2**30
LITTLE_SPACE = 10 * GIB
NO_SPACE = GIB
CLOCK_WARN_S = 2.0
_PACKAGES = ("stillhouse", "torch", "transformers", "fastapi", "celery", "sqlalchemy")


@dataclass(frozen=True, kw_only=True)
class Finding:
    check: str
    level: Literal["ok", "warn", "fail"]
    message: str
    cure: str = ""


def examine(settings: ServiceSettings, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> list[Finding]:
    """One or more findings of each part; every part is looked at, whatever is wrong with the others."""
    return [
        _versions(),
        *_database_and_workers(settings, clock),
        _broker(settings),
        _storage(settings),
        *_disks(settings),
        _teacher_states(settings),
        _devices(),
        _api(settings),
    ]


def _versions() -> Finding:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:  # the API's image has no torch
            continue
    return Finding(check="versions", level="ok", message=", ".join([f"Python {platform.python_version()}", *found]))


def _database_and_workers(settings: ServiceSettings, clock: Callable[[], datetime]) -> Iterator[Finding]:
    url = make_url(settings.resolved_database_url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").expanduser().exists():
        yield Finding(
            check="database", level="fail", message=f"there is no {url.database}", cure="run `stillhouse migrate`"
        )
        return
    engine = make_engine(settings.resolved_database_url)
    try:
        difference_s = _clock_difference_s(engine)
    except Exception as error:  # drivers raise what they like
        cure = "start the server, or correct STILLHOUSE_DATABASE_URL"
        yield Finding(check="database", level="fail", message=_first_line(error), cure=cure)
        return
    try:
        shown = url.render_as_string(hide_password=True)
        yield Finding(check="database", level="ok", message=f"{shown} answers")
        yield _clock(difference_s, lease_s=settings.lease_s)
        if not is_current(engine):
            cure = "stop the service, run `stillhouse migrate`, start it again"
            yield Finding(check="migrations", level="fail", message="the tables are not of this version", cure=cure)
            return
        yield Finding(check="migrations", level="ok", message="the tables are of this version")
        with make_sessions(engine, read_only=True).begin() as session:
            everyone = workers.list_all(session, now=clock(), lease_s=settings.lease_s)
        for queue in (TRAINING_QUEUE, COMPARING_QUEUE):
            yield _present(queue, [worker for worker in everyone if worker.queue == queue])
        yield from (_lost(worker) for worker in everyone if worker.status == "lost")
    finally:
        engine.dispose()


def _clock_difference_s(engine: Engine) -> float:
    """How far the database's clock is ahead of this machine's."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":  # it has no clock of its own
            connection.execute(text("SELECT count(*) FROM sqlite_master"))
            return 0.0
        there: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
        return (there - datetime.now(UTC)).total_seconds()


def _clock(difference_s: float, *, lease_s: float) -> Finding:
    message = (
        f"the database's clock is {abs(difference_s):.1f} s {'ahead of' if difference_s > 0 else 'behind'} this one"
    )
    cure = "let both machines set their clocks by NTP: heartbeats are compared with leases"
    if abs(difference_s) > lease_s / 2:
        return Finding(check="clock", level="fail", message=message, cure=cure)
    if abs(difference_s) > CLOCK_WARN_S:
        return Finding(check="clock", level="warn", message=message, cure=cure)
    return Finding(check="clock", level="ok", message=message)


def _present(queue: str, of_queue: Sequence[WorkerOut]) -> Finding:
    alive = [worker for worker in of_queue if worker.status != "lost"]
    check = f"{queue} workers"
    if not alive:
        cure = f"start one: `stillhouse up`, or the {queue} command in docs/operations.md"
        return Finding(check=check, level="warn", message="none reports itself, so nothing is done", cure=cure)
    told = [f"{one.name} {one.status}, {one.device}, {one.memory_bytes / GIB:.0f} GiB" for one in alive]
    return Finding(check=check, level="ok", message="; ".join(told))


def _lost(worker: WorkerOut) -> Finding:
    message = f"not heard of since {worker.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC (process {worker.pid} on {worker.host})"
    cure = f"see logs/{worker.queue}.log there; start it again, or wait a day for it to leave the list"
    return Finding(check=f"worker {worker.name}", level="warn", message=message, cure=cure)


def _broker(settings: ServiceSettings) -> Finding:
    shown = make_url(settings.resolved_broker_url).render_as_string(hide_password=True)
    try:
        CeleryQueue(make_celery(settings)).check()
    except Exception as error:
        cure = "start it, or correct STILLHOUSE_BROKER_URL; no job is lost, but workers start late"
        return Finding(check="broker", level="fail", message=f"{shown}: {_first_line(error)}", cure=cure)
    return Finding(check="broker", level="ok", message=f"{shown} answers")


def _storage(settings: ServiceSettings) -> Finding:
    url = settings.resolved_storage_url
    try:
        ArtifactStore(url).check()
    except Exception as error:
        cure = "let this user write there, or correct STILLHOUSE_STORAGE_URL (and install fsspec's package for it)"
        return Finding(check="storage", level="fail", message=f"{url}: {_first_line(error)}", cure=cure)
    return Finding(check="storage", level="ok", message=f"{url} can be written and read")


def _disks(settings: ServiceSettings) -> Iterator[Finding]:
    places = {"state folder": settings.home_folder}
    if settings.resolved_storage_url.startswith("file://"):
        places["storage"] = Path(settings.resolved_storage_url.removeprefix("file://"))
    seen = set()
    for name, folder in places.items():
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if there.stat().st_dev not in seen:
            seen.add(there.stat().st_dev)
            yield _disk(name, folder, shutil.disk_usage(there).free)


def _disk(name: str, folder: Path, free: int) -> Finding:
    message = f"{free / GIB:.1f} GiB are free for {folder}"
    level: Literal["ok", "warn", "fail"] = "fail" if free < NO_SPACE else "warn" if free < LITTLE_SPACE else "ok"
    cure = (
        "" if level == "ok" else "make space: `stillhouse clean --dry-run`, or lower STILLHOUSE_KEEP_CHECKPOINTS_DAYS"
    )
    return Finding(check=f"disk of the {name}", level=level, message=message, cure=cure)


def _teacher_states(settings: ServiceSettings) -> Finding:
    cache = FolderCache(settings.teacher_states_folder, limit_bytes=settings.teacher_states_bytes)
    kept = sum(entry.bytes for entry in cache.entries())
    message = f"{kept / GIB:.1f} of at most {settings.teacher_states_gib:g} GiB in {cache.folder}"
    if kept <= cache.limit_bytes:
        return Finding(check="teacher states", level="ok", message=message)
    cure = "run `stillhouse clean`; all of it may be removed at any time"
    return Finding(check="teacher states", level="warn", message=message, cure=cure)


def _devices() -> Finding:
    """Of this machine; what the workers compute on stands with them."""
    if shutil.which("nvidia-smi") is None:
        return Finding(check="devices", level="ok", message="no NVIDIA driver here: training uses the processor")
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        cure = "run nvidia-smi by hand; a driver that was updated needs a restart of the machine"
        return Finding(check="devices", level="fail", message=f"nvidia-smi: {_first_line(error)}", cure=cure)
    return Finding(check="devices", level="ok", message="; ".join(done.stdout.strip().splitlines()))


def _api(settings: ServiceSettings) -> Finding:
    url = f"{settings.resolved_api_url}/healthz"
    try:
        httpx.get(url, timeout=5.0, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        cure = "start it (`stillhouse up`): its sweeper also brings back what lost its worker"
        return Finding(check="API", level="warn", message=f"{url}: {_first_line(error)}", cure=cure)
    return Finding(check="API", level="ok", message=f"{url} answers")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
