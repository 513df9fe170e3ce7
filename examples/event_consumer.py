"""React to commits: a program that hears of each step after which queries may return other rows, once for each table and in order.

In one terminal `tideline up --tables "$PWD/trips" --state-folder ./state`, in another

    python examples/event_consumer.py sqlite://$PWD/state/events.db        # or kafka://broker:9092

and then `tideline write ./trips …`. After a restart it continues where it stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import tideline
from tideline.events import Transition


def react(event_log: str, on_change: Callable[[Transition], None], wait_s: float | None = None) -> None:
    """Call `on_change` for each step that may change rows: until Ctrl-C, or until none came for `wait_s` seconds."""
    with tideline.events.consumer(event_log, "example") as events:
        for event in events.changes(wait_s=wait_s):
            # If the program dies here, the next one gets this step again: asking for the next step says that this one is done.
            on_change(event)


def report(event: Transition) -> None:
    """Print one line; a program of yours calls `pipeline.run`, warms a cache or sends a message instead."""
    print(event.table.name, event.sequence, event.operation, event.rows_inserted, event.rows_updated, event.partitions, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    react(sys.argv[1], report)
