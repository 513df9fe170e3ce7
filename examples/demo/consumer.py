"""An example consumer: receives commits as events, fills gaps from the table log, and calls a listener."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tideline_events import EventConsumer, EventLog, Transition
from tideline_table.table import Table


class CommitConsumer:
    """Reads `tideline.timeline` in a thread and calls `on_transition`, in that thread, for each transition.

    `seen` has the last sequence by table uid, `out_of_order` the number of transitions that did not follow that sequence.
    """

    def __init__(self, event_log: EventLog, tables: Path, on_transition: Callable[[Transition], None]) -> None:
        self._event_log = event_log
        self._on_transition = on_transition
        self._stopped = threading.Event()
        self.seen: dict[str, int] = {Table.open(str(path)).uid: 0 for path in sorted(tables.iterdir())}
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

    def _consume(self) -> None:
        with closing(EventConsumer(self._event_log, "example-consumer", seen=lambda: self.seen)) as consumer:
            while not self._stopped.is_set():
                for event in consumer.poll(0.5):
                    if isinstance(event, Transition):
                        self._receive(event)
                consumer.commit()

    def _receive(self, transition: Transition) -> None:
        if transition.sequence != self.seen[transition.table_uid] + 1:
            self.out_of_order += 1
        self.seen[transition.table_uid] = transition.sequence
        self._on_transition(transition)
