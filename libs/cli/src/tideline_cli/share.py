"""`tideline share`: let Apache Hudi's writers and Tideline's write one table."""

from __future__ import annotations

from typing import Annotated

import typer

from tideline_cli.arguments import AsJson, TablePath, choice, column_names, option
from tideline_cli.opening import open_readable
from tideline_cli.progress import Progress
from tideline_cli.report import print_facts, print_json, print_line
from tideline_locks import open_hudi_lock
from tideline_table.config import SHARED_METADATA
from tideline_table.log import DEFAULT_EXPIRE_MIN, HudiLockKind, Sharing
from tideline_table.table import NamedBuckets, share_table

app = typer.Typer()


@app.command(epilog="Example: tideline share ./trips --lock-provider filesystem")
def share(
    path: TablePath,
    *,
    lock_provider: Annotated[
        str,
        option(
            metavar="filesystem|storage",
            help="Lock for Apache Hudi and Tideline: a file on a local disk, or an object in the store of the table. Default: "
            "by the kind of storage.",
        ),
    ] = "",
    lock_expiry: Annotated[
        int, typer.Option(metavar="MINUTES", help="Age after which Apache Hudi and Tideline treat a lock file as abandoned.")
    ] = DEFAULT_EXPIRE_MIN,
    buckets: Annotated[
        int | None,
        option(
            metavar="N", help="Number of buckets of Hudi's bucket index, if the rows leave it open. It is checked against all rows."
        ),
    ] = None,
    hash_fields: Annotated[
        list[str] | None,
        option(metavar="COLUMN", help="Hash fields of Hudi's bucket index, if the rows leave them open. Repeatable or a,b."),
    ] = None,
    partition_buckets: Annotated[
        str,
        option(
            metavar="RULES",
            help="Numbers of buckets by partition, REGEX,N;REGEX,N, if Hudi's writers have them as options only. They are "
            "checked against all rows.",
        ),
    ] = "",
    metadata: Annotated[
        str,
        option(
            metavar="off|files,...",
            help="What Tideline's writers do with a metadata table: turn it off, or keep these partitions (copy-on-write "
            "only): files, column_stats, bloom_filters, record_index. Give all of them the option "
            "tideline.shared.metadata.",
        ),
    ] = "off",
    as_json: AsJson = False,
) -> None:
    """Let Apache Hudi's writers and Tideline's write one table from now on, under one lock.

    The table may be Tideline's or made by Apache Hudi (version 6). Its metadata table is turned off unless --metadata keeps it.
    Number and hash fields of a bucket index are found in the rows and kept with the table. Prints the options that every Hudi
    writer of the table needs; running the command again prints them again.
    """
    progress = Progress("files", None)
    table = open_readable(path, {SHARED_METADATA.key: metadata}, progress=progress)
    if table.sharing is not None and not lock_provider:
        shared = table
    else:
        kind = choice("--lock-provider", lock_provider, HudiLockKind) if lock_provider else HudiLockKind.fitting(table.storage.root)
        named = NamedBuckets(buckets or 0, column_names(hash_fields), partition_buckets)
        progress.describe("reading keys")
        with progress:
            shared = share_table(table, Sharing(kind, lock_expiry), open_hudi_lock, named)
    assert shared.sharing is not None
    options = shared.hudi_options()
    if as_json:
        print_json({"uid": shared.uid, "base_path": shared.storage.root, **shared.sharing.to_json(), "hudi_options": options})
        return
    print_line(
        f"table {shared.definition.name} is shared: Apache Hudi and Tideline write it under one lock ({shared.sharing.lock})"
    )
    print_line("Give every Apache Hudi writer of this table these options, and a JVM in UTC (-Duser.timezone=UTC):")
    print_facts(list(options.items()))
