"""Inputs made of sound ones: bits flipped, cut, spliced, repeated, lengths blown up, documents rearranged.

A seed repeats them all.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.fuzz.target import Target

MAX_BYTES = 64 * 1024
"""Small files: what the limit on time is about."""
_EDGE_BYTES = 64
_NUMBERS = [
    *(n.to_bytes(size, order, signed=True) for n in (-1, 0, 1, 2**31 - 1, -(2**31)) for size in (4, 8) for order in ("big", "little")),
    *(n.to_bytes(8, order, signed=True) for n in (2**63 - 1, -(2**63), 2**32, 2**40) for order in ("big", "little")),
    # Varints, plain and zigzag: 2^62, the largest, and ones that do not end.
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 9 + b"\x01", b"\xff" * 12, b"\x80" * 11, b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08",
    b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff",
]  # fmt: skip
_TEXTS = [
    b"99999999999999999999", b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true", b'""', b"{}", b"[]", b"\\u0000", b"\\ud800", b"\xc3\x28",
    b"..", b"/", b"../", b"\x00", b"\n", b"=", b":", b"\\", b"_", b".", b"0", "²".encode(), "٣".encode(), b"#HUDI#", b"Obj\x01", b"PAR1", b'TRABLK"$',
]  # fmt: skip
_ODD: list[Any] = [
    None, True, False, 0, -1, 2**31, 2**63, 2**70, 0.5, float("inf"), "", "x", "null", "..", "20260101000000001", "\0", "é", "\ud800", [], {}, [[]], [None],
    {"": None}, {"type": "x"}, "record", "array", "int", "string", "COMPLETED", "commit", "a/../b", "1" * 400,
]  # fmt: skip


def mutations(target: Target, seed: int) -> Iterator[bytes]:
    """Inputs without end; the sound ones come first."""
    yield from target.seeds
    chance = random.Random(f"{target.name} {seed}")
    while True:
        yield mutated(target, chance)


def mutated(target: Target, chance: random.Random, base: bytes | None = None) -> bytes:
    """One input, made of `base` or of one of the sound ones."""
    kind = chance.random()
    if kind < 0.02:
        return chance.randbytes(chance.randrange(200))
    content = chance.choice(target.seeds) if base is None else base
    if target.is_json and kind < 0.6:
        return _rearranged(content, chance)
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4, 8))):
        _change(changed, target.seeds, chance)
    return bytes(changed[:MAX_BYTES])


def _place(content: Sequence[int], chance: random.Random) -> int:
    """Somewhere, often near an end: there formats have their lengths and places."""
    size = len(content)
    where = chance.random()
    if where < 0.2:
        return chance.randrange(min(size, _EDGE_BYTES) + 1)
    if where < 0.5:
        return size - chance.randrange(min(size, _EDGE_BYTES) + 1)
    return chance.randrange(size + 1)


def _change(content: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    at = _place(content, chance)
    kind = chance.randrange(10)
    if kind == 0:
        content[at : at + 1] = bytes((chance.randrange(256),))
    elif kind == 1 and at < len(content):
        content[at] ^= 1 << chance.randrange(8)
    elif kind == 2:
        number = chance.choice(_NUMBERS)
        content[at : at + len(number)] = number
    elif kind == 3:
        content[at:at] = chance.choice(_TEXTS)
    elif kind == 4:
        text = chance.choice(_TEXTS)
        content[at : at + len(text)] = text
    elif kind == 5:
        content[at:at] = chance.randbytes(chance.randrange(1, 9))
    elif kind == 6:
        del content[at : at + chance.choice((1, 1, 2, 4, 8, chance.randrange(1, 1000)))]
    elif kind == 7 and chance.random() < 0.3:
        del content[at:]
    elif kind == 8:
        piece = content[at : at + chance.randrange(1, 64)]
        content[at:at] = piece * chance.choice((1, 1, 2, 3, 30, 300))
    else:
        other = chance.choice(seeds)
        start = _place(other, chance)
        content[at:] = other[start:] if chance.random() < 0.5 else bytes(other[start : start + 64]) + content[at:]


def _rearranged(content: bytes, chance: random.Random) -> bytes:
    """The same document with other values, keys or lengths here and there."""
    try:
        document = json.loads(content)
        for _ in range(chance.choice((1, 1, 2, 3))):
            document = _changed(document, chance)
        return json.dumps(document).encode()[:MAX_BYTES]
    except (ValueError, RecursionError):
        return content


def _changed(node: Any, chance: random.Random) -> Any:
    if not isinstance(node, (dict, list)) or not node or chance.random() < 0.15:
        return _instead(node, chance)
    keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = chance.choice(keys)
    kind = chance.random()
    if kind < 0.08:
        del node[key]
    elif kind < 0.16 and isinstance(node, list):
        node.extend([node[key]] * chance.choice((1, 2, 10)))
    elif kind < 0.16:
        node[chance.choice((chance.choice(keys), "type", "name", "fields", ""))] = node[key]
    else:
        node[key] = _changed(node[key], chance)
    return node


def _instead(node: Any, chance: random.Random) -> Any:
    kind = chance.random()
    if isinstance(node, str) and kind < 0.4:
        at = chance.randrange(len(node) + 1)
        return (
            node[:at] + chance.choice(("", "0", "9", "/", "..", "_", ".", "é", "\0", "x" * 50)) + node[at + chance.randrange(3) :]
        )
    if isinstance(node, int) and not isinstance(node, bool) and kind < 0.4:
        real = float(node) if abs(node) < 2**1000 else node  # changed again and again it outgrows them
        return chance.choice((node + 1, -node, node * 2**31, node * 2**70, str(node), real))
    if kind < 0.45:
        deep: Any = node
        for _ in range(chance.choice((3, 70, 300))):
            deep = [deep] if kind < 0.42 else {"type": deep}
        return deep
    return copy.deepcopy(chance.choice(_ODD))
