"""`Options`: the values that were given for options.

The options of the engine are declared in the other modules of this package.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import chain
from typing import cast

from tideline_table.config import clustering, compaction, coordination, files, index, retention, writing
from tideline_table.errors import InvalidOption
from tideline_table.option import Option, T

AnyOption = Option[int] | Option[float] | Option[bool] | Option[str]

_MODULES = (files, index, writing, coordination, compaction, clustering, retention)
ALL_OPTIONS: tuple[AnyOption, ...] = tuple(
    value for value in chain.from_iterable(vars(module).values() for module in _MODULES) if isinstance(value, Option)
)
_ALIKE = 0.85
"""Keys share their first words, so keys of other meaning are three quarters alike."""
_BY_KEY = {key: option for option in ALL_OPTIONS for key in (option.key, *option.aliases)}


_OF_TABLES = {
    "recordkey.field": "key",
    "recordkey.fields": "key",
    "partitionpath.field": "partition",
    "partition.fields": "partition",
    "precombine.field": "ordering",
    "precombine.fields": "ordering",
    "ordering.fields": "ordering",
    "table.type": "type",
    "table.name": "name",
    "hive_style_partitioning": "hive_style",
    "partitionpath.urlencode": "url_encode",
    "keygenerator.class": "key_generator",
    "keygenerator.type": "key_generator",
    "populate.meta.fields": "meta_fields",
}
"""Ends of Apache Hudi's options that say what a table is, with the argument of `create` that says it."""


def _unknown(key: str) -> InvalidOption:
    for end, argument in _OF_TABLES.items():
        if key.startswith("hoodie.") and key.endswith(f".{end}"):
            return InvalidOption(
                f"unknown option {key!r}",
                expected=f"the argument {argument!r} of tideline.create, when the table is created",
                remedy="leave the option out: writers take it from the table",
            )
    near = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=_ALIKE)
    return InvalidOption(
        f"unknown option {key!r}",
        expected=f"a declared one{f', such as {near[0]!r}' if near else ''}",
        remedy="see docs/options.md",
    )


def declare_options(*options: AnyOption) -> None:
    """Let `Options` accept the options of a package above the engine. The package calls this when it is imported."""
    _BY_KEY.update({key: option for option in options for key in (option.key, *option.aliases)})


def is_declared(key: str) -> bool:
    """Return whether `Options` accepts `key`."""
    return key in _BY_KEY


class Options:
    """A validated set of options. An option without a value has its default.

    An alias stands for the key of its option; of several values the last one counts. Raises `InvalidOption` for an unknown key (the
    error names the nearest known key) and for a value that is not allowed.
    """

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        self._given: dict[str, int | float | bool | str] = {}
        for key, value in (given or {}).items():
            option = _BY_KEY.get(key)
            if option is None:
                raise _unknown(key)
            self._given[option.key] = option.parse(value)

    def __getitem__(self, option: Option[T]) -> T:
        return cast("T", self._given.get(option.key, option.default))

    def given(self) -> dict[str, str]:
        """Return the explicitly set options as text, to send them to another process."""
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in self._given.items()}

    def merged(self, more: Mapping[str, object]) -> Options:
        """Return these options, overridden by `more`."""
        return Options({**self._given, **more})

    def changed_to(self, wanted: Options) -> dict[str, int | float | bool | str]:
        """Return the values by which `merged` turns these options into `wanted`."""
        defaults = {key: _BY_KEY[key].default for key in self._given.keys() - wanted._given.keys()}
        return {**defaults, **wanted._given}


def bulk_order(options: Options, key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns by which a bulk insert sorts the rows of a partition: named ones, `key` or none."""
    by_key = options[writing.BULK_INSERT_SORT_MODE] in ("GLOBAL_SORT", "PARTITION_SORT")
    return column_list(options[writing.BULK_INSERT_SORT_COLUMNS]) or (key if by_key else ())


def column_list(text: str) -> tuple[str, ...]:
    """Return the column names in a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
