"""Writes in which rows of one key meet in every way: in one write, with stored rows, with deletions, early and late."""

from __future__ import annotations

from typing import Any

UNAVAILABLE = "__debezium_unavailable_value"
Row = dict[str, Any]


def row(number: int, ts: int, **cells: Any) -> Row:
    """Cells depend on `ts` but for those given; `op` is U or D."""
    whole = {"a": f"a{ts}", "b": ts, "s": {"x": ts}, "op": "U", "part": f"p{number % 2}", "gone": False}
    return {"id": f"k{number:02}", "ts": ts} | whole | cells


WRITES = (
    [
        *(row(n, 5) for n in range(16)),
        # Several rows of one key, deletions among them.
        *(row(20, 6, b=None), row(20, 5, a=None), row(21, 5, a="x"), row(21, 5, a=None, s=None), row(22, 6, op="D"), row(22, 5)),
        *(row(23, 6, gone=True), row(24, 5, gone=True), row(24, 6), row(25, 5, op="D")),
    ],
    [
        *(row(0, 6, a=None, s=None), row(1, 4, a=None), row(2, 4, b=None, s=None), row(3, 5, a=None), row(4, 6, a=UNAVAILABLE)),
        *(row(5, 6, op="D"), row(6, 4, op="D"), row(7, 5, op="D"), row(8, 6, gone=True), row(9, 4, gone=True), row(20, 5, s=None)),
        *(row(10, 6, a=None), row(10, 7, b=None), row(26, 7, op="D"), row(27, 7, gone=True), row(28, 7, a=None)),
    ],
    [
        *(row(0, 7, b=None), row(1, 8, a=None), row(5, 9, a=None), row(8, 9, b=None), row(11, 7, gone=True), row(12, 7, op="D")),
        *(row(26, 8, s=None), row(28, 6, b=None), row(29, 5, a=None)),
    ],
    [
        *(row(0, 9, a=None), row(1, 7, op="D"), row(28, 8, s=None), row(29, 4, b=7), row(13, 9, op="D"), row(5, 10, b=None)),
        *(row(40, 5), row(41, 5, op="D"), row(42, 5, a=None)),
    ],
)
"""Without late rows behind a deletion: only tables that both write have them as Apache Hudi does (docs/design/merge-on-read.md)."""
