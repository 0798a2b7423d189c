"""The doctor on things that are really broken."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic import command

from app.core.db import migrate, workers
from app.core.db.session import make_engine, make_sessions
from app.core.db.workers import WorkerReport
from app.core.settings import ServiceSettings
from app.doctor import Finding, _clock, _disk, examine


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> ServiceSettings:
    """A migrated database on either back end, and nothing running."""
    api_url = f"http://127.0.0.1:{closed_port()}"
    return ServiceSettings(home=tmp_path / "home", database_url=database_url, api_url=api_url)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def of(findings: Sequence[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def report(settings: ServiceSettings, name: str, queue: str, *, ago_s: float = 0) -> None:
    now = datetime.now(UTC)
    said = WorkerReport(
        name=name, queue=queue, host="a", pid=7, device="NVIDIA H200", memory_bytes=2**37, versions={}, started_at=now
    )
    engine = make_engine(settings.resolved_database_url)
    with make_sessions(engine).begin() as session:
        workers.report(session, said, now=now - timedelta(seconds=ago_s))
    engine.dispose()


def test_a_sound_service_has_nothing_to_do(settings: ServiceSettings) -> None:
    report(settings, "training@a", "training")
    report(settings, "comparing@a", "comparing")
    findings = examine(settings)
    assert {finding.check for finding in findings if finding.level != "ok"} <= {"API", "disk of the state folder"}
    assert of(findings, "training workers").message == "training@a idle, NVIDIA H200, 128 GiB"
    assert "answers" in of(findings, "database").message
    assert not any(finding.cure for finding in findings if finding.level == "ok")


def test_a_missing_database_is_not_made(settings: ServiceSettings, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such.db"
    findings = examine(settings.model_copy(update={"database_url": f"sqlite:///{missing}"}))
    found = of(findings, "database")
    assert (found.level, found.cure) == ("fail", "run `stillhouse migrate`")
    assert not missing.parent.exists()
    assert of(findings, "storage").level == "ok"  # the others are looked at all the same


def test_a_database_server_that_does_not_answer(settings: ServiceSettings) -> None:
    url = f"postgresql+psycopg://somebody:secret@127.0.0.1:{closed_port()}/none"
    found = of(examine(settings.model_copy(update={"database_url": url})), "database")
    assert found.level == "fail"
    assert "STILLHOUSE_DATABASE_URL" in found.cure
    assert "secret" not in found.message


def test_a_file_that_is_no_database(settings: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database at all" * 100)
    broken = settings.model_copy(update={"database_url": f"sqlite:///{tmp_path / 'broken.db'}"})
    assert of(examine(broken), "database").level == "fail"


def test_tables_of_an_older_version(settings: ServiceSettings) -> None:
    engine = make_engine(settings.resolved_database_url)
    with engine.begin() as connection:
        config = migrate._config()
        config.attributes["connection"] = connection
        command.stamp(config, "0001")
    engine.dispose()
    found = of(examine(settings), "migrations")
    assert found.level == "fail"
    assert "stillhouse migrate" in found.cure


def test_no_worker_and_a_dead_one(settings: ServiceSettings) -> None:
    report(settings, "training@a", "training", ago_s=3600)
    findings = examine(settings)
    assert of(findings, "training workers").level == "warn"
    assert of(findings, "comparing workers").level == "warn"
    dead = of(findings, "worker training@a")
    assert (dead.level, "process 7 on a" in dead.message, "logs/training.log" in dead.cure) == ("warn", True, True)


def test_a_broker_that_is_away(settings: ServiceSettings) -> None:
    away = settings.model_copy(update={"broker_url": f"redis://:secret@127.0.0.1:{closed_port()}/0"})
    found = of(examine(away), "broker")
    assert (found.level, "secret" in found.message) == ("fail", False)
    assert "STILLHOUSE_BROKER_URL" in found.cure


def test_a_store_that_cannot_be_written(settings: ServiceSettings, tmp_path: Path) -> None:
    """A file stands where the folder should be: no permission stops root, who runs tests in containers."""
    (tmp_path / "file").write_text("in the way")
    blocked = settings.model_copy(update={"storage_url": f"file://{tmp_path / 'file' / 'artifacts'}"})
    found = of(examine(blocked), "storage")
    assert found.level == "fail"
    assert "STILLHOUSE_STORAGE_URL" in found.cure


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(settings: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir(mode=0o500)
    store = settings.model_copy(update={"storage_url": f"file://{tmp_path / 'artifacts'}"})
    assert of(examine(store), "storage").level == "fail"


def test_a_store_of_an_unknown_kind(settings: ServiceSettings) -> None:
    assert of(examine(settings.model_copy(update={"storage_url": "nosuch://bucket"})), "storage").level == "fail"


def test_a_driver_that_does_not_answer(
    settings: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = of(examine(settings), "devices")
    assert (found.level, "nvidia-smi" in found.message) == ("fail", True)


@pytest.mark.parametrize(("difference_s", "level"), [(0.3, "ok"), (-5.0, "warn"), (5.0, "warn"), (-31.0, "fail")])
def test_clocks_that_differ(difference_s: float, level: str) -> None:
    assert _clock(difference_s, lease_s=60).level == level


@pytest.mark.parametrize(("gib", "level"), [(100, "ok"), (5, "warn"), (0.5, "fail")])
def test_disks_that_fill_up(tmp_path: Path, gib: float, level: str) -> None:
    found = _disk("storage", tmp_path, int(gib * 2**30))
    assert (found.level, bool(found.cure)) == (level, level != "ok")
