"""`tideline share`: let Apache Hudi's writers and Tideline's write one table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tideline_cli.arguments import AsJson, TablePath, choice, column_names, option
from tideline_cli.failure import EXIT_FAILED
from tideline_cli.opening import open_readable
from tideline_cli.progress import Progress
from tideline_cli.report import print_facts, print_json, print_line, print_listing
from tideline_locks import open_hudi_lock
from tideline_table.config import SHARED_METADATA
from tideline_table.log import DEFAULT_EXPIRE_MIN, HudiLockKind, Sharing
from tideline_table.table import (
    CHECKED_COMMITS,
    BucketIndex,
    Table,
    WritersFound,
    WriterVerdict,
    find_writers,
    resume_services,
    share_table,
    writer_names,
)

app = typer.Typer()


@app.command(epilog="Example: tideline share ./trips --lock-provider filesystem")
def share(
    path: TablePath,
    *,
    lock_provider: Annotated[
        str,
        option(
            metavar="filesystem|storage|zookeeper|hive-metastore|dynamodb",
            help="Lock for Apache Hudi and Tideline: a file on a local disk, an object in the store of the table, a node in "
            "ZooKeeper, a lock of a Hive metastore, or an item of a DynamoDB table. Default: by the kind of storage.",
        ),
    ] = "",
    lock_place: Annotated[
        str,
        option(
            metavar="HOST:PORT,.../BASE/KEY",
            help="With --lock-provider zookeeper: servers, base path and key of the lock that Apache Hudi's writers take. With "
            "hive-metastore: servers, database and table, HOST:PORT,.../DATABASE/TABLE. With dynamodb: REGION/TABLE/KEY.",
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
            help="What Tideline's writers do with a metadata table: turn it off, or keep these partitions: files, column_stats, "
            "bloom_filters, record_index, from version 8 on partition_stats. Of version 6 only if the table is copy-on-write. Give "
            "all of them the option tideline.shared.metadata.",
        ),
    ] = "off",
    check: Annotated[
        bool,
        option("--check", help="Change nothing: say which writers write the table, and which options each of them still lacks."),
    ] = False,
    commits: Annotated[
        int, option(metavar="N", min=1, help="Number of completed writes whose writers are checked, or have to be seen.")
    ] = CHECKED_COMMITS,
    resume: Annotated[
        bool,
        option(
            "--resume",
            help="Of a shared table on which services stopped, because a write completed without the lock, or did not begin, "
            "because a writer was not seen with it: every job takes it now, and services work.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let Apache Hudi's writers and Tideline's write one table from now on, under one lock.

    The table may be Tideline's or made by Apache Hudi (version 6, 8 or 9). Its metadata table is turned off unless --metadata keeps
    it. Number and hash fields of a bucket index are found in the rows and kept with the table. Prints the options that every Hudi
    writer of the table needs; running the command again prints them again. Before any job has changed, ask with --check: the exit
    code is 1 while a writer lacks an option or the table cannot be shared.
    """
    if check:
        _check(path, lock_provider, lock_expiry, lock_place, commits, as_json=as_json)
        return
    if resume:
        _resume(path, as_json=as_json)
        return
    progress = Progress("files", None)
    table = open_readable(path, {SHARED_METADATA.key: metadata}, progress=progress)
    if table.sharing is not None and not lock_provider:
        shared = table
    else:
        kind = _lock_kind(lock_provider, table)
        named = BucketIndex(buckets, column_names(hash_fields), partition_buckets)
        progress.describe("reading keys")
        with progress:
            sharing = Sharing(kind, lock_expiry, lock_place)
            shared = share_table(table, sharing, open_hudi_lock, named, writer_names(table, commits))
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
    if shared.state.probation:
        print_line(f"{shared.state.probation}. Services begin when {shared.sharing.probation_ends}")


def _lock_kind(given: str, table: Table) -> HudiLockKind:
    return choice("--lock-provider", given, HudiLockKind) if given else HudiLockKind.fitting(table.storage.root)


def _resume(path: str, *, as_json: bool) -> None:
    table = open_readable(path)
    waited = table.refresh().probation
    found = resume_services(table)
    if as_json:
        print_json({"uid": table.uid, "base_path": table.storage.root, "without_lock": list(found)})
        return
    stopped = f"{len(found)} write(s) had completed without its lock, the last {found[-1]}" if found else waited
    print_line(f"services work on table {table.definition.name} from now on; what held them: {stopped or 'nothing'}")


def _check(path: str, lock_provider: str, lock_expiry: int, lock_place: str, commits: int, *, as_json: bool) -> None:
    table = open_readable(path)
    sharing = table.sharing or Sharing(_lock_kind(lock_provider, table), lock_expiry, lock_place)
    found = find_writers(table, sharing, commits)
    if as_json:
        print_json(_document(table, found))
    else:
        _print_check(table, found)
    if not found.is_ready:
        raise typer.Exit(EXIT_FAILED)


def _document(table: Table, found: WritersFound) -> dict[str, Any]:
    return {
        "table": table.definition.name,
        "base_path": table.storage.root,
        "is_ready": found.is_ready,
        "refused": found.refused or None,
        "commits": found.commits,
        "writers": [
            {
                "name": writer.name,
                "kind": writer.kind,
                "release": writer.release.value,
                "identifiers": list(writer.identifiers),
                "commits": len(writer.instants),
                "first": writer.instants[0],
                "last": writer.instants[-1],
                "operations": sorted(writer.operations),
                "applications": writer.applications,
                "verdict": writer.verdict.value,
                "lacks": writer.lacks,
                "reasons": writer.reasons,
            }
            for writer in found.writers
        ],
        "services": list(found.services),
        "eager_rollbacks": list(found.eager_rollbacks),
        "metadata_partitions": list(found.metadata),
        "has_heartbeats": found.heartbeats,
        "locks": list(found.locks),
        "pending": list(found.pending),
        "markers": list(found.markers),
    }


def _print_check(table: Table, found: WritersFound) -> None:
    print_line(f"{table.definition.name}: {found.commits} completed write(s) of Apache Hudi examined; nothing was changed")
    if found.refused:
        print_line(f"the table cannot be shared: {found.refused}")
    columns = ("WRITER", "COMMITS", "LAST", "APPLICATIONS", "OPERATIONS", "VERDICT")
    rows = [
        (w.name, len(w.instants), w.instants[-1], f">= {w.applications}", ", ".join(sorted(w.operations)), w.verdict.value)
        for w in found.writers
    ]
    print_listing(columns, rows, right=("COMMITS",))
    facts = {
        "services that its writers run": ", ".join(found.services),
        "rollbacks without heartbeats": ", ".join(found.eager_rollbacks),
        "pending": ", ".join(found.pending),
        "markers": ", ".join(found.markers),
        "locks": ", ".join(found.locks),
    }
    print_facts([(name, text or "none") for name, text in facts.items()])
    for writer in found.writers:
        if writer.verdict is not WriterVerdict.READY:
            print_line("")
            print_line(f"{writer.name}: {'; '.join(writer.reasons)}. Give it, with a JVM in UTC (-Duser.timezone=UTC):")
            print_facts(list(writer.lacks.items()))
