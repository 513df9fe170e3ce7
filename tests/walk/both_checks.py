"""What must hold of a table of `tests.walk.both` after each step."""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.peers.apache_hudi import ApacheHudi
from tests.walk.both_form import INDEXES, Form
from tests.walk.both_rows import Model, Row, plain

from tideline_table.action import check_table
from tideline_table.errors import HistoryUnavailable, InstantNotFound
from tideline_table.table import Table

SIGNS = {"<": operator.lt, "=": operator.eq, ">": operator.gt}
SHOWN = 6
"""Rows of a difference that are printed."""


@dataclass
class Checks:
    """The readers of the table at `path`; each comparison is counted."""

    peer: ApacheHudi
    path: Path
    form: Form
    draw: random.Random
    counts: Counter[str]

    def wrong(self, model: Model, past: dict[str, Model]) -> list[str]:
        """What differs from `model`, and from the earlier states `past`, by the instant that ended each."""
        where, fits = self._condition(model)
        found = self._seen_here(model, where, fits)
        found += self._seen_there(model, where, fits)
        found += self._looked_up(model)
        found += self._seen_back(model, past)
        if self.form.metadata:
            self.counts["comparisons"] += 1
            found += [str(finding) for finding in check_table(Table.open(str(self.path), options=self.form.own_options))]
        return found

    def _differences(self, reader: str, rows: list[Row], expected: list[Row], columns: list[str]) -> list[str]:
        self.counts["comparisons"] += 1
        found, wanted = plain(rows, columns), plain(expected, columns)
        if found == wanted:
            return []
        only = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
        more, less = (sorted(side.elements())[:SHOWN] for side in only)
        return [f"{reader}: {len(found)} rows, expected {len(wanted)}; only there {more}, missing {less}"]

    def _condition(self, model: Model) -> tuple[str, list[Row]]:
        """A condition by which readers may leave out files, and the rows that fit."""
        rows = list(model.rows.values())
        column = self.draw.choice(["ts", "price", "id"])
        if column == "id":
            keys = [f"k{n:04}" for n in self.draw.sample(range(40), 3)]
            return f"id in ({', '.join(map(repr, keys))})", [row for row in rows if row["id"] in keys]
        sign, value = self.draw.choice([*SIGNS]), self.draw.randint(1, 20)
        fits = [row for row in rows if row[column] is not None and SIGNS[sign](row[column], value)]
        return f"{column} {sign} {value}", fits

    def _seen_here(self, model: Model, where: str, fits: list[Row]) -> list[str]:
        table = Table.open(str(self.path))
        rows = table.read().select(model.columns).to_pylist()
        found = self._differences("Tideline", rows, [*model.rows.values()], model.columns)
        return found + self._differences(f"Tideline where {where}", table.read(["id"], where=where).to_pylist(), fits, ["id"])

    def _seen_there(self, model: Model, where: str, fits: list[Row]) -> list[str]:
        """What Apache Hudi reads by listings, by the metadata table and by the condition: one job for all."""
        ways = {"by listings": ("false", "")}
        if self.form.metadata:
            ways["by the metadata table"] = "true", ""
        ways[f"where {where}"] = str(bool(self.form.metadata)).lower(), f" where {where}"
        parts = []
        for number, (way, (metadata, condition)) in enumerate(ways.items()):
            options = {
                "path": str(self.path),
                **INDEXES[self.form.metadata],
                "hoodie.metadata.enable": metadata,
                "hoodie.enable.data.skipping": "true",
            }
            text = ", ".join(f"'{key}' '{value}'" for key, value in options.items())
            self.peer.sql(f"create or replace temporary view seen_{number} using hudi options ({text})")
            parts.append(f'select "{way}" as way, {", ".join(model.columns)} from seen_{number}{condition}')
        rows = self.peer.sql(" union all ".join(parts))
        found = []
        for way, (_, condition) in ways.items():
            expected = fits if condition else [*model.rows.values()]
            found += self._differences(f"Apache Hudi {way}", [row for row in rows if row["way"] == way], expected, model.columns)
        return found

    def _looked_up(self, model: Model) -> list[str]:
        """Rows by their keys, of which Tideline reads only files and blocks that can hold them."""
        numbers = self.draw.sample(range(40), 4)
        rows = Table.open(str(self.path), options=self.form.own_options).look_up([f"k{n:04}" for n in numbers]).to_pylist()
        expected = [model.rows[n] for n in numbers if n in model.rows]
        return self._differences(f"Tideline, look-up of {numbers}", rows, expected, model.columns)

    def _seen_back(self, model: Model, past: dict[str, Model]) -> list[str]:
        """Time travel of Tideline to an earlier write, and the changes since, unless a clean deleted what they need."""
        if not past:
            return []
        instant = self.draw.choice([*past])
        table, then = Table.open(str(self.path)), past[instant]
        try:
            rows = table.read(as_of=instant).select(then.columns).to_pylist()
            changes = [row for batch in table.changes(since=instant).scan(model.columns) for row in batch.to_pylist()]
        except (InstantNotFound, HistoryUnavailable):
            del past[instant]
            return []
        found = self._differences(f"Tideline as of {instant}", rows, [*then.rows.values()], then.columns)
        told = [(image["before"], image["after"]) for image in changes]
        expected = [(then.rows.get(n), model.rows.get(n)) for n in then.rows.keys() | model.rows.keys()]
        return found + self._differences(
            f"Tideline, changes since {instant}", _net(told, model.columns), _net(expected, model.columns), ["change"]
        )


def _net(changes: Iterable[tuple[Row | None, Row | None]], columns: list[str]) -> list[Row]:
    """Changes as comparable rows, without those of rows that stayed as they were."""
    sides = [tuple(plain([row], columns) if row is not None else None for row in change) for change in changes]
    return [{"change": f"{before} → {after}"} for before, after in sides if before != after]
