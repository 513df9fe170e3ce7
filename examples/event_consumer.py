"""React to commits: a program that hears of each step after which queries may return other rows, once for each table and in order.

In one terminal `tideline up --tables "$PWD/trips" --state-folder ./state`, in another

    python examples/event_consumer.py sqlite://$PWD/state/events.db        # or kafka://broker:9092

and then `tideline write ./trips …`. After a restart it continues where it stopped: `commit` stores the position of each table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing

from tideline_events import EventConsumer, Transition, open_event_log


def react(event_log: str, on_change: Callable[[Transition], None], *, once: bool = False) -> None:
    """Call `on_change` for each step that may change rows: until Ctrl-C or, with `once`, until no event is left."""
    # What the event log has lost is read from the log of the table, so that no step is missing.
    with (
        closing(open_event_log(event_log)) as events,
        closing(EventConsumer(events, "example")) as consumer,
    ):
        while (arrived := consumer.poll(timeout_s=0 if once else 5)) or not once:
            for event in arrived:
                if isinstance(event, Transition) and event.datachange:
                    on_change(event)
            # The program commits behind its reactions. If it dies before, the consumer delivers these steps again.
            consumer.commit()


def report(event: Transition) -> None:
    """Print one line; a program of yours calls `pipeline.run`, warms a cache or sends a message instead."""
    print(event.table.name, event.sequence, event.operation, event.rows_inserted, event.rows_updated, event.partitions, flush=True)


if __name__ == "__main__":
    react(sys.argv[1], report)
