"""Checks the types of arguments of public functions by their annotations, so that a wrong one is named and no code runs into it."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Any, TypeGuard, TypeVar

import pyarrow.compute as pc

from tideline_table.errors import InvalidOption
from tideline_table.log import ProgressStep

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

Check = Callable[[Any], Any]
"""Returns the argument, of iterables a tuple. Raises `TypeError` for another type."""


def _one_of(*kinds: type, none: bool = False) -> Check:
    def check(value: Any) -> Any:
        is_flag = isinstance(value, bool) and bool not in kinds
        if is_flag or not (isinstance(value, kinds) or (none and value is None)):
            raise TypeError
        return value

    return check


def _several(kind: type, *, none: bool = False) -> Check:
    def check(value: Any) -> Any:
        if (isinstance(value, str) and kind is str) or (value is None and none):
            return value
        if isinstance(value, str):
            raise TypeError
        if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError
        found = tuple(value)
        if not all(isinstance(one, kind) and not isinstance(one, bool) for one in found):
            raise TypeError
        return found

    return check


def _mapping(value: Any) -> Any:
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise TypeError
    return value


def _columns(value: Any) -> Any:
    if value is None:
        raise TypeError
    return _mapping(value)


def _keys(value: Any) -> Any:
    if value is not None and not is_rows(value) and (isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable)):
        raise TypeError
    return value


def _connection(value: Any) -> Any:
    if value is None:
        return value
    import duckdb

    return _one_of(duckdb.DuckDBPyConnection)(value)


def _anything(value: Any) -> Any:
    return value


_CHECKS: dict[str, tuple[Check, str]] = {
    "str": (_one_of(str), "text"),
    "str | None": (_one_of(str, none=True), "text"),
    "str | os.PathLike[str]": (_one_of(str, os.PathLike), "a path"),
    "str | Iterable[str]": (_several(str), "a name or several names"),
    "Iterable[int]": (_several(numbers.Integral), "several whole numbers"),
    "bool": (_one_of(bool), "True or False"),
    "int": (_one_of(numbers.Integral), "a whole number"),
    "int | None": (_one_of(numbers.Integral, none=True), "a whole number"),
    "float | None": (_one_of(numbers.Real, none=True), "a number"),
    "Options": (_mapping, "a mapping from keys, which are texts, to values"),
    "Mapping[str, str] | None": (_mapping, "a mapping from keys, which are texts, to values"),
    "Assigned": (_columns, "a mapping from names of columns to values"),
    "Assigned | None": (_mapping, "a mapping from names of columns to values"),
    "Named | None": (_mapping, "a mapping from names to paths or tables"),
    "Columns": (_several(str, none=True), "a name or several names"),
    "Where": (_one_of(str, pc.Expression, none=True), "SQL text or a pyarrow.compute.Expression"),
    "ProgressStep | None": (_one_of(ProgressStep, none=True), "what `Progress.moved` returned"),
    "Point": (_one_of(str, numbers.Integral, date, none=True), "an instant, a sequence number, a date or a time"),
    "duckdb.DuckDBPyConnection | None": (_connection, "a connection of DuckDB"),
    # The functions that convert these refuse other types by name.
    "Rows": (_anything, ""),
    "Keys": (_anything, ""),
    "Keys | None": (_keys, "rows with the key columns, or a list of keys"),
    "Schema": (_anything, ""),
    "KeyIndex | None": (_anything, ""),
    "BucketIndex | None": (_anything, ""),
    # Protocols of Python
    "object | None": (_anything, ""),
}
"""The check of each annotation of a public argument, and what it expects. An annotation without one fails the import."""


def is_rows(value: object) -> TypeGuard[Any]:
    """Return whether `value` has the Arrow PyCapsule interface for rows."""
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")


def checked(function: F) -> F:
    """Return the function, which raises `InvalidInput` for an argument of another type than its annotation says."""
    signature = inspect.signature(function)
    checks = {
        name: _CHECKS[found.annotation]
        for name, found in signature.parameters.items()
        if found.annotation is not inspect.Parameter.empty
    }

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        for name, value in bound.arguments.items():
            if name in checks:
                check, expected = checks[name]
                try:
                    bound.arguments[name] = check(value)
                except TypeError:
                    raise InvalidOption(f"argument {name!r} of type {type(value).__name__}", expected=expected) from None
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


def checked_methods(kind: C) -> C:
    """Return the class, whose public methods are `checked`."""
    for name, found in vars(kind).items():
        if inspect.isfunction(found) and not name.startswith("_"):
            setattr(kind, name, checked(found))
    return kind


def checked_init(kind: C) -> C:
    """Return the class, whose constructor is `checked`."""
    kind.__init__ = checked(kind.__init__)  # type: ignore[misc]
    return kind
