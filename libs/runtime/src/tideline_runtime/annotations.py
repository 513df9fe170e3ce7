"""Read type annotations of settings: which model is nested, whether it is a list, whether it is a secret."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr

_LISTS = (list, tuple, set, frozenset)


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union (a plain annotation is a union of one), without `Annotated` wrappers."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from alternatives(member)
    else:
        yield annotation


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """Return the nested model that the setting consists of, or None."""
    for kind in alternatives(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def field_types(model: type[BaseModel]) -> dict[str, Any]:
    """Return the annotations of a model by field name."""
    return {name: field.annotation for name, field in model.model_fields.items()}


def resolve(fields: Mapping[str, Any], path: tuple[str, ...]) -> Any | None:
    """Return the annotation at `path` (names of nested models' fields), None if there is no such setting."""
    annotation = fields.get(path[0])
    for name in path[1:]:
        model = nested_model(annotation)
        annotation = field_types(model).get(name) if model else None
    return annotation


def leaf_paths(fields: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the path of every setting that is not a nested model itself."""
    for name, annotation in fields.items():
        model = nested_model(annotation)
        if model is None:
            yield (name,)
        else:
            yield from ((name, *path) for path in leaf_paths(field_types(model)))


def is_secret(annotation: Any) -> bool:
    """Return whether values of the setting, or items in them, must not be shown."""
    return any(
        kind in (SecretStr, SecretBytes) or (get_origin(kind) not in (None, Literal) and any(map(is_secret, get_args(kind))))
        for kind in alternatives(annotation)
    )


def from_text(text: str, annotation: Any) -> Any:
    """Parse the text of an environment variable: JSON for models and mappings, JSON or a comma-separated list for lists.

    Text that cannot be parsed is returned unchanged: validation then reports what was expected.
    """
    kinds = [get_origin(kind) or kind for kind in alternatives(annotation)]
    is_list = any(kind in _LISTS for kind in kinds)
    is_mapping = nested_model(annotation) is not None or any(kind in (dict, Mapping) for kind in kinds)
    if is_mapping or (is_list and text.lstrip().startswith("[")):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    if is_list:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def type_text(annotation: Any) -> str:
    """Return the type in words for the documentation: `integer`, `list of text`, `json | console`."""
    words: list[str] = []
    for kind in alternatives(annotation):
        origin = get_origin(kind)
        if kind is type(None):
            words.append("unset")
        elif origin is Literal:
            words.extend(str(value) for value in get_args(kind))
        elif origin in _LISTS:
            words.append(f"list of {type_text(get_args(kind)[0])}")
        elif origin in (dict, Mapping):
            words.append(f"mapping to {type_text(get_args(kind)[1])}")
        else:
            words.append(_WORDS.get(kind, getattr(kind, "__name__", str(kind))))
    return " | ".join(words)


_WORDS: dict[Any, str] = {
    Any: "value",
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    Path: "path",
    SecretStr: "secret",
}
