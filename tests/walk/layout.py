"""What a table of the walk is: its type, version, keys, partitions, indexes and all other options of Apache Hudi, drawn by a seed.

Combinations that Hudi refuses at the first write are avoided where they are known; the others cost a table.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from tests.conformance.peers.environment import HUDI_RELEASE
from tests.conformance.stories.story import COMMON, ROW_OPTIONS, SCHEMA_ON_READ

VERSIONS: Mapping[str, tuple[int, ...]] = {"0.15.0": (6,), "1.0.2": (6, 6, 8), "1.1.1": (6, 6, 8, 9), "1.2.0": (6, 6, 8, 9)}
"""By release of Apache Hudi the table versions that it is asked to write; often the one that many tables have."""

_KEYGEN = "hoodie.datasource.write.keygenerator.class"
_PARTITION = "hoodie.datasource.write.partitionpath.field"
_ORDERING = "hoodie.datasource.write.precombine.field"
_HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
_PAYLOADS = (
    "DefaultHoodieRecordPayload",
    "OverwriteWithLatestAvroPayload",
    "EventTimeAvroPayload",
    "OverwriteNonDefaultsWithLatestAvroPayload",
    "PartialUpdateAvroPayload",
    "AWSDmsAvroPayload",
    "debezium.PostgresDebeziumAvroPayload",
)
_ORDERED_PAYLOADS = frozenset({"DefaultHoodieRecordPayload", "EventTimeAvroPayload", "PartialUpdateAvroPayload"})
_INDEXES = ("SIMPLE", "SIMPLE", "BLOOM", "GLOBAL_SIMPLE", "GLOBAL_BLOOM", "BUCKET", "RECORD_INDEX", "CONSISTENT_HASHING")


@dataclass(frozen=True)
class Layout:
    """A table to be written. `options` go with every write; `metadata` says whether it keeps a metadata table."""

    release: str
    version: int
    merge_on_read: bool
    options: Mapping[str, str]
    metadata: bool
    odd_partitions: bool
    """Whether partition values have blanks, signs, other alphabets, or none."""
    ignored: frozenset[str] = frozenset()
    """Columns that Hudi answers with otherwise than they were written (docs/peer-differences.md, 1 and 15)."""
    mixed: bool = False
    """Whether the newest release writes the table, too."""

    @property
    def has_meta_fields(self) -> bool:
        return self.options.get("hoodie.populate.meta.fields") != "false"

    @property
    def merges_cells(self) -> bool:
        """Whether a row's cells may come from several versions: then Hudi's increments lack what the version before says."""
        return self.options.get("hoodie.datasource.write.payload.class", "").endswith(
            ("OverwriteNonDefaultsWithLatestAvroPayload", "PartialUpdateAvroPayload", "PostgresDebeziumAvroPayload")
        )

    @property
    def keys(self) -> list[str]:
        """The columns of the record key."""
        return self.options["hoodie.datasource.write.recordkey.field"].split(",")

    @property
    def captures_changes(self) -> bool:
        """Whether Hudi tells the changes of each write with the rows before and after."""
        return self.options.get("hoodie.table.cdc.enabled") == "true"

    @property
    def has_encoded_partitions(self) -> bool:
        """Whether partition values look otherwise in paths: Hudi's increments show them so (docs/peer-differences.md, 18)."""
        return self.odd_partitions and self.options.get("hoodie.datasource.write.partitionpath.urlencode") == "true"

    @property
    def source(self) -> str:
        """Whose columns say what happened to each row: dms, debezium, or empty."""
        payload = self.options.get("hoodie.datasource.write.payload.class", "")
        found = [name for name in ("DmsAvroPayload", "DebeziumAvroPayload") if payload.endswith(name)]
        return found[0].removesuffix("AvroPayload").lower() if found else ""

    @property
    def by_id(self) -> bool:
        return self.options.get(SCHEMA_ON_READ) == "true"

    @property
    def read_options(self) -> dict[str, str]:
        """What Hudi's readers of the table are told."""
        return {SCHEMA_ON_READ: "true"} if self.by_id else {}

    @property
    def statement_options(self) -> dict[str, str]:
        """What everything but a write of rows is given."""
        kept = {name: value for name, value in self.options.items() if name not in ROW_OPTIONS}
        return {**kept, "hoodie.metadata.enable": str(self.metadata).lower()}

    @property
    def told(self) -> str:
        """The drawn options as text."""
        drawn = {name: value for name, value in self.options.items() if {**COMMON, **ROW_OPTIONS}.get(name) != value}
        return ", ".join(f"{name}={value}" for name, value in sorted(drawn.items()))


def drawn_layout(release: str, seed: int, name: str) -> Layout:
    """The layout of table `seed` of a release; the same at each call."""
    r = random.Random(f"layout {release} {seed}")
    version = r.choice(VERSIONS[release])
    merge_on_read = r.random() < 0.65
    kind = "MERGE_ON_READ" if merge_on_read else "COPY_ON_WRITE"
    options = {"hoodie.datasource.write.table.type": kind, "hoodie.table.name": name}
    if release >= "1":
        options["hoodie.write.table.version"] = str(version)
    partitions, ignored = _partitions(r, options)
    _ordering(r, options, release, version)
    # Without meta fields Hudi knows three generators only.
    plain = not options.get(_KEYGEN, "").endswith(("TimestampBasedKeyGenerator", "CustomKeyGenerator"))
    options |= _files(r, release, has_plain_keys=plain)
    options |= _services(r, merge_on_read)
    metadata = _indexes(r, options, merge_on_read, options["hoodie.datasource.write.recordkey.field"], release)
    options |= _changes(r, release, merge_on_read)
    if options.get("hoodie.index.bucket.engine") == "SIMPLE":
        # Such buckets are not clustered: every write would be refused.
        options["hoodie.clustering.inline"] = "false"
    if partitions and not ignored and r.random() < 0.08:
        options["hoodie.datasource.write.drop.partition.columns"] = "true"
    return Layout(
        release,
        version,
        merge_on_read,
        {**COMMON, **ROW_OPTIONS, **options},
        metadata,
        odd_partitions="part" in partitions and not ignored and r.random() < 0.25,
        ignored=ignored,
        mixed=version == 6 and release != HUDI_RELEASE and random.Random(f"mixed {release} {seed}").random() < 0.25,
    )


def _partitions(r: random.Random, options: dict[str, str]) -> tuple[list[str], frozenset[str]]:
    """Key generator, keys and partition columns; the columns, and those of them that Hudi answers with as text."""
    keys = r.choice(["id", "id", "id", "id,n", "id,code", "n", "big_n", "id,place.zip"])
    options["hoodie.datasource.write.recordkey.field"] = keys
    generators = "org.apache.hudi.keygen."
    text = r.choice(["part", "part", "part", "", "part,flag", "day", "n", "at", "ts", "place.zip"])
    options[_PARTITION] = text
    partitions = [name for name in text.split(",") if name]
    if not partitions:
        options[_KEYGEN] = generators + "NonpartitionedKeyGenerator"
        return partitions, frozenset()
    if r.random() < 0.4:
        options[_HIVE_STYLE] = "true"
    if r.random() < 0.3:
        options["hoodie.datasource.write.partitionpath.urlencode"] = "true"
    if text == "ts":
        made = r.choice(["TimestampBasedKeyGenerator", "CustomKeyGenerator"])
        options[_KEYGEN] = generators + made
        options |= {
            "hoodie.keygen.timebased.timestamp.type": "SCALAR",
            "hoodie.keygen.timebased.timestamp.scalar.time.unit": "days",
            "hoodie.keygen.timebased.output.dateformat": r.choice(["yyyy/MM/dd", "yyyyMM", "yyyy-MM-dd"]),
        }
        if made == "CustomKeyGenerator":
            options[_PARTITION] = r.choice(["ts:timestamp", "part:simple,ts:timestamp"])
        elif "," in keys:
            options["hoodie.datasource.write.recordkey.field"] = "id"
        return ["ts"], frozenset({"ts"})
    if text in {"day", "part"} and r.random() < 0.15:
        options[_KEYGEN] = generators + "CustomKeyGenerator"
        options[_PARTITION] = f"{text}:SIMPLE"
    elif "," in text or "," in keys:
        options[_KEYGEN] = generators + "ComplexKeyGenerator"
        options["hoodie.write.complex.keygen.validation.enable"] = "false"
    return partitions, frozenset({text} & {"at"})


def _ordering(r: random.Random, options: dict[str, str], release: str, version: int) -> None:
    """Which of two versions of a row wins."""
    if r.random() < 0.85:
        several = ["ts,price"] if release >= "1.1" else []
        options[_ORDERING] = r.choice(["ts", "ts", "ts", "price", "at", "amount", *several])
    is_ordered = _ORDERING in options
    payload = r.choice([None, None, None, *_PAYLOADS])
    if payload == "PartialUpdateAvroPayload" and options.get(_ORDERING) == "amount":
        # A known difference (docs/peer-differences.md, 19).
        payload = None
    if payload and payload.endswith("DebeziumAvroPayload"):
        options[_ORDERING] = "_event_lsn"
    if payload and (is_ordered or payload not in _ORDERED_PAYLOADS):
        options["hoodie.datasource.write.payload.class"] = "org.apache.hudi.common.model." + payload
    elif version >= 8 and r.random() < 0.6:
        modes = ["COMMIT_TIME_ORDERING", "EVENT_TIME_ORDERING"] if is_ordered else ["COMMIT_TIME_ORDERING"]
        options["hoodie.write.record.merge.mode"] = r.choice(modes)


def _indexes(r: random.Random, options: dict[str, str], merge_on_read: bool, keys: str, release: str) -> bool:
    """How keys are found; whether there is a metadata table."""
    index = r.choice(_INDEXES)
    metadata = r.random() < 0.4 or index == "RECORD_INDEX"
    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": r.choice("1234")}
    if index == "CONSISTENT_HASHING" and merge_on_read:
        options |= buckets | {
            "hoodie.index.bucket.engine": index,
            "hoodie.bucket.index.min.num.buckets": "1",
            "hoodie.bucket.index.max.num.buckets": "8",
        }
    elif index in {"BUCKET", "CONSISTENT_HASHING"}:
        options |= buckets | {
            "hoodie.index.bucket.engine": "SIMPLE",
            "hoodie.storage.layout.type": "BUCKET",
            "hoodie.storage.layout.partitioner.class": "org.apache.hudi.table.action.commit.SparkBucketIndexPartitioner",
        }
        if r.random() < 0.4:
            options["hoodie.bucket.index.hash.field"] = keys.split(",", maxsplit=1)[0]
    else:
        options["hoodie.index.type"] = index
    # Rows that stay behind in the partition of their key are a known difference (docs/peer-differences.md, 14).
    moves = {
        "GLOBAL_SIMPLE": "hoodie.simple.index.update.partition.path",
        "GLOBAL_BLOOM": "hoodie.bloom.index.update.partition.path",
        "RECORD_INDEX": "hoodie.record.index.update.partition.path",
    }
    if index in moves:
        options[moves[index]] = "true"
    if index == "RECORD_INDEX":
        options["hoodie.metadata.record.index.enable"] = "true"
    if metadata and r.random() < 0.5:
        options["hoodie.metadata.index.column.stats.enable"] = "true"
    if metadata and r.random() < 0.3:
        options["hoodie.metadata.index.bloom.filter.enable"] = "true"
    return metadata


def _files(r: random.Random, release: str, *, has_plain_keys: bool) -> dict[str, str]:
    """How rows lie in files."""
    found = {"hoodie.parquet.small.file.limit": r.choice(["0", "0", "104857600"])}
    if r.random() < 0.4:
        found["hoodie.parquet.compression.codec"] = r.choice(["zstd", "snappy", "uncompressed"])
    if r.random() < 0.15:
        found["hoodie.parquet.max.file.size"] = "8000"
    if r.random() < 0.15:
        found["hoodie.datasource.write.row.writer.enable"] = "false"
    if has_plain_keys and r.random() < 0.15:
        found["hoodie.populate.meta.fields"] = "false"
    blocks = r.choice(["avro", "avro", "parquet"])
    found["hoodie.logfile.data.block.format"] = blocks
    if blocks == "parquet" and release < "1" and r.random() < 0.5:
        found["hoodie.datasource.write.record.merger.impls"] = "org.apache.hudi.HoodieSparkRecordMerger"
    if r.random() < 0.2:
        found["hoodie.logfile.max.size"] = "4096"
    if r.random() < 0.2:
        found["hoodie.logfile.data.block.max.size"] = "2000"
    return found


def _services(r: random.Random, merge_on_read: bool) -> dict[str, str]:
    """Services that run with the writes."""
    found: dict[str, str] = {}
    if merge_on_read and r.random() < 0.4:
        found |= {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": r.choice("123")}
    if r.random() < 0.2:
        found |= {
            "hoodie.clustering.inline": "true",
            "hoodie.clustering.inline.max.commits": r.choice("234"),
            "hoodie.clustering.plan.strategy.small.file.limit": "100000000",
        }
        if r.random() < 0.5:
            found["hoodie.clustering.plan.strategy.sort.columns"] = r.choice(["price", "id", "n,day"])
    if r.random() < 0.3:
        policy = r.choice(
            [
                {"hoodie.cleaner.policy": "KEEP_LATEST_COMMITS", "hoodie.cleaner.commits.retained": r.choice("12")},
                {"hoodie.cleaner.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.cleaner.fileversions.retained": r.choice("12")},
            ]
        )
        found |= {"hoodie.clean.automatic": "true", **policy}
        if r.random() < 0.6:
            found |= {"hoodie.archive.automatic": "true", "hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"}
    return found


def _changes(r: random.Random, release: str, merge_on_read: bool) -> dict[str, str]:
    """What is told about changes, and how the schema may change."""
    found: dict[str, str] = {}
    if r.random() < (0.1 if merge_on_read else 0.2):
        found["hoodie.table.cdc.enabled"] = "true"
        if r.random() < 0.6:
            modes = ["OP_KEY_ONLY", "DATA_BEFORE", "DATA_BEFORE_AFTER"]
            mode = r.choice(modes)
            found["hoodie.table.cdc.supplemental.logging.mode"] = mode if release >= "1" else mode.lower()
    if r.random() < 0.12:
        found["hoodie.allow.operation.metadata.field"] = "true"
    if r.random() < 0.2:
        found["hoodie.datasource.write.reconcile.schema"] = "true"
    if r.random() < 0.2:
        found[SCHEMA_ON_READ] = "true"
    return found
