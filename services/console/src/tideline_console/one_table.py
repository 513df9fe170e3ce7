"""What the page of one table gets: its status from the read model, its timeline drawn, its facts from the table itself."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from tideline_console.conflicts import conflict_of, file_groups_of
from tideline_console.follower import Follower
from tideline_console.history import UPKEEP_DAYS, trends_of, upkeep_of, usage_of
from tideline_console.instants import DONE, MOST_INSTANTS, UNDONE, Instant, KeptInstants, instants_on_timeline
from tideline_console.model import ReadModel, Row
from tideline_console.queries import aged
from tideline_console.table_page import KeptFiles, facts_of, kept_of
from tideline_console.timeline import ALL, WINDOWS, Kept, choose_span, draw, length_of
from tideline_runtime.logging import get_logger
from tideline_table.errors import TidelineError
from tideline_table.log import Published
from tideline_table.table import Table

_log = get_logger(__name__)
SHOWN = 15
"""Instants that the list under the drawing shows."""


def all_instants(row: Row, table: Table | None, kept: KeptInstants) -> list[Instant]:
    """Return the instants of a table: from its steps or, if Apache Hudi writes it, from its timeline."""
    known = kept.of(row["uid"]) if row["uid"] else []
    return known or (instants_on_timeline(table) if table is not None else [])


def opened(row: Row, follower: Follower) -> tuple[Table | None, str]:
    """Return the table and an empty text, or None and why it cannot be opened."""
    try:
        return follower.opened(row["base_path"]), ""
    except TidelineError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - a damaged table must not take the page away
        _log.warning("table cannot be opened", base_path=row["base_path"], exc_info=error)
        return None, f"unexpected {type(error).__name__}: {error}"


def table_context(
    row: Row, known: KeptInstants, files: KeptFiles, follower: Follower, given: Mapping[str, str], now_s: float
) -> dict[str, Any]:
    """Return what the template of a table's page shows."""
    table, failure = opened(row, follower)
    facts: dict[str, Any] | None = None
    kept: list[Kept] = []
    if table is not None:
        try:
            facts, kept = facts_of(table, follower.fleet(), files), kept_of(table)
        except TidelineError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 - as in `opened`
            _log.warning("facts of a table cannot be read", base_path=row["base_path"], exc_info=error)
            failure = f"unexpected {type(error).__name__}: {error}"
    instants = all_instants(row, table, known)
    window = given.get("window", "")
    window = window if window == ALL or length_of(window) else ""
    try:
        until_s = float(given["until"]) if given.get("until") else None
        until_s = until_s if until_s is None or 0 < until_s < now_s else None
    except ValueError:
        until_s = None
    if until_s is None and not window and instants and now_s - instants[-1].begun_s > WINDOWS["30d"]:
        until_s = instants[-1].begun_s + 60.0
    window, span = choose_span(instants, window, now_s, until_s)
    wanted = given.get("instant", "")
    chosen = next((one for one in reversed(instants) if one.instant == wanted), None) if wanted else None
    # Kept beside what is made of them, so that no other instants get their id. A drawing moves by a tenth of a percent at most.
    place, same, most_s = row["base_path"], id(instants), min(30.0, (span.end_s - span.begin_s) / 1000)
    asked = (place, window, until_s)
    drawing = known.made.of(asked, lambda: (instants, draw(instants, kept, span)), (same, tuple(kept)), now_s, most_s)[1]
    made = known.made.of(
        place,
        lambda: (instants, upkeep_of(instants, now_s), usage_of(instants, now_s), trends_of(known.model, row, instants, now_s)),
        (same, row["examined_s"]),
        now_s,
        30.0,
    )
    conflict, groups = conflict_with_files(known.model, row["uid"], chosen, table)
    return {
        "title": row["name"],
        "row": row,
        "document": _aged_document(row, now_s),
        "failure": failure,
        "facts": facts,
        "drawing": drawing,
        "window": window,
        "windows": [*WINDOWS, ALL],
        "span": drawing.span,
        "kept": kept,
        "instants": list(islice((one for one in reversed(instants) if one.begun_s <= span.end_s), SHOWN)),
        "instant_total": len(instants),
        "most_instants": MOST_INSTANTS,
        "chosen": chosen,
        "conflict": conflict,
        "conflict_groups": groups,
        "chosen_files": written_files(table, chosen),
        "resource": follower.policies().requested.get(row["base_path"]),
        "chosen_text": given.get("instant", "") if chosen is None else "",
        "link": lambda **changes: _link(window, until_s, given, changes),
        "earlier_s": span.end_s - (span.end_s - span.begin_s) / 2,
        "later_s": until_s + (span.end_s - span.begin_s) / 2 if until_s is not None else None,
        "until_s": until_s,
        "upkeep": made[1],
        "usage": made[2],
        "upkeep_days": UPKEEP_DAYS,
        "trends": made[3],
    }


def _aged_document(row: Row, now_s: float) -> dict[str, Any]:
    """Return the document of the last examination, with the ages that its findings, plans and logs have now."""
    passed_s, document = now_s - row["examined_s"], dict(row["document"])
    for name in ("findings", "pending"):
        document[name] = [aged(one, passed_s) for one in document[name]]
    services = document["services"].items()
    document["services"] = {
        name: {**one, "last_run": aged(one["last_run"], passed_s)} if one["last_run"] else one for name, one in services
    }
    if document["backlog"] and document["backlog"]["oldest_log_s"] is not None:
        document["backlog"] = {**document["backlog"], "oldest_log_s": document["backlog"]["oldest_log_s"] + max(0.0, passed_s)}
    return document


def conflict_with_files(
    model: ReadModel, uid: str, chosen: Instant | None, table: Table | None
) -> tuple[Row | None, dict[str, list[str]]]:
    """Return the conflict that the chosen instant lost (None: none), and the file groups of both sides that are known."""
    conflict = conflict_of(model, uid, chosen.instant) if uid and chosen is not None and chosen.outcome == UNDONE else None
    try:
        return conflict, file_groups_of(table, conflict) if conflict is not None and table is not None else {}
    except TidelineError:
        return conflict, {}


def written_files(table: Table | None, chosen: Instant | None) -> list[tuple[str, int]]:
    """Return path and size of what the chosen instant wrote, the largest first; nothing if the log of the table has it no more."""
    if table is None or chosen is None or chosen.sequence is None or chosen.outcome != DONE:
        return []
    try:
        entry = table.timeline.log.read(chosen.sequence)
    except TidelineError:
        return []
    commit = entry.body.metadata if entry is not None and isinstance(entry.body, Published) else None
    found = [(one.path, one.file_size_bytes) for one in commit.stats] if commit is not None else []
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _link(window: str, until_s: float | None, given: Mapping[str, str], changes: dict[str, Any]) -> str:
    """Return the parameters of this page with changes; None removes one."""
    own = {"window": window, "until": until_s, "instant": given.get("instant"), **changes}
    return f"?{urlencode({name: value for name, value in own.items() if value not in (None, '')})}"
