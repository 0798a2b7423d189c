"""Tiny models in memory for the library's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from app.core.job_config import DistillConfig
from tests.tiny_models import make_tiny_model
from worker.distill.generate import SamplingSettings
from worker.distill.models import SplitModel, load_model

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def teacher_lm(tiny_teacher: Path) -> SplitModel:
    return SplitModel(load_model(str(tiny_teacher), device=CPU), vocabulary_size=320)


@pytest.fixture(scope="session")
def student_lm(tiny_student: Path) -> SplitModel:
    return SplitModel(load_model(str(tiny_student), device=CPU), vocabulary_size=320)


@pytest.fixture(scope="session")
def plain_teacher_lm(tiny_teacher: Path) -> SplitModel:
    """The same teacher, decoded by the model's own forward pass."""
    return SplitModel(load_model(str(tiny_teacher), device=CPU), vocabulary_size=320, lean=False)


@pytest.fixture(scope="session")
def plain_student_lm(tiny_student: Path) -> SplitModel:
    return SplitModel(load_model(str(tiny_student), device=CPU), vocabulary_size=320, lean=False)


@pytest.fixture(scope="session")
def gemma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tied head, soft-capped logits, and sliding-window layers (window 4,096: longer than any test)."""
    return make_tiny_model(tmp_path_factory.mktemp("gemma"), architecture="gemma2", seed=3)


@pytest.fixture
def settings() -> SamplingSettings:
    return SamplingSettings(max_new_tokens=12, temperature=1.0, top_p=1.0, eos_ids=frozenset({2}), pad_id=0)


PROMPTS = [(5, 6, 7, 8, 9), (10, 11), (12, 13, 14), (15, 16, 17, 18, 19, 20, 21)]

MakeConfig = Callable[..., DistillConfig]


@pytest.fixture
def make_config(tiny_teacher: Path, tiny_rows: Path) -> MakeConfig:
    """A small valid job description; keyword arguments replace or (for dictionaries) extend its sections."""

    def make(**changes: Any) -> DistillConfig:
        raw: dict[str, Any] = {
            "teacher": {"model": str(tiny_teacher)},
            "student": {"kind": "from_teacher", "layers": 2},
            "data": {"kind": "file", "path": str(tiny_rows), "dev_rows": 6, "max_response_tokens": 24},
            "sampling": {"kind": "adaptive_off_policy", "max_new_tokens": 10, "phi_start": 0.6, "buffer_size": 12},
            "training": {"max_steps": 4, "batch_size": 4, "learning_rate": 1e-3, "precision": "float32"},
            "evaluation": {"every_steps": 2, "rouge_rows": 2, "samples": 1},
        }
        for section, change in changes.items():
            known = raw.get(section)
            same_kind = isinstance(change, dict) and change.get("kind", (known or {}).get("kind")) == (known or {}).get(
                "kind"
            )
            raw[section] = {**known, **change} if isinstance(known, dict) and same_kind else change
        return DistillConfig.model_validate(raw)

    return make
