"""React to commits: a program that hears of each step that may change rows, once for each table and in order.

In one terminal `tideline up --tables ./trips --state-folder ./state`, in another

    python examples/event_consumer.py sqlite:///state/events.db ./trips        # or kafka://broker:9092 ./trips

and then `tideline write ./trips …`. It continues after a restart where it stopped: `commit` keeps the position of the group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import closing

from tideline_events import TIMELINE, EventConsumer, Transition, TransitionConsumer, open_event_log
from tideline_runtime.transitions import backfill
from tideline_table.clock import SystemClock
from tideline_table.table import Table

GROUP = "example"


def react(event_log: str, base_paths: Iterable[str], on_commit: Callable[[Transition], None], *, once: bool = False) -> None:
    """Call `on_commit` for each step of these tables that may change what queries return; until Ctrl-C, or `once` until all are read."""
    tables = {table.uid: table for table in map(Table.open, base_paths)}
    events = open_event_log(event_log)
    with closing(events), closing(events.publisher(GROUP)) as dead_letters:
        reader = EventConsumer(
            events.subscribe([TIMELINE.name], GROUP),
            group=GROUP,
            # A gap in the events of a table is filled from its table log, which keeps what the event log has dropped.
            backfill=lambda uid, first, last: backfill(tables[uid], first, last),
            dead_letters=dead_letters,
            clock=SystemClock(),
        )
        with closing(TransitionConsumer(reader)) as consumer:
            while (arrived := consumer.poll(0 if once else 5)) or not once:
                for event in arrived:
                    if event.table_uid in tables and event.to_state == "completed" and event.datachange:
                        on_commit(event)
                # Only after the reactions: a consumer that dies before hears of these steps again.
                consumer.commit()


if __name__ == "__main__":
    react(
        sys.argv[1],
        sys.argv[2:],
        lambda event: print(event.sequence, event.action, event.rows_inserted, event.partitions, flush=True),
    )
