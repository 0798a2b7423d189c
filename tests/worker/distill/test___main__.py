"""The library as a program: a config file in, a student out; clear words and exit codes otherwise."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.events import Evaluated, Event, PhaseProgress, Resumed, StepDone, Warned, parse_event
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
    resumed = Resumed(step=7, training_events=9, phase="student_sft")
    assert line_of(resumed) == "going on after step 7 of student_sft; --fresh starts anew"


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
    config.write_text(make_config(data={"teacher_states": "on"}).model_dump_json())
    for options in ([], ["--states", str(tmp_path / "states")]):
        call = [*PROGRAM, str(config), str(tmp_path / "out"), *options]
        done = subprocess.run(call, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "step 4/4" in done.stdout
        assert (tmp_path / "out/student/model.safetensors").is_file()
        assert told(tmp_path / "out")[-1].kind == "exported"
        assert "teacher_states" in {event.phase for event in told(tmp_path / "out") if event.kind == "phase"}
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["events.jsonl", "student"]
    assert len(list((tmp_path / "states").iterdir())) == 1

    config.write_text(make_config(student={"layers": 9}).model_dump_json())
    failed = subprocess.run([*PROGRAM, str(config), str(tmp_path / "no")], capture_output=True, text=True, timeout=120)
    assert failed.returncode == 1
    assert "too_many_layers: student.layers" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_a_signal_pauses_and_the_same_command_goes_on(make_config: MakeConfig, tmp_path: Path) -> None:
    config, out = tmp_path / "config.json", tmp_path / "out"
    config.write_text(make_config(training={"max_steps": 100_000}).model_dump_json())
    call = [*PROGRAM, str(config), str(out)]
    first, shown = signalled(call, signal.SIGTERM)
    paused = re.fullmatch(
        r"paused after step (\d+) of 100000; the checkpoint of training step \1 is kept; the same command goes on from "
        r"there",
        shown.splitlines()[-1],
    )
    assert paused
    assert not any("going on" in line for line in first)
    second, _ = signalled(call, signal.SIGINT)
    assert f"going on after step {paused[1]} of training; --fresh starts anew\n" in second
    assert f"step {int(paused[1]) + 1}/100000 " in "".join(second)
    steps = [event.step for event in told(out) if event.kind == "step"]
    assert steps == list(range(1, len(steps) + 1))

    config.write_text(make_config(training={"max_steps": 3}).model_dump_json())
    refused = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1
    assert "checkpoint_mismatch: training.max_steps" in refused.stderr
    fresh = subprocess.run([*call, "--fresh"], capture_output=True, text=True, timeout=120)
    assert fresh.returncode == 0, fresh.stderr
    assert [event.step for event in told(out) if event.kind == "step"] == [1, 2, 3]
    assert sorted(path.name for path in out.iterdir()) == ["events.jsonl", "student"]


def signalled(call: list[str], number: signal.Signals) -> tuple[list[str], str]:
    """Lines of stdout up to the second step, when the signal is sent, and stderr."""
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while sum(line.startswith("step ") for line in lines) < 2:
                lines.append(process.stdout.readline())
                assert lines[-1], "it ended"
            process.send_signal(number)
            _, shown = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    return lines, shown


def told(out: Path) -> list[Event]:
    return [parse_event(json.loads(line)) for line in (out / "events.jsonl").read_text().splitlines()]
