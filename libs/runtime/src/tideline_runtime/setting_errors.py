"""Turn pydantic's validation error into one line: name, value found, origin, expected value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tideline_runtime.annotations import field_types, is_secret, leaf_paths, resolve
from tideline_runtime.errors import InvalidSetting
from tideline_runtime.redaction import HIDDEN, redacted_text
from tideline_runtime.setting_sources import Layer

_MAX_SHOWN = 120
_FOLLOWS_FROM_ANOTHER = "default_factory_not_called"


def invalid_setting(
    model: type[BaseModel], error: ValidationError, layers: tuple[Layer, Layer], explicit: Mapping[str, Any]
) -> InvalidSetting:
    """Return the error for the first wrong setting of the settings class `model`; the remedy lists the others."""
    wrong = [e for e in error.errors(include_url=False) if e["type"] != _FOLLOWS_FROM_ANOTHER]
    first, others = wrong[0], sorted({_dotted(e) for e in wrong[1:]} - {_dotted(wrong[0])})
    path = tuple(str(part) for part in first["loc"] if isinstance(part, str))
    fields = field_types(model)
    name, origin = _named(model, path), _origin(path, layers, explicit)
    also = f"also wrong: {', '.join(others)}" if others else ""
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(".".join(path), [".".join(own) for own in leaf_paths(fields)], n=1)
        remedy = f"did you mean {near[0]}?" if near else also
        return InvalidSetting(
            f"unknown setting {name!r} ({origin})", name=name, origin=origin, expected="a declared setting", remedy=remedy
        )
    if first["type"] == "missing":
        return InvalidSetting(
            f"setting {name!r} is missing", name=name, origin=origin, expected="a value: it has no default", remedy=also
        )
    shown = HIDDEN if path and _holds_secret(fields, path) else redacted_text(shortened(repr(first["input"])))
    return InvalidSetting(
        f"setting {name!r} is {shown} ({origin})", name=name, origin=origin, expected=expectation(first), remedy=also
    )


def _dotted(error: ErrorDetails) -> str:
    return ".".join(str(part) for part in error["loc"])


def _named(model: type[BaseModel], path: tuple[str, ...]) -> str:
    section = getattr(model, "section", None)
    shared = path and any(path[0] in getattr(base, "model_fields", {}) for base in model.__mro__[1:])
    return ".".join(path if shared or not section else (section, *path))


def _origin(path: tuple[str, ...], layers: tuple[Layer, Layer], explicit: Mapping[str, Any]) -> str:
    if path and path[0] in explicit:
        return "argument"
    for layer in layers:
        for length in range(len(path), 0, -1):
            found = layer.origins.get(".".join(path[:length]))
            if found:
                return found
    return "default"


def _holds_secret(fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    return any(is_secret(resolve(fields, path[:length])) for length in range(1, len(path) + 1))


def shortened(text: str) -> str:
    """Return `text` in one line, cut to `_MAX_SHOWN` characters."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def expectation(error: ErrorDetails) -> str:
    """Return the expectation in pydantic's message, without the words that name the kind of error."""
    message = error["msg"].removeprefix("Value error, ")
    return re.sub(r"^\w+ should (be |have )?", "", message).replace("a valid tuple", "a list")
