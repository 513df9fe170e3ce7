"""The blocks of a slice's log files that apply, and their order (format reference 10.1). Decided by headers alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tideline_table.log_format import BlockType, HeaderKey, LogBlock, ScannedLog

_LOGGER = logging.getLogger(__name__)
_COUNTING = (BlockType.AVRO, BlockType.PARQUET, BlockType.HFILE, BlockType.DELETE)


@dataclass(frozen=True, slots=True)
class VisibleInstants:
    """The write instants that count as committed: completed ones, and older than the active timeline but not pending."""

    completed: frozenset[str]
    first_active: str = ""
    """The first completed instant of the active timeline, without savepointed ones that outlived archival; empty: none is older."""
    pending: frozenset[str] = frozenset()

    def __contains__(self, instant: str) -> bool:
        return instant in self.completed or (instant < self.first_active and instant not in self.pending)


def counting_blocks(logs: Iterable[ScannedLog], visible: VisibleInstants | None = None, as_of: str = "") -> list[LogBlock]:
    """Return the data and delete blocks that a query at `as_of` (inclusive; empty: now) applies, of log files given in merge order.

    Blocks of instants that are not `visible` (None: all are) do not apply, nor do blocks that a later rollback block voids. A
    compacted block takes the place of the last block that it replaces.
    """
    found: list[LogBlock] = []
    damaged: list[str] = []
    for log in logs:
        damaged += (gap.path for gap in log.gaps)
        for block in log.blocks:
            if block.type is BlockType.COMMAND:
                # A rollback block applies regardless of its own instant: time travel must not bring rolled-back rows back.
                found = [b for b in found if b.instant != block.target_instant]
            elif block.type in _COUNTING and _is_visible(block.instant, visible, as_of):
                found.append(block)
    if damaged:
        _LOGGER.warning("%d damaged place(s) in log files skipped: %s", len(damaged), ", ".join(sorted(set(damaged))))
    return _with_compacted(found)


def _is_visible(instant: str, visible: VisibleInstants | None, as_of: str) -> bool:
    return (visible is None or instant in visible) and (not as_of or instant <= as_of)


def _with_compacted(blocks: list[LogBlock]) -> list[LogBlock]:
    """Replace blocks by the compacted blocks that cover them. A log compaction may write two blocks: records and deletions."""
    kept = blocks
    for instant, covered in dict.fromkeys((b.instant, _covers(b)) for b in blocks if _covers(b)):
        own = [b for b in kept if b.instant == instant and _covers(b) == covered]
        replaced = [b for b in kept if b.instant != instant and _replaces(covered, b)]
        if not own or not replaced:
            continue
        place = kept.index(replaced[-1])
        gone = {id(b) for b in (*replaced, *own)}
        before, after = kept[:place], kept[place:]
        kept = [*(b for b in before if id(b) not in gone), *own, *(b for b in after if id(b) not in gone)]
    return kept


def merged_instants(blocks: Iterable[LogBlock]) -> tuple[str, ...]:
    """Return the instants that a block names into which these blocks are merged, oldest first: theirs, and those that they name."""
    return tuple(sorted({instant for block in blocks for instant in (block.instant, *_covers(block))}))


def _covers(block: LogBlock) -> frozenset[str]:
    """Return the instants whose blocks were merged into this one."""
    return frozenset(t for t in block.header.get(HeaderKey.COMPACTED_BLOCK_TIMES, "").split(",") if t)


def _replaces(covered: frozenset[str], other: LogBlock) -> bool:
    inner = _covers(other)
    return other.instant in covered or (bool(inner) and inner <= covered)
