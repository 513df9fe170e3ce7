"""Numbers behind the small charts: heights and places, which templates draw as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tideline_console.text import bytes_text, short_text

WIDEST = 14.0
"""Percent of a chart that a bar is wide at most: one alone is no wall."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: place and width in percent, height in pixels, and the text for people who point at it."""

    x: float
    width: float
    height: float
    title: str
    look: str = "f-data2"


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars over an axis; `lines` are grid lines: height in pixels above the axis and text."""

    bars: list[Bar]
    lines: list[tuple[float, str]]
    labels: list[tuple[float, str]]
    height: int


def bars(
    values: Sequence[float],
    titles: Sequence[str],
    *,
    height: int = 100,
    labels: Sequence[tuple[float, str]] = (),
    looks: Mapping[int, str] | None = None,
    sizes: bool = False,
) -> BarChart:
    """Return bars of equal width. `labels` are places in percent and texts under the axis, `looks` the class of single bars."""
    top = _round_up(max([*values, 1]), 2.0 if sizes else 10.0)
    width = 100 / max(1, len(values))
    inner = min(width * (0.82 if len(values) < 80 else 1.0), WIDEST)
    drawn = [
        Bar(
            round(at * width + (width - inner) / 2, 3),
            round(inner, 3),
            round(max(value / top * height, 1.5 if value else 0.0), 2),
            title,
            (looks or {}).get(at, "f-data2"),
        )
        for at, (value, title) in enumerate(zip(values, titles, strict=True))
    ]
    text = bytes_text if sizes else short_text
    lines = [(0.0, text(0)), (height / 2, text(top / 2)), (float(height), text(top))]
    return BarChart(drawn, lines, list(labels), height)


def size_histogram(sizes_bytes: Sequence[int], limit_bytes: int, what: str = "files") -> BarChart:
    """Return how many of `what` have which size, in steps of powers of two; those below `limit_bytes` are small."""
    if not sizes_bytes:
        return bars([], [])
    buckets = [max(0, int(math.log2(max(1, size)))) for size in sizes_bytes]
    first, last = min(buckets), max(buckets)
    last = max(last, first + 7)
    counts = [buckets.count(power) for power in range(first, last + 1)]
    titles = [
        f"{count:,} {what} of {bytes_text(2**power)} to {bytes_text(2 ** (power + 1))}"
        for count, power in zip(counts, range(first, last + 1), strict=True)
    ]
    looks = {at: "f-warn" for at, power in enumerate(range(first, last + 1)) if 2 ** (power + 1) <= limit_bytes}
    step = max(1, len(counts) // 4)
    labels = [((at) * 100 / len(counts), bytes_text(2 ** (first + at))) for at in range(0, len(counts), step)]
    return bars(counts, titles, labels=labels, looks=looks)


def quantile(values: Sequence[int], share: float) -> int | None:
    """Return the value below which `share` of the values are; None without values."""
    if not values:
        return None
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _round_up(value: float, base: float) -> float:
    """Return a round number of at least `value`: 1, 2 or 5 times a power of ten, or a power of two."""
    if base == 2.0:
        return float(2 ** math.ceil(math.log2(max(1.0, value))))
    power = 10 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value))
