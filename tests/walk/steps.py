"""What Apache Hudi does to a table of the walk: writes, statements, services, failures and the ways back, drawn by the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.conformance.peers.apache_hudi import ApacheHudi, PeerFailed, PeerInstant
from tests.walk.layout import Layout
from tests.walk.rows import Rows

_WRITES = ("commit", "deltacommit")
_OPERATION = "hoodie.datasource.write.operation"


class Steps:
    """The hands of Hudi on one table. `take` draws a step and takes it; refusals of Hudi's come as PeerFailed."""

    def __init__(self, hudi: ApacheHudi, newest: ApacheHudi | None, base: Path, layout: Layout, seed: int) -> None:
        self.hudi = hudi
        self._writers = (hudi, newest) if newest is not None and layout.mixed else (hudi,)
        self.base = base
        self.layout = layout
        self.name = layout.options["hoodie.table.name"]
        self._r = random.Random(f"steps {layout.release} {seed}")
        self._rows = Rows(f"rows {layout.release} {seed}", odd_partitions=layout.odd_partitions, source=layout.source)
        self._next = 0
        self._begun = False

    def draw(self) -> tuple[str, Callable[[], str | None]]:
        """The name of the next step and what takes it; that returns more words about it, or None where there was nothing to do."""
        if not self._begun:
            name = self._r.choice(["bulk_insert", "insert", "upsert"])
            self._begun = True
            return name, self._first_write(name)
        drawn = self._all()
        names = [name for name, (weight, _) in drawn.items() for _ in range(weight)]
        name = self._r.choice(names)
        if len(self._writers) == 1:
            return name, drawn[name][1]
        self.hudi = self._r.choice(self._writers)
        return name if self.hudi is self._writers[0] else f"{name} by the newest release", drawn[name][1]

    def _all(self) -> dict[str, tuple[int, Callable[[], str | None]]]:
        """Every step with how often it is drawn."""
        logs = int(self.layout.merge_on_read)
        by_id = int(self.layout.by_id)
        # Behind an overwrite Hudi writes consistent buckets into groups that it has just replaced: rows are lost, and some of
        # them told of.
        overwrites = int(self.layout.options.get("hoodie.index.bucket.engine") != "CONSISTENT_HASHING")
        return {
            "upsert": (7, lambda: self._write("upsert", self._some())),
            "insert": (1, lambda: self._write("insert", self._some())),
            "bulk_insert": (1, lambda: self._write("bulk_insert", self._some())),
            "delete": (2, lambda: self._write("delete", self._known())),
            "soft delete": (1, self._soft_delete),
            "empty upsert": (1, lambda: self._write("upsert", [])),
            "evolve": (2, self._evolve),
            "insert_overwrite": (overwrites, lambda: self._write("insert_overwrite", self._some()[:3])),
            "insert_overwrite_table": (overwrites, lambda: self._write("insert_overwrite_table", self._some()[:4])),
            "delete_partition": (1, self._delete_partition),
            "sql update": (1, lambda: self._statement("update {table} set price = price + 1, quantity_or_n where n = 1")),
            "sql delete": (1, lambda: self._statement("delete from {table} where n = 2 and price > 100")),
            "sql merge": (2, self._merge),
            "rename column": (by_id, self._rename),
            "drop column": (by_id, self._drop),
            "schedule compaction": (2 * logs, self._schedule_compaction),
            "run compaction": (2 * logs, lambda: self._call("run_compaction(op => 'run', path => '{base}')")),
            "log compaction": (logs, self._log_compaction),
            "schedule clustering": (1, lambda: self._call("run_clustering(path => '{base}', op => 'schedule', order => 'price')")),
            "run clustering": (1, lambda: self._call("run_clustering(path => '{base}', op => 'execute')")),
            "clean": (1, self._clean),
            "savepoint": (1, self._savepoint),
            "restore": (1, self._restore),
            "rollback": (1, self._roll_back),
            "failed write": (1, self._failed_write),
            "torn write": (1, self._torn_write),
        }

    # --- rows ------------------------------------------------------------------------------------------------------------

    def _known(self) -> list[int]:
        return [n for n in range(self._next) if self._r.random() < 0.3] or [0]

    def _fresh(self) -> list[int]:
        numbers = list(range(self._next, self._next + self._r.randrange(0 if self._next else 4, 9)))
        self._next += len(numbers)
        return numbers

    def _some(self) -> list[int]:
        known = self._known() if self._next else []
        return [*known, *self._fresh()] or [0]

    def _write(self, operation: str, numbers: list[int], **options: str) -> str:
        return self._write_rows(operation, self._rows.make(numbers), **options)

    def _write_rows(self, operation: str, rows: pa.Table, **options: str) -> str:
        named = {name.replace("__", "."): value for name, value in options.items()}
        settings = {**self.layout.options, _OPERATION: operation, **named}
        self.hudi.write(self.base, rows, settings, metadata=self.layout.metadata)
        return f"{rows.num_rows} rows"

    def _first_write(self, operation: str) -> Callable[[], str]:
        return lambda: self._write(operation, self._fresh())

    def _soft_delete(self) -> str:
        rows = self._rows.make(self._known())
        marks = pa.array([self._r.random() < 0.5 for _ in range(rows.num_rows)])
        return self._write_rows("upsert", rows.append_column("_hoodie_is_deleted", marks))

    def _delete_partition(self) -> str | None:
        folders = (found.parent for found in self.base.rglob(".hoodie_partition_metadata*"))
        paths = sorted({str(folder.relative_to(self.base)) for folder in folders if ".hoodie" not in folder.parts} - {"."})
        if not paths:
            return None
        path = self._r.choice(paths)
        self._write("delete_partition", [0], hoodie__datasource__write__partitions__to__delete=path)
        return path

    # --- schema ----------------------------------------------------------------------------------------------------------

    def _evolve(self) -> str:
        change = self._rows.evolve()
        self._write("upsert", self._some())
        return change

    def _rename(self) -> str | None:
        if not (names := self._rows.droppable):
            return None
        old = self._r.choice(names)
        new = f"{old}_new"
        self._statement(f"alter table {{table}} rename column {old} to {new}")
        self._rows.rename(old, new)
        self._write("upsert", self._some())
        return f"{old} to {new}"

    def _drop(self) -> str | None:
        if not (names := self._rows.droppable):
            return None
        name = self._r.choice(names)
        self._statement(f"alter table {{table}} drop column {name}")
        self._rows.drop(name)
        self._write("upsert", self._some())
        return name

    # --- statements and procedures ---------------------------------------------------------------------------------------

    def _sql(self, text: str, **options: str) -> list[dict[str, Any]]:
        named = {name.replace("__", "."): value for name, value in options.items()}
        return self.hudi.sql(text.format(base=self.base, table=self.name), {**self.layout.statement_options, **named})

    def _call(self, procedure: str) -> str:
        return f"{len(self._sql(f'call {procedure}'))} results"

    def _statement(self, text: str) -> str:
        self._sql("create table if not exists {table} using hudi location '{base}'")
        extra = self._r.choice([", day = date'2023-05-06'", "", ", code = null"]) if "day" not in self._key_text else ""
        self._sql(text.replace(", quantity_or_n", extra))
        return ""

    @property
    def _key_text(self) -> str:
        options = self.layout.options
        names = ("hoodie.datasource.write.recordkey.field", "hoodie.datasource.write.partitionpath.field")
        return ",".join(options[name] for name in names)

    def _merge(self) -> str:
        keys = [name for name in ("id", "n", "big_n", "code") if name in self._key_text.split(",")] or ["id"]
        condition = " and ".join(f"t.{name} = s.{name}" for name in keys)
        wanted = self._r.choice(["price = s.price + 7, ts = s.ts, at = s.at, amount = s.amount", "ts = s.ts, price = -1.5"])
        return self._statement(
            "merge into {table} t using (select *, ts + 1 as later from {table} where n = 3) s0 on ".replace(
                "(select *, ts + 1 as later from {table} where n = 3) s0",
                "(select id, n, big_n, code, part, flag, day, at, amount, price, ts + 1 as ts from {table} where n = 3) s",
            )
            + condition
            + (" and t.part = s.part" if "part" in self._key_text.split(",") else "")
            + f" when matched then update set {wanted}"
        )

    # --- services --------------------------------------------------------------------------------------------------------

    def _schedule_compaction(self) -> str:
        metadata = str(self.layout.metadata).lower()
        options = f"hoodie.compact.inline.max.delta.commits=1,hoodie.metadata.enable={metadata}"
        return self._call(f"run_compaction(op => 'schedule', path => '{{base}}', options => '{options}')")

    def _log_compaction(self) -> str:
        return self._write(
            "upsert",
            self._some(),
            hoodie__log__compaction__inline="true",
            hoodie__log__compaction__enable="true",
            hoodie__log__compaction__blocks__threshold="1",
            hoodie__compact__inline="false",
        )

    def _clean(self) -> str:
        self._sql("create table if not exists {table} using hudi location '{base}'")
        return self._call("run_clean(table => '{table}', retain_commits => 1, clean_policy => 'KEEP_LATEST_COMMITS')")

    def completed(self, *actions: str) -> list[PeerInstant]:
        """Completed instants of the active timeline, in Hudi's order."""
        found = [i for i in self.hudi.timeline(self.base) if i.state == "COMPLETED" and i.action in actions]
        return sorted(found, key=lambda i: (i.completion_time, i.instant)) if self.layout.version >= 8 else found

    def _savepoint(self) -> str | None:
        if not (writes := self.completed(*_WRITES)):
            return None
        self._sql("create table if not exists {table} using hudi location '{base}'")
        self._call(f"create_savepoint(table => '{{table}}', commit_time => '{writes[-1].instant}')")
        return writes[-1].instant

    def _restore(self) -> str | None:
        if not (savepoints := self.completed("savepoint")):
            return None
        self.hudi.restore(self.base, self.name, savepoints[-1].instant, self.layout.statement_options)
        return savepoints[-1].instant

    def _roll_back(self) -> str | None:
        if not (writes := self.completed(*_WRITES)):
            return None
        self.hudi.roll_back(self.base, self.name, writes[-1].instant, self.layout.statement_options)
        return writes[-1].instant

    # --- failures --------------------------------------------------------------------------------------------------------

    def _failed_write(self) -> str | None:
        """A write whose tasks fail: what it began stays."""
        settings = {**self.layout.options, _OPERATION: "upsert"}
        failing = {"price": "if(n = 3, raise_error('failed as asked for'), price)"}
        try:
            self.hudi.write(self.base, self._rows.make(self._some()), settings, metadata=self.layout.metadata, computed=failing)
        except PeerFailed as error:
            if "failed as asked for" not in str(error):
                raise
            return "failed as asked for"
        return "did not fail"

    def _torn_write(self) -> str | None:
        """A write that died just before its commit point.

        With a metadata table that is not the only thing that would be missing.
        """
        self._write("upsert", self._some())
        last = max((i for i in self.hudi.timeline(self.base) if i.action in _WRITES), key=lambda i: i.instant, default=None)
        if last is None or last.state != "COMPLETED" or self.layout.metadata:
            return "whole"
        folder = self.base / ".hoodie" / ("timeline" if self.layout.version >= 8 else "")
        for path in folder.iterdir():
            bare = path.name.removeprefix(".").removesuffix(".crc")
            if bare.startswith(last.instant) and bare.endswith(f".{last.action}"):
                path.unlink()
        return last.instant
