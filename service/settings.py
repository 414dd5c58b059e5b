"""The deployment's settings, read once from the environment (`GRPO_…`).

Boundary: job parameters are in `grpo_engine.config.job`.
"""

import os
import re
import socket
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from grpo_engine.config.runtime import Runtime
from grpo_engine.process.gpus import count_visible_gpus
from service.integrations import Integration

NOT_A_URL = "not a URL: in a password write %2F, %23, %3F and %40 for / # ? and @"


def _visible_gpus(given: dict[str, Any]) -> int:
    return 0 if given["launcher"] == "ray" else count_visible_gpus(os.environ)


def _one_per_gpu(given: dict[str, Any]) -> int:
    return given["gpus"] or (8 if given["launcher"] == "ray" else 1)


class Settings(BaseSettings):
    # errors must not show the input, because URLs contain passwords
    model_config = SettingsConfigDict(
        env_prefix="GRPO_", env_ignore_empty=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    home: Path = Field(default_factory=lambda: Path.home() / ".grpo")
    """Embedded mode's folder: database, artifacts, models, runs, the first key."""
    mode: Literal["embedded", "production"] = "embedded"
    """Production refuses SQLite and a Redis that evicts keys."""
    database_url: SecretStr | None = None
    """SQLAlchemy URL; None: SQLite in `home`."""
    broker_url: SecretStr | None = None
    """Redis URL; None: workers poll."""
    storage_url: str | None = None
    """`file:///path` or `s3://bucket/prefix`; None: a folder in `home`."""
    models: Path | None = None
    """Catalogue file (JSON: name → {path, revision}); None: each folder of `home/models` is a model."""
    hub_models: bool = False
    """Whether a job may name any model of the Hugging Face hub, which is then added to the catalogue."""
    hub_max_bytes: int = Field(64 * 2**30, ge=1)
    """Largest model that is added from the hub."""
    engine_python: Path = Path(sys.executable)
    """Interpreter of the engine; vLLM may need its own environment."""
    engine_module: str = "grpo_engine"
    """Module that the worker starts with `-m`; tests replace it."""
    runtime: Runtime = Field(default_factory=Runtime)
    """JSON with how engines use their machine, such as sampler and dtype (`grpo_engine.config.runtime`). The
    number of ranks is set by each job's `resources.gpus`."""
    launcher: Literal["local", "ray"] = "local"
    """Where a worker's engines run: on its machine, or on the Ray cluster at RAY_ADDRESS (docs/scale.md)."""
    gpus: int = Field(default_factory=_visible_gpus, ge=0, le=1024)
    """Number of GPUs that a worker has for its jobs; default: the visible ones. On a machine without GPUs,
    each is a process on the CPU. With Ray: the most to which the cluster may grow; default: what it has."""
    slots: int = Field(default_factory=_one_per_gpu, ge=1, le=1024)
    """Number of jobs that a worker runs at the same time, each on its own GPUs; default: one per GPU, at
    least one. With Ray and without GRPO_GPUS: 8."""
    gpu_memory_gb: int | None = Field(None, ge=0)
    """Memory of the worker's smallest GPU in units of 10^9 bytes; None: as `nvidia-smi` lists it."""
    pool: str = "default"

    lease_seconds: float = Field(30, gt=0)
    """Time after which the lease of a killed worker expires; the sweeper then requeues its job."""
    heartbeat_seconds: float = Field(5, gt=0)
    self_fence_seconds: float = Field(20, gt=0)
    """Time without a successful renewal after which the worker stops its engine. It should be longer than a
    restart of the database takes."""
    sweep_seconds: float = Field(10, gt=0)
    poll_seconds: float = Field(0.2, gt=0)
    """Time between two polls for a job; a poll takes a quarter of a millisecond."""
    stall_seconds: float = Field(1800, gt=0)
    """Time without any event after which an engine is considered hung."""
    stop_grace_seconds: float = Field(120, gt=0)
    """Time between SIGTERM and SIGKILL, in which the engine writes a checkpoint."""
    retry_backoff_seconds: float = Field(5, ge=0)
    max_attempts_without_checkpoint: int = Field(3, ge=1)
    max_upload_bytes: int = Field(512 * 2**20, ge=1)
    max_rows: int = Field(50_000, ge=1)
    body_grace_seconds: float = Field(60, gt=0)
    """Time within which a request's body must arrive, plus a second for each 4 KiB."""
    max_queued_jobs: int = Field(100, ge=1)
    """Maximum number of unfinished jobs per tenant."""
    max_running_jobs: int | None = Field(None, ge=1)
    """Maximum number of running jobs per tenant; the others wait. None: no limit."""
    max_stored_bytes: int | None = Field(None, ge=1)
    """Maximum bytes of a tenant's files and results; above it, uploads and new jobs are refused. None: no
    limit."""
    max_requests_per_second: float | None = Field(None, gt=0)
    """Limit per tenant and API process, with bursts of one second's requests. None: no limit."""
    max_streams: int | None = Field(None, ge=1)
    """Maximum number of live streams per tenant and API process. None: no limit."""
    endpoints: Path | None = None
    """JSON file of servers that jobs may name, with keys and prices (`outbound/operator_endpoints.py`).
    Graders in the service and in engines read this and the next two directly from the environment."""
    allowed_hosts: str = ""
    """Hosts that graders, tools and webhooks may use in addition to public https: `host` or `host:port`,
    separated by commas."""
    endpoint_secret: SecretStr | None = None
    """Secret that signs requests to grader endpoints and tools (Standard Webhooks): base64, optionally after
    `whsec_`."""
    webhook_backoff_seconds: list[Annotated[float, Field(ge=0)]] = [
        *(5.0, 300.0, 1800.0, 7200.0, 18_000.0),
        *(36_000.0, 50_400.0, 72_000.0, 86_400.0),
    ]
    """Pauses between attempts to deliver a webhook, by default three days in total. The delivery fails with
    the attempt after the last pause."""
    unsafe_graders: Literal["refused", "single-tenant", "single-tenant-production"] = "refused"
    """Whether workers without a sandbox run untrusted code in plain processes, for a single tenant
    (docs/operate/sandbox.md). The API never does. Production requires `single-tenant-production`."""
    integrations: list[Integration] = []
    """JSON list of sinks for every job, in the form of a job's own `integrations`, which take precedence."""
    tensorboard_dir: Path | None = None
    """Folder for TensorBoard's files; None: `home/tensorboard`."""
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(str.upper)] = "INFO"
    min_free_disk_bytes: int = Field(256 * 2**20, ge=0)
    """Free space in `home` below which the service is not ready; `grpo doctor` reports it too."""
    chat_models: int = Field(2, ge=0, le=16)
    """Number of models that a worker's machine keeps loaded for chat; 0: no chat on this machine."""
    chat_idle_seconds: float = Field(300, gt=0)
    """Seconds before an idle model is unloaded."""
    chat_module: str = "grpo_engine.serve.serving"
    """Module of the model server; tests replace it."""
    serve_host: str | None = None
    """Name or address of this machine at which its model servers listen, and the API reaches them. None:
    loopback in embedded mode, the host name in production."""
    max_chats: int = Field(8, ge=1)
    """Maximum number of concurrent chat requests per tenant and API process, including waiting ones."""
    warm_engine: bool = True
    """Whether each worker keeps one engine process ready, which saves a job the time of its imports. It uses
    about 370 MB of memory, and no device, while it waits."""

    @field_validator("home", "models", "endpoints", "tensorboard_dir")
    @classmethod
    def _is_absolute(cls, path: Path | None) -> Path | None:
        """Relative paths belong to this process's folder; engines run in other ones."""
        return path and path.absolute()

    @field_validator("engine_python")
    @classmethod
    def _is_absolute_or_in_path(cls, program: Path) -> Path:
        return program.absolute() if len(program.parts) > 1 else program

    @field_validator("database_url")
    @classmethod
    def _is_supported(cls, url: SecretStr | None) -> SecretStr | None:
        known = r"(postgres|postgresql|postgresql\+psycopg|sqlite)://"
        if url is not None and not re.match(known, url.get_secret_value()):
            raise ValueError("the database is not supported: use postgresql://USER:PASSWORD@HOST/NAME")
        # PostgreSQL's driver ends a password at the first @, and its errors would show the rest as the host
        if url is not None and re.match(r"postgres[^?]*@[^?]*@", url.get_secret_value()):
            raise ValueError(NOT_A_URL)
        return url

    @field_validator("broker_url")
    @classmethod
    def _is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url and not re.match(r"(redis|rediss|redis\+socket|sentinel)://", url.get_secret_value()):
            raise ValueError("the broker is not supported: use redis://USER:PASSWORD@HOST:PORT/NUMBER")
        return url

    @field_validator("database_url", "broker_url")
    @classmethod
    def _is_whole(cls, url: SecretStr | None) -> SecretStr | None:
        """Rejects URLs that cannot be parsed: later errors would show parts of the password."""
        try:
            # several brokers are separated by semicolons
            parts = urlsplit(url.get_secret_value().split(";")[0] if url else "")
            is_whole = parts.port is None or bool(parts.hostname)
        except ValueError:
            is_whole = False
        if not is_whole:
            raise ValueError(NOT_A_URL)
        return url

    @model_validator(mode="after")
    def _production_is_real(self) -> Self:
        if self.mode == "production" and self.sqlalchemy_url.startswith("sqlite"):
            raise ValueError("production needs PostgreSQL: set GRPO_DATABASE_URL")
        if self.mode == "production" and self.broker_url is None:
            raise ValueError("production needs Redis: set GRPO_BROKER_URL")
        if self.mode == "production" and self.unsafe_graders == "single-tenant":
            raise ValueError("production needs a sandbox, or GRPO_UNSAFE_GRADERS=single-tenant-production")
        if self.self_fence_seconds >= self.lease_seconds:
            raise ValueError("GRPO_SELF_FENCE_SECONDS must be shorter than GRPO_LEASE_SECONDS")
        if 0 < self.gpus < self.slots:
            raise ValueError(
                f"GRPO_SLOTS is {self.slots}, but each slot needs a GPU and GRPO_GPUS is {self.gpus}"
            )
        return self

    @property
    def allows_unsafe(self) -> bool:
        return self.unsafe_graders != "refused"

    @cached_property
    def sqlalchemy_url(self) -> str:
        """The database URL with the psycopg driver; by default SQLite in `home`."""
        if self.database_url is None:
            return f"sqlite:///{quote(str(self.home / 'grpo.db'))}"
        return re.sub("^postgres(ql)?://", "postgresql+psycopg://", self.database_url.get_secret_value())

    @cached_property
    def storage_location(self) -> str:
        return self.storage_url or f"file://{self.home / 'artifacts'}"

    @property
    def storage_folder(self) -> Path | None:
        """The folder of the storage; None: the storage is on a server or in memory."""
        is_folder = self.storage_location.startswith("file://")
        return Path(self.storage_location.removeprefix("file://")) if is_folder else None

    @property
    def serve_address(self) -> str:
        return self.serve_host or ("127.0.0.1" if self.mode == "embedded" else socket.gethostname())

    @property
    def models_dir(self) -> Path:
        return self.home / "models"

    @property
    def runs_dir(self) -> Path:
        """Run directories of the engines on this machine: `runs/<job>/<fence>`."""
        return self.home / "runs"

    @property
    def tensorboard_root(self) -> Path:
        return self.tensorboard_dir or self.home / "tensorboard"

    @property
    def key_file(self) -> Path:
        return self.home / "api_key"

    @property
    def alive_file(self) -> Path:
        """The file that this host's worker touches in its main loop; containers may share `home`."""
        return self.home / f"worker.{socket.gethostname()}.healthcheck"


class InvalidSetting(Exception):
    """A variable of the environment has an unusable value, which the message does not show."""

    def __init__(self, message: str, variable: str | None) -> None:
        super().__init__(message)
        self.variable = variable


def read_settings(**stated: Any) -> Settings:
    """The settings of the environment, over which `stated` take precedence. Raises InvalidSetting."""
    try:
        return Settings(**stated)
    except ValidationError as error:
        first = error.errors()[0]
        name, *inside = first["loc"] or (None,)
        place = "".join(f"{part}: " for part in inside)
        variable = None if name is None else f"GRPO_{name}".upper()
        raise InvalidSetting(place + first["msg"].removeprefix("Value error, "), variable) from error
    except SettingsError as error:  # its message has the field's name, but not its value
        found = re.search(r'field "(\w+)"', str(error))
        raise InvalidSetting("it is not JSON", f"GRPO_{found[1]}".upper() if found else None) from None


def settings_or_exit(**stated: Any) -> Settings:
    """`read_settings` for programs other than `grpo`: an invalid setting ends the process with a sentence."""
    try:
        return read_settings(**stated)
    except InvalidSetting as error:
        sys.exit(f"{error.variable}: {error}" if error.variable else str(error))


OTHERS = {"URL", "API_KEY", "ENDPOINTS", "ENDPOINT_SECRET", "ALLOWED_HOSTS", "FAULT", "FAULT_MARKS"}
"""Variables of the CLI and of engines, after `GRPO_`."""


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Names that begin with `GRPO_` but belong to no setting: they have no effect."""
    known = {f"GRPO_{name.upper()}" for name in (*Settings.model_fields, *OTHERS)}
    return sorted(name for name in environment if name.startswith("GRPO_") and name not in known)
