"""Environment settings, read once by each composition root (asgi, celery app, UI main, command line, migrations).

Knows names and defaults of `STILLHOUSE_*`. Does not open, create or connect anything.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.core.teacher_states import DEFAULT_LIMIT_GIB


class ServiceSettings(BaseSettings):
    """`ServiceSettings()` reads the environment; every default works on a laptop, on loopback only."""

    model_config = SettingsConfigDict(env_prefix="STILLHOUSE_", env_ignore_empty=True, frozen=True)

    home: Path = Field(Path("~/.stillhouse"), description="State folder: database, broker, data sets, models.")
    host: str = "127.0.0.1"
    api_port: int = Field(8000, ge=1, le=65535)
    ui_port: int = Field(7860, ge=1, le=65535)
    database_url: str | None = Field(None, description="SQLAlchemy URL; default SQLite in the state folder.")
    broker_url: str | None = Field(None, description="Celery broker URL; default: files in the state folder.")
    storage_url: str | None = Field(None, description="fsspec URL for artifacts; default: in the state folder.")
    api_url: str | None = Field(None, description="Where the UI finds the API; default from host and api_port.")
    heartbeat_s: float = Field(5.0, gt=0, description="How often a worker says that its job is alive.")
    lease_s: float = Field(60.0, gt=0, description="A running job without a heartbeat for so long is re-queued.")
    step_timeout_s: float = Field(
        3600.0, gt=0, description="A training that says nothing for so long hangs, and is tried again."
    )
    gpus: str = Field("", description="Devices such as 0,1: `up` starts a training worker for each.")
    sweep_s: float = Field(5.0, gt=0, description="How often the API's sweeper looks for lost jobs.")
    max_upload_mib: int = Field(512, ge=1)
    keep_checkpoints_days: float = Field(14, ge=0, description="Checkpoints of ended jobs; 0 keeps them for ever.")
    keep_events_days: float = Field(365, ge=0, description="Events and curves of ended jobs; 0: for ever.")
    keep_comparisons_days: float = Field(365, ge=0, description="Comparisons and batches; 0: for ever.")
    teacher_states_gib: float = Field(
        DEFAULT_LIMIT_GIB, ge=0, description="Most that kept states of teachers may take on disk; 0 keeps none."
    )
    judge_url: str | None = Field(None, description="OpenAI-compatible base URL that judges batches; off by default.")
    judge_model: str | None = Field(None, description="The model to ask there.")
    judge_api_key: SecretStr | None = Field(None, description="Sent as a bearer token.")

    @property
    def home_folder(self) -> Path:
        return self.home.expanduser().resolve()

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home_folder / 'stillhouse.db'}"

    @property
    def resolved_broker_url(self) -> str:
        return self.broker_url or "filesystem://"

    @property
    def broker_folder(self) -> Path:
        return self.home_folder / "broker"

    @property
    def teacher_states_folder(self) -> Path:
        """May be removed at any time: what is missing is computed again."""
        return self.home_folder / "cache" / "teacher-states"

    @property
    def teacher_states_bytes(self) -> int:
        return int(self.teacher_states_gib * 2**30)

    @property
    def resolved_storage_url(self) -> str:
        return self.storage_url or f"file://{self.home_folder / 'artifacts'}"

    @property
    def resolved_api_url(self) -> str:
        return self.api_url or f"http://{self.host}:{self.api_port}"
