"""An incremental pipeline: what changed in one table since the last run, derived into another, exactly once.

    python examples/pipeline.py ./trips ./fares                                # one run, from a timer for example
    python examples/pipeline.py ./trips ./fares sqlite://$PWD/state/events.db  # a run after each commit; or kafka://broker:9092

The commit that writes the rows also stores how far the source was read, and fails if another run has moved this position.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

import tideline

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])


def run(source: str, target: str) -> int:
    """Bring `target` up to date with `source`, and return the number of rows that changed in it."""
    try:
        fares = tideline.open(target)
    except tideline.errors.TableNotFound:
        fares = tideline.create(target, schema=SCHEMA, key="id", partition="day")
    trips, done = tideline.open(source), fares.inspect.progress("pipeline")
    try:
        changes = trips.changes(since=done.get("sequence", ""))
        rows = changes.read()  # op, before, after
    except tideline.errors.HistoryUnavailable:  # The changes were cleaned, or the source was restored: derive all of it anew.
        current = trips.incremental()
        return fares.insert_overwrite_table(derived(current), progress=done.moved(sequence=current.until)).rows_inserted
    is_deleted = pc.equal(rows["op"], "d")
    written, removed = rows.filter(pc.invert(is_deleted))["after"], rows.filter(is_deleted)["before"]
    if rows.num_rows:
        keys = pa.Table.from_struct_array(removed).select(["id", "day"])
        fares.upsert(derived(pa.Table.from_struct_array(written)), delete=keys, progress=done.moved(sequence=changes.until))
    return int(rows.num_rows)


def derived(trips: object) -> pa.Table:
    """Return the target's rows for rows of the source."""
    rows = pa.table(trips)
    return pa.table([rows["id"], rows["day"], pc.cast(pc.round(pc.multiply(rows["fare"], 100)), pa.int64())], schema=SCHEMA)


def follow(source: str, target: str, event_log: str) -> None:
    """Run after each commit to `source`, until Ctrl-C."""
    path = tideline.open(source).path
    with tideline.events.consumer(event_log, "pipeline") as events:
        for event in events.changes():
            if event.table.base_path == path:
                run(source, target)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(run(*sys.argv[1:3]), "changed rows")
    if len(sys.argv) > 3:
        follow(*sys.argv[1:4])
