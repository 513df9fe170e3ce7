"""What a sync asks of a catalog: tables as values, changes that expect what was read, partitions in batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

from tideline_table.errors import Conflict, InvalidInput, Unavailable

T = TypeVar("T")


class CatalogAway(Unavailable):
    """The catalog does not answer, or asks for fewer requests. Nothing or a part was registered: the same sync may be repeated."""


class CatalogRefused(InvalidInput):
    """The catalog cannot hold the table: a missing database, another table of that name, a type or name that it does not know."""


class CatalogMoved(Conflict):
    """Another process changed the catalog's table since it was read, or has registered a newer state of it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its lower-case Hive name; `type` in Hive's words."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Registered:
    """A table of a catalog. `location` is a URI, `parameters` those of the table, `serde_parameters` those of its format."""

    name: str
    columns: tuple[Column, ...]
    partition_keys: tuple[Column, ...]
    location: str
    input_format: str
    output_format: str
    serde: str
    parameters: dict[str, str] = field(default_factory=dict)
    serde_parameters: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: one value for each partition key, and the URI of its folder."""

    values: tuple[str, ...]
    location: str


class Catalog(Protocol):
    """One catalog. All methods raise `CatalogAway`, and `CatalogRefused` for a database or table that is missing."""

    def databases(self) -> list[str]:
        """Return the names of the databases."""
        ...

    def create_database(self, database: str) -> None:
        """Create a database; one that is there stays as it is."""
        ...

    def table(self, database: str, name: str) -> Registered | None:
        """Return a table, None if there is none."""
        ...

    def create_table(self, database: str, table: Registered) -> None:
        """Create a table. Raises `CatalogMoved` if it exists."""
        ...

    def alter_table(self, database: str, table: Registered, expected: tuple[str, str] | None, *, cascade: bool) -> None:
        """Replace columns, formats and parameters; `cascade`: also the columns of its partitions.

        Raises `CatalogMoved` if the parameter `expected[0]` no longer has the value `expected[1]`.
        """
        ...

    def drop_table(self, database: str, name: str) -> None:
        """Drop a table without its files, if it is there."""
        ...

    def partitions(self, database: str, name: str, among: Collection[tuple[str, ...]] | None = None) -> dict[tuple[str, ...], str]:
        """Return the locations of the partitions by their values, of those `among` the given ones."""
        ...

    def add_partitions(self, database: str, table: Registered, partitions: Sequence[Partition]) -> None:
        """Add partitions in batches; one that is there stays as it is."""
        ...

    def move_partitions(self, database: str, table: Registered, partitions: Sequence[Partition]) -> None:
        """Set the locations of partitions in batches."""
        ...

    def drop_partitions(self, database: str, table: Registered, values: Collection[tuple[str, ...]]) -> None:
        """Drop partitions in batches without their files, if they are there."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size` at most."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
