"""The hash ring of one partition of a table with consistent hashing, and the metadata files that keep it.

As in Apache Hudi 1.2 (format reference 12.2): the nodes of a ring divide the hashes 0 to 2^31 - 1. A row belongs to the node
with the smallest value that is not less than its hash, or else to the node with the smallest value. A node has one file group,
and its file id is known before any file of it exists.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tideline_table.errors import CorruptMetadata, UnsupportedTable, parsing
from tideline_table.file_group.slice import FileSlice
from tideline_table.json_text import parse_json

LARGEST_VALUE = 2**31 - 1
FIRST_INSTANT = "00000000000000"
"""The instant in the name of the first ring of a partition, which each writer derives from the number of buckets alone."""
METADATA_SUFFIX = ".hashing_meta"
MAX_NODES = 46_340
"""The largest number of buckets of a table with consistent hashing: with more, nodes of a first ring would have one value."""
_FOLDER = ".hoodie/.bucket_index/consistent_hashing_metadata"
_NORMAL = "NORMAL"
_REMEDY = "restore the file; a first ring may be deleted instead: the next writer makes the same one"


@dataclass(frozen=True, slots=True)
class RingNode:
    """A node: the largest hash that belongs to it, and the file id of its group without `-0`."""

    value: int
    prefix: str


@dataclass(frozen=True, slots=True)
class HashRing:
    """The ring of one partition. `nodes` are ascending by value."""

    partition_path: str
    instant: str
    """The instant of the commit that made it, `FIRST_INSTANT` for the first ring."""
    number: int
    """The number of buckets that the table was created with."""
    sequence: int
    """How many rings the partition had before."""
    nodes: tuple[RingNode, ...]

    @classmethod
    def first(cls, partition_path: str, number: int) -> HashRing:
        """Return the first ring of a partition: all writers derive the same one."""
        assert 1 <= number <= MAX_NODES
        step = (LARGEST_VALUE + number - 1) // number
        values = [min(n * step, LARGEST_VALUE) for n in range(1, number + 1)]
        nodes = [RingNode(end, named_prefix(start, end, partition_path)) for start, end in pairwise([0, *values])]
        return cls(partition_path, FIRST_INSTANT, number, 0, tuple(nodes))

    @property
    def path(self) -> str:
        """The path of the metadata file."""
        return ring_path(self.partition_path, self.instant)

    @property
    def content(self) -> bytes:
        """The content of the metadata file, byte for byte as Apache Hudi writes it."""
        nodes = [
            f'{{\n    "value" : {node.value},\n    "fileIdPrefix" : {_json(node.prefix)},\n    "tag" : "{_NORMAL}"\n  }}'
            for node in self.nodes
        ]
        fields = {
            "version": "0",
            "partitionPath": _json(self.partition_path),
            "instant": _json(self.instant),
            "numBuckets": str(self.number),
            "seqNo": str(self.sequence),
            "nodes": f"[ {', '.join(nodes)} ]",
        }
        return ("{\n" + ",\n".join(f'  "{name}" : {text}' for name, text in fields.items()) + "\n}").encode()

    @property
    def file_ids(self) -> tuple[str, ...]:
        """The file id of each node."""
        return tuple(f"{node.prefix}-0" for node in self.nodes)

    def nodes_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the position in `nodes` of the node of each hash."""
        values = np.array([node.value for node in self.nodes], dtype=np.int64)
        found: np.ndarray = np.searchsorted(values, codes) % len(values)
        return found

    def position_of(self, file_id: str) -> int | None:
        """Return the position of the node with this file id, None if there is none."""
        ids = self.file_ids
        return ids.index(file_id) if file_id in ids else None

    def by_node(self, slices: Sequence[FileSlice]) -> dict[int, FileSlice]:
        """Return the slice of each node.

        Raises `UnsupportedTable` for a file group that no node has: no look-up would find its rows.
        """
        positions = {file_id: at for at, file_id in enumerate(self.file_ids)}
        found: dict[int, FileSlice] = {}
        for file_slice in slices:
            at = positions.get(file_slice.group.file_id)
            if at is None:
                raise UnsupportedTable(
                    f"file group {file_slice.group.file_id} in {self.partition_path!r}, which no node of {self.path} has",
                    expected=f"one of {len(positions)} file ids that it names",
                    remedy="restore the hashing metadata of the partition, or write the rows of the table into a new one",
                )
            found[at] = file_slice
        return found


def ring_folder(partition_path: str) -> str:
    """Return the folder of the metadata files of a partition."""
    return f"{_FOLDER}/{partition_path}" if partition_path else _FOLDER


def ring_path(partition_path: str, instant: str) -> str:
    """Return the path of the metadata file of a ring."""
    return f"{ring_folder(partition_path)}/{instant}{METADATA_SUFFIX}"


def marker_path(ring: HashRing) -> str:
    """Return the path of the marker that says that a ring is committed."""
    return f"{ring_folder(ring.partition_path)}/{ring.instant}.commit"


def named_prefix(start: int, end: int, name: str) -> str:
    """Return Java's `UUID.nameUUIDFromBytes` of two longs and a text."""
    digest = hashlib.md5(struct.pack(">qq", start, end) + name.encode(), usedforsecurity=False).digest()
    return str(uuid.UUID(bytes=digest, version=3))


def parse_ring(content: bytes, path: str, partition_path: str, instant: str) -> HashRing:
    """Return the ring in a metadata file at `path`.

    Raises `CorruptMetadata` for a torn file, and for one that contradicts its name or itself.
    """
    with parsing(path, "a JSON document with the nodes of a hash ring"):
        document = parse_json(content)
        nodes = tuple(RingNode(_whole(n["value"]), _text(n["fileIdPrefix"])) for n in document["nodes"])
        tags = {str(n["tag"]) for n in document["nodes"]}
        ring = HashRing(
            _text(document["partitionPath"]),
            _text(document["instant"]),
            _whole(document["numBuckets"]),
            _whole(document["seqNo"]),
            nodes,
        )
        version = _whole(document["version"])
    problem = ""
    if version != 0:
        problem = f"version {version}"
    elif (ring.partition_path, ring.instant) != (partition_path, instant):
        problem = f"the ring of partition {ring.partition_path!r} at {ring.instant!r}"
    elif not nodes or tags != {_NORMAL}:
        problem = f"{len(nodes)} node(s) with the tags {', '.join(sorted(tags)) or 'none'}"
    elif any(a.value >= b.value for a, b in pairwise(nodes)) or nodes[0].value < 0 or nodes[-1].value > LARGEST_VALUE:
        problem = f"node values {', '.join(str(n.value) for n in nodes[:8])}"
    elif len({n.prefix for n in nodes}) < len(nodes):
        problem = "two nodes with one file id"
    if problem:
        raise CorruptMetadata(
            f"{path} holds {problem}",
            expected=f"the ring of partition {partition_path!r} at {instant}: nodes with ascending values up to {LARGEST_VALUE} "
            "and a file id each",
            remedy=_REMEDY,
        )
    return ring


def check_number(ring: HashRing, number: int) -> None:
    """Raise `UnsupportedTable` if a ring was begun with another number of buckets than the table has."""
    if ring.number != number:
        raise UnsupportedTable(
            f"{ring.path} of a ring that began with {ring.number} buckets",
            expected=f"{number} buckets, as hoodie.properties says",
            remedy="restore hoodie.properties and the hashing metadata as the table was created",
        )


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} instead of a whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} instead of a text")
    return value
