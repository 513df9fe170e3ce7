"""The tables and queries of the comparison of joins, as all engines make them.

Imports the standard library only, as the peer's Python reads it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LINE_COLUMNS = ("l_orderkey", "l_linenumber", "l_extendedprice", "l_shipinstruct")
ORDER_COLUMNS = ("l_orderkey", "o_lines", "o_comment")
ON = "l_orderkey"
TOTALS = {"total": "sum(l_extendedprice)", "lines": "count(*)", "last": "max(l_shipdate)"}
NO_BROADCAST = ("spark.sql.autoBroadcastJoinThreshold", "-1")


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A copy-on-write table with a bucket index on the order key."""

    name: str
    key: tuple[str, ...]
    partition: str
    """Empty: no partitions."""
    ordering: str
    buckets: int

    def hudi_options(self) -> dict[str, str]:
        """The options of Apache Hudi's writer."""
        generator = "ComplexKeyGenerator" if self.partition else "NonpartitionedKeyGenerator"
        return {
            "hoodie.table.name": self.name,
            "hoodie.datasource.write.operation": "bulk_insert",
            "hoodie.datasource.write.recordkey.field": ",".join(self.key),
            "hoodie.datasource.write.partitionpath.field": self.partition,
            "hoodie.datasource.write.keygenerator.class": f"org.apache.hudi.keygen.{generator}",
            "hoodie.datasource.write.precombine.field": self.ordering,
            "hoodie.index.type": "BUCKET",
            "hoodie.bucket.index.num.buckets": str(self.buckets),
            "hoodie.bucket.index.hash.field": ON,
        }


def shuffled_join(lines: Any, orders: Any) -> Any:
    """Spark's own join of the rows of two reads."""
    return lines.select(*LINE_COLUMNS).join(orders.select(*ORDER_COLUMNS), [ON])


def shuffled_groups(lines: Any, expr: Any) -> Any:
    """Spark's own aggregation of the rows of a read; `expr` is Spark's function of this name."""
    return lines.groupBy(ON).agg(*(expr(text).alias(name) for name, text in TOTALS.items()))


def consume(frame: Any) -> int:
    """Make every row, throw it away, and return the number of exchanges of rows in the plan."""
    frame.write.format("noop").mode("overwrite").save()
    return str(frame._jdf.queryExecution().executedPlan()).count("Exchange ")


def checksum(frame: Any) -> list[str]:
    """Row count and the sum of the hashes of all rows."""
    columns = ", ".join(f"`{name}`" for name in frame.columns)
    row = frame.selectExpr("count(1)", f"cast(sum(cast(xxhash64({columns}) as decimal(38, 0))) as string)").first()
    return [str(row[0]), str(row[1])]
