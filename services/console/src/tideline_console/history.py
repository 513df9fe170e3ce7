"""How a table became what it is: size, file groups and logs as the console saw them, rows and bytes as its steps tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tideline_console.charts import BarChart, bars
from tideline_console.instants import DONE, SERVICES, UNDONE, Instant
from tideline_console.model import ReadModel, Row
from tideline_console.text import bytes_text, count_text, duration_text, time_text
from tideline_table.action import REWRITES

SLOTS = 48
"""Bars of a chart over time."""
MOST_WRITES = 60


UPKEEP_DAYS = 7


def upkeep_of(instants: Sequence[Instant], now_s: float) -> dict[str, Row]:
    """Return what each service did in the last days, as far as the console knows, and under `writers` what writers did."""
    found: dict[str, Row] = {}
    for one in instants:
        if one.ended_s is None or one.ended_s < now_s - UPKEEP_DAYS * 86_400 or not (one.is_write or one.action in SERVICES):
            continue
        names = ("runs", "undone", "lasted_s", "ran_s", "bytes", "files_added", "files_deleted", "fewer")
        own = found.setdefault("writers" if one.is_write else one.action, dict.fromkeys(names, 0))
        own["undone" if one.outcome == UNDONE else "runs"] += 1
        own["ran_s"] += one.ran_s
        own["lasted_s"] += max(0.0, one.ended_s - one.begun_s)
        if one.outcome == DONE:
            own["bytes"] += one.bytes_added
            own["files_added"] += one.files_added
            own["fewer"] += one.groups_replaced - one.files_added if one.groups_replaced else 0
            own["files_deleted"] += one.files_deleted
    return found


def usage_of(instants: Sequence[Instant], now_s: float) -> Mapping[str, float]:
    """Return the bytes that rewrites wrote in the last day, and the seconds that they ran, each from its last start."""
    since_s, names = now_s - 86_400, {service.value for service in REWRITES}
    found = [one for one in instants if one.action in names and one.outcome == DONE and (one.ended_s or 0.0) > since_s]
    return {"rewritten_day_bytes": sum(one.bytes_added for one in found), "processor_day_s": sum(one.ran_s for one in found)}


@dataclass(frozen=True, slots=True)
class Trend:
    """A chart over time, and where its values begin in words."""

    heading: str
    aside: str
    chart: BarChart
    label: str


def trends_of(model: ReadModel, row: Row, instants: Sequence[Instant], now_s: float) -> list[Trend]:
    """Return the charts of a table; none of what is not known."""
    first = model.query("SELECT min(sequence) AS first FROM steps WHERE uid = ?", row["uid"])[0]["first"]
    return [*_of_samples(model, row["base_path"], now_s), *_of_writes(instants, is_whole=first == 1)]


def _of_samples(model: ReadModel, base_path: str, now_s: float) -> list[Trend]:
    samples = model.query("SELECT * FROM sizes WHERE base_path = ? ORDER BY at_s", base_path)
    if not samples:
        return []
    first_s = samples[0]["at_s"]
    ends_s = [first_s + (now_s - first_s) * (number + 1) / SLOTS for number in range(SLOTS)]
    seen, at = [], 0
    for end_s in ends_s:
        while at + 1 < len(samples) and samples[at + 1]["at_s"] <= end_s:
            at += 1
        seen.append(samples[at])
    aside = f"known for {duration_text(now_s - first_s)}"
    labels = [(0.0, f"{duration_text(now_s - first_s)} ago")]

    def trend(heading: str, values: list[float], text: Callable[[float], str], *, sizes: bool = False) -> Trend:
        titles = [f"{time_text(end_s)}: {text(value)}" for end_s, value in zip(ends_s, values, strict=True)]
        return Trend(heading, aside, bars(values, titles, labels=labels, sizes=sizes), f"{heading} over time")

    found = [
        trend("Size", [one["size_bytes"] for one in seen], bytes_text, sizes=True),
        trend("File groups", [one["file_groups"] for one in seen], count_text),
    ]
    if any(one["log_bytes"] for one in samples):
        ratios = [100 * one["log_bytes"] / base if (base := one["size_bytes"] - one["log_bytes"]) else 0.0 for one in seen]
        found.append(trend("Log to base, in %", ratios, lambda value: f"{value:.0f} %"))
    return found


def _of_writes(instants: Sequence[Instant], *, is_whole: bool) -> list[Trend]:
    ended = [one for one in instants if one.is_write and one.outcome == DONE and one.ended_s is not None]
    if not ended:
        return []
    shown = ended[-MOST_WRITES:]
    aside = f"the last {len(shown)} writes"

    def titled(values: Sequence[float], text: Callable[[float], str]) -> list[str]:
        return [f"{one.instant}: {text(value)}" for one, value in zip(shown, values, strict=True)]

    written = [float(one.bytes_added) for one in shown]
    lasted = [((one.ended_s or 0.0) - one.begun_s) * 1000 for one in shown]
    found = [
        Trend(
            "Duration of writes, in ms",
            aside,
            bars(lasted, titled(lasted, lambda value: duration_text(value / 1000))),
            "Duration of the last writes in milliseconds",
        )
    ]
    if all(one.rows_inserted is not None and one.rows_deleted is not None for one in ended):
        # Each write counts; a table of which old steps are not known begins with what the known ones added.
        rows = list(accumulate((one.rows_inserted or 0) - (one.rows_deleted or 0) for one in ended))[-MOST_WRITES:]
        if min(rows) >= 0:
            text = aside if is_whole else f"{aside}, without rows of older ones"
            found.append(Trend("Rows", text, bars(rows, titled(rows, count_text)), "Rows after each of the last writes"))
    found.append(Trend("Bytes written", aside, bars(written, titled(written, bytes_text), sizes=True), "Bytes of the last writes"))
    return found
