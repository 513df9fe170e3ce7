"""What a table of `tests.walk.both` is: version, type, index, merge rule and metadata table, drawn by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.conformance.matrix import Kind

from tideline_table.table import BucketIndex

SILENCE_S = 30
IMPATIENT = {"hoodie.client.heartbeat.interval_in_ms": 1000, "hoodie.client.heartbeat.tolerable.misses": SILENCE_S}
"""A job on a loaded machine does not beat each second: Apache Hudi then aborts its own write."""
STATISTICS, RECORDS = "column_stats,files,partition_stats", "column_stats,files,partition_stats,record_index"
FILTERS = "bloom_filters,column_stats,files"
INDEXES = {
    "": {},
    "files": {
        "hoodie.metadata.index.partition.stats.enable": "false",
        "hoodie.metadata.index.column.stats.enable": "false",
    },
    STATISTICS: {
        "hoodie.metadata.index.partition.stats.enable": "true",
        "hoodie.metadata.index.column.stats.enable": "true",
    },
    FILTERS: {
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.index.bloom.filter.enable": "true",
    },
    RECORDS: {
        "hoodie.metadata.index.partition.stats.enable": "true",
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.index.type": "RECORD_INDEX",
        # By default each write of a few rows writes to ten of them.
        "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
        "hoodie.metadata.global.record.level.index.max.filegroup.count": "2",
    },
}
BLIND = {
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
}
MERGES = ("event_time", "event_time", "commit_time", "partial_update")


@dataclass(frozen=True)
class Form:
    """What a table is when it is created."""

    version: int
    kind: Kind
    index: str
    """Empty, `buckets`, or `blind`: buckets with writers of Apache Hudi that look for no conflicts."""
    metadata: str
    """The partitions of the metadata table."""
    merge: str
    """The merge rule (docs/merging.md)."""

    @classmethod
    def drawn(cls, seed: int) -> Form:
        draw = random.Random(seed)
        kind, index = draw.choice(list(Kind)), draw.choice(["", "", "buckets", "blind"])
        merge = random.Random(f"merge rule of {seed}").choice(MERGES)

        def rule(version: int, kind: Kind) -> str:
            # Apache Hudi's readers fail on some columns of such a slice with log files: peer difference 33.
            return "event_time" if merge == "partial_update" and kind is Kind.MOR and version < 9 else merge

        if seed % 3 == 0:
            # Before version 8 all writers look for conflicts, and a shared merge-on-read table has no metadata table.
            kept = ["", "files", FILTERS] if kind is Kind.COW else [""]
            return cls(6, kind, "buckets" if index else "", draw.choice(kept), rule(6, kind))
        if index == "blind":
            kind = Kind.MOR
        kept = [known for known in INDEXES if known != FILTERS and (known != RECORDS or not index)]
        version = draw.choice([8, 9])
        return cls(version, kind, index, draw.choice(kept), rule(version, kind))

    def __str__(self) -> str:
        return f"{self.kind}, {self.index or 'no'} index, {self.merge}, metadata table: {self.metadata or 'none'}"

    @property
    def moves(self) -> bool:
        """Whether Apache Hudi can read the table in other versions, too."""
        return self.merge != "partial_update" or self.kind is not Kind.MOR

    @property
    def own_options(self) -> dict[str, object]:
        """Tideline's."""
        return {**IMPATIENT, **({"tideline.shared.metadata": self.metadata} if self.metadata else {})}

    @property
    def hudi_options(self) -> dict[str, str]:
        """Apache Hudi's, beside those that `tideline share` prints."""
        return {
            "hoodie.spark.sql.merge.into.partial.updates": "true",
            "hoodie.metadata.compact.max.delta.commits": "4",
            **{key: str(value) for key, value in IMPATIENT.items()},
            **INDEXES[self.metadata],
            **(BLIND if self.index == "blind" else {}),
        }

    @property
    def request(self) -> dict[str, Any]:
        """Further fields of the request that creates the table."""
        ordering = {"ordering_field": ""} if self.merge == "commit_time" else {}
        return {"merge": self.merge, **ordering, **({"index": BucketIndex(2)} if self.index else {})}
