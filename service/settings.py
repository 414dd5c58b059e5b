"""Where and how this deployment runs. Read from the environment once, at the edge (`GRPO_…`).

Job parameters do not live here: they are the job's own (`grpo_engine.config.job`).
"""

from __future__ import annotations

import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from grpo_engine.config.runtime import Runtime
from grpo_engine.process.setup import visible_gpus
from service.integrations import Integration


class Settings(BaseSettings):
    # An error shows no input: URLs hold passwords.
    model_config = SettingsConfigDict(
        env_prefix="GRPO_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    home: Path = Field(default_factory=lambda: Path.home() / ".grpo")
    """Embedded mode's one folder: database, artifacts, models, runs, the first key."""
    mode: Literal["embedded", "production"] = "embedded"
    """Production refuses SQLite and an evicting Redis."""
    database_url: SecretStr | None = None
    """SQLAlchemy URL; none: SQLite in `home`."""
    broker_url: SecretStr | None = None
    """Redis; none: workers poll."""
    storage_url: str | None = None
    """`file:///path` or `s3://bucket/prefix`; none: a folder in `home`."""
    models: Path | None = None
    """Catalogue file (JSON: name → {path, revision}); none: each folder of `home/models` is a model."""
    engine_python: Path = Path(sys.executable)
    """Interpreter of the engine; another environment where vLLM pins its own."""
    engine_module: str = "grpo_engine"
    """What the worker starts with `-m`; tests start their own."""
    runtime: Runtime = Field(default_factory=Runtime)
    """JSON: how engines use their machine (`grpo_engine.config.runtime`): sampler, dtype and so on. Ranks are
    the job's own `resources.gpus` where it names them."""
    gpus: int = Field(default_factory=lambda: len(visible_gpus(os.environ)), ge=0, le=64)
    """GPUs that a worker has for a job; without it they are counted. Where there are none in truth, a job on
    so many is as many processes on the CPU."""
    pool: str = "default"

    lease_seconds: float = Field(120, gt=0)
    heartbeat_seconds: float = Field(15, gt=0)
    self_fence_seconds: float = Field(90, gt=0)
    """Without a successful renewal for so long the worker stops its engine itself."""
    sweep_seconds: float = Field(10, gt=0)
    poll_seconds: float = Field(0.2, gt=0)
    """Between two looks for a job; a look costs a quarter of a millisecond."""
    stall_seconds: float = Field(1800, gt=0)
    """An engine without any event for so long has hung."""
    stop_grace_seconds: float = Field(120, gt=0)
    """From SIGTERM to SIGKILL, time for a checkpoint."""
    retry_backoff_seconds: float = Field(5, ge=0)
    max_attempts_without_checkpoint: int = Field(3, ge=1)
    max_upload_bytes: int = Field(512 * 2**20, ge=1)
    max_rows: int = Field(50_000, ge=1)
    body_grace_seconds: float = Field(60, gt=0)
    """For a request's body to arrive, and 4 KiB a second beyond that."""
    max_queued_jobs: int = Field(100, ge=1)
    """Queued and running jobs of one tenant."""
    max_running_jobs: int | None = Field(None, ge=1)
    """Of these, so many may be on workers at once; the others wait. None: as many as there are workers."""
    max_stored_bytes: int | None = Field(None, ge=1)
    """Files and results of one tenant; beyond it nothing is uploaded and no job created. None: no limit."""
    max_requests_per_second: float | None = Field(None, gt=0)
    """Of one tenant to one API process, after a second's worth at once. None: no limit."""
    max_streams: int | None = Field(None, ge=1)
    """Live streams of one tenant, open at once at one API process. None: no limit."""
    endpoints: Path | None = None
    """JSON file of servers that jobs may name, with keys and prices: `graders/operator_endpoints.py`.
    Graders here and in engines read this and the next two from the environment themselves."""
    allowed_hosts: str = ""
    """`host` or `host:port`, comma separated, for graders, tools and webhooks beyond public https."""
    endpoint_secret: SecretStr | None = None
    """Signs requests to grader endpoints and tools as Standard Webhooks do; base64, maybe after `whsec_`."""
    webhook_backoff_seconds: list[Annotated[float, Field(ge=0)]] = [
        *(5.0, 300.0, 1800.0, 7200.0, 18_000.0),
        *(36_000.0, 50_400.0, 72_000.0, 86_400.0),
    ]
    """Pauses before a webhook is sent again, over three days; after the last one it is given up."""
    unsafe_graders: Literal["refused", "single-tenant", "single-tenant-production"] = "refused"
    """Whether workers without a sandbox run untrusted code in plain processes, for the only tenant there is
    (docs/operate/sandbox.md). The API never does. Production wants the long word."""
    integrations: list[Integration] = []
    """JSON: sinks of every job, in the shape of a job's own `integrations`, which come first."""
    tensorboard_dir: Path | None = None
    """Where workers write TensorBoard's files; none: `home/tensorboard`."""
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(str.upper)] = "INFO"
    min_free_disk_bytes: int = Field(256 * 2**20, ge=0)
    """With less than so much free in `home` the service is not ready; `grpo doctor` says it too."""
    chat_models: int = Field(2, ge=0, le=16)
    """Models that a worker's machine keeps loaded to be talked to; 0: it answers no requests."""
    chat_idle_seconds: float = Field(300, gt=0)
    """So long a model stays loaded that nobody talks to."""
    chat_module: str = "grpo_engine.serve.serving"
    """What answers; tests start their own."""
    max_chats: int = Field(8, ge=1)
    """Requests of one tenant that wait or are answered at once."""
    warm_engine: bool = True
    """Each worker keeps one engine started ahead, so that a job begins without the seconds of its imports.
    It holds about 370 MB of memory, and no device, while it waits."""

    @field_validator("database_url", "broker_url")
    @classmethod
    def _is_whole(cls, url: SecretStr | None) -> SecretStr | None:
        """Else whoever takes it apart later shows a piece of the password."""
        try:
            # of several brokers, parted by semicolons, the first
            parts = urlsplit(url.get_secret_value().split(";")[0] if url else "")
            is_whole = parts.port is None or bool(parts.hostname)
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ValueError("not a URL: in a password write %2F, %23, %3F and %40 for / # ? and @")
        return url

    @model_validator(mode="after")
    def _production_is_real(self) -> Self:
        if self.mode == "production" and self.sqlalchemy_url.startswith("sqlite"):
            raise ValueError("production needs PostgreSQL: set GRPO_DATABASE_URL")
        if self.mode == "production" and self.broker_url is None:
            raise ValueError("production needs Redis: set GRPO_BROKER_URL")
        if self.mode == "production" and self.unsafe_graders == "single-tenant":
            raise ValueError("production has a sandbox: or say GRPO_UNSAFE_GRADERS=single-tenant-production")
        if self.self_fence_seconds >= self.lease_seconds:
            raise ValueError("GRPO_SELF_FENCE_SECONDS must be shorter than GRPO_LEASE_SECONDS")
        return self

    @property
    def allows_unsafe(self) -> bool:
        return self.unsafe_graders != "refused"

    @cached_property
    def sqlalchemy_url(self) -> str:
        """URL with the psycopg driver named; SQLite in `home` where none is given."""
        if self.database_url is None:
            return f"sqlite:///{self.home / 'grpo.db'}"
        url = self.database_url.get_secret_value()
        for prefix in ("postgres://", "postgresql://"):
            if url.startswith(prefix):
                return "postgresql+psycopg://" + url.removeprefix(prefix)
        return url

    @cached_property
    def storage_location(self) -> str:
        return self.storage_url or f"file://{self.home / 'artifacts'}"

    @property
    def models_dir(self) -> Path:
        return self.home / "models"

    @property
    def runs_dir(self) -> Path:
        """Scratch of the engines that run here: `runs/<job>/<fence>`."""
        return self.home / "runs"

    @property
    def tensorboard_root(self) -> Path:
        return self.tensorboard_dir or self.home / "tensorboard"

    @property
    def key_file(self) -> Path:
        return self.home / "api_key"

    @property
    def alive_file(self) -> Path:
        """Touched by the main loop of a worker that runs here."""
        return self.home / "worker.healthcheck"
