"""`python -m tests.benchmarks.event_reader EVENT_LOG GROUP`: the consumer of docs/events.md, as a process of its own.

Prints a line for each step that it gets: the table's uid, the sequence, and when the step arrived, in seconds of the clock that all
processes of the machine share.
"""

from __future__ import annotations

import sys
import time

import tideline


def main() -> None:
    """Read until the process is ended."""
    url, group = sys.argv[1:]
    with tideline.events.consumer(url, group, member=f"{group}-0", from_beginning=False) as events:
        for event in events.events():
            if isinstance(event, tideline.events.Transition):
                print(event.table.uid, event.sequence, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
