"""Tables with an index, as all engines make them. Imports the standard library only, as the peer's Python reads it, too."""

from __future__ import annotations

from dataclasses import dataclass

SIMPLE, BLOOM, BUCKET, RECORD = "simple", "bloom", "bucket", "record_index"
INDEXES = (SIMPLE, BLOOM, BUCKET, RECORD)


@dataclass(frozen=True, slots=True)
class Indexed:
    """A table of lineitem with an index, and how large its files become."""

    index: str
    buckets: int
    """File groups per partition of a bucket index."""
    file_bytes: int
    """The largest size of a file of the other indexes, so that they have about as many file groups."""
    row_bytes: int
    """Bytes of a row in a file."""
    kind: str = "COPY_ON_WRITE"

    def hudi_options(self) -> dict[str, str]:
        """The options of each of Apache Hudi's writers."""
        sizes = {"hoodie.parquet.max.file.size": str(self.file_bytes), "hoodie.parquet.block.size": str(self.file_bytes)}
        if self.index == BUCKET:
            return {
                "hoodie.index.type": "BUCKET",
                "hoodie.bucket.index.num.buckets": str(self.buckets),
                "hoodie.storage.layout.type": "BUCKET",
                "hoodie.storage.layout.partitioner.class": "org.apache.hudi.table.action.commit.SparkBucketIndexPartitioner",
            }
        if self.index == RECORD:
            on = dict.fromkeys(("hoodie.metadata.record.index.enable", "hoodie.metadata.global.record.level.index.enable"), "true")
            return {"hoodie.index.type": "RECORD_INDEX", **on, **sizes}
        return {"hoodie.index.type": self.index.upper(), **sizes}
