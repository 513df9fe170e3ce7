"""Settings of services: declared once with type, default, unit and description; read from arguments, environment and file.

Precedence: explicit arguments, environment (`TIDELINE_HTTP_PORT`; for one service `TIDELINE_MIRROR__HTTP_PORT`), settings file
(top-level keys; table `[mirror]`), defaults. A service's section may set its own settings and override every shared one.
Unknown names and wrong values raise `InvalidSetting`, which names the setting, its value, its origin and the expected value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tideline_runtime.annotations import field_types, nested_model
from tideline_runtime.errors import InvalidDeclaration
from tideline_runtime.members import PREFIX as MEMBER_PREFIX
from tideline_runtime.members import SERVICES, import_declarations
from tideline_runtime.prices import LIST_PRICES, Prices
from tideline_runtime.redaction import url_passwords
from tideline_runtime.setting_errors import invalid_setting
from tideline_runtime.setting_sources import FILE_ORIGIN, FILE_VARIABLE, Known, environment_layer, file_layer, merged

_REQUIRED: Any = ...


def setting(
    default: Any = _REQUIRED,
    *,
    unit: str,
    description: str,
    default_factory: Callable[[dict[str, Any]], Any] | None = None,
    default_text: str | None = None,
    per_table: bool = False,
    **constraints: Any,
) -> Any:
    """Declare one setting of a settings class or of a model nested in one.

    `unit` is what the value counts (`s`, `bytes`, `tables`; `-` for none). `default_factory` computes the default from the settings
    declared above, and `default_text` describes it. `constraints` are pydantic's (`ge`, `le`, `min_length`, ...). A setting is
    `per_table` if the service reads it at each visit of a table, so that a policy or a HudiTable resource may override it
    (`tideline_runtime.table_settings`).
    """
    extra: dict[str, Any] = {"unit": unit, "default_text": default_text, "per_table": per_table}
    if default_factory is not None:
        return Field(default_factory=default_factory, description=description, json_schema_extra=extra, **constraints)
    return Field(default, description=description, json_schema_extra=extra, **constraints)


def _checked_url(text: str) -> str:
    scheme, colon, _ = text.partition(":")
    if not colon or not scheme.replace("+", "").isalnum():
        raise ValueError("a URL with a scheme, such as sqlite:///folder/events.db of an event log, or redis://host:6379/0 of locks")
    return text


def _absolute(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path without null characters")
    try:
        return Path(os.path.abspath(path.expanduser()))
    except RuntimeError:
        # In a container, a user id may have no entry in the list of users and no HOME.
        raise ValueError("an absolute path, or ~ of a user who has a home folder") from None


def _lowered(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


Url = Annotated[str, AfterValidator(_checked_url)]
UrlOrNone = Annotated[str, AfterValidator(lambda text: text and _checked_url(text))]
"""An empty text names no URL."""
"""A URL whose scheme names the adapter; the adapter checks the rest."""

StatePath = Annotated[Path, AfterValidator(_absolute)]
"""A local path, made absolute; `~` is the user's home."""

LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lowered)]


class TableResourceSettings(BaseModel):
    """HudiTable resources of Kubernetes as a source of tables beside the setting `tables`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = setting(
        False,
        unit="-",
        description="Whether the HudiTable resources of a namespace name tables, too, with services wanted, engine options and "
        "settings.",
    )
    namespace: str = setting("", unit="-", description="Namespace of the resources; empty: the one of the service's pod.")
    kubeconfig: Path | None = setting(
        None, unit="-", description="Kubeconfig file of a service outside of the cluster; unset: the pod's service account."
    )
    request_timeout_s: float = setting(15.0, unit="s", description="Deadline of a request to the API server.", gt=0)
    watch_timeout_s: int = setting(300, unit="s", description="Length of one watch of the resources; then another begins.", ge=5)
    status_interval_s: float = setting(
        30.0, unit="s", description="A service writes the status of one resource at most once in this time.", gt=0
    )


class ShardLeaseSettings(BaseModel):
    """Division of the shards among the instances of a service that run at the moment, instead of by `shard_index`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = setting(
        False,
        unit="-",
        description="Whether the instances of a mirror, planner or cleaner divide the `shard_count` shards by leases, each its "
        "fair part. All "
        "instances have the same settings, without `shard_index`; instances beyond the number of shards wait until one ends.",
    )
    store: str = setting(
        "",
        unit="-",
        description="Where the leases are: `redis://<host>:<port>/<database>`, or `storage:<folder>` that all instances reach. "
        "Empty: the setting `locks`, if it names one store for all tables.",
    )
    group: str = setting(
        "tideline",
        unit="-",
        description="Name of the fleet whose instances divide the shards, for stores that several fleets use.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
    )
    ttl_s: float = setting(
        15.0,
        unit="s",
        description="Length of a lease. The shards of an instance that died are taken this time and a tick later.",
        ge=1,
        le=600,
    )


class ServiceSettings(BaseModel):
    """Settings that all services share.

    A service declares a subclass, sets `section` to its name and adds settings with `setting()`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)

    section: ClassVar[str | None] = None
    """Table of the settings file and part of the variable names: the package's name without `tideline_`."""

    state_folder: StatePath = setting(
        Path("~/.local/state/tideline"),
        unit="-",
        description="Folder for local files of the services. It may be deleted. A service creates it, and its files, only for "
        "its user.",
    )
    tables: tuple[str, ...] = setting(
        (),
        unit="-",
        description="Base paths of tables, or patterns: `root/*` matches folders in root, `root/**` folders at any depth below it. "
        "No pattern excludes tables. One that selects no table is logged.",
    )
    tables_rescan_s: float = setting(
        60.0, unit="s", description="Interval of the search for tables that match the patterns in `tables`.", gt=0
    )
    tables_unready_after_s: float = setting(
        300.0,
        unit="s",
        description="Time for which a service whose search for tables succeeded before stays ready while every search fails.",
        gt=0,
    )
    table_resources: TableResourceSettings = setting(
        TableResourceSettings(), unit="-", description="HudiTable resources of Kubernetes that name tables."
    )
    policy_file: StatePath | None = setting(
        None,
        unit="-",
        description="Policies per table (YAML): services, thresholds, windows, budgets, pauses by patterns, tags and single "
        "tables. Read again when it changes; a content that is not valid is refused, and the last good one stays in force.",
    )
    shard_count: int = setting(
        1,
        unit="shards",
        description="Number of shards into which the tables are divided: one for each instance or, with `shard_leases`, at least "
        "as many as instances (four times as many divide well).",
        ge=1,
        le=1000,
    )
    shard_index: int = setting(0, unit="-", description="Number of this instance among the shards, from 0.", ge=0)
    shard_leases: ShardLeaseSettings = setting(
        ShardLeaseSettings(), unit="-", description="Shards by lease instead of by `shard_index`."
    )
    event_log: Url = setting(
        unit="-",
        description="Where events are published and read: `sqlite:///<path>` or `kafka://<brokers>`. Its parameters, such as "
        "`?prefix=acme.`, are the settings of topics, the format and the schema registry (docs/events.md).",
        default_factory=lambda values: f"sqlite://{quote(str(values['state_folder']))}/events.db",
        default_text="sqlite:///<state_folder>/events.db",
    )
    fleet: str = setting(
        "",
        unit="-",
        description="Name of the fleet in the event log: a part of writer ids and consumer groups. Fleets that share a Kafka "
        "cluster need different names; all services of a fleet have the same.",
        pattern=r"^[A-Za-z0-9_.-]*$",
        max_length=100,
    )
    event_log_options: dict[str, SecretStr] = setting(
        {},
        unit="-",
        description="Options of the event log's client. For Kafka, those of librdkafka: `security.protocol`, `sasl.password`, ...",
    )
    locks: UrlOrNone = setting(
        "",
        unit="-",
        description="Where table locks and file-group reservations are kept: `redis://<host>:<port>/<database>`, or `storage:` "
        "(the folder of each table). Empty: no locks, because the table logs decide between writers; reservations are in the "
        "folder of each table. The engine option `tideline.lock.unreachable` determines what commits do while Redis does not "
        "answer. A table shared with Apache Hudi keeps only its reservations there and uses the lock of Apache Hudi.",
    )
    log_level: LogLevel = setting("info", unit="-", description="Lowest severity of the log lines that are written.")
    log_format: Literal["json", "console"] = setting(
        "json", unit="-", description="`json`: one object per line on stderr. `console`: text for people."
    )
    http_host: str = setting("127.0.0.1", unit="-", description="Address on which health and metrics are served.", min_length=1)
    http_port: int = setting(
        0,
        unit="-",
        description="Port for health and metrics. 0 selects a free port, which the service writes to "
        "`<state_folder>/<service>.json`. Services on one machine need ports of their own: set it in the table of each service.",
        ge=0,
        le=65535,
    )
    http_token: SecretStr | None = setting(
        None,
        unit="-",
        description="Bearer token that every route except `/healthz` and `/readyz` requires. A service that adds routes needs a "
        "token unless `http_host` is a loopback address.",
        min_length=8,
    )
    poll_interval_s: float = setting(
        5.0, unit="s", description="Longest time that a service waits for a hint before its next tick.", gt=0
    )
    audit_interval_s: float = setting(
        86_400.0,
        unit="s",
        description="While a mirror looks at the tables, the other services learn from its events that an exclusive table has no "
        "news, and ask storage for it only this long after the last time. It bounds how late a lost event is noticed.",
        gt=0,
    )
    prices: Prices = setting(
        dict(LIST_PRICES),
        unit="-",
        description="What `tideline status --cost` and the alert on costs charge: for 1,000 requests of each kind, an hour of a "
        "`processor`, 10^9 bytes `rewritten`. A name that is not given keeps its default ([costs](costs.md)).",
    )
    retry_backoff_max_s: float = setting(60.0, unit="s", description="Upper bound of the pause after a failed tick.", gt=0)
    max_consecutive_failures: int = setting(
        5,
        unit="ticks",
        description="Number of ticks in a row with an error that no retry can cure, after which the service ends.",
        ge=1,
    )
    live_deadline_s: float = setting(
        300.0, unit="s", description="Time without a sign of life of the main loop after which the service is reported dead.", gt=0
    )
    stop_grace_s: float = setting(25.0, unit="s", description="Time that a service has to stop before its process is ended.", gt=0)

    _origins: dict[str, str] = {}
    _file: Path | None = None
    _environment: Mapping[str, str] | None = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        own = set(cls.model_fields) - set(ServiceSettings.model_fields)
        if own and not cls.section:
            raise InvalidDeclaration(f"{cls.__name__} adds {sorted(own)} without a section", expected="a class attribute `section`")
        if cls.section in ServiceSettings.model_fields:
            raise InvalidDeclaration(f"section {cls.section!r} of {cls.__name__} is also the name of a shared setting")
        _check_declared(cls)
        _declared.append(cls)

    def __init__(self, *, _file: Path | None = None, _environment: Mapping[str, str] | None = None, **explicit: Any) -> None:
        environment = os.environ if _environment is None else _environment
        named = environment.get(FILE_VARIABLE)
        known = Known(field_types(ServiceSettings), self.section, _section_fields)
        layers = (environment_layer(known, environment), file_layer(known, _file or (Path(named) if named else None)))
        try:
            super().__init__(**merged(explicit, *(layer.values for layer in layers)))
        except ValidationError as error:
            raise invalid_setting(type(self), error, layers, explicit) from None
        self._origins = layers[1].origins | layers[0].origins | dict.fromkeys(explicit, "argument")
        self._file, self._environment = _file, _environment

    @classmethod
    def load(cls, *, file: Path | None = None, environment: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Load from `explicit`, `environment` (default: the process's), `file` (default: `TIDELINE_SETTINGS_FILE`), defaults.

        Raises `InvalidSetting` for the first setting that is unknown or wrong.
        """
        return cls(_file=file, _environment=environment, **explicit)

    def of(self, other: type[SettingsOf]) -> SettingsOf:
        """Return the settings of another service from the same settings file and environment. Raises as `load` does."""
        return other.load(file=self._file, environment=self._environment)

    @field_validator("shard_index")
    @classmethod
    def _index_below_count(cls, value: int, info: ValidationInfo) -> int:
        count = info.data.get("shard_count")
        if count is not None and value >= count:
            raise ValueError(f"a number below shard_count ({count})")
        return value

    def origin(self, path: str) -> str:
        """Return the origin of the setting at the dotted `path`: argument, environment variable, settings file or default."""
        if path in self._origins:
            return self._origins[path]
        parent, dot, _ = path.rpartition(".")
        return self.origin(parent) if dot else "default"

    def secrets_in_file(self) -> tuple[str, ...]:
        """Return the names of the settings that the settings file gives and that hold secrets or URLs with passwords."""

        def is_given(name: str) -> bool:
            own = (origin for path, origin in self._origins.items() if path == name or path.startswith(f"{name}."))
            return any(origin.startswith(FILE_ORIGIN) for origin in own)

        return tuple(name for name in type(self).model_fields if is_given(name) and any(_secrets(getattr(self, name))))

    def secret_values(self) -> tuple[str, ...]:
        """Return the secrets among the settings and the passwords in their URLs, in clear text, for logging to hide them."""
        return tuple(_secrets(self))


SettingsOf = TypeVar("SettingsOf", bound=ServiceSettings)
_declared: list[type[ServiceSettings]] = []


def declared_settings() -> tuple[type[ServiceSettings], ...]:
    """Return every settings class that was imported, the shared one first, then by section."""
    return (ServiceSettings, *sorted(_declared, key=lambda c: (c.section or "", c.__qualname__)))


def _section_fields(section: str) -> Mapping[str, Any] | None:
    """Return the fields of a section; empty for a service that is not installed here, None if there is no such section."""

    def declared() -> dict[str, Any]:
        return {name: kind for c in _declared if c.section == section for name, kind in field_types(c).items()}

    if declared() or import_declarations(f"{MEMBER_PREFIX}{section}", "settings"):
        return declared()
    return {} if section in SERVICES else None


def _check_declared(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        if not field.description or not isinstance(extra, dict) or not extra.get("unit"):
            raise InvalidDeclaration(
                f"setting {model.__name__}.{name}", expected="a declaration by setting() with unit and description"
            )
        nested = nested_model(field.annotation)
        if nested is not None:
            _check_declared(nested)


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str):
        yield from url_passwords(value)
    elif isinstance(value, BaseModel):
        yield from (secret for name in type(value).model_fields for secret in _secrets(getattr(value, name)))
    elif isinstance(value, Mapping):
        yield from (secret for item in value.values() for secret in _secrets(item))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (secret for item in value for secret in _secrets(item))


_check_declared(ServiceSettings)
