"""What writers do to a table, and what a table must hold that was changed so: a dictionary and the order of the log."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import pyarrow as pa

from tideline_table.writer import Operation

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("part", pa.string()), pa.field("v", pa.string())])
OP_KEY = "endurance.operation"
"""Extra metadata of a commit: which operation it is."""
LISTS = tuple(f"L{number}" for number in range(6))
REGISTERS = tuple(f"R{number}" for number in range(4))
OPERATIONS = {"append": Operation.UPSERT, "upsert": Operation.UPSERT, "insert": Operation.INSERT, "delete": Operation.DELETE}

Model = dict[str, str]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a writer; its id is unique, and all that it writes."""

    id: str
    kind: str
    keys: tuple[str, ...]

    def value(self, before: str | None) -> str:
        """What the operation makes of a value."""
        return f"{before} {self.id}" if self.kind == "append" and before else self.id

    def apply(self, model: Model, *, deleted: bool) -> None:
        """Change `model` as the table has to change. A delete that found nothing (not `deleted`) changes nothing."""
        for key in self.keys:
            if self.kind == "delete":
                if deleted:
                    model.pop(key, None)
            elif self.kind != "insert" or key not in model:
                model[key] = self.value(model.get(key))

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Op:
        return cls(str(document["id"]), str(document["kind"]), tuple(document["keys"]))  # type: ignore[arg-type]


def operation_of(seed: int, writer: int, number: int) -> Op:
    """The `number`-th operation of a writer: the same whenever it is asked for, also by a process that takes its place."""
    choose = random.Random(f"{seed} {writer} {number}")
    name = f"w{writer}.{number}"
    kind = choose.choice(("append", "append", "append", "append", "upsert", "insert", "insert", "delete"))
    if kind == "append":
        # Lists that everybody appends to, and a key of one's own that must be there once.
        keys = (*sorted(choose.sample(LISTS, choose.choice((1, 1, 2)))), f"own-{name}")
    elif kind == "upsert":
        keys = tuple(sorted(choose.sample(REGISTERS, choose.choice((1, 2)))))
    elif kind == "insert":
        # Two writers want each of these, at about the same time.
        keys = (f"I{writer // 2}-{number}", f"I{writer // 2}-{number + 1}")
    else:
        keys = (choose.choice(REGISTERS),)
    return Op(name, kind, keys)


def partition_of(key: str) -> str:
    """The partition of a key, always the same."""
    return f"p{sum(key.encode()) % 3}"


def rows_of(values: Mapping[str, str]) -> pa.Table:
    """Rows as writers hand them over."""
    columns = [list(values), [partition_of(k) for k in values], list(values.values())]
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
