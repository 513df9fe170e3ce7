"""The net changes between two points of a table's history, each with the row before and the row after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import InvalidOption
from tideline_table.file_group.slice import FileGroupId, FileSlice
from tideline_table.log.state import TableState
from tideline_table.log_format import LogBlock
from tideline_table.merge.mode import MergeMode
from tideline_table.reader.base_file import referenced_columns
from tideline_table.reader.log_index import LogIndexes
from tideline_table.reader.log_keys import log_keys, log_keys_and_chosen
from tideline_table.schema.evolution import settled
from tideline_table.schema.meta_fields import MetaField
from tideline_table.table.changes import InstantRange, PointKind, check_kept, rule_at, slices_at
from tideline_table.table.query import CommitTimes, Snapshot

OP = "op"
BEFORE = "before"
AFTER = "after"
_OPERATIONS = {"i": "i", "u": "u", "d": "d", "inserted": "i", "updated": "u", "deleted": "d"}


def operations_of(given: str | Iterable[str]) -> frozenset[str]:
    """Return the operations that `i`, `u`, `d` or `inserted`, `updated`, `deleted` name (also in one text, with commas).

    Empty: all. Raises `InvalidOption`.
    """
    named = [part.strip() for text in ([given] if isinstance(given, str) else given) for part in text.split(",") if text.strip()]
    for name in named:
        if name.lower() not in _OPERATIONS:
            raise InvalidOption(f"operation {name!r} of changes", expected=f"some of {', '.join(_OPERATIONS)}")
    return frozenset(_OPERATIONS[name.lower()] for name in named or "iud")


def images_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of changes: `op` (i, u or d), and the row before and after, null if there is none."""
    image = pa.struct([f.with_nullable(nullable=True) for f in rows])
    return pa.schema([pa.field(OP, pa.string(), nullable=False), (BEFORE, image), (AFTER, image)])


@dataclass(frozen=True, slots=True)
class Images:
    """The net changes of a range of history with their images: a comparison of the state at its start with the state at its end.

    Only file groups that a write of the range touched, or that clustering emptied or filled, are read. Of groups that only got more
    log files, only what can hold the keys in these is read. A record is its partition path and key: a record that moved to another
    partition is deleted there and inserted here.
    """

    before: Snapshot
    after: Snapshot
    written: frozenset[str] | None
    """Instants of the writes that changed rows; None if the range starts at the creation of the table: all writes count."""
    logs: Mapping[FileGroupId, tuple[str, ...]] = field(default_factory=dict)
    """The log files of these writes, where a late row can fill cells of a row that keeps the commit time of an earlier write."""
    operations: frozenset[str] = frozenset("iud")
    """The changes that are returned, by `op`."""

    def by_partition(self) -> list[Images]:
        """Return one `Images` per partition path; they are independent of each other."""
        return self._split(self._groups().values())

    def by_group(self) -> list[Images]:
        """Return parts, independent of each other, in an order that depends on the range alone; valid for a range of one write.

        A write leaves a record in its file group, so that each group is a part. In a partition where a group ended (overwritten,
        deleted, replaced by a resize of buckets), records may be in another group now: what began and what ended is one part there.
        """
        old, new = ({s.group for s in snapshot.slices} for snapshot in (self.before, self.after))
        parts: list[list[FileGroupId]] = []
        for groups in self._groups().values():
            moved = [g for g in groups if (g in old) != (g in new)] if not new.issuperset(old.intersection(groups)) else []
            is_moved = frozenset(moved)
            parts += [[group] for group in groups if group not in is_moved]
            parts += [moved] if moved else []
        return self._split(parts)

    def _groups(self) -> dict[str, list[FileGroupId]]:
        found: dict[str, list[FileGroupId]] = {}
        for group in sorted({s.group for s in (*self.before.slices, *self.after.slices)}):
            found.setdefault(group.partition_path, []).append(group)
        return found

    def _split(self, parts: Iterable[Sequence[FileGroupId]]) -> list[Images]:
        old, new = ({s.group: s for s in snapshot.slices} for snapshot in (self.before, self.after))

        def of(snapshot: Snapshot, slices: Mapping[FileGroupId, FileSlice], groups: Sequence[FileGroupId]) -> Snapshot:
            return replace(snapshot, slices=tuple(slices[group] for group in groups if group in slices))

        return [
            replace(
                self,
                before=of(self.before, old, part),
                after=of(self.after, new, part),
                logs={group: self.logs[group] for group in part if group in self.logs},
            )
            for part in parts
        ]

    def output(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of the changes: `op` and two images with these columns (None: all)."""
        return images_schema(self.after.output(columns))

    def scan(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """Yield changes, partition by partition; with `where`, only changes of which one image satisfies it."""
        chosen = self.after.output(columns)
        for part in self.by_partition():
            yield from _partition_changes(part, chosen, where)


def images_of(
    state: TableState, kind: PointKind, current: Snapshot, instants: InstantRange, *, has_partial_records: bool = False
) -> Images:
    """Return the comparison of both ends of a range. Raises `HistoryUnavailable` if cleaning or archival removed either.

    `has_partial_records`: logs of the table may have some.
    """
    check_kept(state, kind, instants, at_start=True)
    check_kept(state, kind, instants, at_start=False)
    old = slices_at(state, instants.before, instants.late_at_start) if not instants.from_start else {}
    new = slices_at(state, instants.through, instants.late_at_end)
    changed = {
        group
        for group in {*old, *new}
        if _may_differ(old.get(group), new.get(group))
        and (group not in old or group not in new or _wrote_to(state.slices.get(group, {}), instants.written))
    }

    def at(slices: Mapping[FileGroupId, FileSlice], known: AbstractSet[str], late: AbstractSet[str]) -> Snapshot:
        kept = tuple(slices[group] for group in sorted(changed) if group in slices)
        return replace(current, slices=kept, rule=rule_at(current, known, late))

    before, after = at(old, instants.before, instants.late_at_start), at(new, instants.through, instants.late_at_end)
    merges = current.rule.merging
    is_filled_late = merges.mode is MergeMode.EVENT_TIME and (has_partial_records or merges.fills_late)
    logs = {group: _logs_of(state.slices.get(group, {}), instants.written) for group in changed} if is_filled_late else {}
    return Images(before, after, None if instants.from_start else instants.written, logs)


def _logs_of(slices: Mapping[str, FileSlice], written: AbstractSet[str]) -> tuple[str, ...]:
    known = [held for s in slices.values() for held in zip(s.log_paths, s.log_files, strict=True)]
    return tuple(path for path, log in known if not log.instant or log.instant in written)


def _may_differ(old: FileSlice | None, new: FileSlice | None) -> bool:
    if old is None or new is None or old.paths != new.paths:
        return True
    # The slice does not tell which writes appended to a Hudi-written log file; only its blocks do.
    return any(not log.instant for log in new.log_files)


def _wrote_to(slices: Mapping[str, FileSlice], written: AbstractSet[str]) -> bool:
    return any(
        (s.base_file and instant in written) or any(not log.instant or log.instant in written for log in s.log_files)
        for instant, s in slices.items()
    )


def _keys(snapshot: Snapshot, keys: pa.Array | None = None) -> pa.Array:
    return snapshot.read([MetaField.RECORD_KEY], keys=keys).column(0).combine_chunks()


def _appended(old: FileSlice | None, new: FileSlice) -> tuple[str, ...] | None:
    """Return the log files added to a slice; None if it changed in another way, or if the write of a log file is unknown."""
    if old is None or (old.base_file, old.log_files) != (new.base_file, new.log_files[: len(old.log_files)]):
        return None
    return new.log_paths[len(old.log_files) :] if all(log.instant for log in new.log_files) else None


@dataclass(frozen=True, slots=True)
class _Side:
    """One end of a range in one partition: slices compared as a whole, and slices that grew, whose changed keys are known."""

    whole: Snapshot
    grown: Snapshot

    @classmethod
    def of(cls, snapshot: Snapshot, grown: AbstractSet[FileGroupId]) -> _Side:
        indexed = snapshot.log_indexes or LogIndexes(snapshot.storage)
        return cls(
            replace(snapshot, slices=tuple(s for s in snapshot.slices if s.group not in grown)),
            replace(snapshot, slices=tuple(s for s in snapshot.slices if s.group in grown), log_indexes=indexed),
        )

    def read(self, names: list[str], where: pc.Expression | None, keys: pa.Array, whole_keys: pa.Array | None = None) -> pa.Table:
        """Return rows with `keys` of the slices that grew, and rows of the other slices, with `whole_keys` only if given."""
        return pa.concat_tables([self.whole.read(names, where, whole_keys), self.grown.read(names, where, keys)])


def _returned(old: Snapshot, new: Snapshot, written: pa.Table) -> pa.Array:
    """Return the keys whose rows are of an earlier write than before, or were not there, and of none in the range.

    Older versions that returned.

    Where Apache Hudi's rule counts, a late row behind a deletion brings the row back that the deletion removed
    (`docs/peer-differences.md`, 32).
    """
    if not any(s.log_files for s in (*old.slices, *new.slices)):
        return pa.array([], pa.string())
    (before, before_times), (after, after_times) = (
        (column.combine_chunks() for column in snapshot.read([MetaField.RECORD_KEY, MetaField.COMMIT_TIME]).columns)
        for snapshot in (old, new)
    )
    is_newer = pc.greater_equal(after_times, before_times.take(pc.index_in(after, value_set=before)))
    known = pc.is_in(after, value_set=written.column(MetaField.RECORD_KEY).combine_chunks())
    return after.filter(pc.invert(pc.or_(pc.fill_null(is_newer, fill_value=False), known)))


def _keys_in_logs(images: Images, grown: Iterable[str]) -> tuple[pa.Array, pa.Array]:
    """Return the keys in the log files that slices got, and those of rows of which writes of the range may have filled cells."""
    fills_late, storage = images.after.rule.merging.fills_late, images.after.storage

    def is_late(block: LogBlock) -> bool:
        return fills_late or block.is_partial

    grown = list(grown)
    written, late = log_keys_and_chosen(storage, grown, is_late)
    others = {path for paths in images.logs.values() for path in paths}.difference(grown)
    more = log_keys(storage, sorted(others), is_late)
    return written, pa.concat_arrays([late, more]) if images.logs else late.slice(0, 0)


def _structs(rows: pa.Table, chosen: pa.Schema, present: pa.Array) -> pa.Array:
    kept = rows.select(chosen.names).combine_chunks()
    arrays = [column.chunk(0) if column.num_chunks else pa.array([], column.type) for column in kept.columns]
    fields = [f.with_nullable(nullable=True) for f in chosen]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pc.invert(present))


def _satisfies(rows: pa.Table, present: pa.Array, where: pc.Expression) -> pa.Array:
    """Return True for each row that is present and satisfies `where`."""
    position = "tideline_position"
    numbered = rows.append_column(position, pa.array(range(rows.num_rows), pa.int64())).filter(present).filter(where)
    return pc.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=numbered.column(position))


def _inserted(after: Snapshot, chosen: pa.Schema, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of slices in whose place nothing was, batch by batch."""
    for batch in after.scan(chosen.names, where):
        rows, count = pa.Table.from_batches([batch]), batch.num_rows
        present = pa.repeat(pa.scalar(True), count)
        images = [_structs(rows, chosen, image) for image in (pc.invert(present), present)]
        if count:
            yield pa.RecordBatch.from_arrays([pa.repeat(pa.scalar("i"), count), *images], schema=images_schema(chosen))


def _partition_changes(images: Images, chosen: pa.Schema, where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
    times = CommitTimes(images.written).expression() if images.written is not None else None
    if not images.before.slices and (times is None or images.after.rule.visible is None):
        if "i" in images.operations:
            yield from _inserted(images.after, chosen, where if times is None else times if where is None else times & where)
        return
    slices = {s.group: s for s in images.before.slices}
    # If Apache Hudi writes the table too, a slice does not tell which blocks of a log file apply.
    is_told = images.after.rule.visible is None
    appended = {s.group: _appended(slices.get(s.group), s) if is_told else None for s in images.after.slices}
    grown = {group: paths for group, paths in appended.items() if paths is not None}
    old, new = (_Side.of(snapshot, grown.keys()) for snapshot in (images.before, images.after))
    # A log file changes only keys that it names.
    written, late = _keys_in_logs(images, (path for paths in grown.values() for path in paths))
    schema = images.after.schema
    needed = {*chosen.names, MetaField.RECORD_KEY, *(referenced_columns(where, schema) if where is not None else ())}
    names = [name for name in schema.names if name in needed]
    after = new.read(names, times, written)
    if not is_told and images.written is not None:
        after = pa.concat_tables([after, new.read(names, None, written, _returned(old.whole, new.whole, after))])
    late = late.filter(pc.invert(pc.is_in(late, value_set=after.column(MetaField.RECORD_KEY).combine_chunks())))
    if len(late):
        after = pa.concat_tables([after, new.read(names, None, late, late)])
    touched = after.column(MetaField.RECORD_KEY).combine_chunks()
    # A record may have moved between the slices that grew and the other slices.
    known = pa.concat_arrays([_keys(old.whole), _keys(old.grown, pc.unique(pa.concat_arrays([written, touched])))])
    gone = known if "d" in images.operations else known.slice(0, 0)
    for kept in (new.whole, new.grown):
        gone = gone.filter(pc.invert(pc.is_in(gone, value_set=_keys(kept, gone)))) if len(gone) else gone
    updated = touched.filter(pc.is_in(touched, value_set=known))
    asked = pa.concat_arrays([updated, gone])
    before = old.read(names, None, asked, asked) if len(asked) else after.slice(0, 0)
    before_keys = before.column(MetaField.RECORD_KEY).combine_chunks()
    # First each written row with the row that it replaced, then the deleted rows.
    found = pc.index_in(touched, value_set=before_keys)
    removed = pc.index_in(gone, value_set=before_keys)
    operations = pa.concat_arrays([pc.if_else(pc.is_valid(found), "u", "i"), pa.repeat(pa.scalar("d"), len(removed))])
    olds = before.take(pa.concat_arrays([found, removed]))
    news = after.take(pa.concat_arrays([pa.array(range(len(touched)), pa.int32()), pa.nulls(len(removed), pa.int32())]))
    has_old, has_new = pc.not_equal(operations, "i"), pc.not_equal(operations, "d")
    sides = [_structs(olds, chosen, has_old), _structs(news, chosen, has_new)]
    table = settled(pa.table([operations, *sides], schema=images_schema(chosen)))
    if where is not None:
        table = table.filter(pc.or_(_satisfies(olds, has_old, where), _satisfies(news, has_new, where)))
    if len(images.operations) < len("iud"):
        table = table.filter(pc.is_in(table[OP], value_set=pa.array(sorted(images.operations))))
    yield from (batch for batch in table.to_batches() if batch.num_rows)
