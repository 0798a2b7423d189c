"""The demo's story on a running service with a tiny real teacher, and when it counts as a failure."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

from app.core.events import PhaseProgress
from app.core.job_config import DistillConfig
from app.demo.api import ApiFailed, DemoApi
from app.demo.follow import PHASES
from app.demo.run import DATA, QUESTIONS, Demo, DemoFailed, check_fall, demo_job
from tests.running_service import RunningService, running_service


def test_job_description_is_valid_and_trains_with_all_that_the_house_offers() -> None:
    job = demo_job(teacher="some/teacher", max_steps=7)
    raw = job["config"]
    config = DistillConfig.model_validate({**raw, "data": {**raw["data"], "dataset_id": "ds_1"}})
    assert [loss.kind for loss in config.losses] == ["sft", "dac_kl", "span"]
    assert config.sampling.kind == "adaptive_off_policy"
    assert (config.teacher.model, config.training.max_steps) == ("some/teacher", 7)


def test_data_are_varied_and_do_not_hold_the_questions() -> None:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    prompts = {row["prompt"] if "prompt" in row else row["messages"][-1]["content"] for row in rows}
    assert len(rows) >= 250
    assert len(prompts) == len(rows)
    assert not prompts & set(QUESTIONS)


def test_every_phase_has_words() -> None:
    assert set(PHASES) == set(get_args(PhaseProgress.model_fields["phase"].annotation))


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.95), (1.0, 1.2), (1.0, float("nan"))])
def test_divergence_that_does_not_fall_clearly_is_a_failure(before: float, after: float) -> None:
    with pytest.raises(DemoFailed, match="did not fall clearly"):
        check_fall({"before/eval/kl_ts": before, "after/eval/kl_ts": after})


def test_divergence_that_falls_clearly_is_none() -> None:
    check_fall({"before/eval/kl_ts": 1.0, "after/eval/kl_ts": 0.5})


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("home"), without=["ui"]) as running:
        yield running


class Told:
    """A demo on `house` and what it printed."""

    def __init__(self, house: RunningService) -> None:
        self._file = io.StringIO()
        self.demo = Demo(
            api=DemoApi(house.settings.resolved_api_url),
            console=Console(file=self._file, width=160, markup=False),
            tick=house.supervisor.tick,
            storage_url=house.settings.resolved_storage_url,
        )

    @property
    def text(self) -> str:
        return self._file.getvalue()


def tiny_job(teacher: Path, **training: Any) -> Mapping[str, Any]:
    return {
        "name": "tiny",
        "config": {
            "recipe": "kd",
            "teacher": {"model": str(teacher)},
            "student": {"kind": "from_teacher", "layers": 3},
            "data": {"kind": "dataset", "dev_rows": 4, "max_response_tokens": 16},
            "training": {"max_steps": 40, "batch_size": 4, "learning_rate": 5e-3, **training},
            "evaluation": {"rouge_rows": 2},
        },
    }


@pytest.mark.slow
def test_story_from_upload_to_answers(house: RunningService, tiny_teacher: Path, tiny_rows: Path) -> None:
    told = Told(house)
    told.demo.run(data=tiny_rows, job=tiny_job(tiny_teacher))
    job = house.get("/v1/jobs")["data"][0]
    student = house.get(f"/v1/models/{job['student_id']}")
    for words in (
        job["id"],
        job["student_id"],
        f"student {student['parameters']:,}",
        f"{student['card']['metrics']['after/eval/kl_ts']:.4f}",
        "24 prompts, 24 with a response",
        "40/40",
        "tokens/s",
        "untrained student",
        "distilled student",
        *QUESTIONS,
    ):
        assert words in told.text
    folder = next(line for line in told.text.splitlines() if line.startswith("Student's folder: ")).partition(": ")[2]
    assert (Path(folder) / "model.safetensors").exists()


@pytest.mark.slow
def test_run_that_learns_nothing_fails(house: RunningService, tiny_teacher: Path, tiny_rows: Path) -> None:
    told = Told(house)
    with pytest.raises(DemoFailed, match="did not fall clearly"):
        told.demo.run(data=tiny_rows, job=tiny_job(tiny_teacher, max_steps=1, learning_rate=1e-9))
    assert "distilled student" in told.text


@pytest.mark.slow
def test_job_that_fails_is_told(house: RunningService, tiny_teacher: Path, tiny_rows: Path) -> None:
    job = tiny_job(tiny_teacher)
    job["config"]["data"]["max_prompt_tokens"] = 1
    with pytest.raises(DemoFailed, match="max_prompt_tokens"):
        Told(house).demo.run(data=tiny_rows, job=job)


@pytest.mark.slow
def test_refused_submission_is_told(house: RunningService, tiny_rows: Path, tmp_path: Path) -> None:
    with pytest.raises(ApiFailed, match="no-such-folder"):
        Told(house).demo.run(data=tiny_rows, job=tiny_job(tmp_path / "no-such-folder"))
