"""`tideline resize-buckets`: other numbers of buckets for a table with a bucket index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, LockUrl, Settings, TablePath, option, settings_from
from tideline_cli.opening import expect_files, open_writable
from tideline_cli.progress import Progress
from tideline_cli.report import print_result
from tideline_table.action import SkippedPartition, SkipReason, partitions_of_same_number, resize_buckets, resize_rings
from tideline_table.config import BUCKET_MOST

app = typer.Typer()

_SHOWN = 5
"""Most partitions that the text names; the JSON document names all."""


@app.command("resize-buckets", epilog="Example: tideline resize-buckets ./visits --partition-buckets '^day=2026-,64'")
def resize(
    path: TablePath,
    *,
    buckets: Annotated[
        int | None,
        option(
            metavar="N",
            help="The new number of buckets in each partition to which no rule of --partition-buckets applies: a multiple of the "
            "present one, or any with --overwrite. Not with consistent hashing: there, --option "
            "hoodie.bucket.index.max.num.buckets and min.num.buckets say how far buckets are split and merged by their sizes.",
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
            help="Allow numbers that are no multiples of the present ones. Then more than one file group is in memory at a time, "
            "up to hoodie.clustering.plan.strategy.max.bytes.per.group of input; larger ones are read several times.",
        ),
    ] = False,
    settings: Settings = None,
    locks: LockUrl = "",
    as_json: AsJson = False,
) -> None:
    """Split the buckets of an exclusive table with a bucket index in place; with consistent hashing, split and merge them by size.

    Rewrites all rows of the partitions whose number changes (with consistent hashing: of the buckets that change), as one
    commit. Writers continue; each of their commits there makes the command begin again, at most tideline.write.conflict.retries
    times. Run it when few write.
    """
    progress = Progress("files", None)
    table = open_writable(path, settings_from(settings), locks, progress)
    expect_files(table, progress)
    progress.describe("splitting buckets")
    with progress:
        if by_size := buckets is None and partition_buckets is None and not overwrite:
            resized = resize_rings(table)
            done, skipped = resized.committed, resized.skipped
        else:
            done = resize_buckets(table, buckets, partition_buckets=partition_buckets, overwrite=overwrite)
            skipped = partitions_of_same_number(table, done)
    rows, index = sum(s.num_writes for s in done.stats) if done is not None else 0, table.definition.buckets
    number, rules = (index.number, index.rules.text) if index is not None else (0, "")
    has = f"{number} buckets{f', by partition {rules}' if rules else ''}"
    if by_size:
        all_fit = all(found.reason is SkipReason.FITS for found in skipped)
        nothing = "all buckets have a fitting size" if all_fit else "no bucket was split or merged"
        text = f"{path}: {rows} rows moved to {len(done.stats)} buckets" if done else f"{path}: {nothing}"
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
        "skipped_partitions": [found.partition for found in skipped if found.reason is SkipReason.PLAN_PENDING],
        "skipped": [
            {"partition": found.partition, "reason": found.reason.value, "text": found.text, "instants": list(found.instants)}
            for found in skipped
        ],
    }
    print_result(document, text, as_json=as_json)


_REMEDIES = {
    SkipReason.PLAN_PENDING: ("a compaction or clustering is pending there", "Run or cancel these plans, then resize again"),
    SkipReason.MOST_BUCKETS: ("they have as many buckets as they may have, some too large", f"Allow more by {BUCKET_MOST.key}"),
}
"""By reason, the texts about partitions that were left out although a user may want to resize them: the cause and the remedy."""


def _left_out(skipped: Sequence[SkippedPartition]) -> str:
    """Return a sentence for each of `_REMEDIES` about the partitions that were left out for that reason.

    Empty if there are none.
    """
    text = ""
    for reason, (why, remedy) in _REMEDIES.items():
        found = [one for one in skipped if one.reason is reason]
        if found:
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            names = ", ".join(_named(one) for one in found[:_SHOWN])
            text += f"; left out, because {why}: {names}{more}. {remedy}"
    return text


def _named(skipped: SkippedPartition) -> str:
    name = repr(skipped.partition) if skipped.partition else "the whole table"
    return f"{name} ({', '.join(skipped.instants)})" if skipped.instants else name
