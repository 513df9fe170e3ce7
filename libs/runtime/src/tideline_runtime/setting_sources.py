"""Sources of settings: environment variables and the settings file. Each name is checked, and each value keeps its origin.

Each source returns a `Layer` or raises `InvalidSetting`. `merged` applies the precedence among layers; within a layer, the
section of a service overrides shared settings.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tideline_locks.port import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from tideline_runtime.annotations import field_types, from_text, leaf_paths, nested_model, resolve
from tideline_runtime.errors import InvalidSetting

PREFIX = "TIDELINE_"
DELIMITER = "__"
FILE_VARIABLE = "TIDELINE_SETTINGS_FILE"
FILE_ORIGIN = "settings file"
"""Prefix of the origin of a value in the settings file."""
MAX_FILE_BYTES = 1 << 20

Fields = Mapping[str, Any]

_variables: dict[str, str] = {
    FILE_VARIABLE: "Path of the settings file (TOML). `--settings` overrides it.",
    "TIDELINE_CACHE": "Folder for downloads of the tests. Services ignore it.",
    "TIDELINE_DEBUG": "1: the command line prints tracebacks. Services ignore it.",
    TOKEN_VARIABLE: "Bearer token of the lock service, for locks on `http:` or `https:`.",
    TOKEN_FILE_VARIABLE: "File with the bearer token of the lock service. It may change while the process runs.",
    "TIDELINE_MAVEN_MIRROR": "URL of the repository from which tests and builds of the Spark image download Maven artifacts. "
    "Services ignore it.",
}


def declare_variable(name: str, description: str) -> str:
    """Declare the environment variable `name`, which is not a setting; return the name.

    Declare every such variable here, because an undeclared `TIDELINE_*` variable stops every service.
    """
    _variables[name] = description
    return name


def declared_variables() -> tuple[tuple[str, str], ...]:
    """Return name and description of every environment variable that is not a setting, sorted."""
    return tuple(sorted(_variables.items()))


@dataclass(frozen=True, slots=True)
class Known:
    """All names that may be set: shared ones, and those of each section.

    `section` is the section whose values apply; None takes shared values only. `section_fields` returns the fields of any section,
    an empty mapping for a service that is not installed here (its settings cannot be checked), None for an unknown section.
    """

    shared: Fields
    section: str | None
    section_fields: Callable[[str], Fields | None]


@dataclass(frozen=True, slots=True)
class Layer:
    """Values by setting name (nested for nested models), and their origins by dotted path."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as found; `section` is None for a shared setting."""

    section: str | None
    path: tuple[str, ...]
    value: Any
    origin: str


def environment_layer(known: Known, environment: Mapping[str, str]) -> Layer:
    """Return the settings among the environment variables that begin with `TIDELINE_`.

    Raises `InvalidSetting` for a variable that no service knows.
    """
    given: list[_Given] = []
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in _variables:
            continue
        found = _from_variable(known, variable, environment[variable])
        if found is not None:
            given.append(found)
    return _layer(given)


def file_layer(known: Known, path: Path | None) -> Layer:
    """Return the settings in the TOML file at `path`; none without a path.

    Raises `InvalidSetting` for a file that cannot be read and for a key that no service knows.
    """
    if path is None:
        return Layer()
    content = _toml(path)
    given: list[_Given] = []
    for key, value in content.items():
        fields = known.section_fields(key) if key not in known.shared else None
        if fields is None:
            given.extend(_from_table(path, None, {key: value}, known.shared))
        elif not isinstance(value, dict):
            raise InvalidSetting(
                f"setting {key!r} is {value!r} (settings file {path})",
                name=key,
                origin=f"settings file {path}",
                expected=f"a table [{key}]",
            )
        elif fields:
            found = list(_from_table(path, key, value, fields))
            given.extend(found if key == known.section else [])
    return _layer(given)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all layers; the first one that gives a value wins, also for each value of a nested model."""
    found: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name not in found:
                found[name] = value
            elif isinstance(value, dict) and isinstance(found[name], dict):
                found[name] = merged(found[name], value)
    return found


def _from_variable(known: Known, variable: str, text: str) -> _Given | None:
    parts = tuple(variable.removeprefix(PREFIX).split(DELIMITER))
    names = tuple(part.lower() for part in parts)
    section = names[0] if len(names) > 1 and names[0] not in known.shared else None
    fields = known.section_fields(section) if section else known.shared
    if section and fields is not None and not fields:
        return None
    path = names[1:] if section else names
    annotation = resolve(fields, path) if fields is not None and variable.isupper() else None
    if annotation is None:
        candidates = [_variable(*own) for own in leaf_paths(known.shared)]
        for name in {section, known.section} - {None}:
            candidates += [_variable(str(name), *own) for own in leaf_paths(known.section_fields(str(name)) or {})]
        raise _unknown(f"environment variable {variable}", variable, candidates, "the environment", sought=variable.upper())
    if section not in (None, known.section):
        return None
    return _Given(section, path, from_text(text, annotation), f"environment variable {variable}")


def _variable(*names: str) -> str:
    return PREFIX + DELIMITER.join(names).upper()


def _from_table(path: Path, section: str | None, table: Mapping[str, Any], fields: Fields) -> Iterator[_Given]:
    where = f"{FILE_ORIGIN} {path}" + (f", table [{section}]" if section else "")
    for names, value in _leaves(table, fields):
        if resolve(fields, names) is None:
            dotted = ".".join(names)
            raise _unknown(f"setting {dotted!r} ({where})", dotted, [".".join(own) for own in leaf_paths(fields)], where)
        yield _Given(section, names, value, where)


def _leaves(table: Mapping[str, Any], fields: Fields) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        model = nested_model(fields.get(key))
        if model is not None and isinstance(value, dict):
            for names, leaf in _leaves(value, field_types(model)):
                yield (key, *names), leaf
        else:
            yield (key,), value


def _layer(given: list[_Given]) -> Layer:
    layer = Layer()
    for found in sorted(given, key=lambda g: (g.section is not None, len(g.path))):
        inner = layer.values
        for name in found.path[:-1]:
            nested = inner.get(name)
            inner[name] = inner = nested if isinstance(nested, dict) else {}
        inner[found.path[-1]] = found.value
        layer.origins[".".join(found.path)] = found.origin
    return layer


def _toml(path: Path) -> dict[str, Any]:
    def refuse(found: str, expected: str) -> InvalidSetting:
        return InvalidSetting(found, name="settings file", origin=f"--settings or {FILE_VARIABLE}", expected=expected)

    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise refuse(f"settings file {path}: {error.strerror}", "a readable TOML file") from None
    if len(content) > MAX_FILE_BYTES:
        raise refuse(f"settings file {path} is larger than {MAX_FILE_BYTES} bytes", "a TOML file of settings")
    try:
        return tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise refuse(f"settings file {path}: {' '.join(str(error).split())}", "TOML") from None


def _unknown(found: str, name: str, candidates: list[str], origin: str, *, sought: str | None = None) -> InvalidSetting:
    near = difflib.get_close_matches(sought or name, candidates, n=1)
    return InvalidSetting(
        f"unknown {found}",
        name=name,
        origin=origin,
        expected="a declared setting",
        remedy=f"did you mean {near[0]}?"
        if near
        else "remove or correct the name; docs/settings.md and docs/settings-advanced.md list all settings",
    )
