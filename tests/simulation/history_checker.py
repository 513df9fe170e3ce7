"""Decides whether a list-append history is strictly serializable, after Elle (Kingsbury and Alvaro, VLDB 2020) and Adya's
anomalies.

Each transaction reads whole lists and appends elements that are unique in the history. Reads show the order in which appends took
effect: of two reads of one list the shorter must be the beginning of the longer. From that order follow dependencies between
committed transactions:

- `ww`: appended to a list next after another one;
- `wr`: read what another one appended last;
- `rw`: read a list to which another one appended next;
- `rt`: began after another one had been acknowledged.

| anomaly              | what it is                                                                       |
|----------------------|----------------------------------------------------------------------------------|
| incompatible order   | two versions of a list, neither the beginning of the other                       |
| repeated element     | a read that holds an element twice                                               |
| garbage read         | a read of an element that nobody appended                                        |
| G1a aborted read     | a read of an element of a failed transaction                                     |
| G1b intermediate read| a read that ends between two appends of one transaction                          |
| lost append          | a committed append that a read which began after its acknowledgement does not show |
| lost update          | two committed transactions that read the same version of a list and appended to it |
| G0                   | a cycle of ww                                                                    |
| G1c                  | a cycle of ww and wr                                                             |
| G-single             | a cycle with one rw                                                              |
| G2                   | a cycle with several rw                                                          |
| `… in real time`     | the same cycles closed by rt: serializable, not strictly                         |
"""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction. `reads` and `appends` are by list; a list that it appends to is read before.

    `ended` is None when nobody was told that it committed: then it did only if another process saw it (say so in `is_committed`).
    """

    id: str
    is_committed: bool
    reads: Mapping[str, tuple[str, ...]]
    appends: Mapping[str, tuple[str, ...]]
    began: int
    ended: int | None


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding: its name and who takes part."""

    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"


Edges = dict[str, set[str]]
"""Transaction → those that have to come before it."""


def find_anomalies(history: Iterable[Transaction]) -> list[Anomaly]:
    """All direct anomalies, else the first cycle of the strongest kind; empty for a strictly serializable history."""
    everybody = list(history)
    committed = [t for t in everybody if t.is_committed]
    orders, found = _version_orders(committed)
    found += _direct_anomalies(everybody, committed, orders)
    return found or _cycles(committed, orders)


def _version_orders(committed: Sequence[Transaction]) -> tuple[dict[str, tuple[str, ...]], list[Anomaly]]:
    """By list the longest version, read or made from a read by appending to it, and versions that do not fit it."""
    longest: dict[str, tuple[str, ...]] = {}
    found: list[Anomaly] = []
    for t in sorted(committed, key=lambda t: t.id):
        for key, read in t.reads.items():
            values = read + t.appends.get(key, ())
            known = longest.get(key, ())
            short, long = sorted((known, values), key=len)
            if long[: len(short)] != short:
                found.append(Anomaly("incompatible order", f"{t.id} has {key} = {list(values)}, another one {list(known)}"))
            longest[key] = long
    return longest, found


def _direct_anomalies(
    everybody: Sequence[Transaction], committed: Sequence[Transaction], orders: Mapping[str, tuple[str, ...]]
) -> list[Anomaly]:
    found: list[Anomaly] = []
    writer = {(k, e): t for t in everybody for k, elements in t.appends.items() for e in elements}
    bases: dict[tuple[str, tuple[str, ...]], str] = {}
    for t in committed:
        for key, values in t.reads.items():
            if len(set(values)) < len(values):
                found.append(Anomaly("repeated element", f"{t.id} read {key} = {list(values)}"))
            for element in values:
                source = writer.get((key, element))
                if source is None:
                    found.append(Anomaly("garbage read", f"{t.id} read {element} in {key}"))
                elif not source.is_committed:
                    found.append(Anomaly("G1a aborted read", f"{t.id} read {element} of {source.id} in {key}"))
            last = writer.get((key, values[-1])) if values else None
            if last is not None and last is not t and last.appends[key][-1] != values[-1]:
                found.append(Anomaly("G1b intermediate read", f"{t.id} read {key} up to {values[-1]} of {last.id}"))
            if key in t.appends:
                other = bases.setdefault((key, values), t.id)
                if other != t.id:
                    found.append(Anomaly("lost update", f"{other} and {t.id} both appended to {key} = {list(values)}"))
    for t in committed:
        for key, elements in t.appends.items():
            late = [r for r in committed if t.ended is not None and r.began > t.ended and key in r.reads]
            for r in late:
                if not set(elements) <= set(r.reads[key]):
                    found.append(Anomaly("lost append", f"{r.id} began after {t.id} ended and read {key} = {list(r.reads[key])}"))
    return found


def _cycles(committed: Sequence[Transaction], orders: Mapping[str, tuple[str, ...]]) -> list[Anomaly]:
    ww, wr, rw = _dependencies(committed, orders)
    real_time = _real_time(committed)
    for name, base, with_rw in (("G0", ww, False), ("G1c", _union(ww, wr), False), ("", _union(ww, wr), True)):
        for suffix, more in (("", {}), (" in real time", real_time)):
            graph = _union(base, more)
            if not with_rw:
                cycle = _cycle(graph)
                if cycle:
                    return [Anomaly(name + suffix, " → ".join(cycle))]
                continue
            # One rw edge and a way back without any is G-single; whatever else remains is G2.
            for later, earlier in sorted((a, b) for a, before in rw.items() for b in before):
                cycle = _cycle(_union(graph, {later: {earlier}}))
                if cycle:
                    return [Anomaly("G-single" + suffix, " → ".join(cycle))]
            cycle = _cycle(_union(graph, rw))
            if cycle:
                return [Anomaly("G2" + suffix, " → ".join(cycle))]
    return []


def _dependencies(committed: Sequence[Transaction], orders: Mapping[str, tuple[str, ...]]) -> tuple[Edges, Edges, Edges]:
    ww, wr, rw = defaultdict(set), defaultdict(set), defaultdict(set)
    writer = {(k, e): t.id for t in committed for k, elements in t.appends.items() for e in elements}
    for key, order in orders.items():
        for before, after in pairwise(order):
            if writer[key, before] != writer[key, after]:
                ww[writer[key, after]].add(writer[key, before])
    for t in committed:
        for key, values in t.reads.items():
            if values and writer[key, values[-1]] != t.id:
                wr[t.id].add(writer[key, values[-1]])
            order = orders.get(key, ())
            if len(order) > len(values) and writer[key, order[len(values)]] != t.id:
                rw[writer[key, order[len(values)]]].add(t.id)
    return ww, wr, rw


def _real_time(committed: Sequence[Transaction]) -> Edges:
    return {t.id: {o.id for o in committed if o.ended is not None and o.ended < t.began} for t in committed}


def _union(*graphs: Mapping[str, set[str]]) -> Edges:
    joined: Edges = defaultdict(set)
    for graph in graphs:
        for later, earlier in graph.items():
            joined[later] |= earlier
    return joined


def _cycle(graph: Edges) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        nodes: list[str] = error.args[1]
        return nodes
    return []
