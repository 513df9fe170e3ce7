"""Shards: which of the tables an instance of a service works on, and how instances divide the shards among themselves.

Each table belongs to one of `count` shards. By default the settings give an instance one shard. With leases
(`tideline_runtime.shard_leases`) the instances that run at the moment divide all shards.
"""

# ruff: noqa: D102 - the port documents these methods

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tideline_table.errors import Recovery, TidelineError


class ShardLost(TidelineError):
    """This instance no longer holds the shard. Another instance may work on the tables of the shard."""

    recovery = Recovery.RETRY

    def __init__(self, shard: int, why: str) -> None:
        super().__init__(f"shard {shard} is not held: {why}", remedy="leave its tables to the instance that holds the shard")
        self.shard = shard


class Shards(Protocol):
    """The shards of one instance. Only the thread that ticks calls `balance`, `give_up` and `close`."""

    @property
    def count(self) -> int:
        """Number of shards of the service."""
        ...

    def held(self) -> tuple[int, ...]:
        """Return the shards that this instance holds now, in order."""
        ...

    def term(self, shard: int) -> str | None:
        """Return the id of the present term of the shard: it differs each time this instance gets the shard.

        None if it is not held.
        """
        ...

    def balance(self) -> None:
        """Take and give back shards, if that is due.

        Called before a tick works on any table. Raises errors of the lock provider.
        """
        ...

    def give_up(self, shard: int, why: str) -> bool:
        """Give up a shard that another process took over. Return False if shards of this kind cannot be given up."""
        ...

    def close(self) -> None:
        """Give back every shard, so that other instances can take them before the leases expire."""
        ...


@dataclass(frozen=True, slots=True)
class StaticShards:
    """The one shard that the settings `shard_index` and `shard_count` give an instance."""

    index: int = 0
    count: int = 1

    def held(self) -> tuple[int, ...]:
        return (self.index,)

    def term(self, shard: int) -> str | None:
        return "" if shard == self.index else None

    def balance(self) -> None:
        """See `Shards.balance`."""

    def give_up(self, shard: int, why: str) -> bool:  # noqa: ARG002 - a static shard stays with its instance
        return False

    def close(self) -> None:
        """See `Shards.close`."""


def shard_of(identity: str, shard_count: int) -> int:
    """Return the shard of a table, by its canonical base path or uid: stable across processes and versions.

    A change from n to n + 1 shards moves only 1 / (n + 1) of the tables (jump consistent hash, Lamping and Veach 2014).
    """
    assert shard_count >= 1
    if shard_count == 1:
        return 0
    key = int.from_bytes(hashlib.blake2b(identity.encode(), digest_size=8).digest(), "big")
    shard, following = -1, 0
    while following < shard_count:
        shard = following
        key = (key * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((shard + 1) * (1 << 31) / ((key >> 33) + 1))
    return shard


def holds(shards: Shards, identity: str) -> bool:
    """Return whether this instance works on the table with that canonical base path now."""
    return shards.term(shard_of(identity, shards.count)) is not None


@dataclass(frozen=True, slots=True)
class Moves:
    """What an instance changes: the shards to give back, and the free ones to try in this order, of which it takes `wanted`."""

    give: tuple[int, ...] = ()
    take: tuple[int, ...] = ()
    wanted: int = 0


def fair_part(rank: int, member_count: int, shard_count: int) -> int:
    """Return how many shards the member with that rank (from 0) holds.

    A remainder of the division goes to the first members, one each.
    """
    return shard_count // member_count + (rank < shard_count % member_count)


def moves(me: str, members: Sequence[str], holders: Mapping[int, str], mine: Collection[int], shard_count: int) -> Moves:
    """Return the changes of the member `me`.

    `members` are the live ones in the order in which they joined, `holders` those of live leases.

    The number of shards of a member depends only on the members, so that instances that see the same members come to rest, with
    numbers that differ by at most 1. Because members rank in the order in which they joined, a new member takes from the others
    only what it needs, and no member gives a shard back after another one has left. Without a place among the members, `me`
    gives back everything.
    """
    if me not in members:
        return Moves(give=tuple(sorted(mine)))
    rank = members.index(me)
    part = fair_part(rank, len(members), shard_count)
    own = sorted(mine)
    if len(own) >= part:
        return Moves(give=tuple(own[part:]))
    free = [shard for shard in range(shard_count) if shard not in holders and shard not in mine]
    # Instances that take at the same time begin at different shards.
    start = rank * len(free) // len(members)
    return Moves(take=(*free[start:], *free[:start]), wanted=part - len(own))
