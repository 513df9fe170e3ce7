"""Shards: which of the tables an instance of a service works on, and how instances divide the shards among themselves.

Each table belongs to one of `count` shards. By default the settings give an instance one shard. With leases
(`tideline_runtime.shard_leases`) the instances that run at the moment divide all shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tideline_table.errors import Recovery, TidelineError


class ShardLost(TidelineError):
    """This instance does not hold the shard any more: another one may work on its tables."""

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
        """Return a text that is another one each time that this instance gets the shard, None while it does not hold it."""
        ...

    def balance(self) -> None:
        """Take and give back shards, if that is due. Called before a tick works on any table. Raises `LockUnreachable`."""
        ...

    def give_up(self, shard: int, why: str) -> bool:
        """Stop to hold a shard that another process took over. Return False if shards of this kind cannot be given up."""
        ...

    def close(self) -> None:
        """Give back every shard, so that another instance need not wait for leases to end."""
        ...


@dataclass(frozen=True, slots=True)
class StaticShards:
    """The one shard that the settings `shard_index` and `shard_count` give an instance."""

    index: int = 0
    count: int = 1

    def held(self) -> tuple[int, ...]:
        """See `Shards.held`."""
        return (self.index,)

    def term(self, shard: int) -> str | None:
        """See `Shards.term`."""
        return "" if shard == self.index else None

    def balance(self) -> None:
        """See `Shards.balance`."""

    def give_up(self, shard: int, why: str) -> bool:  # noqa: ARG002 - a static shard stays with its instance
        """See `Shards.give_up`."""
        return False

    def close(self) -> None:
        """See `Shards.close`."""


def shard_of(identity: str, shard_count: int) -> int:
    """Return the shard of a table, by its canonical base path or uid: stable across processes and versions.

    A change from n to n + 1 shards moves only 1 / (n + 1) of the tables (jump consistent hash, Lamping and Veach 2014).
    """
    assert shard_count >= 1
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
    """Return how many shards the member with that rank (from 0) holds: the first ones get one more if the division leaves a rest."""
    return shard_count // member_count + (rank < shard_count % member_count)


def moves(me: str, members: Sequence[str], holders: Mapping[int, str], mine: Collection[int], shard_count: int) -> Moves:
    """Return what `me` changes, of the live `members` in the order in which they joined and the holders of shards by live leases.

    The part of a member depends only on the members, so that instances that see the same members come to rest with equal parts.
    A member that joins takes from other members only what it needs, and after a departure no member gives a shard back, because members rank in
    the order in which they joined. Without a place among the members, `me` gives back everything.
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
