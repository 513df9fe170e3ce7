"""Settings as text: a TOML print-out with origins and without secrets, and rows for the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tideline_runtime.annotations import is_secret, nested_model, type_text
from tideline_runtime.redaction import HIDDEN, redacted_text
from tideline_runtime.setting_sources import DELIMITER, PREFIX
from tideline_runtime.settings import ServiceSettings


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting for the documentation; `name` is dotted for settings of nested models."""

    name: str
    variable: str
    type: str
    default: str
    unit: str
    description: str
    is_secret: bool
    is_per_table: bool
    """Whether a HudiTable resource may override it for its table."""


def setting_rows(settings: type[ServiceSettings]) -> tuple[SettingRow, ...]:
    """Return the settings that this class adds to the shared ones (of the shared class: all), in order of declaration."""
    shared = set() if settings is ServiceSettings else set(ServiceSettings.model_fields)
    prefix = PREFIX + (f"{settings.section}{DELIMITER}".upper() if settings.section else "")
    return tuple(row for row in _rows(settings, (), prefix) if row.name.partition(".")[0] not in shared)


def settings_toml(settings: ServiceSettings) -> str:
    """Return the settings as a settings file, each with its origin as a comment; secrets are hidden, unset ones commented out."""
    shared: list[str] = []
    own: list[str] = []
    for name in type(settings).model_fields:
        lines = list(_lines(settings, getattr(settings, name), (name,)))
        (shared if name in ServiceSettings.model_fields else own).extend(lines)
    return "\n".join([*shared, *(["", f"[{settings.section}]", *own] if own else [])]) + "\n"


def _rows(model: type[BaseModel], path: tuple[str, ...], prefix: str) -> Iterator[SettingRow]:
    for name, field in model.model_fields.items():
        here = (*path, name)
        nested = nested_model(field.annotation)
        if nested is not None:
            yield from _rows(nested, here, prefix)
            continue
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        yield SettingRow(
            name=".".join(here),
            variable=prefix + DELIMITER.join(here).upper(),
            type=type_text(field.annotation),
            default=_default_text(field, extra.get("default_text")),
            unit=str(extra["unit"]),
            description=field.description or "",
            is_secret=is_secret(field.annotation),
            is_per_table=extra.get("per_table") is True,
        )


def _default_text(field: FieldInfo, text: Any) -> str:
    if text is not None:
        return str(text)
    if field.default is PydanticUndefined:
        return "required"
    return "unset" if field.default is None else _toml(field.default)


def _lines(settings: ServiceSettings, value: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = ".".join(path)
    if isinstance(value, BaseModel):
        for inner in type(value).model_fields:
            yield from _lines(settings, getattr(value, inner), (*path, inner))
    elif value is None:
        yield f"# {name} is unset"
    else:
        yield f"{name} = {_toml(value)}  # {settings.origin(name)}"


def _toml(value: Any) -> str:
    # JSON and TOML write texts, numbers, booleans and lists of them in the same way.
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, SecretStr):
        return json.dumps(HIDDEN)
    if isinstance(value, str | Path):
        return json.dumps(redacted_text(str(value)), ensure_ascii=False)
    return json.dumps(value, default=str)
