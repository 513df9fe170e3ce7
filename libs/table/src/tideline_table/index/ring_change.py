"""The next hash ring of a partition, decided from values alone (format reference 12.2): after splits, merges and replacements."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from tideline_table.index.hash_ring import LARGEST_VALUE, HashRing, RingNode, named_prefix


@dataclass(frozen=True, slots=True)
class RingLimits:
    """When nodes are split and merged, and between which numbers of nodes."""

    split_bytes: int
    """A file group with more bytes is split."""
    merge_bytes: int
    """Neighbours with no more bytes are merged, until they have more together."""
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class RingMove:
    """File groups of the ring before whose rows go to the file groups of other nodes: one to two, or several to one."""

    sources: tuple[int, ...]
    """Positions in the ring before."""
    targets: tuple[RingNode, ...]


@dataclass(frozen=True, slots=True)
class RingChange:
    """The ring of a partition after a resize, and what moves. All other nodes keep their file group and their range of hashes."""

    ring: HashRing
    moves: tuple[RingMove, ...]


def resized_ring(ring: HashRing, sizes: Mapping[int, int], limits: RingLimits, instant: str) -> RingChange | None:
    """Return how a ring is resized at `instant`, None if no node is too large or too small.

    `sizes` holds the bytes of the file group of each node that has one; a node without files stays, because a writer may be
    about to open its file group. The largest nodes are split first. A merge never crosses the hash 0.
    """
    splits = _splits(ring, sizes, limits, instant)
    room = len(ring.nodes) + len(splits) - limits.least
    small = [at for at in range(len(ring.nodes)) if at in sizes and sizes[at] <= limits.merge_bytes and at not in splits]
    merges: list[RingMove] = []
    run: list[int] = []
    for at in [*small, -1]:
        fits = run and at == run[-1] + 1 and sum(sizes[n] for n in run) <= limits.merge_bytes and len(run) <= room
        if fits:
            run.append(at)
            continue
        if len(run) > 1:
            merges.append(_merge(ring, run, instant))
            room -= len(run) - 1
        run = [at]
    moves = (*splits.values(), *merges)
    if not moves:
        return None
    gone = {at for move in moves for at in move.sources}
    kept = [node for at, node in enumerate(ring.nodes) if at not in gone]
    nodes = sorted((*kept, *(node for move in moves for node in move.targets)), key=lambda node: node.value)
    return RingChange(HashRing(ring.partition_path, instant, ring.number, ring.sequence + 1, tuple(nodes)), moves)


def renewed_ring(ring: HashRing, instant: str, file_ids: Container[str] | None = None) -> HashRing:
    """Return the ring that a replacement of the file groups with these ids (None: of all) at `instant` makes.

    All nodes keep their ranges of hashes, and those of replaced file groups get other file ids.
    """
    nodes = tuple(
        _renewed_node(ring, at, instant) if file_ids is None or file_id in file_ids else ring.nodes[at]
        for at, file_id in enumerate(ring.file_ids)
    )
    return HashRing(ring.partition_path, instant, ring.number, ring.sequence + 1, nodes)


def renewed_file_id(ring: HashRing, file_id: str, instant: str) -> str:
    """Return the file id that `renewed_ring` gives the node of `file_id`, which is one of the ring."""
    at = ring.position_of(file_id)
    assert at is not None, f"{file_id} is of no node of {ring.path}"
    return f"{_renewed_node(ring, at, instant).prefix}-0"


def _splits(ring: HashRing, sizes: Mapping[int, int], limits: RingLimits, instant: str) -> dict[int, RingMove]:
    found: dict[int, RingMove] = {}
    for at in sorted(sizes, key=lambda at: (-sizes[at], at)):
        if sizes[at] <= limits.split_bytes or len(ring.nodes) + len(found) >= limits.most:
            break
        start, end = ring.nodes[at - 1].value, ring.nodes[at].value
        middle = ((start + end + (LARGEST_VALUE + 1 if start >= end else 0)) >> 1) & LARGEST_VALUE
        if middle not in (start, end):
            found[at] = RingMove((at,), (_node(ring, start, middle, instant), _node(ring, middle, end, instant)))
    return found


def _merge(ring: HashRing, run: list[int], instant: str) -> RingMove:
    return RingMove(tuple(run), (_node(ring, ring.nodes[run[0] - 1].value, ring.nodes[run[-1]].value, instant),))


def _renewed_node(ring: HashRing, at: int, instant: str) -> RingNode:
    return _node(ring, ring.nodes[at - 1].value, ring.nodes[at].value, instant)


def _node(ring: HashRing, start: int, end: int, instant: str) -> RingNode:
    """Return a node with a file id of its own. Attempts of a resize differ by their instants, as file ids of other writes do."""
    return RingNode(end, named_prefix(start, end, f"{instant}/{ring.partition_path}"))
