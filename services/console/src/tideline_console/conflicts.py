"""Both sides of a conflict: a write or a rewrite that its own process undid, and what was committed under it meanwhile.

A table log has no entry that names who won. What is found here: the completed writes and rewrites between the first step of the
loser and its rollback, and the compactions that were planned there and completed later, in the partitions of the files that the
rollback deleted; and by the log of the table, in which file groups.
Jobs of Apache Hudi have one name for all: whether one undid its own work, or that of a dead one, is not known, and not shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from tideline_console.model import ReadModel, Row
from tideline_table.log import HUDI_WRITER, Published, RollbackStep
from tideline_table.table import Table

DAYS = 7
MOST_LOST, MOST_WON = 50, 5
_LOST = """
SELECT r.uid, r.undone AS lost, r.sequence AS ended, r.time_s, r.partitions, b.writer AS loser, b.action,
  (SELECT min(sequence) FROM steps f INDEXED BY steps_by_instant WHERE f.uid = r.uid AND f.instant = r.undone) AS began,
  (SELECT min(sequence) FROM steps f INDEXED BY steps_by_instant WHERE f.uid = r.uid AND f.instant = r.instant) AS undoing
FROM (SELECT * FROM steps WHERE action = 'rollback' AND to_state = 'completed' AND {which} ORDER BY time_s DESC LIMIT {most}) r
JOIN steps b ON b.uid = r.uid AND b.sequence =
  (SELECT max(sequence) FROM steps l INDEXED BY steps_by_instant
   WHERE l.uid = r.uid AND l.instant = r.undone AND l.sequence < r.sequence)
WHERE b.writer = r.writer AND b.writer <> ? ORDER BY r.time_s DESC
"""
_WON = """
SELECT sequence, instant, action, writer, partitions FROM steps WHERE uid = ? AND sequence > ? AND sequence < ?
AND to_state = 'completed' AND action IN ('commit', 'deltacommit', 'replacecommit', 'clustering', 'compaction', 'logcompaction')
ORDER BY sequence DESC LIMIT 200
"""
_PLANNED = """
SELECT c.sequence, c.instant, c.action, p.writer, c.partitions FROM steps p JOIN steps c INDEXED BY steps_by_instant
ON c.uid = p.uid AND c.instant = p.instant AND c.to_state = 'completed' WHERE p.uid = ? AND p.sequence > ? AND p.sequence < ?
AND p.to_state = 'requested' AND p.action IN ('compaction', 'logcompaction') AND c.sequence > ? ORDER BY c.sequence DESC LIMIT 200
"""
"""Plans that were published meanwhile and completed later: a compaction closes the slices that it reads with its plan."""


def conflict_of(model: ReadModel, uid: str, lost: str) -> Row | None:
    """Return the conflict that the instant `lost` of a table lost; None if it was not undone by its own process, or met nothing."""
    found = model.query(_LOST.format(which="uid = ? AND undone = ?", most=1), uid, lost, HUDI_WRITER)
    return next(_with_winners(model, found), None)


def pairs(model: ReadModel, now_s: float) -> list[Row]:
    """Return who lost to whom in which table and partitions, and how often, among the last `MOST_LOST` rollbacks; newest first."""
    lost = model.query(_LOST.format(which="time_s >= ?", most=MOST_LOST), now_s - DAYS * 86_400, HUDI_WRITER)
    found: dict[tuple[str, str, str], Row] = {}
    for one in _with_winners(model, lost):
        for won in one["won"]:
            pair = found.setdefault((one["uid"], one["loser"], won["writer"]), {**one, "by": won, "times": 0, "in": set()})
            pair["times"] += 1
            pair["in"] |= won["in"]
    uids = json.dumps([uid for uid, _, _ in found])
    tables = model.query("SELECT uid, key, name, folder FROM tables WHERE uid IN (SELECT value FROM json_each(?))", uids)
    named = {table["uid"]: table for table in tables}
    return [{**one, **named[one["uid"]], "in": sorted(one["in"])} for one in found.values() if one["uid"] in named]


def file_groups_of(table: Table, one: Row) -> dict[str, list[str]]:
    """Return the file groups that both sides of a conflict wrote, by the instant that won. Raises `StorageError`."""
    begun = table.timeline.log.read(one["undoing"])
    body = begun.body if begun is not None else None
    plan = body.plan if isinstance(body, RollbackStep) and body.plan is not None else {}
    lost = {(asked["partitionPath"], asked["fileId"]) for asked in plan.get("RollbackRequests") or ()}
    found = {}
    for won in one["won"]:
        entry = table.timeline.log.read(won["sequence"])
        commit = entry.body.metadata if entry is not None and isinstance(entry.body, Published) else None
        wrote = {(stat.partition_path, stat.file_id) for stat in commit.stats} if commit is not None else set()
        wrote |= {(path, group) for path, groups in ((commit.replaced if commit else None) or {}).items() for group in groups}
        found[won["instant"]] = sorted(group for _, group in lost & wrote)
    return found


def _with_winners(model: ReadModel, lost: Iterable[Row]) -> Iterator[Row]:
    for one in lost:
        own = set(json.loads(one.pop("partitions")))
        met = []
        asked = one["uid"], one["began"], one["undoing"]
        for won in (*model.query(_WON, *asked), *model.query(_PLANNED, *asked, one["undoing"])):
            in_both = own.intersection(json.loads(won.pop("partitions")))
            met += [{**won, "in": in_both}] if in_both else []
        if met:
            yield {**one, "won": met[:MOST_WON]}
