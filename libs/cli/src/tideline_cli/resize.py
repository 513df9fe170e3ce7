"""`tideline resize-buckets`: other numbers of buckets for a table with a bucket index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, option, settings_from
from tideline_cli.opening import expect_files, open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_result
from tideline_table.action import resize_buckets, resize_rings

app = typer.Typer()

_SHOWN = 5
"""The most partitions that the text names; the document names all."""


@app.command("resize-buckets", epilog="Example: tideline resize-buckets ./visits --partition-buckets '^day=2026-,64'")
def resize(
    path: TablePath,
    *,
    buckets: Annotated[
        int | None,
        option(
            metavar="N",
            help="The new number of buckets in each partition to which no rule of --partition-buckets applies: a multiple of the present "
            "one. Not with consistent hashing: there, --option hoodie.bucket.index.max.num.buckets and min.num.buckets say how far "
            "buckets are split and merged by their sizes.",
        ),
    ] = None,
    partition_buckets: Annotated[
        str | None,
        option(
            metavar="RULES",
            help="New numbers of buckets by partition, in place of the rules of the table: REGEX,N;REGEX,N;... as for create.",
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        option(
            help="Allow numbers that are no multiples of the present ones. Then more than one file group is in memory at a time, up to "
            "hoodie.clustering.plan.strategy.max.bytes.per.group of input; larger ones are read several times.",
        ),
    ] = False,
    settings: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Split the buckets of an exclusive table with a bucket index in place; with consistent hashing, split and merge them by size.

    Reads and writes all rows of the partitions whose number changes (with consistent hashing: those of these buckets), as one commit. Other writers go on: each commit of one of them
    into these partitions lets the command begin again, as often as tideline.write.conflict.retries says. Run it when few writers are at work. Run it again after a failure.
    """
    progress = Progress("files", None)
    table = open_writable(path, settings_from(settings), locks, progress)
    expect_files(table, progress)
    progress.describe("splitting buckets")
    skipped: tuple[str, ...] = ()
    with progress:
        if by_size := buckets is None and partition_buckets is None and not overwrite:
            resized = resize_rings(table)
            done, skipped = resized.committed, resized.skipped
        else:
            done = resize_buckets(table, buckets, partition_buckets=partition_buckets, overwrite=overwrite)
    rows, index = sum(s.num_writes for s in done.stats) if done is not None else 0, table.definition.buckets
    number, rules = (index.number, index.rules.text) if index is not None else (0, "")
    has = f"{number} buckets{f', by partition {rules}' if rules else ''}"
    if by_size:
        fits = "no bucket was split or merged" if skipped else "all buckets have a fitting size"
        text = f"{path}: {rows} rows moved to {len(done.stats)} buckets" if done else f"{path}: {fits}"
        text += _left_out(skipped)
    elif done is not None:
        text = f"{path} has {has} now: {rows} rows in {len(done.stats)} files"
    else:
        text = f"{path} has {has} already"
    document = {
        "buckets": None if by_size else number,
        "partition_buckets": rules,
        "instant": done.instant if done else None,
        "rows_rewritten": rows,
        "skipped_partitions": list(skipped),
    }
    print_result(document, text, as_json=as_json)


def _left_out(skipped: Sequence[str]) -> str:
    """Return the sentence about the partitions whose buckets were not examined; empty if there are none."""
    if not skipped:
        return ""
    more = f" and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
    names = ", ".join(repr(name) if name else "the whole table" for name in skipped[:_SHOWN])
    return (
        f"; left out, because a compaction or clustering is pending there: {names}{more}. "
        "Run or cancel these plans, then resize again"
    )
