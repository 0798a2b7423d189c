"""Environment settings: working defaults on loopback, overridden one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.core.settings import ServiceSettings


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in ServiceSettings.model_fields:
        monkeypatch.delenv(f"STILLHOUSE_{field.upper()}", raising=False)


def test_defaults_need_no_server_and_listen_on_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STILLHOUSE_HOME", str(tmp_path))
    settings = ServiceSettings()
    assert settings.host == "127.0.0.1"
    assert settings.resolved_database_url == f"sqlite:///{tmp_path / 'stillhouse.db'}"
    assert settings.resolved_broker_url == "filesystem://"
    assert settings.resolved_storage_url == f"file://{tmp_path / 'artifacts'}"
    assert settings.resolved_api_url == "http://127.0.0.1:8000"
    assert list(tmp_path.iterdir()) == []  # reading settings creates nothing


def test_every_url_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STILLHOUSE_DATABASE_URL", "postgresql+psycopg://u@h/d")
    monkeypatch.setenv("STILLHOUSE_BROKER_URL", "redis://h:6379/0")
    monkeypatch.setenv("STILLHOUSE_API_PORT", "9000")
    monkeypatch.setenv("STILLHOUSE_UI_PORT", "")
    settings = ServiceSettings()
    assert settings.resolved_database_url == "postgresql+psycopg://u@h/d"
    assert settings.resolved_broker_url == "redis://h:6379/0"
    assert settings.resolved_api_url == "http://127.0.0.1:9000"
    assert settings.ui_port == 7860


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STILLHOUSE_API_PORT", "99999")
    with pytest.raises(ValidationError, match="api_port"):
        ServiceSettings()
