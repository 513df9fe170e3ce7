"""Columns matched by id instead of name, for tables whose columns were renamed, dropped or moved (`hoodie.schema.on.read.enable`).

Such a table keeps a history of schemas in which every column and member has an id. A file has the names of the schema version that
was valid when it was written. A column of the query reads the column of the file that has the same id.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tideline_table.errors import CorruptMetadata
from tideline_table.json_text import parse_json
from tideline_table.schema.meta_fields import META_FIELDS

_INSTANT_DIGITS = 17
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Identified:
    """A column or member with its id. Lists have one member, maps have two."""

    id: int
    name: str
    members: tuple[Identified, ...] = ()


@dataclass(frozen=True, slots=True)
class FileNames:
    """The columns of a query in a file of an earlier schema, for columns that cannot be matched by name."""

    apart: Mapping[str, tuple[Identified, Identified] | None] = field(default_factory=dict)
    """Column → its description in the file and in the query. None if the file lacks it."""

    def source(self, name: str) -> str | None:
        """Return the name of a column in the file, None if the file lacks it."""
        if name not in self.apart:
            return name
        found = self.apart[name]
        return found[0].name if found is not None else None

    def renamed(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the values of a column with the member names of the query."""
        found = self.apart.get(name)
        if found is None:
            return values
        kind = _renamed(values.type, *found)
        return values if kind == values.type else pa.chunked_array([chunk.view(kind) for chunk in values.chunks], kind)


@dataclass(frozen=True, slots=True)
class SchemaVersions:
    """The schema history of a table, oldest version first."""

    instants: tuple[int, ...]
    versions: tuple[tuple[Identified, ...], ...]

    @classmethod
    def parsed(cls, texts: Iterable[str]) -> SchemaVersions:
        """Parse the documents of all versions. Raises `CorruptMetadata`, which describes the document that is invalid."""
        found: dict[int, tuple[Identified, ...]] = {}
        for text in texts:
            try:
                document = json.loads(text)
                found[int(document["version_id"])] = _members(document, 0)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise CorruptMetadata(
                    f"a version in the schema history cannot be read ({type(error).__name__}: {error})", expected="columns with ids"
                ) from None
        return cls(tuple(sorted(found)), tuple(found[at] for at in sorted(found)))

    def at(self, instant: str) -> tuple[Identified, ...]:
        """Return the columns of the version that was valid at `instant` (empty: now), or of the first version if none was."""
        if not instant:
            return self.versions[-1]
        number = int(instant[:_INSTANT_DIGITS].ljust(_INSTANT_DIGITS, "0"))
        return self.versions[max(bisect.bisect_right(self.instants, number) - 1, 0)]

    def file_names(self, instant: str, as_of: str = "") -> FileNames:
        """Return the column names, in a file written by `instant`, for a query as of `as_of` (empty: now)."""
        stored, queried = self.at(instant), self.at(as_of)
        if stored is queried:
            return FileNames()
        return FileNames({name: found for name, found in _apart(stored, queried) if name not in META_FIELDS})


def history_texts(content: bytes, path: str) -> list[str]:
    """Return the documents in a file of the schema history (`.hoodie/.schema/<instant>.schemacommit`)."""
    try:
        return [json.dumps(version) for version in parse_json(content)["schemas"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptMetadata(f"{path} cannot be read ({type(error).__name__}: {error})", expected="a schema history") from None


def _members(kind: Any, depth: int) -> tuple[Identified, ...]:
    if isinstance(kind, str):
        return ()
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    if kind["type"] == "record":
        return tuple(Identified(int(f["id"]), str(f["name"]), _members(f["type"], depth + 1)) for f in kind["fields"])
    if kind["type"] == "array":
        return (Identified(int(kind["element_id"]), "element", _members(kind["element"], depth + 1)),)
    if kind["type"] == "map":
        value = Identified(int(kind["value_id"]), "value", _members(kind["value"], depth + 1))
        return (Identified(int(kind["key_id"]), "key"), value)
    return _members(kind["type"], depth + 1)


def _apart(
    stored: Iterable[Identified], queried: Iterable[Identified]
) -> Iterable[tuple[str, tuple[Identified, Identified] | None]]:
    """Yield the columns (or members) that cannot be matched by name, each with its description in the file and in the query."""
    by_id = {column.id: column for column in stored}
    names = {column.name for column in by_id.values()}
    for column in queried:
        found = by_id.get(column.id)
        if found is None:
            # A missing column reads as null under its name, unless the file has another column of that name.
            if column.name in names:
                yield column.name, None
        elif found.name != column.name or any(_apart(found.members, column.members)):
            yield column.name, (found, column)


def _renamed(kind: pa.DataType, stored: Identified, queried: Identified) -> pa.DataType:
    """Return the type in a file with the member names of the query. Members that the query lacks get names that match nothing."""
    if pa.types.is_struct(kind):
        members = {member.name: member for member in stored.members}
        wanted = {member.id: member for member in queried.members}
        fields = []
        for at in range(kind.num_fields):
            field = kind.field(at)
            member = members.get(field.name)
            if member is None:
                fields.append(field)
            elif member.id in wanted:
                target = wanted[member.id]
                fields.append(field.with_name(target.name).with_type(_renamed(field.type, member, target)))
            else:
                fields.append(field.with_name(f"\0{member.id}"))
        return pa.struct(fields)
    if pa.types.is_list(kind) and stored.members and queried.members:
        item = _renamed(kind.value_type, stored.members[0], queried.members[0])
        return pa.list_(kind.value_field.with_type(item))
    if pa.types.is_map(kind) and len(stored.members) == len(queried.members) == 2:
        item = _renamed(kind.item_type, stored.members[1], queried.members[1])
        return pa.map_(kind.key_field, kind.item_field.with_type(item))
    return kind
