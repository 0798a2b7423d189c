"""The program as its users run it: exit statuses, messages, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from app.core.db.migrate import is_current
from app.core.db.session import make_engine
from tests.running_service import free_port
from tests.waiting import is_alive, until

STILLHOUSE = Path(sys.executable).with_name("stillhouse")


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """A state folder and free ports of the test's own."""
    own = {
        "STILLHOUSE_HOME": str(tmp_path / "home [b]"),  # [b] would be bold if it were read as markup
        "STILLHOUSE_API_PORT": str(free_port()),
        "STILLHOUSE_UI_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STILLHOUSE_")}
    return inherited | own


def run(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [STILLHOUSE, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_migrate_makes_the_database(environment: Mapping[str, str], tmp_path: Path) -> None:
    assert run("migrate", environment=environment).returncode == 0
    assert is_current(make_engine(f"sqlite:///{tmp_path / 'home [b]/stillhouse.db'}"))


@pytest.mark.parametrize("variable", ["STILLHOUSE_API_PORT", "STILLHOUSE_UI_PORT"])
def test_port_in_use_is_named_with_its_setting(environment: Mapping[str, str], variable: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(environment[variable])))
        other.listen()
        result = run("up", environment=environment)
    assert result.returncode == 1
    assert f"127.0.0.1:{environment[variable]}" in result.stderr
    assert variable in result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def test_setting_that_makes_no_sense_is_named(environment: Mapping[str, str]) -> None:
    result = run("migrate", environment={**environment, "STILLHOUSE_API_PORT": "http"})
    assert result.returncode == 1
    assert "STILLHOUSE_API_PORT: Input should be a valid integer" in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_says_what_to_do(environment: Mapping[str, str]) -> None:
    sick = run("doctor", environment=environment)
    assert sick.returncode == 1
    assert "run `stillhouse migrate`" in " ".join(sick.stdout.split())
    run("migrate", environment=environment)
    well = run("doctor", "--json", environment=environment)
    findings = json.loads(well.stdout)
    assert well.returncode == 0, findings
    levels = {finding["check"]: finding["level"] for finding in findings}
    assert (levels["database"], levels["migrations"], levels["broker"]) == ("ok", "ok", "ok")
    assert all(finding["cure"] for finding in findings if finding["level"] != "ok")


def test_clean_removes_what_it_said_it_would(environment: Mapping[str, str]) -> None:
    run("migrate", environment=environment)
    orphan = Path(environment["STILLHOUSE_HOME"], "artifacts", "datasets", "ds_gone.jsonl")
    orphan.parent.mkdir(parents=True)
    orphan.write_text("{}")
    assert run("clean", environment=environment).stdout == "Nothing to remove.\n"
    os.utime(orphan, (0, 0))
    assert "would remove datasets/ds_gone.jsonl" in run("clean", "--dry-run", environment=environment).stdout
    assert orphan.exists()
    assert "removed datasets/ds_gone.jsonl" in run("clean", environment=environment).stdout
    assert not orphan.exists()


def distill_config(folder: Path, teacher: Path, rows: Path, *, steps: int) -> Path:
    config = {
        "teacher": {"model": str(teacher)},
        "student": {"kind": "from_teacher", "layers": 1},
        "data": {"kind": "file", "path": str(rows), "dev_rows": 4, "max_response_tokens": 16},
        "sampling": {"max_new_tokens": 8},
        "training": {"max_steps": steps, "batch_size": 2},
    }
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


@pytest.mark.slow
def test_distill_leaves_a_student(
    environment: Mapping[str, str], tiny_teacher: Path, tiny_rows: Path, tmp_path: Path
) -> None:
    config = distill_config(tmp_path, tiny_teacher, tiny_rows, steps=1)
    (tmp_path / "out/checkpoints/step-00000001").mkdir(parents=True)
    states = ["--states", str(tmp_path / "states")]
    result = run("distill", "--fresh", *states, str(config), str(tmp_path / "out"), environment=environment)
    assert result.returncode == 0, result.stderr
    assert "checkpoint_skipped" not in result.stdout
    assert (tmp_path / "out/student/model.safetensors").exists()


@pytest.mark.slow
def test_distill_passes_on_failure(
    environment: Mapping[str, str], tiny_teacher: Path, tiny_rows: Path, tmp_path: Path
) -> None:
    config = distill_config(tmp_path, tiny_teacher, tiny_rows, steps=0)
    result = run("distill", str(config), str(tmp_path / "out"), environment=environment)
    assert result.returncode != 0
    assert "max_steps" in result.stdout + result.stderr


@contextmanager
def up(environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`stillhouse up` once it said how to end it."""
    with log.open("wb") as output:
        process = subprocess.Popen([STILLHOUSE, "up"], env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: "Ctrl-C" in log.read_text() or process.poll() is not None, timeout_s=90)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.slow
def test_up_answers_and_ctrl_c_ends_every_process(environment: Mapping[str, str], tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    with up(environment, log) as process:
        assert f"state and logs are in {environment['STILLHOUSE_HOME']}" in log.read_text()
        for port in (environment["STILLHOUSE_API_PORT"], environment["STILLHOUSE_UI_PORT"]):
            url = f"http://127.0.0.1:{port}"
            assert url in log.read_text()
            assert httpx.get(url if port == environment["STILLHOUSE_UI_PORT"] else f"{url}/readyz").is_success
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 5  # API, UI, two workers, and the guardian
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert [child for child in family if is_alive(child.pid)] == []


@pytest.mark.slow
def test_up_without_one_of_its_processes_ends_the_others_and_says_so(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    """A process that ends right after its start would only end again; see test_supervisor for one that ends later."""
    log = tmp_path / "up.log"
    with up(environment, log) as process:
        family = psutil.Process(process.pid).children(recursive=True)
        training = next(child for child in family if "training" in child.cmdline())
        training.send_signal(signal.SIGKILL)
        assert process.wait(30) == 1
    assert "training ended with status -9" in log.read_text()
    assert "training.log" in log.read_text()
    assert [child for child in family if is_alive(child.pid)] == []
