"""Settings of services: declared once with type, default, unit and description; read from arguments, environment and file.

Precedence: explicit arguments, environment (`TIDELINE_HTTP_PORT`; of one service `TIDELINE_MIRROR__HTTP_PORT`), settings file
(top-level keys; table `[mirror]`), defaults. A service's section may set its own settings and override every shared one.
Anything unknown or wrong raises `InvalidSetting`, which names the setting, its value, its origin and what was expected.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tideline_service.annotations import field_types, nested_model
from tideline_service.errors import InvalidDeclaration
from tideline_service.members import PREFIX as MEMBER_PREFIX
from tideline_service.members import SERVICES, import_declarations
from tideline_service.redaction import url_passwords
from tideline_service.setting_errors import invalid_setting
from tideline_service.setting_sources import DELIMITER, FILE_VARIABLE, PREFIX, Known, Layer, environment_layer, file_layer

_REQUIRED: Any = ...


def setting(
    default: Any = _REQUIRED,
    *,
    unit: str,
    description: str,
    default_factory: Callable[[dict[str, Any]], Any] | None = None,
    default_text: str | None = None,
    **constraints: Any,
) -> Any:
    """Declare one setting of a settings class or of a model nested in one.

    `unit` is what the value counts (`s`, `bytes`, `tables`; `-` for none), `default_factory` computes the default from the settings
    declared above (then `default_text` says how), `constraints` are pydantic's (`ge`, `le`, `min_length`, ...).
    """
    extra: dict[str, Any] = {"unit": unit, "default_text": default_text}
    if default_factory is not None:
        return Field(default_factory=default_factory, description=description, json_schema_extra=extra, **constraints)
    return Field(default, description=description, json_schema_extra=extra, **constraints)


def _checked_url(text: str) -> str:
    scheme, colon, _ = text.partition(":")
    if not colon or not scheme.replace("+", "").isalnum():
        raise ValueError("a URL such as sqlite:////var/lib/tideline/events.db or redis://host:6379/0")
    return text


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path.expanduser()))


def _lowered(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


Url = Annotated[str, AfterValidator(_checked_url)]
"""A URL whose scheme names the adapter; the adapter checks the rest."""

StatePath = Annotated[Path, AfterValidator(_absolute)]
"""A local path, made absolute; `~` is the user's home."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    file: Path | None
    environment: Mapping[str, str] | None


_inputs: ContextVar[_Inputs | None] = ContextVar("tideline_setting_inputs", default=None)
_layers: ContextVar[tuple[Layer, Layer]] = ContextVar("tideline_setting_layers")


class _LayerSource(PydanticBaseSettingsSource):
    """One layer, already read and checked by name."""

    def __init__(self, settings_cls: type[BaseSettings], layer: Layer) -> None:
        super().__init__(settings_cls)
        self._layer = layer

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - pydantic's signature
        return self._layer.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._layer.values


class ServiceSettings(BaseSettings):
    """Settings that all services share. A service subclasses it, sets `section` to its name and adds its own with `setting()`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=DELIMITER, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    section: ClassVar[str | None] = None
    """Table of the settings file and part of the variable names: the package's name without `tideline_`."""

    state_folder: StatePath = setting(
        Path("~/.local/state/tideline"), unit="-", description="Folder for what services keep on this machine; may be deleted."
    )
    tables: tuple[str, ...] = setting(
        (),
        unit="-",
        description="Base paths of tables, or patterns of them: `root/*` for folders in root, `root/**` at any depth below it.",
    )
    tables_rescan_s: float = setting(60.0, unit="s", description="How often the patterns in `tables` are looked up again.", gt=0)
    shard_count: int = setting(1, unit="shards", description="Over how many instances of a service the tables are spread.", ge=1)
    shard_index: int = setting(0, unit="-", description="Which of the shards this instance is, from 0.", ge=0)
    event_log: Url = setting(
        unit="-",
        description="Where events are published and read: `sqlite:///<path>` or `kafka://<brokers>`.",
        default_factory=lambda values: f"sqlite://{quote(str(values['state_folder']))}/events.db",
        default_text="sqlite:///<state_folder>/events.db",
    )
    event_log_options: dict[str, SecretStr] = setting(
        {},
        unit="-",
        description="Options of the event log's client, for Kafka those of librdkafka: `security.protocol`, `sasl.password`, ...",
    )
    locks: Url = setting(
        "storage:",
        unit="-",
        description="Where table locks and intents live: `storage:` (in each table's own folder) or `redis://<host>:<port>/<database>`. The engine "
        "option `tideline.lock.unreachable` says what commits do while Redis does not answer. A table that is shared with Apache Hudi's writers has "
        "its intents there, and no lock but theirs.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lowered)] = setting(
        "info", unit="-", description="The least severe log lines that are written."
    )
    log_format: Literal["json", "console"] = setting(
        "json", unit="-", description="`json`: one object per line on stderr; `console`: for people."
    )
    http_host: str = setting("127.0.0.1", unit="-", description="Address on which health and metrics are served.", min_length=1)
    http_port: int = setting(
        0,
        unit="-",
        description="Port for health and metrics; 0 takes any free one, which is written to `<state_folder>/<service>.json`.",
        ge=0,
        le=65535,
    )
    http_token: SecretStr | None = setting(
        None,
        unit="-",
        description="Bearer token that every route but `/healthz` and `/readyz` then asks for; "
        "routes of a service beyond the shared ones need it unless `http_host` is a loopback address.",
        min_length=8,
    )
    poll_interval_s: float = setting(
        5.0, unit="s", description="How long a service waits for a hint before it looks by itself.", gt=0
    )
    retry_backoff_max_s: float = setting(60.0, unit="s", description="Upper bound of the pause after a failed tick.", gt=0)
    max_consecutive_failures: int = setting(
        5, unit="ticks", description="After how many failures in a row that no retry can cure the service gives up.", ge=1
    )
    live_deadline_s: float = setting(
        300.0, unit="s", description="A service whose main loop gave no sign of life for so long is reported dead.", gt=0
    )
    stop_grace_s: float = setting(
        25.0, unit="s", description="How long a service may take to stop; after that the process ends itself.", gt=0
    )

    _origins: dict[str, str] = {}

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

    def __init__(self, **explicit: Any) -> None:
        inputs = _inputs.get() or _Inputs(None, None)
        environment = os.environ if inputs.environment is None else inputs.environment
        named = environment.get(FILE_VARIABLE)
        known = Known(field_types(ServiceSettings), self.section, _section_fields)
        layers = (environment_layer(known, environment), file_layer(known, inputs.file or (Path(named) if named else None)))
        token = _layers.set(layers)
        try:
            super().__init__(**explicit)
        except ValidationError as error:
            raise invalid_setting(type(self), error, layers, explicit) from None
        finally:
            _layers.reset(token)
        self._origins = layers[1].origins | layers[0].origins | dict.fromkeys(explicit, "argument")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the layers replace pydantic's own sources: they know origins
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the environment, then the file."""
        environment, file = _layers.get()
        return init_settings, _LayerSource(settings_cls, environment), _LayerSource(settings_cls, file)

    @classmethod
    def load(cls, *, file: Path | None = None, environment: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Settings from `explicit`, `environment` (default: the process's), `file` (default: `TIDELINE_SETTINGS_FILE`), defaults.

        Raises `InvalidSetting` for the first setting that is unknown or wrong.
        """
        with _reading(_Inputs(file, environment)):
            return cls(**explicit)

    @field_validator("shard_index")
    @classmethod
    def _index_below_count(cls, value: int, info: ValidationInfo) -> int:
        count = info.data.get("shard_count")
        if count is not None and value >= count:
            raise ValueError(f"a number below shard_count ({count})")
        return value

    def origin(self, path: str) -> str:
        """Where the setting at the dotted `path` came from: argument, environment variable, settings file or default."""
        if path in self._origins:
            return self._origins[path]
        parent, dot, _ = path.rpartition(".")
        return self.origin(parent) if dot else "default"

    def secret_values(self) -> tuple[str, ...]:
        """The secrets among the settings and the passwords in their URLs, in the clear: what logging keeps out of every line."""
        return tuple(_secrets(self))


_declared: list[type[ServiceSettings]] = []


def declared_settings() -> tuple[type[ServiceSettings], ...]:
    """Every settings class that was imported, the shared one first, then by section."""
    return (ServiceSettings, *sorted(_declared, key=lambda c: (c.section or "", c.__qualname__)))


def _section_fields(section: str) -> Mapping[str, Any] | None:
    """Fields of a section; empty for a service that is not installed here, None if there is no such section."""

    def declared() -> dict[str, Any]:
        return {name: kind for c in _declared if c.section == section for name, kind in field_types(c).items()}

    if declared() or import_declarations(f"{MEMBER_PREFIX}{section}", "settings"):
        return declared()
    return {} if section in SERVICES else None


@contextmanager
def _reading(inputs: _Inputs) -> Iterator[None]:
    token = _inputs.set(inputs)
    try:
        yield
    finally:
        _inputs.reset(token)


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
