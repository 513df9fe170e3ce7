"""One table as it would have been under another policy: recorded writes on simulated file groups. No rows, sizes only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from tideline_runtime.planning.demand import Demand
from tideline_table.action import (
    REWRITES,
    Due,
    NotDue,
    action_name,
    backlog_of,
    find_log_compaction_conflict,
    plan_bytes,
    planned_slices,
)
from tideline_table.config import Options
from tideline_table.file_group import FileGroupId, FileSlice, LogFile
from tideline_table.hudi import Action, CommitMetadata, State, TableFormat
from tideline_table.log import ActionRecord, Entry, Published, TableState
from tideline_table.table import Table

START_S = 20.0
"""Assumed time from a plan to its first byte."""
BYTES_PER_S = 50 << 20
"""Assumed speed of a job, in bytes of input."""
_TOKEN, _MERGED_TOKEN = "0-0-0", "1-0-0"
"""Write tokens in the names of simulated log files. The token of a log compaction sorts after the token of a write."""


@dataclass(slots=True)
class Tally:
    """Counts of a replay for one table."""

    clusterings: int = 0
    compactions: int = 0
    log_compactions: int = 0
    bytes_rewritten: int = 0
    conflicts: int = 0
    """Writes to file groups of a pending clustering."""
    most_small_files: int = 0
    largest_log_ratio: float = 0.0
    largest_log_age_s: float = 0.0
    recorded_jobs: int = 0
    recorded_bytes: int = 0


@dataclass(slots=True)
class SimulatedTable:
    """The file groups of a table as the replayed policy leaves them.

    `_stands_for` maps a recorded file group to the simulated group that has most of its rows.
    """

    table: Table
    options: Options
    state: TableState = field(default_factory=TableState)
    tally: Tally = field(default_factory=Tally)
    rewrites: list[tuple[datetime, int]] = field(default_factory=list)
    _stands_for: dict[FileGroupId, FileGroupId] = field(default_factory=dict)
    _recorded_bytes: dict[FileGroupId, int] = field(default_factory=dict)
    _number: int = 0

    def begin_with(self, slices: Iterable[FileSlice]) -> None:
        """Take over the file slices that were there before the first replayed entry."""
        for file_slice in slices:
            self.state.slices[file_slice.group] = {file_slice.base_instant: self._named(file_slice)}
            self._recorded_bytes[file_slice.group] = file_slice.size_bytes

    def apply(self, entry: Entry, *, counts: bool) -> None:
        """Apply one recorded entry; entries that complete no action change nothing.

        `counts`: add recorded jobs and conflicts to the tally.
        """
        if entry.after is not State.COMPLETED or not isinstance(entry.body, Published):
            return
        metadata, service = entry.body.metadata, action_name(entry.action, entry.operation)
        if service not in REWRITES:
            self._write(entry, metadata, counts=counts)
            return
        if counts:
            self.tally.recorded_jobs += 1
            self.tally.recorded_bytes += sum(stat.file_size_bytes for stat in metadata.stats)
        if entry.action is not Action.LOG_COMPACTION:
            self._follow(metadata)

    def publish(self, demand: Demand, root: str, now: datetime) -> tuple[str, float] | None:
        """Publish the plan of a demand.

        Return its instant and the duration of its job in seconds; None if no plan is that small.
        """
        found = self._planned(demand, root, now)
        if not isinstance(found, Due):
            return None
        instant = self._instant(now)
        rewrite = REWRITES[demand.service]
        self._record(instant, rewrite.action, State.REQUESTED, rewrite.operation, now)
        self.state.plans[instant] = found.body
        size = plan_bytes(self.state, self.state.planned_groups(instant), demand.service)
        return instant, START_S + size / BYTES_PER_S

    def _planned(self, demand: Demand, root: str, now: datetime) -> Due | NotDue:
        view = replace(self.table.view(), root=root, state=self.state, options=self.options)
        return REWRITES[demand.service].due(view, replace(demand.trigger, max_bytes=demand.max_bytes), now)

    def complete(self, instant: str, now: datetime) -> None:
        """Complete the plan at the end of its job, unless a writer's commit has rolled it back.

        A log compaction is rolled back if another service took one of its file groups.
        """
        record = self.state.actions[instant]
        if not record.is_pending:
            return
        groups = self.state.planned_groups(instant)
        slices = [found for group in groups if (found := self.state.latest_slice(group)) is not None]
        match record.action:
            case Action.REPLACE_COMMIT:
                written = self._cluster(instant, slices)
                self.tally.clusterings += 1
            case Action.LOG_COMPACTION:
                planned = planned_slices(self.state.plans[instant].plan, instant, self._form)  # type: ignore[arg-type, union-attr]
                if find_log_compaction_conflict(self.state, instant, planned) is not None:
                    self._roll_back(instant, now)
                    return
                written = sum(self._merge_logs(instant, read) for read in planned)
                self.tally.log_compactions += 1
            case _:
                written = self._compact(instant, slices)
                self.tally.compactions += 1
        self.state.plans.pop(instant, None)
        self.state.actions[instant] = replace(record, state=State.COMPLETED, sequence=self._next(), since=now.isoformat())
        self.tally.bytes_rewritten += written
        self.rewrites.append((now, written))

    def observe(self, now: datetime) -> None:
        """Raise the largest backlog of the tally to the present one."""
        found, tally = backlog_of(self.state, self.options), self.tally
        tally.most_small_files = max(tally.most_small_files, found.small_files)
        if found.base_bytes:
            tally.largest_log_ratio = max(tally.largest_log_ratio, found.log_to_base_ratio)
        if found.oldest_log is not None:
            tally.largest_log_age_s = max(tally.largest_log_age_s, (now - found.oldest_log).total_seconds())

    # --- recorded writes -------------------------------------------------------------------------------------------------

    def _write(self, entry: Entry, metadata: CommitMetadata, *, counts: bool) -> None:
        touched = set()
        for stat in metadata.stats:
            if not stat.path:
                continue
            recorded = FileGroupId(stat.partition_path, stat.file_id)
            group = self._stands_for.get(recorded, recorded)
            held = self.state.latest_slice(group)
            touched.add(group) if held is not None else None
            if stat.is_log:
                base = held or FileSlice(group, entry.instant, "", 0, -1)
                made = self._with_log(base, stat.file_size_bytes, entry.instant)
            else:
                grown = stat.file_size_bytes - self._recorded_bytes.get(recorded, 0)
                size = stat.file_size_bytes if held is None else max(1, held.size_bytes + grown)
                self._recorded_bytes[recorded] = stat.file_size_bytes
                logs = held.log_files if held is not None else ()
                made = FileSlice(group, entry.instant, stat.path.rsplit("/", 1)[-1], size, -1, logs)
                made = made if group in self.state.groups_under_compaction() else self._named(made)
            self.state.slices[group] = {made.base_instant: made}
        self._replace(metadata)
        self._meet_clusterings(touched, entry, counts=counts)
        self._record(entry.instant, entry.action, State.COMPLETED, entry.operation, datetime.fromisoformat(entry.recorded))

    def _replace(self, metadata: CommitMetadata) -> None:
        for partition, file_ids in (metadata.replaced or {}).items():
            for file_id in file_ids:
                recorded = FileGroupId(partition, file_id)
                group = self._stands_for.get(recorded, recorded)
                held, gone = self.state.latest_slice(group), self._recorded_bytes.pop(recorded, 0)
                if held is None or group == recorded or held.size_bytes <= gone:
                    self.state.slices.pop(group, None)
                else:
                    self.state.slices[group] = {held.base_instant: replace(held, size_bytes=held.size_bytes - gone)}

    def _meet_clusterings(self, touched: set[FileGroupId], entry: Entry, *, counts: bool) -> None:
        under = self.state.groups_under_clustering()
        for instant in {under[group] for group in touched if group in under}:
            self.tally.conflicts += counts
            if self.state.has_priority(instant):
                continue  # the writer waits
            now = datetime.fromisoformat(entry.recorded)
            for group in self.state.planned_groups(instant):
                self.state.clustering_losses[group] = self.state.clustering_losses.get(group, 0) + 1
            self._roll_back(instant, now)

    def _roll_back(self, instant: str, now: datetime) -> None:
        by = self._instant(now)
        self._record(by, Action.ROLLBACK, State.COMPLETED, "", now)
        self.state.actions[instant] = replace(self.state.actions[instant], state=State.ROLLED_BACK, fenced_by=by)
        self.state.plans.pop(instant, None)

    def _follow(self, metadata: CommitMetadata) -> None:
        """Let the outputs of a recorded service stand for the simulated groups that have the rows of its inputs."""
        for stat in metadata.stats:
            recorded = FileGroupId(stat.partition_path, stat.file_id)
            gone = [FileGroupId(stat.partition_path, f) for f in sorted((metadata.replaced or {}).get(stat.partition_path, ()))]
            if gone and recorded not in self._stands_for:
                heir = gone[sum(map(ord, stat.file_id)) % len(gone)]
                self._stands_for[recorded] = self._stands_for.get(heir, heir)
            self._recorded_bytes[recorded] = stat.file_size_bytes

    # --- simulated jobs --------------------------------------------------------------------------------------------------

    def _cluster(self, instant: str, slices: list[FileSlice]) -> int:
        body = self.state.plans[instant]
        heirs: dict[FileGroupId, FileGroupId] = {}
        by_id = {file_slice.group: file_slice for file_slice in slices}
        written = 0
        for number, group in enumerate(body.plan["clusteringPlan"]["inputGroups"]):  # type: ignore[union-attr, index]
            members = [FileGroupId(str(s["partitionPath"] or ""), str(s["fileId"])) for s in group["slices"]]
            size, outputs = sum(by_id[m].applied.total_bytes for m in members if m in by_id), int(group["numOutputFileGroups"])
            made = [FileGroupId(members[0].partition_path, f"simulated-{instant}-{number}-{n}") for n in range(outputs)]
            for output in made:
                self.state.slices[output] = {instant: FileSlice(output, instant, f"{output.file_id}.parquet", size // outputs, -1)}
            for at, member in enumerate(members):
                heirs[member] = made[at % outputs]
                self.state.slices.pop(member, None)
                self.state.clustering_losses.pop(member, None)
            written += size
        known = {*self._recorded_bytes, *self._stands_for}
        for recorded in known:
            stood = self._stands_for.get(recorded, recorded)
            if stood in heirs:
                self._stands_for[recorded] = heirs[stood]
        return written

    def _compact(self, instant: str, slices: list[FileSlice]) -> int:
        planned = {
            (str(o["partitionPath"] or ""), str(o["fileId"])): set(o["deltaFilePaths"])
            for o in self.state.plans[instant].plan["operations"]  # type: ignore[union-attr, index]
        }
        written = 0
        for held in slices:
            merged = planned[held.group.partition_path, held.group.file_id]
            left = tuple(log for log in held.log_files if log.name not in merged)
            size = held.applied.total_bytes - sum(log.size_bytes for log in left)
            name = held.base_file or f"{held.group.file_id}.parquet"
            self.state.slices[held.group] = {instant: self._named(FileSlice(held.group, instant, name, size, -1, left))}
            written += size
        return written

    def _merge_logs(self, instant: str, read: FileSlice) -> int:
        held = self.state.latest_slice(read.group)
        assert held is not None
        named = {log.name for log in read.log_files}
        place = 1 + max(at for at, log in enumerate(held.log_files) if log.name in named)
        size, version = sum(log.size_bytes for log in held.log_files if log.name in named), held.log_files[place - 1].version
        name = self._form.log_file_name(held.group.file_id, held.base_instant, instant, version, _MERGED_TOKEN)
        merged = LogFile(name, size, instant, version, merges_earlier=True)
        logs = (*held.log_files[:place], merged, *held.log_files[place:])
        self.state.slices[held.group] = {held.base_instant: replace(held, log_files=logs)}
        return size

    # --- log files -------------------------------------------------------------------------------------------------------

    @property
    def _form(self) -> TableFormat:
        return self.table.timeline.format

    def _with_log(self, held: FileSlice, size_bytes: int, instant: str) -> FileSlice:
        """Return the slice with one more log file of a write, named as a writer names it."""
        version = 1 + max((log.version for log in held.log_files), default=0)
        name = self._form.log_file_name(held.group.file_id, held.base_instant, instant, version, _TOKEN)
        return replace(held, log_files=(*held.log_files, LogFile(name, size_bytes, instant, version)))

    def _named(self, held: FileSlice) -> FileSlice:
        """Return the slice with its log files as its own: a log compaction would leave out recorded ones of another slice."""
        named = replace(held, log_files=(), earlier_logs=0)
        for log in held.log_files:
            named = self._with_log(named, log.size_bytes, log.instant)
            last = replace(named.log_files[-1], merges_earlier=log.merges_earlier)
            named = replace(named, log_files=(*named.log_files[:-1], last))
        return named

    # --- the table's actions ---------------------------------------------------------------------------------------------

    def _record(self, instant: str, action: Action, state: State, operation: str, now: datetime) -> None:
        at = self._next()
        self.state.actions[instant] = ActionRecord(instant, action, state, operation, at, at, "replay", now.isoformat())

    def _next(self) -> int:
        self.state.sequence += 1
        return self.state.sequence

    def _instant(self, now: datetime) -> str:
        # The last three digits are a counter, so that plans of one second differ. No rows are read as of these instants.
        self._number += 1
        return f"{now:%Y%m%d%H%M%S}{self._number % 1000:03d}"


def recorded_entries(table: Table) -> Iterator[Entry]:
    """Yield the entries of the table log that are kept, oldest first."""
    return table.timeline.log.after(table.timeline.log.trimmed_to())
