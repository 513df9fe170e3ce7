"""Arguments that several commands share, and functions that parse them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from tideline_locks.table_lock import LOCKS_VARIABLE
from tideline_table.config import column_list
from tideline_table.errors import InvalidOption


def option(*flags: str, **settings: Any) -> Any:
    """Declare an option whose help text states the default."""
    return typer.Option(*flags, show_default=False, **settings)


TablePath = Annotated[
    str,
    typer.Argument(metavar="PATH", help="Base path of the table: a folder, a file: URI or s3://bucket/path.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Settings = Annotated[
    list[str] | None, option("--option", metavar="KEY=VALUE", help="An option of the engine, see docs/options.md. Repeatable.")
]
LockUrl = Annotated[
    str,
    option(
        "--locks",
        metavar="URL",
        envvar=LOCKS_VARIABLE,
        help="Queue for commits at a lock: storage:, redis://host:port/db, or http://host:port of a lock service. Without a "
        "lock writes are as safe, because the table log decides, and writers of the same file groups wait for each other.",
    ),
]

E = TypeVar("E", bound=enum.StrEnum)


def settings_from(
    pairs: Sequence[str] | None, flag: str = "--option", form: str = "KEY=VALUE", where: str = "see docs/options.md for the keys"
) -> dict[str, str]:
    """Parse texts of the `form`; `where` says where keys come from.

    Raises `InvalidOption` for a text without '=' and for a repeated key.
    """
    settings: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidOption(f"{flag} {pair!r}", expected=form, remedy=where)
        if key.strip() in settings:
            raise InvalidOption(f"{flag} {key.strip()!r} is given twice", expected="each key once")
        settings[key.strip()] = value
    return settings


def column_names(values: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of an option that may be repeated and may hold comma-separated lists."""
    return tuple(name for value in values or () for name in column_list(value))


def choice(flag: str, text: str, choices: Iterable[E]) -> E:
    """Return the member of `choices` that `text` names. Raises `InvalidOption` that lists all members."""
    members = list(choices)
    by_name = {member.value.replace("-", "_"): member for member in members}
    try:
        return by_name[text.lower().replace("-", "_")]
    except KeyError:
        raise InvalidOption(f"{flag} {text!r}", expected=f"one of {', '.join(each.value for each in members)}") from None
