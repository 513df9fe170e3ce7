"""`tideline resize-buckets`: another number of buckets for a table with a bucket index."""

from __future__ import annotations

from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, option, settings_from
from tideline_cli.opening import expect_files, open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_result
from tideline_table.action import resize_buckets, resize_rings

app = typer.Typer()


@app.command("resize-buckets", epilog="Example: tideline resize-buckets ./users --buckets 32")
def resize(
    path: TablePath,
    *,
    buckets: Annotated[
        int | None,
        option(
            metavar="N",
            help="The new number of buckets in each partition: a multiple of the present one. Not with consistent hashing: there, "
            "--option hoodie.bucket.index.max.num.buckets and min.num.buckets say how far buckets are split and merged by their sizes.",
        ),
    ] = None,
    settings: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Split the buckets of an exclusive table with a bucket index in place; with consistent hashing, split and merge them by size.

    Reads and writes all rows (with consistent hashing: those of these buckets), as one commit. Other writers go on: each commit of one of them lets the command begin again, as often as
    tideline.write.conflict.retries says. Run it when few writers are at work. Run it again after a failure.
    """
    progress = Progress("files", None)
    table = open_writable(path, settings_from(settings), locks, progress)
    expect_files(table, progress)
    progress.describe("splitting buckets")
    with progress:
        done = resize_rings(table) if buckets is None else resize_buckets(table, buckets)
    rows = sum(s.num_writes for s in done.stats) if done is not None else 0
    if buckets is None:
        text = f"{path}: {rows} rows moved to {len(done.stats)} buckets" if done else f"{path}: all buckets have a fitting size"
    elif done is not None:
        text = f"{path} has {buckets} buckets now: {rows} rows in {len(done.stats)} files"
    else:
        text = f"{path} has {buckets} buckets already"
    document = {"buckets": buckets, "instant": done.instant if done else None, "rows_rewritten": rows}
    print_result(document, text, as_json=as_json)
