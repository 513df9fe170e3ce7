"""What the pages ask of the read model: lists of tables, findings, series, work and events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from tideline_console.instants import SERVICES, WRITES
from tideline_console.model import SERVICE_LIST, URGENCY, ReadModel, Row

PAGE = 50
MOST_SQUARES = 4000
MOST_WORK = 100
"""Rows of a list of work; pages say how many there are."""
SORTS = {
    "state": "urgency",
    "table": "name COLLATE NOCASE",
    "type": "type",
    "version": "version",
    "mode": "mode",
    "size": "size_bytes",
    "groups": "file_groups",
    "small": "small_files",
    "logs": "log_bytes",
    "pending": "pending",
    "last": "last_write_s",
    "lag": "lag_s",
}
"""Sorts of the list of tables, by their names in addresses."""
_DESCENDING = frozenset(("size", "groups", "small", "logs", "pending", "last", "lag"))
"""Sorts whose first direction is from the largest on."""
EQUALS = {"state": "verdict", "type": "type", "version": "version", "mode": "mode", "folder": "folder"}
_WROTE = "uid != '' AND uid IN (SELECT uid FROM writers WHERE writer = ?)"
FILTERS = {**{name: f"{column} = ?" for name, column in EQUALS.items()}, "writer": _WROTE}
"""Conditions of the filters by their names in addresses."""
LEAST = {"size_min": "size_bytes", "small_min": "small_files", "logs_min": "log_bytes", "lag_min": "lag_s"}
_JOINED = "tables LEFT JOIN lags USING (uid)"
_DEEP = 20_000
"""Steps and events among which a filter of the page of events looks, the newest ones."""
MOST_COUNTED = 1000
"""Rows that a page counts; it says that there are more."""
_STEP_SOURCE = (
    "SELECT 'step' AS kind, uid, '' AS base_path, action || ' ' || to_state AS what, instant, 'by ' || writer AS text, time_s, "
    "uid || '/' || sequence AS id FROM steps WHERE time_s < ?"
)
_STEP_TEXT = "action || ' ' || to_state || ' ' || instant || ' by ' || writer"
_EVENT_SOURCE = "SELECT kind, uid, base_path, what, instant, text, time_s, id FROM events WHERE time_s < ? AND (kind = ? OR ? = '')"
_EVENT_TEXT = "what || ' ' || instant || ' ' || text || ' ' || base_path"
EVENT_KINDS = ("step", "job", "decision", "finding", "lock", "action", "table")


@dataclass(frozen=True, slots=True)
class Asked:
    """A view of the list of tables, as the address gives it. Unknown values are left out: an old address still shows a page."""

    query: str
    filters: Mapping[str, str]
    least: Mapping[str, int]
    sort: str
    is_descending: bool
    page: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Asked:
        """Read the parameters of an address."""
        sort = given.get("sort", "state")
        sort = sort if sort in SORTS else "state"
        order = given.get("order", "")
        least = {name: whole(given.get(name, "")) for name in LEAST}
        return cls(
            given.get("q", "")[:200],
            {name: given[name][:200] for name in FILTERS if given.get(name)},
            {name: value for name, value in least.items() if value is not None},
            sort,
            order == "desc" if order in ("asc", "desc") else sort in _DESCENDING,
            min(whole(given.get("page", "")) or 1, 1_000_000),
        )

    def given(self) -> list[tuple[str, Any]]:
        """Return the parameters that choose the tables of this view, without its page and order."""
        given = {"q": self.query, **self.filters, **self.least}
        return [(name, value) for name, value in given.items() if value != ""]

    def address(self, **changes: Any) -> str:
        """Return the parameters of this view with `changes`; an empty value removes one. A change goes back to the first page."""
        order = "desc" if self.is_descending else "asc"
        own: dict[str, Any] = {"q": self.query, **self.filters, **self.least, "sort": self.sort, "order": order}
        if self.sort == "state" and not self.is_descending:
            del own["sort"], own["order"]
        own |= changes
        text = urlencode({name: value for name, value in own.items() if value not in ("", None)})
        return f"?{text}" if text else "?"

    def by(self, sort: str) -> str:
        """Return the parameters that sort by a column: the other way round if this view is sorted by it."""
        down = not self.is_descending if sort == self.sort else sort in _DESCENDING
        return self.address(sort=sort, order="desc" if down else "asc")


def whole(text: str) -> int | None:
    """Return a whole number of an address that SQLite can hold; None for another text, also for one with too many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def tables(model: ReadModel, asked: Asked, limit: int | None) -> tuple[list[Row], int]:
    """Return the tables of a page of a view, without their documents, and how many the view has. `limit` None: all."""
    where, values = _where(asked)
    total = model.query(f"SELECT count(*) AS n FROM {_JOINED} WHERE {where}", *values)[0]["n"]  # noqa: S608 - own text
    column, order = SORTS[asked.sort], "DESC" if asked.is_descending else "ASC"
    # In the order of an index, if there is one.
    is_urgency = column == "urgency"
    order_by = (
        f"{column} {order}, name, base_path" if is_urgency else f"{column} IS NULL, {column} {order}, urgency, name, base_path"
    )
    sql = f"SELECT * FROM {_JOINED} WHERE {where} ORDER BY {order_by}"  # noqa: S608 - own text
    if limit is None:
        return model.query(sql, *values), total
    return model.query(f"{sql} LIMIT ? OFFSET ?", *values, limit, (asked.page - 1) * limit), total


def _where(asked: Asked) -> tuple[str, list[Any]]:
    parts: list[str] = ["1"]
    values: list[Any] = []
    for word in asked.query.split():
        escaped = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        parts.append("(name || ' ' || base_path || ' ' || tags || ' ' || uid) LIKE ? ESCAPE '\\'")
        values.append(f"%{escaped}%")
    for name, value in asked.filters.items():
        parts.append(FILTERS[name])
        number = whole(value) if name == "version" else None
        values.append(value if number is None else number)
    for name, least in asked.least.items():
        parts.append(f"{LEAST[name]} >= ?")
        values.append(least)
    return " AND ".join(parts), values


def table_by_key(model: ReadModel, key: str) -> Row | None:
    """Return a table by its key or uid, with its document; None if there is none."""
    found = model.query(
        "SELECT * FROM tables JOIN documents USING (base_path) WHERE key = ? OR (uid = ? AND uid != '') "
        "ORDER BY key = ? DESC LIMIT 1",
        key,
        key,
        key,
    )
    return {**found[0], "document": json.loads(found[0]["document"])} if found else None


def documents(model: ReadModel) -> list[dict[str, Any]]:
    """Return the documents of all tables, as `tideline status --json`, by base path."""
    return [json.loads(row["document"]) for row in model.query("SELECT document FROM documents ORDER BY base_path")]


def counts(model: ReadModel, column: str) -> list[tuple[Any, int]]:
    """Return how many tables have each value of a column of `EQUALS`."""
    name = EQUALS[column]
    sql = f"SELECT {name} AS value, count(*) AS n FROM tables GROUP BY {name} ORDER BY {name}"  # noqa: S608 - own text
    rows = model.query(sql)
    return [(row["value"], row["n"]) for row in rows if row["value"] not in (None, "")]


def total(model: ReadModel, column: Literal["pending", "due", "findings"]) -> int:
    """Return the sum of a column over all tables; lists of pages may end earlier."""
    sql = f"SELECT COALESCE(sum({column}), 0) AS n FROM tables WHERE {column} > 0"  # noqa: S608 - own text
    return int(model.query(sql)[0]["n"])


def verdicts(model: ReadModel) -> dict[str, int]:
    """Return how many tables have each verdict, also none."""
    found = dict(counts(model, "state"))
    return {verdict: found.get(verdict, 0) for verdict in URGENCY}


@dataclass(frozen=True, slots=True)
class Block:
    """A folder on the map of the fleet: how many tables, and for each verdict an SVG path of its squares."""

    folder: str
    tables: int
    columns: int
    rows: int
    paths: list[tuple[str, int, str]]
    """Verdict, number of its tables, path."""


def fleet_map(model: ReadModel) -> list[Block]:
    """Return the folders with a square for each table, the worst first; above `MOST_SQUARES` a square stands for several."""
    rows = model.query("SELECT folder, verdict, count(*) AS n FROM tables GROUP BY folder, verdict")
    per_square = -(-sum(row["n"] for row in rows) // MOST_SQUARES) or 1
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["folder"], {})[row["verdict"]] = row["n"]
    blocks = []
    for folder, numbers in sorted(found.items()):
        at, paths = 0, []
        for verdict in sorted(numbers, key=lambda one: URGENCY.get(one, 0)):
            squares = -(-numbers[verdict] // per_square)
            path = "".join(f"M{n // 8 * 7} {n % 8 * 7}h6v6h-6z" for n in range(at, at + squares))
            paths.append((verdict, numbers[verdict], path))
            at += squares
        blocks.append(Block(folder, sum(numbers.values()), -(-at // 8), min(at, 8), paths))
    return blocks


def findings(model: ReadModel, now_s: float, limit: int = 200) -> list[Row]:
    """Return findings with their table: those that a person must end first, then by age, the oldest first."""
    rows = model.query(
        "SELECT key, name, folder, t.base_path, verdict, uid, p.examined_s, p.document "
        "FROM parts p JOIN tables t USING (base_path) WHERE part = 'finding' "
        "ORDER BY ends, verdict != 'cannot_open', since_s IS NULL, since_s, name LIMIT ?",
        limit,
    )
    return [{**row, **aged(json.loads(row.pop("document")), now_s - row["examined_s"])} for row in rows]


def hourly(model: ReadModel, now_s: float, hours: int = 24) -> dict[str, list[float]]:
    """Return what completed in each of the last hours, oldest first: commits, bytes and rows of writers, and of services."""
    first = int(now_s // 3600) - hours + 1
    rows = model.query(
        "SELECT hour, action, steps AS n, bytes, rows FROM hours WHERE hour BETWEEN ? AND ?",
        first,
        first + hours - 1,
    )
    names = ("commits", "bytes", "rows", "services", "rewritten")
    series: dict[str, list[float]] = {name: [0.0] * hours for name in names}
    for row in rows:
        at = row["hour"] - first
        if row["action"] in WRITES:
            series["commits"][at] += row["n"]
            series["bytes"][at] += row["bytes"]
            series["rows"][at] += row["rows"]
        elif row["action"] in SERVICES:
            series["services"][at] += row["n"]
            series["rewritten"][at] += row["bytes"]
    return series


def commits_per_hour(model: ReadModel, uids: list[str], now_s: float, hours: int = 24) -> dict[str, list[int]]:
    """Return the completed writes of tables in each of the last hours, oldest first."""
    first = int(now_s // 3600) - hours + 1
    found = {uid: [0] * hours for uid in uids if uid}
    marks = ", ".join("?" for _ in found)
    writes = ", ".join(f"'{action}'" for action in sorted(WRITES))
    where = f"uid IN ({marks}) AND hour BETWEEN ? AND ? AND action IN ({writes})"
    sql = f"SELECT uid, hour, sum(steps) AS n FROM table_hours WHERE {where} GROUP BY uid, hour"  # noqa: S608 - own text
    for row in model.query(sql, *found, first, first + hours - 1):
        found[row["uid"]][row["hour"] - first] = row["n"]
    return found


def movers(model: ReadModel, now_s: float, days: int = 7, limit: int = 8) -> list[Row]:
    """Return the tables to which writers committed most bytes in the last days, with commits and changed rows."""
    return model.query(
        "SELECT m.*, t.key, t.name, t.folder FROM (SELECT uid, sum(steps) AS commits, sum(bytes) AS bytes, sum(rows) AS rows "
        "FROM writers WHERE day > ? AND uid != '' AND uid IN (SELECT uid FROM tables) "
        "GROUP BY uid ORDER BY bytes DESC, uid LIMIT ?) m "
        "JOIN tables t ON t.uid = m.uid ORDER BY m.bytes DESC, m.uid",
        int(now_s // 86_400) - days,
        limit,
    )


def aged(document: Mapping[str, Any], passed_s: float) -> Row:
    """Return a finding, a plan or a last run `passed_s` seconds after it was examined: it is older, and nearer to its end."""
    passed_s = max(0.0, passed_s)
    found = dict(document)
    if found.get("age_s") is not None:
        found["age_s"] += passed_s
    if found.get("ends_in_s") is not None:
        found["ends_in_s"] = max(0.0, found["ends_in_s"] - passed_s)
    return found


def work(model: ReadModel, now_s: float, limit: int = MOST_WORK) -> list[Row]:
    """Return the pending plans and rollbacks of all tables with their table, the oldest first; `findings` has their kinds."""
    rows = model.query(
        "SELECT key, name, folder, uid, p.examined_s, p.document, (SELECT json_group_array(json_extract(f.document, '$.kind')) "
        "FROM parts f WHERE f.base_path = p.base_path AND f.part = 'finding') AS findings "
        "FROM parts p JOIN tables t USING (base_path) WHERE part = 'pending' ORDER BY ends, since_s LIMIT ?",
        limit,
    )
    return [
        {**row, **aged(json.loads(row.pop("document")), now_s - row["examined_s"]), "findings": set(json.loads(row["findings"]))}
        for row in rows
    ]


def due(model: ReadModel, limit: int = MOST_WORK) -> list[Row]:
    """Return the services that are due or held, with table and reason: first the plans that the planner serves first."""
    rows = model.query(
        # In the order of the index: only as many tables are read as are shown.
        "SELECT key, name, folder, p.document FROM parts p INDEXED BY parts_by_score CROSS JOIN tables t USING (base_path) "
        "WHERE p.part = 'due' ORDER BY p.score DESC, p.base_path, p.number LIMIT ?",
        limit,
    )
    return [{**row, **json.loads(row.pop("document"))} for row in rows]


def done(model: ReadModel, since_s: float, limit: int = MOST_WORK) -> list[Row]:
    """Return what services completed and what was rolled back, newest first."""
    return model.query(
        "SELECT s.*, t.key, t.name, t.folder, "  # noqa: S608 - own text
        "(SELECT min(time_s) FROM steps b INDEXED BY steps_by_instant WHERE b.uid = s.uid AND b.instant = s.instant) AS begun_s "
        "FROM (SELECT * FROM steps WHERE time_s >= ? AND to_state IN ('completed', 'rolledback') "
        f"AND action IN ({SERVICE_LIST}) ORDER BY time_s DESC LIMIT ?) s "
        "JOIN tables t ON t.uid = s.uid GROUP BY s.uid, s.sequence ORDER BY s.time_s DESC",
        since_s,
        limit,
    )


def done_total(model: ReadModel, since_s: float) -> int:
    """Return how many rows `done` has without a limit; above `MOST_COUNTED` one more than that."""
    where = f"time_s >= ? AND to_state IN ('completed', 'rolledback') AND action IN ({SERVICE_LIST})"
    where += " AND uid IN (SELECT uid FROM tables)"
    rows = f"SELECT 1 FROM steps INDEXED BY steps_of_services WHERE {where} LIMIT ?"  # noqa: S608 - own text
    return int(model.query(f"SELECT count(*) AS n FROM ({rows})", since_s, MOST_COUNTED + 1)[0]["n"])  # noqa: S608 - own text


def events(model: ReadModel, given: Mapping[str, str], limit: int = 100) -> list[Row]:
    """Return steps and events, newest first: of a kind, a table (key), with a text, before a time."""
    kind, key, text = given.get("kind", ""), given.get("table", ""), given.get("q", "")[:200].strip()
    kind = kind if kind in EVENT_KINDS else ""
    try:
        before_s = float(given.get("before", "") or 1e12)
    except ValueError:
        before_s = 1e12
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    table = (table_by_key(model, key) or {"uid": "", "base_path": ""}) if key else None
    sources: list[str] = []
    values: list[Any] = []
    for name, source, own, searched in (
        ("steps", _STEP_SOURCE, [before_s], _STEP_TEXT),
        ("events", _EVENT_SOURCE, [before_s, kind, kind], _EVENT_TEXT),
    ):
        if kind and (kind == "step") != (name == "steps"):
            continue
        parts, of_source = [source], own
        if table is not None:
            place = " OR base_path = ? AND base_path != ''" if name == "events" else ""
            parts.append(f"(uid = ? AND uid != ''{place})")
            of_source = [*of_source, table["uid"], *([table["base_path"]] if place else [])]
        if (text and table is None) or (table is not None and name == "events"):
            # A filter looks among the newest ones, from the newest on, so that it ends when the page is full.
            newest = f"SELECT time_s FROM {name} WHERE time_s < ? ORDER BY time_s DESC LIMIT ?"  # noqa: S608 - own text
            floor_s = model.query(f"SELECT min(time_s) AS s FROM ({newest})", before_s, _DEEP)[0]["s"]  # noqa: S608 - own text
            parts.append("time_s >= ?")
            of_source = [*of_source, floor_s or 0.0]
        if text:
            # Names of tables are searched once, not for each event.
            named = "SELECT {} FROM tables WHERE name LIKE ? ESCAPE '\\'"
            of_name = f"uid != '' AND uid IN ({named.format('uid')})"
            if name == "events":
                of_name += f" OR uid = '' AND base_path IN ({named.format('base_path')})"
            parts.append(f"(({searched}) LIKE ? ESCAPE '\\' OR {of_name})")
            of_source = [*of_source, *[f"%{escaped}%"] * of_name.count("?"), f"%{escaped}%"]
        sources.append(f"SELECT * FROM ({' AND '.join(parts)} ORDER BY time_s DESC LIMIT ?)")  # noqa: S608 - own text
        values += [*of_source, limit]
    found = f"SELECT * FROM ({' UNION ALL '.join(sources)}) e ORDER BY e.time_s DESC, e.id DESC LIMIT ?"  # noqa: S608 - own text
    return model.query(
        f"SELECT e.*, t.key, t.name, t.folder FROM ({found}) e "  # noqa: S608 - own text
        "LEFT JOIN tables t ON t.base_path = CASE WHEN e.uid = '' THEN e.base_path "
        "ELSE (SELECT min(base_path) FROM tables WHERE uid = e.uid) END "
        "ORDER BY e.time_s DESC, e.id DESC",
        *values,
        limit,
    )


def event(model: ReadModel, name: str) -> dict[str, Any] | None:
    """Return a step (`<uid>/<sequence>`) or an event by its id, as a document; None if it is not known."""
    uid, slash, sequence = name.partition("/")
    if slash and (number := whole(sequence)) is not None:
        steps = model.query("SELECT * FROM steps WHERE uid = ? AND sequence = ?", uid, number)
        if steps:
            return {**steps[0], "partitions": json.loads(steps[0]["partitions"])}
    found = model.query("SELECT document FROM events WHERE id = ?", name)
    return json.loads(found[0]["document"]) if found else None
