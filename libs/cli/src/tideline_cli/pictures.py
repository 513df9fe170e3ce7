"""The page of `tideline show --html`: pictures of a table in one file without scripts, fonts or links to other files."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence

from tideline_cli.picture_facts import ColumnRanges, PictureFacts
from tideline_cli.report import size_text
from tideline_table.file_group import FileSlice
from tideline_table.storage import writing

_WIDTH, _HEIGHT = 960, 200
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2733; background: #fff }
h1 { font-size: 1.4rem; margin-bottom: 0 } h2 { font-size: 1.05rem; margin: 2rem 0 .3rem }
p { margin: .2rem 0 .6rem; color: #48586a } svg { width: 100%; height: auto; background: #f6f8fa; border-radius: 6px }
.base { fill: #3a7bbf } .log { fill: #e08a2c } .range { stroke: #3a7bbf; stroke-width: 2; opacity: .75 } .axis { stroke: #c6d0da }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 1em }
text { font: 11px system-ui, sans-serif; fill: #48586a }
"""
_COLOURS = {
    "commit": "#3a7bbf",
    "deltacommit": "#5aa9a0",
    "replacecommit": "#8a63c2",
    "compaction": "#e08a2c",
    "logcompaction": "#c9a227",
    "clean": "#7c8a99",
    "rollback": "#c2413b",
    "restore": "#c2413b",
    "savepoint": "#b59b1f",
    "archival": "#b0b8c1",
}


def write_page(path: str, facts: PictureFacts) -> int:
    """Write the page to a local file and return its size in bytes. Raises `StorageError` if it cannot be written."""
    content = page_of(facts).encode()
    with writing(path), open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return len(content)


def page_of(facts: PictureFacts) -> str:
    """Return the page as HTML. Names in tables are untrusted, so every text is escaped."""
    shown = "" if len(facts.slices) == facts.file_groups else f" The {len(facts.slices)} largest are drawn."
    body = [
        f"<h1>{_text(facts.name)}</h1><p>{_text(facts.base_path)}</p>",
        (
            f"<p>{facts.file_groups} file groups, {size_text(facts.base_bytes)} in base files, {size_text(facts.log_bytes)} in log "
            f"files.{shown}</p>"
        ),
        "<h2>File sizes</h2><p>One bar for each file slice, largest first: its base file, and its log files above.</p>",
        _key([("base file", "#3a7bbf"), ("log files", "#e08a2c")]),
        _sizes(facts.slices),
        (
            "<h2>Log bytes per byte of base file</h2><p>A compaction of the groups on the left gains most. Without base file: the "
            "largest ratio.</p>"
        ),
        _ratios(facts.slices),
        *(_ranges(found) for found in facts.ranges),
        (
            "<h2>Timeline</h2><p>All instants of the active timeline, oldest on the left. Pending ones are hollow, rolled-back "
            "ones crossed.</p>"
        ),
        _key([(action, colour) for action, colour in _COLOURS.items() if any(i[1] == action for i in facts.instants)]),
        _timeline(facts.instants),
    ]
    head = (
        '<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'\">"
        f"<title>{_text(facts.name)}</title><style>{_STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _text(text: object) -> str:
    return html.escape(str(text))


def _key(entries: Iterable[tuple[str, str]]) -> str:
    return '<p class="key">' + "".join(f'<i style="background:{colour}"></i>{_text(name)}' for name, colour in entries) + "</p>"


def _svg(content: Iterable[str], height: float = _HEIGHT, label: str = "") -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:g}" role="img" aria-label="{_text(label)}">{"".join(content)}</svg>'


def _sizes(slices: Sequence[FileSlice]) -> str:
    most = max((s.total_bytes for s in slices), default=0) or 1
    step = _WIDTH / max(1, len(slices))
    bars = []
    for number, found in enumerate(slices):
        base, logs = (_HEIGHT - 20) * found.size_bytes / most, (_HEIGHT - 20) * (found.total_bytes - found.size_bytes) / most
        title = (
            f"{found.group.partition_path or '-'} {found.group.file_id}: {size_text(found.size_bytes)}, "
            f"{len(found.log_files)} log files"
        )
        at, width = number * step, max(0.5, step * 0.85)
        bars.append(
            f'<g><title>{_text(title)}</title><rect class="base" x="{at:.2f}" y="{_HEIGHT - base:.2f}" width="{width:.2f}" '
            f'height="{base:.2f}"/>'
            f'<rect class="log" x="{at:.2f}" y="{_HEIGHT - base - logs:.2f}" width="{width:.2f}" height="{logs:.2f}"/></g>'
        )
    return _svg([*bars, f'<text x="4" y="12">{size_text(most)}</text>'], label="file sizes")


def _ratios(slices: Sequence[FileSlice]) -> str:
    known = [(s, (s.total_bytes - s.size_bytes) / s.size_bytes) for s in slices if s.size_bytes]
    most = max((ratio for _, ratio in known), default=0.0) or 1.0
    rows = sorted([*known, *((s, most) for s in slices if not s.size_bytes)], key=lambda row: (-row[1], row[0].group))
    step = _WIDTH / max(1, len(rows))
    bars = [
        f'<rect class="log" x="{n * step:.2f}" y="{_HEIGHT - height:.2f}" width="{max(0.5, step * 0.85):.2f}" '
        f'height="{height:.2f}">'
        f"<title>{_text(s.group.file_id)}: {ratio:.3f}</title></rect>"
        for n, (s, ratio) in enumerate(rows)
        for height in [(_HEIGHT - 20) * ratio / most]
    ]
    return _svg([*bars, f'<text x="4" y="12">{most:.3f}</text>'], label="log bytes per byte of base file")


def _ranges(found: ColumnRanges) -> str:
    step = max(3.0, min(12.0, 320 / len(found.ranges)))
    height = step * (len(found.ranges) + 1)
    lines = [
        f'<line class="range" x1="{4 + low * (_WIDTH - 8):.2f}" x2="{5 + high * (_WIDTH - 8):.2f}" y1="{y:.2f}" y2="{y:.2f}">'
        f"<title>{_text(partition or '-')}: {_text(text)}</title></line>"
        for number, (partition, text, low, high) in enumerate(found.ranges, 1)
        for y in [number * step]
    ]
    heading = f"<h2>Ranges of {_text(found.column)}</h2>"
    meaning = (
        "<p>One line for each base file, from its smallest to its largest value, in the order of all bounds. A file "
        f"overlaps {found.overlap:.1f} others of its partition on average; sorted files overlap 0.</p>"
    )
    return heading + meaning + _svg(lines, height, f"ranges of {found.column}")


def _timeline(instants: Sequence[tuple[str, str, str, str]]) -> str:
    step = _WIDTH / max(1, len(instants))
    marks = []
    for number, (instant, action, state, operation) in enumerate(instants):
        colour, x = _COLOURS.get(action, "#333"), (number + 0.5) * step
        y = 20 + 14 * (list(_COLOURS).index(action) if action in _COLOURS else len(_COLOURS))
        fill = colour if state == "completed" else "none"
        title = f"<title>{_text(f'{instant} {action} {operation} {state}')}</title>"
        cross = f'<path d="M{x - 4:.2f} {y - 4}l8 8m0 -8l-8 8" stroke="{colour}"/>' if state == "rolledback" else ""
        marks.append(f'<g>{title}<circle cx="{x:.2f}" cy="{y}" r="4" fill="{fill}" stroke="{colour}"/>{cross}</g>')
    ends = [f'<text x="4" y="{_HEIGHT - 4}">{_text(instants[0][0])}</text>'] if instants else []
    ends += [f'<text x="{_WIDTH - 4}" y="{_HEIGHT - 4}" text-anchor="end">{_text(instants[-1][0])}</text>'] if instants else []
    return _svg([*marks, *ends], label="timeline")
