"""The page of writers: who writes what, writes that run, writes that were undone, and locks."""

from __future__ import annotations

from typing import Any

from tideline_console import queries
from tideline_console.conflicts import pairs
from tideline_console.model import ReadModel, Row

DAYS = 7
LISTED = 100


def writers_context(model: ReadModel, now_s: float) -> dict[str, Any]:
    """Return what the page of writers shows, of the last `DAYS` days."""
    return {
        "title": "Writers",
        "days": DAYS,
        "writers": writers(model, now_s),
        "writer_total": _number(model, "SELECT count(DISTINCT writer) AS n FROM writers WHERE day > ?", _first_day(now_s)),
        "running": running(model, now_s),
        "undone": undone(model, now_s),
        "undone_total": _number(
            model,
            "SELECT count(*) AS n FROM steps WHERE action = 'rollback' AND to_state = 'completed' AND time_s >= ?",
            now_s - DAYS * 86_400,
        ),
        "conflicts": pairs(model, now_s),
        "locks": queries.events(model, {"kind": "lock"}, 50),
    }


def writers(model: ReadModel, now_s: float, limit: int = LISTED) -> list[Row]:
    """Return the writers by what they committed, the one that wrote last first, each with its tables."""
    rows = model.query(
        "SELECT writer, count(DISTINCT uid) AS tables, sum(steps) AS commits, sum(bytes) AS bytes, sum(rows) AS rows, "
        "max(last_s) AS last_s FROM writers WHERE day > ? GROUP BY writer ORDER BY last_s DESC LIMIT ?",
        _first_day(now_s),
        limit,
    )
    for row in rows:
        row["named"] = model.query(
            "SELECT DISTINCT t.key, t.name, t.folder FROM writers w JOIN tables t ON t.uid = w.uid WHERE w.day > ? "
            "AND w.writer = ? AND w.uid != '' LIMIT 3",
            _first_day(now_s),
            row["writer"],
        )
    return rows


def running(model: ReadModel, now_s: float, limit: int = LISTED) -> list[Row]:
    """Return writes that began and did not end, the oldest first."""
    return model.query(
        "SELECT s.*, t.key, t.name, t.folder FROM open_writes o JOIN tables t ON t.uid = o.uid "
        "JOIN steps s ON s.uid = o.uid AND s.sequence = o.sequence WHERE o.time_s >= ? ORDER BY o.time_s LIMIT ?",
        now_s - DAYS * 86_400,
        limit,
    )


def undone(model: ReadModel, now_s: float, limit: int = LISTED) -> list[Row]:
    """Return the last rollbacks with what they undid, and who began it: a dead writer, the loser of a conflict, or a plan."""
    return model.query(
        "SELECT r.*, t.key, t.name, t.folder, b.writer AS begun_by, b.time_s AS begun_s, b.action AS begun "
        "FROM (SELECT * FROM steps WHERE action = 'rollback' AND to_state = 'completed' AND time_s >= ? "
        "ORDER BY time_s DESC LIMIT ?) r "
        "JOIN tables t ON t.uid = r.uid LEFT JOIN steps b ON b.uid = r.uid AND b.sequence = "
        "(SELECT min(sequence) FROM steps f INDEXED BY steps_by_instant "
        "WHERE f.uid = r.uid AND f.instant = r.undone) ORDER BY r.time_s DESC",
        now_s - DAYS * 86_400,
        limit,
    )


def _first_day(now_s: float) -> int:
    return int(now_s // 86_400) - DAYS


def _number(model: ReadModel, sql: str, *values: Any) -> int:
    return int(model.query(sql, *values)[0]["n"])
