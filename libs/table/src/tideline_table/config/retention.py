"""Options of what cleaning, archival and the table log keep."""

from __future__ import annotations

from tideline_table.option import Option

CLEANER_COMMITS_RETAINED = Option(
    "hoodie.cleaner.commits.retained",
    10,
    "With `KEEP_LATEST_COMMITS`, cleaning keeps the files that queries of the last N completed writes may read.",
    unit="instants",
    minimum=1,
    aliases=("hoodie.clean.commits.retained",),
)
CLEAN_POLICY = Option(
    "hoodie.clean.policy",
    "KEEP_LATEST_COMMITS",
    "What cleaning keeps: the files that queries of the last N completed writes read, those that queries of the last N hours read, "
    "or the newest N file slices of each file group. Savepoints, pending plans and reader leases keep more.",
    choices=("KEEP_LATEST_COMMITS", "KEEP_LATEST_BY_HOURS", "KEEP_LATEST_FILE_VERSIONS"),
    aliases=("hoodie.cleaner.policy",),
)
CLEAN_HOURS_RETAINED = Option(
    "hoodie.clean.hours.retained",
    24,
    "With `KEEP_LATEST_BY_HOURS`, cleaning keeps the files that queries of the last N hours may read.",
    unit="hours",
    minimum=1,
    aliases=("hoodie.cleaner.hours.retained",),
)
CLEAN_FILE_VERSIONS_RETAINED = Option(
    "hoodie.clean.fileversions.retained",
    3,
    "With `KEEP_LATEST_FILE_VERSIONS`, cleaning keeps the newest N file slices of each file group, and none of a replaced group.",
    unit="slices",
    minimum=1,
    aliases=("hoodie.cleaner.fileversions.retained",),
)
CLEAN_MAX_SHARE = Option(
    "tideline.clean.max.deleted.share",
    0.0,
    "A clean that would delete more bytes than this share of the bytes that the newest queries read is refused before it deletes "
    "anything (1 stands for as many bytes as the table has now). 0 sets no limit.",
    unit="share",
    minimum=0,
)
MOST_TTL_DAYS = 365_000
"""A longer time to live would begin before the first year that a time can have."""
PARTITION_TTL_DAYS = Option(
    "hoodie.partition.ttl.strategy.days.retain",
    -1,
    "Partitions that no write has changed for N days are deleted, by the cleaner and by `tideline expire`. Below 1: none.",
    unit="days",
    minimum=-1,
    maximum=MOST_TTL_DAYS,
)
PARTITION_TTL_STRATEGY = Option(
    "hoodie.partition.ttl.management.strategy.type",
    "KEEP_BY_TIME",
    "What the age of a partition is: the time since the last write to it.",
    choices=("KEEP_BY_TIME",),
)
PARTITION_TTL_SELECTED = Option(
    "hoodie.partition.ttl.strategy.partition.selected",
    "",
    "Partition paths, separated by commas, of which alone old ones are deleted. Empty: of all.",
)
PARTITION_TTL_MOST = Option(
    "hoodie.partition.ttl.strategy.max.delete.partitions",
    1000,
    "One commit deletes at most N old partitions, the oldest first.",
    unit="partitions",
    minimum=1,
)
ROW_TTL_DAYS = Option(
    "tideline.row.ttl.days",
    0.0,
    "The cleaner and `tideline expire` delete rows of more than N days. 0: none.",
    unit="days",
    minimum=0,
    maximum=MOST_TTL_DAYS,
)
ROW_TTL_COLUMN = Option(
    "tideline.row.ttl.column", "", "The column of dates, timestamps or epochs that says how old a row is. A null row never expires."
)
ROW_TTL_UNIT = Option(
    "tideline.row.ttl.unit", "none", "The unit of a column of epochs.", choices=("none", "seconds", "milliseconds", "microseconds")
)
MOST_LEASE_S = 366 * 24 * 3600.0
"""A lease lasts at most this long without renewal."""
LEASE_TTL_S = Option(
    "tideline.lease.ttl",
    300.0,
    "A reader lease expires this long after its holder last renewed it. The library renews it three times in that period.",
    unit="seconds",
    minimum=1,
    maximum=MOST_LEASE_S,
)
KEEP_MIN_COMMITS = Option(
    "hoodie.keep.min.commits",
    20,
    "Archival leaves the newest N completed writes on the active timeline; N must exceed `hoodie.cleaner.commits.retained`. The "
    "default is raised to 10 more than that if needed.",
    unit="instants",
    minimum=2,
)
KEEP_MAX_COMMITS = Option(
    "hoodie.keep.max.commits",
    30,
    "Archival begins once more than N completed writes are on the active timeline. The default is raised to 10 more than "
    "`hoodie.keep.min.commits` if needed.",
    unit="instants",
    minimum=2,
)
ARCHIVAL_BATCH = Option("hoodie.commits.archival.batch", 10, "Records in one block of an archive file.", unit="records", minimum=1)
ARCHIVE_AUTOMATIC = Option("hoodie.archive.automatic", True, "The cleaner archives an exclusive table at each check of it.")
ARCHIVAL_MIN_AGE_S = Option(
    "tideline.archive.min.age",
    3600.0,
    "Archival takes only instants that ended at least this long ago, when their writers can no longer be writing timeline files.",
    unit="seconds",
    minimum=0,
)
CHECKPOINT_INTERVAL = Option(
    "tideline.log.checkpoint.interval", 50, "A checkpoint of the table log is written every N entries.", unit="entries", minimum=2
)
LOG_RETAINED_ENTRIES = Option(
    "tideline.log.retained.entries",
    1000,
    "The newest N entries of the table log are kept, regardless of their age.",
    unit="entries",
    minimum=10,
)
LOG_RETENTION_S = Option(
    "tideline.log.retention",
    7 * 24 * 3600.0,
    "Entries of the table log are kept at least this long. The mirror must publish them within this time.",
    unit="seconds",
    minimum=90,  # readers that follow the log rely on its last minute (`timeline.log_end`)
)
