"""Which writers of Apache Hudi write a table, and what they still lack to share it: by the traces that their commits leave.

Apache Hudi's commits name no application and no option. So a writer is what writes of one kind and release have in common, and a
verdict is never better than the traces (docs/design/observed-tables.md). Reads only.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise

from tideline_table.coordination.shared.metadata import advertised
from tideline_table.errors import ObjectNotFound
from tideline_table.hudi.instant import CLUSTER, WRITE_ACTIONS, Action, Instant, State
from tideline_table.hudi.listing import ListedTimeline
from tideline_table.hudi.properties import read_properties
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.hudi.writer_traces import Release, is_of_tideline, kind_of, release_of, writer_name
from tideline_table.log.action import COMPACT
from tideline_table.log.sharing import HudiLockKind, Sharing
from tideline_table.storage import Storage
from tideline_table.table.facade import Table
from tideline_table.table.sharing import why_unsharable

CHECKED_COMMITS = 50
"""Completed writes that are examined by default."""
_TOKEN = re.compile(r"_\d+-(?P<stage>\d+)-(?P<attempt>\d+)(?:_|\.|$)")
_SERVICES = {"COMPACT": "compaction", "CLUSTER": "clustering", "LOG_COMPACT": "log compaction"}
_HEARTBEATS = ".heartbeat"
_LOCK_FILE = ".hoodie/lock"
_LOCK_OBJECT = ".hoodie/.locks/table_lock.json"
_OF_TIDELINE = b'"tideline"'
"""The field of a lock with Tideline's lease."""
_LAZY = "hoodie.cleaner.policy.failed.writes"
_METADATA = "hoodie.metadata.enable"
_CONCURRENCY = "hoodie.write.concurrency.mode"
_FOR_1X = frozenset({"hoodie.write.table.version", "hoodie.write.auto.upgrade"})


class WriterVerdict(enum.StrEnum):
    """Whether a writer may go on when the table is shared."""

    READY = "ready"
    """Every option leaves a trace, and is there."""
    LACKS_OPTIONS = "lacks_options"
    NO_COMMON_LOCK = "no_common_lock"
    """Its releases have no lock that Tideline takes, too, in this kind of storage."""


@dataclass(slots=True)
class FoundWriter:
    """Writes with the same traces."""

    kind: str
    release: Release
    identifiers: tuple[str, ...] = ()
    """Of Spark's streaming sink: the identifiers of its queries."""
    instants: list[str] = field(default_factory=list)
    operations: set[str] = field(default_factory=set)
    stages: list[int] = field(default_factory=list)
    """The Spark stage of each write that names one."""
    verdict: WriterVerdict = WriterVerdict.READY
    lacks: dict[str, str] = field(default_factory=dict)
    """Options that it needs and of which nothing is seen."""
    reasons: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Kind, identifiers and release, for people."""
        return writer_name(self.kind, self.identifiers, self.release)

    @property
    def applications(self) -> int:
        """The least number of applications: stages count up within one, so a fall is a new one."""
        return 1 + sum(after < before for before, after in pairwise(self.stages))


@dataclass(frozen=True, slots=True)
class WritersFound:
    """What the last writes of a table show. `refused` says why the table itself cannot be shared; empty for nothing."""

    commits: int
    writers: tuple[FoundWriter, ...]
    services: tuple[str, ...]
    """Table services that Apache Hudi's writers ran."""
    eager_rollbacks: tuple[str, ...]
    """Rollbacks without any heartbeat in the table: their writers clean failed writes before they begin."""
    metadata: tuple[str, ...]
    """Partitions of the metadata table that the properties name."""
    heartbeats: bool
    locks: tuple[str, ...]
    """Files of locks that Apache Hudi's writers took last."""
    pending: tuple[str, ...]
    """Writes and plans that have not ended."""
    markers: tuple[str, ...]
    """Forms of the markers of pending writes; early conflict detection reads them."""
    options: Mapping[str, str]
    """What each writer needs."""
    refused: str

    @property
    def is_ready(self) -> bool:
        """Whether sharing harms no writer, as far as the traces show."""
        return not self.refused and all(writer.verdict is WriterVerdict.READY for writer in self.writers)


def find_writers(table: Table, sharing: Sharing | None = None, commits: int = CHECKED_COMMITS) -> WritersFound:
    """Examine the last completed writes of Apache Hudi, with one request for each, and what lies beside the timeline.

    `sharing`: that under which the table is or would be shared. Raises `CorruptMetadata` for commits that cannot be read.
    """
    storage = table.storage
    chosen = sharing or table.sharing or Sharing(HudiLockKind.fitting(storage.root))
    properties = read_properties(storage)
    listed = ListedTimeline.read(storage, table.definition.format)
    folders = storage.list_folder(".hoodie").folders
    writers: dict[tuple[str, Release, tuple[str, ...]], FoundWriter] = {}
    services = {"clean" for i in listed.timeline.instants if i.action is Action.CLEAN and _is_hudis(table, i)}
    done = [i for i in listed.timeline.instants if i.action in WRITE_ACTIONS and i.state is State.COMPLETED and _is_hudis(table, i)]
    examined = list(islice(_read_backwards(storage, listed, done), commits))
    for instant, content, metadata in reversed(examined):
        if metadata.operation.upper() in _SERVICES or metadata.operation in (COMPACT, CLUSTER):
            services.add(_SERVICES.get(metadata.operation.upper(), metadata.operation))
            continue
        kind, identifiers = kind_of(metadata.extra)
        release = release_of(content)
        found = writers.setdefault((kind, release, identifiers), FoundWriter(kind, release, identifiers))
        found.instants.append(instant.time)
        found.operations.add(metadata.operation)
        found.stages += [stage for stat in metadata.stats[:1] for stage in _stage(stat.path)]
    rollbacks = tuple(i.time for i in listed.timeline.instants if i.action is Action.ROLLBACK and _is_hudis(table, i))
    has_heartbeats = _HEARTBEATS in folders
    facts = WritersFound(
        commits=len(examined),
        writers=tuple(writers.values()),
        services=tuple(sorted(services)),
        eager_rollbacks=() if has_heartbeats else rollbacks,
        metadata=tuple(sorted(advertised(properties))),
        heartbeats=has_heartbeats,
        locks=tuple(path for path in (_LOCK_FILE, _LOCK_OBJECT) if _is_hudis_lock(storage, path)),
        pending=tuple(f"{i.time} {i.action} {i.state}" for i in listed.timeline.instants if _is_pending(table, i)),
        markers=tuple(sorted({form for i in listed.timeline.instants if _is_pending(table, i) for form in _markers(storage, i)})),
        options=chosen.hudi_options(table.definition.format),
        refused=why_unsharable(table),
    )
    for writer in facts.writers:
        _judge(writer, facts, chosen, _why_no_lock(writer, facts, chosen, table))
    return facts


def writer_names(table: Table, commits: int = CHECKED_COMMITS) -> tuple[str, ...]:
    """Return the names of the writers of Apache Hudi that made the last completed writes. Requests as `find_writers`."""
    return tuple(writer.name for writer in find_writers(table, commits=commits).writers)


def _read_backwards(
    storage: Storage, listed: ListedTimeline, done: list[Instant]
) -> Iterator[tuple[Instant, bytes, CommitMetadata]]:
    """Return writes with the content of their commit files, the newest first, without those that Tideline made before `leave`."""
    for instant in reversed(done):
        content = storage.read(path := listed.timeline.path(instant))
        metadata = CommitMetadata.from_bytes(content, path)
        if not is_of_tideline(metadata):
            yield instant, content, metadata


def _is_hudis(table: Table, instant: Instant) -> bool:
    known = table.state.actions.get(instant.time)
    return not table.capabilities.keeps_log or known is None or known.is_by_hudi


def _is_hudis_lock(storage: Storage, path: str) -> bool:
    """Return whether a lock is there that Tideline did not take last. It leaves an object behind in a table that it left."""
    with suppress(ObjectNotFound):
        return _OF_TIDELINE not in storage.read(path)
    return False


def _is_pending(table: Table, instant: Instant) -> bool:
    return instant.state is not State.COMPLETED and _is_hudis(table, instant)


def _stage(path: str) -> Iterator[int]:
    found = _TOKEN.search(path.rpartition("/")[2])
    if found is not None:
        yield int(found["stage"])


def _markers(storage: Storage, instant: Instant) -> Iterator[str]:
    with suppress(ObjectNotFound):
        folder = storage.list_folder(f".hoodie/.temp/{instant.time}")
        names = [found.path.rpartition("/")[2] for found in folder.objects]
        if any(name.startswith("MARKERS") for name in names):
            yield "timeline server"
        elif names or folder.folders:
            yield "direct"


def _why_no_lock(writer: FoundWriter, facts: WritersFound, sharing: Sharing, table: Table) -> str:
    """Return why a writer may take no lock; empty if it does. The log of a shared table knows: its lock is also Tideline's."""
    state = table.state
    if table.sharing is None:
        is_left = "" if sharing.lock is HudiLockKind.STORAGE else ", and this lock leaves none: a job with these options is ready"
        return "" if facts.locks else f"there is no trace of a lock{is_left}"
    if unlocked := [instant for instant, name in state.unlocked.items() if name == writer.name]:
        return f"its write {unlocked[-1]} completed without the lock of the table"
    is_vouched = state.writers is None or state.writers.get(writer.name)
    return "" if is_vouched else "it was not yet seen with the lock since the table was shared"


def _judge(writer: FoundWriter, facts: WritersFound, sharing: Sharing, why_no_lock: str) -> None:
    """Set what a writer lacks, and its verdict."""
    lacks = dict(facts.options)
    if writer.release is Release.BEFORE_1:
        for key in _FOR_1X:
            lacks.pop(key, None)  # these releases write version 6 and upgrade nothing beyond it
    if not facts.metadata:
        lacks.pop(_METADATA, None)
    else:
        writer.reasons.append(f"the table has a metadata table ({', '.join(facts.metadata)})")
    if facts.heartbeats:
        lacks.pop(_LAZY, None)
    else:
        writer.reasons.append("no heartbeat was ever written: failed writes are cleaned eagerly, which undoes writes of others")
    if why_no_lock:
        writer.reasons.append(why_no_lock)
    else:
        lacks = {key: value for key, value in lacks.items() if key != _CONCURRENCY and ".lock." not in key}
    if lacks.keys() <= _FOR_1X:
        lacks = {}  # a release from 1.0 on without these options would have upgraded the table
    writer.lacks = lacks
    if sharing.lock is HudiLockKind.STORAGE and writer.release is Release.BEFORE_1:
        writer.lacks = {key: value for key, value in lacks.items() if ".lock." not in key}
        writer.verdict = WriterVerdict.NO_COMMON_LOCK
        writer.reasons.append(
            "releases before 1.0.2 have no lock provider for object stores that Tideline takes, too, but those in ZooKeeper, "
            "a Hive metastore and DynamoDB: --lock-provider zookeeper, hive-metastore or dynamodb"
        )
    elif lacks:
        writer.verdict = WriterVerdict.LACKS_OPTIONS
