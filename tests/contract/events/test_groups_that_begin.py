"""Two instances of the webhooks begin one group at the same moment: the positions of the first to begin stay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from tests.contract.events.conftest import Deployment
from tests.contract.events.samples import new_uid, table_record, transitions

from tideline_events import EventLog
from tideline_webhooks.ledger import BEGUN, Ledger


class Interrupted:
    """An event log; `between` runs once, behind the first answer to a question."""

    def __init__(self, log: EventLog, question: str, between: Callable[[], None]) -> None:
        self._log = log
        self._question = question
        self._between: Callable[[], None] | None = between

    def positions(self, group: str) -> Any:
        return self._answered("positions", self._log.positions(group))

    def table_records(self) -> Any:
        return self._answered("table_records", iter(list(self._log.table_records())))

    def publisher(self, writer_id: str) -> Any:
        return self._log.publisher(writer_id)

    def _answered(self, question: str, answer: Any) -> Any:
        if question == self._question and self._between is not None:
            between, self._between = self._between, None
            between()
        return answer


@pytest.mark.parametrize("question", ["positions", "table_records"])
def test_the_first_positions_of_a_group_are_stored_once(deployment: Deployment, question: str) -> None:
    """The second instance stored the table's newer state: a step that the first one had still to deliver was skipped.

    On Kafka an older state took the place of what the first one had delivered meanwhile, which came twice.
    """
    log, uid, group = deployment.log(), new_uid(), f"group-{new_uid()}"
    log.ensure_topics()
    mirror = deployment.publisher(f"mirror-{uid}")
    mirror.publish_transitions(uid, transitions(uid, 1, 5), table_record(uid, 5))

    def first_begins() -> None:
        with closing(Ledger(deployment.log(), group, deployment.clock, from_oldest=False)) as first:
            assert first.positions()[uid] == 5
            mirror.publish_transitions(uid, transitions(uid, 6, 8), table_record(uid, 8))
            if question == "table_records":
                first.store({uid: 7})

    interrupted: Any = Interrupted(log, question, first_begins)
    with closing(Ledger(interrupted, group, deployment.clock, from_oldest=False)) as second:
        found = second.positions()
    expected = 7 if question == "table_records" else 5
    assert found[uid] == log.positions(group)[uid] == expected
    assert found[BEGUN] == 0


def test_all_tables_of_a_new_group_from_the_oldest_event_begin_at_their_start(deployment: Deployment) -> None:
    log, uid, group = deployment.log(), new_uid(), f"group-{new_uid()}"
    log.ensure_topics()
    deployment.publisher(f"mirror-{uid}").publish_transitions(uid, transitions(uid, 1, 5), table_record(uid, 5))
    with closing(Ledger(log, group, deployment.clock, from_oldest=True)) as ledger:
        assert dict(ledger.positions()) == log.positions(group) == {BEGUN: 0}
