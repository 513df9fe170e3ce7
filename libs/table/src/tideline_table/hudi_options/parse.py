"""Read the options of a job that was written for Apache Hudi."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from tideline_table.config import INSERT_DUP_POLICY, is_declared
from tideline_table.errors import InvalidOption
from tideline_table.hudi_options.declared import HUDI_OPTIONS, matching, named
from tideline_table.hudi_options.option import Effect, HudiOption
from tideline_table.writer import Operation

_LOGGER = logging.getLogger(__name__)
_PAGE = "see docs/hudi-options.md"
_OUTSIDE = ("as.of.instant",)
"""Options of Hudi whose names do not begin with `hoodie.`"""
_BEGINNINGS = ("000", "0", "earliest")


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and the key by which the user gave it."""

    key: str
    value: str

    def __str__(self) -> str:
        """Return `key=value`."""
        return f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class HudiOptions:
    """The options of a job, by what they decide."""

    table: Mapping[str, Given] = field(default_factory=dict)
    """Parts of the table's definition and index, by `HudiOption.target`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the key generator, by the property of the table."""
    write: Mapping[str, Given] = field(default_factory=dict)
    read: Mapping[str, Given] = field(default_factory=dict)
    engine: Mapping[str, str] = field(default_factory=dict)
    """Options of the engine, Hudi's and its own."""
    ignored: tuple[tuple[str, str], ...] = ()
    """Keys without effect here, and why."""

    @property
    def is_hudi_job(self) -> bool:
        """Whether the job defines its table or its write by Hudi's options, so that Hudi's defaults hold for it."""
        return bool(self.table.keys() - {"index"}) or bool(self.write)

    @property
    def operation(self) -> Operation:
        """The operation of a write, as Hudi decides it."""
        operation = Operation(self.write["operation"].value) if "operation" in self.write else Operation.UPSERT
        return Operation.INSERT if self._drops_known and operation is Operation.UPSERT else operation

    def operation_named(self, own: str) -> Operation:
        """Return the operation of a write that the engine's own option names. Raises `InvalidOption` if Hudi's name another one."""
        named = Operation(own)
        if "operation" in self.write:
            raise InvalidOption(f"operation={named} and {self.write['operation']}", expected="one of them")
        if self._drops_known and named is Operation.UPSERT:
            raise InvalidOption(
                f"operation={named} and {self.write['drop_duplicates']}", expected="one of them, or operation=insert"
            )
        return named

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partition paths that `delete_partition` names."""
        given = self.write.get("partitions")
        return tuple(part.strip() for part in given.value.split(",") if part.strip()) if given else ()

    @property
    def _drops_known(self) -> bool:
        return "drop_duplicates" in self.write and self.write["drop_duplicates"].value.lower() == "true"

    def write_options(self) -> dict[str, str]:
        """Return the engine's options of a write. Raises `InvalidOption` for two policies for rows whose key the table has."""
        if self._drops_known and self.engine.get(INSERT_DUP_POLICY.key, "").lower() == "fail":
            raise InvalidOption(
                f"{self.write['drop_duplicates']} and {INSERT_DUP_POLICY.key}=fail",
                expected="one of them: rows are dropped, or refused",
            )
        return {**self.engine, **({INSERT_DUP_POLICY.key: "drop"} if self._drops_known else {})}

    def query(self) -> dict[str, str]:
        """Return `as_of`, `read_optimized`, `since` and `until` of the query that the job asks for.

        Raises `InvalidOption` for an incremental query without its begin. As Hudi does, other queries leave the bounds out.
        """
        kind = self.read["query_type"].value.lower() if "query_type" in self.read else "snapshot"
        text = {target: given.value for target, given in self.read.items()}
        if kind == "incremental":
            if "since" not in text:
                raise InvalidOption("an incremental query without its begin", expected="hoodie.datasource.read.begin.instanttime")
            since = "" if text["since"].lower() in _BEGINNINGS else text["since"]
            return {"since": since, "until": text.get("until", "")}
        as_of = {"as_of": text["as_of"]} if "as_of" in text else {}
        return {"read_optimized": "true", **as_of} if kind == "read_optimized" else as_of

    def warn(self) -> None:
        """Log one line that names the options without effect."""
        if not self.ignored:
            return
        by_reason: dict[str, list[str]] = {}
        for key, why in self.ignored:
            by_reason.setdefault(why, []).append(key)
        told = "; ".join(f"{', '.join(keys)} ({why})" for why, keys in by_reason.items())
        _LOGGER.warning("options of Apache Hudi without effect here: %s", told)


def is_hudi_option(key: str) -> bool:
    """Return whether `key` has the form of an option of Hudi or of the engine, which `parse_hudi_options` reads."""
    return key.startswith(("hoodie.", "tideline.")) or key in _OUTSIDE


def parse_hudi_options(given: Mapping[str, object]) -> HudiOptions:
    """Read options of Hudi and of the engine by their names.

    Raises `InvalidOption`, which says what to do, for a key or a value that would change rows and is not honoured, and for two
    keys of one meaning with different values.
    """
    found = HudiOptions({}, {}, {}, {}, {})
    ignored: list[tuple[str, str]] = []
    for key, raw in given.items():
        value = str(raw).lower() if isinstance(raw, bool) else str(raw).strip()
        option = named(key)
        if option is None and is_declared(key):
            _put(found.engine, key, value)
            continue
        option = option or matching(key)
        if option is None:
            raise _unknown(key)
        value = option.values.get(value.lower(), value)
        _take(found, ignored, option, Given(key, value))
    return HudiOptions(found.table, found.settings, found.write, found.read, found.engine, tuple(ignored))


def _take(found: HudiOptions, ignored: list[tuple[str, str]], option: HudiOption, given: Given) -> None:
    if option.only and given.value.lower() not in option.only:
        raise InvalidOption(f"{given}", expected=" or ".join(option.only), remedy=f"{option.meaning} ({_PAGE})")
    match option.effect:
        case Effect.REFUSED:
            raise InvalidOption(f"{given}, which this engine does not do", expected="none", remedy=f"{option.meaning} ({_PAGE})")
        case Effect.IGNORED:
            ignored.append((given.key, option.meaning))
        case Effect.READ:
            _once(found.read, option.target, given)
        case Effect.WRITE:
            _once(found.write, option.target, given)
        case Effect.TABLE if option.target == "key_settings":
            _put(found.settings, _setting(given.key), given.value)
        case Effect.TABLE if option.target == "merging":
            # A payload class and a merge mode say two things, each of which has to hold.
            _once(found.table, given.key, given)
        case Effect.TABLE:
            _once(found.table, option.target, given)
        case Effect.INDEX:
            _once(found.table, option.target, given)
            _put(found.engine, option.key, given.value)


def _setting(key: str) -> str:
    head, _, name = key.partition(".keygen.timebased.")
    return f"hoodie.keygen.timebased.{name}" if name and head else key


def _once(where: Mapping[str, Given], target: str, given: Given) -> None:
    before = where.get(target)
    if before is not None and before.value != given.value:
        raise InvalidOption(f"{before} and {given}", expected="one value: both keys mean the same")
    _put(where, target, given)


def _put(where: Mapping[str, object], key: str, value: object) -> None:
    assert isinstance(where, dict)
    where[key] = value


def _unknown(key: str) -> InvalidOption:
    keys = [own for option in HUDI_OPTIONS for own in (option.key, *option.older)]
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.85)
    return InvalidOption(
        f"unknown option {key!r}",
        expected=f"an option that is known here{f', such as {near[0]!r}' if near else ''}",
        remedy=f"leave it out if it changes no rows ({_PAGE}, docs/options.md)",
    )
