"""Settings, read from the environment; a bad value is refused by name."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from jobq.errors import SettingsError

__all__ = ["DashboardSettings", "LogLevel", "WorkerSettings"]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


def _upper(value: object) -> object:
    return value.strip().upper() if isinstance(value, str) else value


def _names(value: object) -> object:
    if isinstance(value, str):
        return tuple(name for part in value.split(",") if (name := part.strip()))
    return value


def _dsn(value: object) -> object:
    if isinstance(value, str):
        try:
            conninfo_to_dict(value)
        except ProgrammingError:
            raise ValueError(
                "allowed: postgresql://user:password@host:port/database, or libpq's key=value words"
            ) from None
    return value


Dsn = Annotated[str, BeforeValidator(_dsn)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Days = Annotated[float, Field(ge=0, le=36_500)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as exc:
            raise SettingsError(_explain(type(self), exc)) from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Read the settings from `environ` (the process's own when None).

        An empty variable counts as not set. `overrides` are field names, as the command line
        gives them, and win; None leaves a setting to the environment.
        """
        given = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            variable = str(field.validation_alias)
            if overrides.get(name) is not None:
                values[name] = overrides[name]
            elif given.get(variable, "").strip():
                values[variable] = given[variable].strip()
        unknown = overrides.keys() - cls.model_fields.keys()
        if unknown:
            raise SettingsError(f"no such setting: {', '.join(sorted(unknown))}")
        return cls(**values)


class WorkerSettings(_Settings):
    """How one worker process behaves. Times are seconds, retention is days.

    `WorkerSettings.from_environment()` reads the variables named below; in a program or a test,
    `WorkerSettings(database_url=…, threads=2)` takes the same values by field name.
    Raises SettingsError for a value that is not allowed.
    """

    database_url: Dsn | None = Field(None, validation_alias="DATABASE_URL")
    listen_url: Dsn | None = Field(None, validation_alias="JOB_WORKER_LISTEN_URL")
    app: str | None = Field(None, validation_alias="JOB_WORKER_APP", pattern=r"^[\w.]+:[\w.]+$")
    threads: int = Field(10, validation_alias="JOB_WORKER_THREADS", ge=1, le=1000)
    lease_seconds: float = Field(60, validation_alias="JOB_WORKER_LEASE_SECONDS", ge=1, le=86_400)
    poll_seconds: float = Field(5, validation_alias="JOB_WORKER_POLL_SECONDS", ge=0.05, le=60)
    kinds: Names = Field((), validation_alias="JOB_WORKER_KINDS")
    exclude: Names = Field((), validation_alias="JOB_WORKER_EXCLUDE")
    shutdown_seconds: float = Field(
        30, validation_alias="JOB_WORKER_SHUTDOWN_SECONDS", ge=0, le=86_400
    )
    reap_seconds: float = Field(15, validation_alias="JOB_WORKER_REAP_SECONDS", ge=0.1, le=3600)
    log_level: Annotated[LogLevel, BeforeValidator(_upper)] = Field(
        "INFO", validation_alias="JOB_WORKER_LOG_LEVEL"
    )
    retention_days: Days = Field(7, validation_alias="JOB_RETENTION_DAYS")
    failed_retention_days: Days = Field(30, validation_alias="JOB_FAILED_RETENTION_DAYS")

    if TYPE_CHECKING:

        def __init__(self, **values: Any) -> None: ...


class DashboardSettings(_Settings):
    """What the dashboard may do. Raises SettingsError for a value that is not allowed."""

    read_only: bool = Field(False, validation_alias="JOB_DASHBOARD_READ_ONLY")


def _explain(settings: type[BaseModel], exc: ValidationError) -> str:
    lines = []
    for error in exc.errors():
        name = str(error["loc"][0])
        field = settings.model_fields.get(name)
        variable = str(field.validation_alias) if field else name
        value = _without_password(repr(error["input"]))
        lines.append(f"{variable}={value} cannot be used: {_allowed(error)}")
    return "\n".join(lines)


def _allowed(error: Any) -> str:
    if error["type"] == "string_pattern_mismatch":
        return "allowed: MODULE:APP, as in shop.jobs:app"
    if error["type"] == "bool_parsing":
        return "allowed: true or false"
    return str(error["msg"]).removeprefix("Value error, ")


def _without_password(text: str) -> str:
    text = re.sub(r"(://[^:@/\s]*):[^@\s]*@", r"\1:***@", text)
    return re.sub(r"(password\s*=\s*)('[^']*'|\S+)", r"\1***", text, flags=re.IGNORECASE)
