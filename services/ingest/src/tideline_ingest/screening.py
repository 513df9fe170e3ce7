"""Finds records that cannot be ingested by bisection, because rows are accepted or refused many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tideline_ingest.batch import Received
from tideline_ingest.errors import PoisonRecord, Undecodable
from tideline_table.errors import InvalidRecord, SchemaMismatch

REFUSALS = (Undecodable, SchemaMismatch, InvalidRecord)
"""Errors that say that a record cannot be ingested."""
Accept = Callable[[Sequence[Received]], object]
"""Raises `Undecodable`, `SchemaMismatch` or `InvalidRecord` if any of the records cannot be ingested."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that cannot be ingested, and the reason."""

    record: Received
    reason: str

    def error(self) -> PoisonRecord:
        """Return the error that names the record."""
        return PoisonRecord(*self.record.place, self.record.offset, self.reason)


def rejected_among(records: Sequence[Received], accept: Accept, at_most: int | None = None) -> list[Rejected]:
    """Return the records that `accept` refuses, in order; with `at_most`, only so many. Other errors of `accept` are raised."""
    found: list[Rejected] = []
    waiting = [(0, len(records))]
    while waiting and (at_most is None or len(found) < at_most):
        start, end = waiting.pop()
        try:
            if start < end:
                accept(records[start:end])
        except REFUSALS as error:
            if end - start == 1:
                found.append(Rejected(records[start], str(error)))
                continue
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
    return found
