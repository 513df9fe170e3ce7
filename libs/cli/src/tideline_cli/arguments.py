"""Arguments that several commands share, and how their text becomes values."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, TypeVar

import typer

from tideline_cli.environment import LOCKS
from tideline_table.config import column_list
from tideline_table.errors import InvalidOption

TablePath = Annotated[
    str,
    typer.Argument(metavar="PATH", help="Base path of the table: a folder, a file: URI or s3://bucket/path.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="An option of the engine, see docs/options.md. Repeatable.", show_default=False
    ),
]
LockUrl = Annotated[
    str,
    typer.Option(
        "--locks",
        metavar="URL",
        envvar=LOCKS,
        help="Queue for commits at a lock: storage:, redis://host:port/db or rediss://… . Without it writers are as safe: the table "
        "log decides, and who loses tries again.",
        show_default=False,
    ),
]

E = TypeVar("E", bound=enum.StrEnum)


def settings_from(pairs: Sequence[str] | None, flag: str = "--option") -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping. Raises `InvalidOption` for one without '=' and for a key given twice."""
    settings: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidOption(f"{flag} {pair!r}", expected="KEY=VALUE", remedy="see docs/options.md for the keys")
        if key.strip() in settings:
            raise InvalidOption(f"{flag} {key.strip()!r} twice", expected="each key once")
        settings[key.strip()] = value
    return settings


def column_names(values: Sequence[str] | None) -> tuple[str, ...]:
    """Columns of an option that may be repeated and may hold comma lists."""
    return tuple(name for value in values or () for name in column_list(value))


def choice(flag: str, text: str, choices: type[E]) -> E:
    """The member of `choices` that `text` names. Raises `InvalidOption` naming all of them."""
    try:
        return choices(text.lower().replace("-", "_"))
    except ValueError:
        raise InvalidOption(f"{flag} {text!r}", expected=f"one of {', '.join(choices)}") from None
