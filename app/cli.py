"""The `stillhouse` program: up, demo, distill, migrate, doctor, clean.

Knows options, exit statuses and what is printed. Does not know processes (`app/service.py`) or the demo's story
(`app/demo/run.py`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cleaner import Cleaner
from app.core.db.migrate import upgrade
from app.core.db.session import make_engine, make_sessions
from app.core.errors import StillhouseError
from app.core.settings import ServiceSettings
from app.demo.api import DemoApi
from app.demo.run import DATA, Demo, demo_job
from app.demo.teacher import find_teacher
from app.doctor import Finding, examine
from app.service import api_url, service, ui_url
from app.supervisor import StopRequested, Supervisor

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}

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
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """Look at database, broker, storage, workers, disks and devices; say what is wrong and what to do. Status 1 if
    something has to be done."""
    with _errors_told():
        findings = examine(ServiceSettings())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print_findings(findings)
    raise typer.Exit(any(finding.level == "fail" for finding in findings))


@cli.command()
def clean(dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False) -> None:
    """Remove what is older than the STILLHOUSE_KEEP_* settings allow, and files that belong to nothing."""
    console = _console()
    with _errors_told():
        settings = ServiceSettings()
        engine = make_engine(settings.resolved_database_url)
        cleaner = Cleaner.of(settings, sessions=make_sessions(engine))
        try:
            removals = list(cleaner.find()) if dry_run else cleaner.clean()
        finally:
            engine.dispose()
    for removal in removals:
        console.print(f"{'would remove' if dry_run else 'removed'} {removal.what} ({removal.why})", soft_wrap=True)
    if not removals:
        console.print("Nothing to remove.")


@cli.command()
def distill(
    config: Path,
    out: Path,
    fresh: Annotated[bool, typer.Option(help="Start anew; remove OUT's checkpoints.")] = False,
    states: Annotated[Path | None, typer.Option(help="Keep the teacher's states here, for other runs too.")] = None,
) -> None:
    """Run one job description without any service: CONFIG is its JSON, OUT the folder for the student.

    A run that was stopped or killed goes on when it is called again.
    """
    # This program knows nothing of the worker; becoming it passes on signals and exit status by nature.
    arguments = [str(config), str(out), *(["--fresh"] if fresh else []), *(["--states", str(states)] if states else [])]
    os.execv(sys.executable, [sys.executable, "-m", "worker.distill", *arguments])


def _print_findings(findings: Sequence[Finding]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        told = Text(finding.message)
        if finding.cure:
            told.append(f"\n-> {finding.cure}", style="bold")
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), Text(finding.check), told)
    _console().print(table)


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
