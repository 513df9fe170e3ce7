"""Publications of several tables in one transaction, of which one cannot be published."""

from __future__ import annotations

from contextlib import suppress

from tests.unit.services.fleet import write
from tests.unit.services.test_mirror import mirror, published

from tideline_events import InvalidEvent
from tideline_mirror import mirroring


def test_a_table_whose_events_cannot_be_encoded_does_not_keep_the_others_waiting(fleet, monkeypatch):
    """All tables of its transaction waited for ever, and the visit of all tables did not end."""
    bad, *good = [fleet.create(name) for name in ("a", "b", "c")]
    for table in (bad, *good):
        write(table, 0)
    of = mirroring.transition_of

    def gapped(identity, form, entry, source):
        told = of(identity, form, entry, source)
        if told.table_uid == bad.uid:
            object.__setattr__(told, "sequence", told.sequence + 7)
        return told

    monkeypatch.setattr(mirroring, "transition_of", gapped)
    service, _ = mirror(fleet)
    for _ in range(2):
        with suppress(InvalidEvent):  # of a table: raised at the end of the visit, if a retry may cure it
            service.tick()
    assert [[e.sequence for e in published(fleet, table)] for table in good] == [[1, 2], [1, 2]]
    assert published(fleet, bad) == []
