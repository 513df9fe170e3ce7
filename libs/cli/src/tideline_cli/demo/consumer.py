"""An example consumer: receives commits as events, fills gaps from the table log, and calls a listener."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from tideline_events import EventConsumer, EventLog, Transition, TransitionConsumer
from tideline_events.topics import TIMELINE
from tideline_runtime.transitions import backfill
from tideline_table.clock import SystemClock
from tideline_table.table import Table


class CommitConsumer:
    """Reads `tideline.timeline` in a thread and calls `on_transition`, in that thread, for each transition.

    `seen` has the last sequence by table uid, `out_of_order` the number of transitions that did not follow that sequence.
    """

    def __init__(self, event_log: EventLog, tables: Path, on_transition: Callable[[Transition], None]) -> None:
        self._event_log = event_log
        self._tables = {table.uid: table for path in sorted(tables.iterdir()) for table in [Table.open(str(path))]}
        self._on_transition = on_transition
        self._stopped = threading.Event()
        self.seen: dict[str, int] = dict.fromkeys(self._tables, 0)
        self.out_of_order = 0
        self._thread = threading.Thread(target=self._consume, name="example-consumer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, if it was started, and wait until it has ended."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _backfill(self, uid: str, first: int, last: int) -> Iterable[Transition]:
        return backfill(self._tables[uid], first, last)

    def _consume(self) -> None:
        publisher = self._event_log.publisher("example-consumer")
        subscription = self._event_log.subscribe([TIMELINE.name], "example-consumer")
        consumer = TransitionConsumer(
            EventConsumer(
                subscription,
                group="example-consumer",
                backfill=self._backfill,
                dead_letters=publisher,
                clock=SystemClock(),
                seen=self.seen,
            )
        )
        try:
            while not self._stopped.is_set():
                for transition in consumer.poll(0.5):
                    self._receive(transition)
                consumer.commit()
        finally:
            consumer.close()
            publisher.close()

    def _receive(self, transition: Transition) -> None:
        if transition.sequence != self.seen[transition.table_uid] + 1:
            self.out_of_order += 1
        self.seen[transition.table_uid] = transition.sequence
        self._on_transition(transition)
