"""What is measured, with the targets of the design beside it (ratios to Apache Hudi in the same run)."""

from __future__ import annotations

from dataclasses import dataclass

HUDI = "hudi"
HUDI_BLOOM = "hudi-bloom"
HUDI_PLAIN_LAYOUT = "hudi-no-exchange"
SPARK = "tideline-spark"
DIRECT = "tideline-direct"
PLAIN = "plain-spark"
PLAIN_35 = "plain-spark-3.5"

TITLES = {
    HUDI: "Apache Hudi",
    HUDI_BLOOM: "Apache Hudi, BLOOM index",
    HUDI_PLAIN_LAYOUT: "Apache Hudi, sort mode NONE",
    SPARK: "Tideline on Spark",
    DIRECT: "Tideline, write_rows",
    PLAIN: "plain Spark 4",
    PLAIN_35: "plain Spark 3.5",
}


@dataclass(frozen=True, slots=True)
class Work:
    """One work: the ratio to Apache Hudi that is aimed at, and the floor that it should come close to, both as the design says
    them."""

    key: str
    title: str
    target: str = ""
    floor: str = ""
    over: str = ""
    """The work of plain Spark, or the bound, that is the floor."""


WORKS = (
    Work("plain_write", "plain Spark Parquet write, same exchange"),
    Work("bulk_insert", "bulk insert", "≥ 1.5x from a DataFrame, ≥ 4x from files", "≤ 1.1 x plain Spark", "plain_write"),
    Work("plain_read", "plain Spark Parquet read, all columns"),
    Work("read", "snapshot read, base files only, all columns", "≥ 1x", "= plain Spark", "plain_read"),
    Work("look_up", "point look-up by key columns, without an index", "≥ 5x with an index"),
    Work("upsert_ten", "copy-on-write upsert of 10 %", "≥ 8x", "≤ 1.7 x decode + match + encode", "match"),
    Work("upsert_one", "copy-on-write upsert of 1 %", "≥ 5x", "≤ 1.7 x decode + match + encode", "match"),
    Work("query_before", "one week by ship date, before clustering"),
    Work("cluster", "clustering, sorted by ship date", "≥ 10x", "≤ 1.5 x decode + sort + encode", "sort"),
    Work("query_after", "one week by ship date, after clustering", "≥ 2.44x faster than before"),
    Work("mor_bulk_insert", "bulk insert into a merge-on-read table", "≥ 1.5x", "≤ 1.1 x plain Spark", "plain_write"),
    Work("mor_upsert_ten", "merge-on-read upsert of 10 %", "≥ 5x"),
    Work("mor_upsert_one", "merge-on-read upsert of 1 %", "≥ 5x"),
    Work("mor_read", "merge-on-read snapshot with logs, all columns", "≥ 3x"),
    Work("compact", "compaction of these logs", "≥ 8x Parquet blocks, ≥ 4x Avro blocks", "≤ 2 x decode + encode", "encode"),
)
