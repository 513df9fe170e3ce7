"""Settings and policies against the real tables: what `--check` and `tideline policy check` find.

Reads storage and locks, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tideline_locks import OnUnreachable, open_lock_provider
from tideline_locks.table_lock import BESIDE_TABLE, lock_name
from tideline_runtime.policy.resolution import Policies
from tideline_runtime.settings import ServiceSettings
from tideline_runtime.table_search import TablePattern, find_tables
from tideline_table.clock import SystemClock
from tideline_table.config import BULK_INSERT_SORT_COLUMNS, CLUSTERING_SORT_COLUMNS, column_list
from tideline_table.errors import StorageError, TidelineError
from tideline_table.storage import open_storage
from tideline_table.table import Table, read_identity

_SORTED_BY = (CLUSTERING_SORT_COLUMNS, BULK_INSERT_SORT_COLUMNS)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: its subject (a pattern, a rule or a base path), and one line of text.

    `is_error`: a service would not start with it, or would skip the table. Other findings are warnings.
    """

    subject: str
    text: str
    is_error: bool = True

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


def found_tables(patterns: Iterable[str]) -> tuple[list[str], list[Finding]]:
    """Return the base paths that patterns select now, and a finding for each pattern that matches no table or cannot be searched.

    Raises `InvalidSetting` for a pattern that is not valid.
    """
    tables: dict[str, None] = {}
    findings: list[Finding] = []
    for text in patterns:
        pattern = TablePattern.parse(text)
        try:
            matched = list(find_tables(pattern, open_storage(pattern.root)))
        except StorageError as error:
            findings.append(Finding(text, f"cannot be searched: {error}", is_error=False))
            continue
        if not matched:
            findings.append(Finding(text, "no table matches", is_error=False))
        tables |= dict.fromkeys(matched)
    return sorted(tables), findings


def check_fleet(settings: ServiceSettings, policies: Policies) -> list[Finding]:
    """Return the findings about the settings of a service, and about policies, for the tables that the setting `tables` selects."""
    tables, findings = found_tables(settings.tables)
    options: Mapping[str, object] = getattr(settings, "options", None) or {}
    return [*findings, *check_tables(policies, tables, options=options, locks=settings.locks)]


def check_tables(
    policies: Policies, tables: Iterable[str], *, options: Mapping[str, object] | None = None, locks: str = ""
) -> list[Finding]:
    """Return the findings about policies for these base paths: contradictions, options, sort columns, locks, rules without tables.

    `options` are those of the service, which policies override; `locks` is a lock URL (empty: not checked).
    """
    findings: list[Finding] = []
    unmatched = {rule.label: rule for rule in policies.rules}
    for base_path in tables:
        try:
            storage = open_storage(base_path)
            identity = read_identity(storage)
            uid = identity.uid if identity is not None else ""
            for rule in policies.rules_for(base_path, uid):
                unmatched.pop(rule.label, None)
            own = policies.of(base_path, uid)
            if identity is None:
                continue
            table = Table.open(base_path, options={**(options or {}), **own.options}, storage=storage)
            findings += _of_table(table)
            findings += _of_lock(table, locks)
        except TidelineError as error:
            findings.append(Finding(base_path, str(error), is_error=not isinstance(error, StorageError)))
    lines = {rule.label: min((own.origin.line for own in rule.fields.values()), default=0) for rule in unmatched.values()}
    return findings + [Finding(f"line {lines[label]}, {label}", "no table matches", is_error=False) for label in unmatched]


def _of_table(table: Table) -> Iterator[Finding]:
    names = table.schema.names
    for option in _SORTED_BY:
        for column in column_list(table.options[option]):
            if column not in names:
                text = f"{option.key} names {column!r}; expected columns among {', '.join(names)}"
                yield Finding(table.base_path, text)


def _of_lock(table: Table, locks: str) -> Iterator[Finding]:
    if not locks or not table.capabilities.queues_writers:
        return
    place = f"{BESIDE_TABLE}{table.base_path}" if locks == BESIDE_TABLE else locks
    provider = open_lock_provider(
        place, clock=SystemClock(), on_unreachable=OnUnreachable.FAIL if _is_redis(place) else OnUnreachable.WAIT
    )
    try:
        provider.read(lock_name(table.uid))
    except TidelineError as error:
        yield Finding(table.base_path, f"its lock does not resolve: {error}")
    finally:
        provider.close()


def _is_redis(url: str) -> bool:
    return url.startswith(("redis:", "rediss:"))
