"""Skip values without decoding them, and find where the items of lists begin.

Avro has no index of items: an item is found by walking over the items before it. Many lists are walked in parallel, one item of
each at a time; a few long lists are walked one after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tideline_table.errors import CorruptMetadata
from tideline_table.log_format.avro.cursor import Cursor, Ints, Mask, Octets
from tideline_table.log_format.avro.node import Kind, Node

_IN_STEP = 64
"""Minimum number of lists for which a parallel step is faster."""
_MAX_EMPTY_ITEMS = 2**22
"""Limit for items that take no bytes, because the size of a datum does not limit their number."""

_VARINTS = frozenset({Kind.INT, Kind.LONG, Kind.ENUM})
_SPANS = frozenset({Kind.STRING, Kind.BYTES})


def skip(node: Node, cursor: Cursor, mask: Mask = None) -> None:
    """Move `cursor` past a value of each datum."""
    if node.fixed_bytes >= 0:
        cursor.move(node.fixed_bytes, mask)
    elif node.kind in _VARINTS:
        cursor.varints(mask)
    elif node.kind in _SPANS:
        cursor.spans(mask)
    elif node.kind is Kind.RECORD:
        for field in node.children:
            skip(field, cursor, mask)
    elif node.kind is Kind.UNION:
        taken = branches(node, cursor, mask)
        for index, branch in enumerate(node.children):
            here = taken == index
            if mask is not None:
                here &= mask
            if branch.fixed_bytes != 0 and here.any():
                skip(branch, cursor, None if here.all() else here)
    else:
        list_items(node.children[0], cursor, mask)


def branches(node: Node, cursor: Cursor, mask: Mask) -> npt.NDArray[np.integer]:
    """Read the branch of a union in each datum. Raises `CorruptMetadata` for an unknown branch."""
    taken = cursor.small_counts(mask)
    wrong = taken >= len(node.children)
    if taken.dtype != np.uint8:
        wrong |= taken < 0
    if wrong.any() and (wrong if mask is None else wrong & mask).any():
        raise CorruptMetadata("a union branch that the schema does not have", expected=f"one of {len(node.children)} branches")
    return taken


def list_items(item: Node, cursor: Cursor, mask: Mask = None) -> tuple[Cursor, Ints]:
    """Return a cursor over the items of the next array (or map entries) of each datum, in order, and the number of items per datum.

    Moves `cursor` past the lists.
    """
    rows = np.arange(len(cursor)) if mask is None else np.flatnonzero(mask)
    behind = cursor.position.copy()
    lists = _Lists(item, rows, cursor.part(rows), behind)
    if item.fixed_bytes >= 0:
        lists.walk_fixed()
    else:
        lists.walk_in_step()
        lists.walk_one_by_one()
    cursor.position = behind
    owners, begins = lists.found()
    counts = np.bincount(owners, minlength=len(cursor)).astype(np.int64)
    return Cursor(cursor.octets, begins, cursor.ends[owners]), counts


class _Lists:
    """Lists that are not completely walked yet. The ends of completed lists are stored in `behind`."""

    def __init__(self, item: Node, rows: Ints, walk: Cursor, behind: Ints) -> None:
        self._item = item
        self._rows = rows
        self._walk = walk
        self._behind = behind
        self._left = np.zeros(len(rows), np.int64)
        self._found: list[tuple[Ints, Ints]] = []

    def found(self) -> tuple[Ints, Ints]:
        """Return the list and the begin of each item, ordered by list."""
        if not self._found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        owners = np.concatenate([owner for owner, _ in self._found])
        begins = np.concatenate([begin for _, begin in self._found])
        if len(self._found) > 1:
            order = np.argsort(owners, kind="stable")
            owners, begins = owners[order], begins[order]
        return owners, begins

    def walk_fixed(self) -> None:
        """Walk items of a fixed size: the begin of the first item gives all items of an array block."""
        width, total = self._item.fixed_bytes, 0
        while len(self._rows):
            self._begin_blocks()
            counts, begins = self._left, self._walk.move(self._left * width)
            total += int(counts.sum())
            if not width and total > _MAX_EMPTY_ITEMS:
                raise _impossible_length()
            within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            self._found.append((np.repeat(self._rows, counts), np.repeat(begins, counts) + within * width))
            self._left = np.zeros(len(counts), np.int64)

    def walk_in_step(self) -> None:
        """Walk one item of every list at a time, as long as there are many lists."""
        while len(self._rows) >= _IN_STEP:
            self._begin_blocks()
            if len(self._rows):
                self._found.append((self._rows, self._walk.position))
                skip(self._item, self._walk)
                self._left -= 1

    def walk_one_by_one(self) -> None:
        """Walk the remaining lists one after the other: the few that are longer than the rest."""
        if not len(self._rows):
            return
        raw, step = self._walk.octets.raw, stepper(self._item, self._walk.octets)
        positions, ends = self._walk.position.tolist(), self._walk.ends.tolist()
        for row, position, end, left in zip(self._rows.tolist(), positions, ends, self._left.tolist(), strict=True):
            begins: list[int] = []
            self._behind[row] = _walk_list(self._item, step, raw, position, end, left, begins)
            if begins:
                self._found.append((np.full(len(begins), row), np.array(begins, np.int64)))

    def _begin_blocks(self) -> None:
        """Read the next block count of lists without remaining items, and remove the lists that end there."""
        fresh = np.flatnonzero(self._left == 0)
        if not len(fresh):
            return
        heads = self._walk.part(fresh)
        counts = heads.varints()
        sized = counts < 0
        if sized.any():
            # A negative count is followed by the size of the array block, for readers that skip it.
            heads.varints(sized)
            counts = np.abs(counts)
        if ((counts < 0) | (counts > (heads.ends - heads.position) // max(1, self._item.least_bytes))).any() and (
            self._item.least_bytes or counts.min() < 0 or counts.max() > _MAX_EMPTY_ITEMS
        ):
            raise _impossible_length()
        self._left[fresh] = counts
        self._walk.position[fresh] = heads.position
        going = np.flatnonzero(self._left)
        if len(going) < len(self._rows):
            ended = self._left == 0
            self._behind[self._rows[ended]] = self._walk.position[ended]
            self._rows, self._left, self._walk = self._rows[going], self._left[going], self._walk.part(going)


def _impossible_length() -> CorruptMetadata:
    return CorruptMetadata("an array or map of impossible length", expected="whole records")


Step = Callable[[int, int], int]
"""Maps the position of a value and the end of its datum to the position after the value."""


def _walk_list(item: Node, step: Step, raw: bytes, position: int, end: int, left: int, begins: list[int] | None) -> int:
    """Return the end of a list with `left` remaining items in the current array block. Adds item begins to `begins` unless None."""
    while True:
        if not left:
            left, position = _varint(raw, position, end)
            if left < 0:
                left = -left
                _, position = _varint(raw, position, end)
            if not left:
                return position
            if left > ((end - position) // item.least_bytes if item.least_bytes else _MAX_EMPTY_ITEMS):
                raise _impossible_length()
        if begins is None and item.fixed_bytes >= 0:
            position, left = position + left * item.fixed_bytes, 0
        while left:
            if begins is not None:
                begins.append(position)
            position = step(position, end)
            left -= 1


def _varint(raw: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = raw[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise CorruptMetadata("an unterminated integer", expected="Avro integers of at most 10 bytes")


def stepper(node: Node, octets: Octets) -> Step:
    """Return a function that skips one value. If a value ends past its datum, the next step or the caller raises the error."""
    raw = octets.raw
    if node.fixed_bytes >= 0:
        width = node.fixed_bytes
        return lambda position, _: position + width
    if node.kind in _VARINTS:
        return lambda position, end: _varint(raw, position, end)[1]
    if node.kind in _SPANS:
        return lambda position, end: _after_span(raw, position, end)
    if node.kind is Kind.RECORD:
        return _record_stepper(tuple(stepper(field, octets) for field in node.children))
    if node.kind is Kind.UNION:
        return _union_stepper(tuple(stepper(branch, octets) for branch in node.children), raw)
    item = node.children[0]
    step = stepper(item, octets)
    return lambda position, end: _walk_list(item, step, raw, position, end, 0, None)


def _after_span(raw: bytes, position: int, end: int) -> int:
    length, position = _varint(raw, position, end)
    if not 0 <= length <= end - position:
        raise CorruptMetadata("a string or bytes value of impossible length", expected="whole records")
    return position + length


def _record_stepper(fields: tuple[Step, ...]) -> Step:
    def step(position: int, end: int) -> int:
        for field in fields:
            position = field(position, end)
        return position

    return step


def _union_stepper(steps: tuple[Step, ...], raw: bytes) -> Step:
    def step(position: int, end: int) -> int:
        branch, position = _varint(raw, position, end)
        if not 0 <= branch < len(steps):
            raise CorruptMetadata("a union branch that the schema does not have", expected=f"one of {len(steps)} branches")
        return steps[branch](position, end)

    return step
