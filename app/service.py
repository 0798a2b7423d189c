"""The service on one machine: which processes it is made of, whether their ports are free, when they are ready.

Knows the commands of the four processes. Does not know how they are watched (`app/supervisor.py`) or what they do.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from app.core.db.migrate import upgrade
from app.core.errors import StillhouseError
from app.core.settings import ServiceSettings
from app.supervisor import Child, Supervisor

READY_TIMEOUT_S = 180.0
# Training takes every core it gets; on a small machine the API, the page and comparisons must still answer.
TRAINING_NICE = 5
# OpenMP's threads wait for each other by spinning, which is a little faster alone and ruinous beside anything else that
# computes on the same two cores: SmolLM2-135M then made 1 to 3 tokens a second, and 21 to 25 waiting passively.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}


class PortTaken(StillhouseError):
    code = "port_taken"


class NotReady(StillhouseError):
    code = "not_ready"


@contextmanager
def service(settings: ServiceSettings, *, processes: Sequence[Child] | None = None) -> Iterator[Supervisor]:
    """Migrates the database, starts `processes` (default: all four), yields when API and UI answer, ends all at exit.

    Raises PortTaken, NotReady, ChildFailed, or StopRequested when the user stops it meanwhile.
    """
    _check_port(settings.host, settings.api_port, variable="STILLHOUSE_API_PORT")
    _check_port(settings.host, settings.ui_port, variable="STILLHOUSE_UI_PORT")
    upgrade(settings.resolved_database_url)
    supervisor = Supervisor(children(settings) if processes is None else processes, logs=settings.home_folder / "logs")
    with supervisor.running():
        _wait_ready(supervisor, settings)
        yield supervisor


def api_url(settings: ServiceSettings) -> str:
    return f"http://{settings.host}:{settings.api_port}"


def ui_url(settings: ServiceSettings) -> str:
    return f"http://{settings.host}:{settings.ui_port}"


def children(settings: ServiceSettings) -> list[Child]:
    """The four processes, for this interpreter and this environment."""
    python = [sys.executable, "-m"]
    address = ["--host", settings.host, "--port", str(settings.api_port)]
    return [
        # Open event streams would otherwise keep the API from ending.
        Child(name="api", command=[*python, "uvicorn", "app.asgi:app", *address, "--timeout-graceful-shutdown", "2"]),
        Child(name="ui", command=[*python, "ui.main"]),
        _worker("training", "--pool=prefork", "--concurrency=1", "--max-tasks-per-child=1", nice=TRAINING_NICE),
        _worker("comparing", "--pool=solo"),
    ]


def _worker(queue: str, *options: str, nice: int = 0) -> Child:
    """A Celery worker on one queue. SIGTERM ends it at once, for a training may run for hours: its job is re-queued."""
    worker = ["celery", "-A", "worker.celery_app", "worker", "-Q", queue, "-n", f"{queue}@%h", "--loglevel=INFO"]
    command = [sys.executable, "-m", *worker, "--without-gossip", "--without-mingle", *options]
    environment = {**PASSIVE, "REMAP_SIGTERM": "SIGQUIT", "TQDM_DISABLE": "1"}  # progress bars are no use in a log
    return Child(name=queue, command=command, environment=environment, nice=nice)


def _check_port(host: str, port: int, *, variable: str) -> None:
    """Raises PortTaken if nothing can listen there; asking first beats a stack trace in some child's log."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"cannot listen on {host}:{port} ({error.strerror}): end the program that uses this port, "
                f"or choose another one with {variable}"
            ) from error


def _wait_ready(supervisor: Supervisor, settings: ServiceSettings) -> None:
    urls = {"api": f"{api_url(settings)}/readyz", "ui": ui_url(settings)}
    waiting = {name: url for name, url in urls.items() if name in supervisor.pids()}
    deadline = time.monotonic() + READY_TIMEOUT_S
    while waiting:
        supervisor.tick()
        waiting = {name: url for name, url in waiting.items() if not _answers(url)}
        if waiting and time.monotonic() > deadline:
            where = ", ".join(f"{url} (log: {supervisor.log_file(name)})" for name, url in waiting.items())
            raise NotReady(f"no answer after {READY_TIMEOUT_S:.0f} s from {where}")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).is_success
    except httpx.TransportError:
        return False
