"""The library as a program: a config file in, a student out; clear words and exit codes otherwise."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.core.events import Evaluated, PhaseProgress, StepDone, Warned, parse_event
from tests.worker.distill.conftest import MakeConfig
from worker.distill.__main__ import line_of, main

PROGRAM = [sys.executable, "-m", "worker.distill"]


def test_lines_for_people() -> None:
    step = StepDone(
        step=3,
        max_steps=9,
        source="fresh",
        tokens=7,
        tokens_per_s=12.3,
        eta_s=60,
        metrics={"loss/sft": 1.5, "train/grad_norm": 2.0},
    )
    assert line_of(step) == "step 3/9  sft 1.5000  12 tokens/s  60 s left  (fresh)"
    assert line_of(Evaluated(step=3, metrics={"eval/kl_ts": 0.5})) == "held out at step 3: kl_ts 0.5000"
    assert line_of(Warned(code="x", message="y")) == "warning (x): y"
    assert line_of(PhaseProgress(phase="loading")) is None


def test_bad_configs_are_refused_with_the_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    assert main([str(config), str(tmp_path / "out")]) == 2
    config.write_text(json.dumps({"teacher": {"model": "x"}, "student": {"layers": 2}, "data": {"kind": "file"}}))
    assert main([str(config), str(tmp_path / "out")]) == 2
    raw = {"teacher": {"model": "x"}, "student": {"kind": "from_teacher", "layers": 2}}
    config.write_text(json.dumps(raw | {"data": {"kind": "dataset", "dataset_id": "ds_1"}}))
    assert main([str(config), str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert "student" in shown
    assert "data.kind" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_run_writes_student_and_events_and_a_failure_says_why(make_config: MakeConfig, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(make_config().model_dump_json())
    done = subprocess.run([*PROGRAM, str(config), str(tmp_path / "out")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "step 4/4" in done.stdout
    assert (tmp_path / "out/student/model.safetensors").is_file()
    events = [parse_event(json.loads(line)) for line in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    assert events[-1].kind == "exported"

    config.write_text(make_config(student={"layers": 9}).model_dump_json())
    failed = subprocess.run([*PROGRAM, str(config), str(tmp_path / "no")], capture_output=True, text=True, timeout=120)
    assert failed.returncode == 1
    assert "too_many_layers: student.layers" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_an_interrupt_stops_at_a_step_boundary(make_config: MakeConfig, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(make_config(training={"max_steps": 100_000}).model_dump_json())
    process = subprocess.Popen([*PROGRAM, str(config), str(tmp_path / "out")], stderr=subprocess.PIPE, text=True)
    try:
        log = tmp_path / "out/events.jsonl"
        deadline = time.monotonic() + 90
        while not (log.exists() and '"kind":"step"' in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped after step" in shown
