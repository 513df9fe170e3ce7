"""An incremental pipeline: what changed in one table since the last run, derived into another.

    python examples/pipeline.py ./trips ./fares        # from a timer, or from examples/event_consumer.py after each commit

Each run reads only the changes after the point at which the last one ended. The point is kept after the target's commit: a run
that dies between the two repeats its changes, and upserts and deletes by key give the same rows again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import tideline

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])


def run(source: str, target: str) -> int:
    """Bring `target` up to date with `source`, and return the number of rows that changed in it."""
    position = Path(target) / "_pipeline_position"
    since = int(position.read_text()) if position.exists() else ""
    try:
        fares = tideline.open(target)
    except tideline.errors.TableNotFound:
        fares = tideline.create(target, schema=SCHEMA, key="id", partition="day")
    changes = tideline.open(source).changes(since=since)
    rows = changes.read()  # op, before, after
    written = rows.filter(pc.is_in(rows["op"], pa.array(["i", "u"])))
    deleted = rows.filter(pc.equal(rows["op"], "d"))
    if written.num_rows:
        fares.upsert(derived(written["after"]))
    if deleted.num_rows:
        fares.delete(derived(deleted["before"]).select(["id", "day"]))
    position.write_text(str(changes.until))
    return int(rows.num_rows)


def derived(trips: pa.ChunkedArray) -> pa.Table:
    """Return the target's rows for rows of the source."""
    columns = pa.Table.from_struct_array(trips.combine_chunks() if trips.num_chunks != 1 else trips.chunk(0))
    cents = pc.cast(pc.round(pc.multiply(columns["fare"], 100)), pa.int64())
    return pa.table([columns["id"], columns["day"], cents], schema=SCHEMA)


if __name__ == "__main__":
    print(run(*sys.argv[1:3]), "changed rows")
