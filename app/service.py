"""The service on one machine: which processes it is made of, whether their ports are free, when they are ready.

Knows the commands of its processes. Does not know how they are watched (`app/supervisor.py`) or what they do.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import httpx

from app.core.db.migrate import upgrade
from app.core.errors import StillhouseError
from app.core.settings import ServiceSettings
from app.supervisor import MIN_UPTIME_S, Child, Supervisor

READY_TIMEOUT_S = 180.0
# Training takes every core it gets; on a small machine the API, the page and comparisons must still answer.
TRAINING_NICE = 5
# OpenMP's threads wait for each other by spinning, which is a little faster alone and ruinous beside anything else that
# computes on the same two cores: SmolLM2-135M then made 1 to 3 tokens a second, and 21 to 25 waiting passively.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
# What a training worker may use to finish its step and write a checkpoint when the service ends.
TRAINING_GRACE_S = 30.0
NOTHING: Mapping[str, str] = MappingProxyType({})


class PortTaken(StillhouseError):
    code = "port_taken"


class NotReady(StillhouseError):
    code = "not_ready"


@contextmanager
def service(
    settings: ServiceSettings, *, processes: Sequence[Child] | None = None, min_uptime_s: float = MIN_UPTIME_S
) -> Iterator[Supervisor]:
    """Migrates the database, starts `processes` (default: all), yields when API and UI answer, ends all at exit.

    Raises PortTaken, NotReady, ChildFailed, or StopRequested when the user stops it meanwhile.
    """
    _check_port(settings.host, settings.api_port, variable="STILLHOUSE_API_PORT")
    _check_port(settings.host, settings.ui_port, variable="STILLHOUSE_UI_PORT")
    upgrade(settings.resolved_database_url)
    processes = children(settings) if processes is None else processes
    supervisor = Supervisor(processes, logs=settings.home_folder / "logs", min_uptime_s=min_uptime_s)
    with supervisor.running():
        _wait_ready(supervisor, settings)
        yield supervisor


def api_url(settings: ServiceSettings) -> str:
    return f"http://{settings.host}:{settings.api_port}"


def ui_url(settings: ServiceSettings) -> str:
    return f"http://{settings.host}:{settings.ui_port}"


def children(settings: ServiceSettings) -> list[Child]:
    """The processes, for this interpreter and this environment."""
    python = [sys.executable, "-m"]
    address = ["--host", settings.host, "--port", str(settings.api_port)]
    return [
        # Open event streams would otherwise keep the API from ending.
        Child(name="api", command=[*python, "uvicorn", "app.asgi:app", *address, "--timeout-graceful-shutdown", "2"]),
        Child(name="ui", command=[*python, "ui.main"]),
        *_training_workers(settings.gpus),
        # It ends at once, whatever it answers; a training worker first hands its job back, with a checkpoint.
        _worker("comparing", environment={"REMAP_SIGTERM": "SIGQUIT"}),
    ]


def _training_workers(gpus: str) -> Iterator[Child]:
    """One for every device in `gpus`, or one for what torch finds."""
    options: Mapping[str, Any] = {"nice": TRAINING_NICE, "grace_s": TRAINING_GRACE_S}
    devices = [device.strip() for device in gpus.split(",") if device.strip()]
    if not devices:
        yield _worker("training", **options)
    for device in devices:
        name, seen = f"training-{device}", {"CUDA_VISIBLE_DEVICES": device}
        yield _worker("training", name=name, environment=seen, **options)


def _worker(queue: str, *, name: str = "", environment: Mapping[str, str] = NOTHING, **options: Any) -> Child:
    """A Celery worker on one queue, one task at a time in its own process."""
    name = name or queue
    worker = ["celery", "-A", "worker.celery_app", "worker", "-Q", queue, "-n", f"{name}@%h", "--loglevel=INFO"]
    command = [sys.executable, "-m", *worker, "--without-gossip", "--without-mingle", "--pool=solo"]
    environment = {**PASSIVE, "TQDM_DISABLE": "1", **environment}  # progress bars are no use in a log
    return Child(name=name, command=command, environment=environment, **options)


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
