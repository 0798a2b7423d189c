"""The `stillhouse` program: up, demo, distill, migrate.

Knows options, exit statuses and what is printed. Does not know processes (`app/service.py`) or the demo's story
(`app/demo/run.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console

from app.core.db.migrate import upgrade
from app.core.errors import StillhouseError
from app.core.settings import ServiceSettings
from app.demo.api import DemoApi
from app.demo.run import DATA, Demo, demo_job
from app.demo.teacher import find_teacher
from app.service import api_url, service, ui_url
from app.supervisor import StopRequested, Supervisor

cli = typer.Typer(no_args_is_help=True, add_completion=False, help="Distills large language models, and shows it.")


@cli.command()
def up() -> None:
    """Start the service (API, UI, training worker, comparing worker) until Ctrl-C."""
    console = _console()
    with _errors_told():
        settings = ServiceSettings()
        console.print(f"Starting Stillhouse; state and logs are in {settings.home_folder}", soft_wrap=True)
        try:
            with service(settings) as supervisor:
                _print_urls(console, settings)
                _stay_up(console, supervisor)
        except StopRequested:
            console.print("Stopped.")


@cli.command()
def demo(
    exit: Annotated[bool, typer.Option("--exit", help="End the service after the demo.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps, instead of those in job.json.")] = None,
    teacher: Annotated[str | None, typer.Option(help="Another teacher: hub id, folder or .gguf file.")] = None,
) -> None:
    """Distill a small real model from start to end, show what came of it, and leave the service up."""
    console = _console()
    with _errors_told():
        settings = ServiceSettings()
        teacher = teacher or find_teacher()
        console.print(f"Starting Stillhouse; state and logs are in {settings.home_folder}", soft_wrap=True)
        told = False
        try:
            with service(settings) as supervisor:
                _print_urls(console, settings)
                story = Demo(
                    api=DemoApi(api_url(settings)),
                    console=console,
                    tick=supervisor.tick,
                    storage_url=settings.resolved_storage_url,
                )
                story.run(data=DATA, job=demo_job(teacher=teacher, max_steps=steps))
                told = True
                if not exit:
                    _print_urls(console, settings)
                    _stay_up(console, supervisor)
        except StopRequested as stop:
            console.print("Stopped.")
            raise typer.Exit(0 if told else stop.exit_status) from stop


@cli.command()
def migrate() -> None:
    """Create or update the database's tables."""
    with _errors_told():
        upgrade(ServiceSettings().resolved_database_url)


@cli.command()
def distill(
    config: Path, out: Path, fresh: Annotated[bool, typer.Option(help="Start anew; remove OUT's checkpoints.")] = False
) -> None:
    """Run one job description without any service: CONFIG is its JSON, OUT the folder for the student.

    A run that was stopped or killed goes on when it is called again.
    """
    # This program knows nothing of the worker; becoming it passes on signals and exit status by nature.
    arguments = [str(config), str(out), *(["--fresh"] if fresh else [])]
    os.execv(sys.executable, [sys.executable, "-m", "worker.distill", *arguments])


def _stay_up(console: Console, supervisor: Supervisor) -> NoReturn:
    console.print("Ctrl-C ends every process.")
    while True:
        supervisor.tick()


def _print_urls(console: Console, settings: ServiceSettings) -> None:
    console.print(f"  page  {ui_url(settings)}")
    console.print(f"  API   {api_url(settings)}/v1 (described at {api_url(settings)}/docs)")


def _console(*, stderr: bool = False) -> Console:
    """Prints text as it is: what a model or an error says may look like markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


@contextmanager
def _errors_told() -> Iterator[None]:
    """An error that the user can act on is a sentence and exit status 1, not a stack trace."""
    try:
        yield
    except StillhouseError as error:
        _fail(str(error))
    except ValidationError as error:
        names = [f"STILLHOUSE_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors()]
        _fail("; ".join(names))


def _fail(message: str) -> NoReturn:
    _console(stderr=True).print(f"stillhouse: {message}", style="red", soft_wrap=True)
    raise typer.Exit(1)


def main() -> None:
    cli()
