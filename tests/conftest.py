"""Fixtures that every test folder shares: tiny real models and rows, made once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_models import make_tiny_model, write_rows


@pytest.fixture(scope="session")
def tiny_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random four-layer Llama and its tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("teacher"), layers=4, seed=1)


@pytest.fixture(scope="session")
def tiny_student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama that shares the teacher's tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("student"), layers=2, seed=2)


@pytest.fixture(scope="session")
def tiny_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL file of 24 canonical rows with responses."""
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl")
