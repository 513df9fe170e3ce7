"""Options of writers and table services beside each other: conflicts, waits, heartbeats, locks and clocks."""

from __future__ import annotations

from tideline_table.option import Option

TASK_MAX_LIFETIME_S = Option(
    "tideline.task.max.lifetime",
    6 * 3600.0,
    "Maximum run time of a write task. Archival passes a rolled-back instant this long after its rollback, once a listing of its "
    "partitions finds none of its files.",
    unit="seconds",
    minimum=0,
)
SERVICE_VERIFY = Option(
    "tideline.service.verify",
    "keys",
    "What compaction and clustering read back from the files they wrote and compare with what they read, before they commit: "
    "record keys and ordering values, or whole rows.",
    choices=("keys", "full"),
)
HEARTBEAT_INTERVAL_MS = Option(
    "hoodie.client.heartbeat.interval_in_ms", 60_000, "How often a writer renews its heartbeat.", unit="milliseconds", minimum=100
)
HEARTBEAT_MISSES = Option(
    "hoodie.client.heartbeat.tolerable.misses",
    2,
    "Heartbeats that a writer may miss before it counts as dead.",
    unit="heartbeats",
    minimum=1,
)
WRITE_RETRIES = Option(
    "tideline.write.conflict.retries",
    10,
    "How often a write that lost a conflict is repeated on fresh state.",
    unit="attempts",
    minimum=0,
)
RESERVATION_WAIT_S = Option(
    "tideline.write.intent.wait",
    30.0,
    "How long a write waits for another write that has reserved the same file groups before it proceeds anyway; 0 makes no "
    "reservations.",
    unit="seconds",
    minimum=0,
)
PRIORITY_AFTER = Option(
    "tideline.write.priority.after",
    3,
    "After this many lost conflicts, a write locks the file groups that it needs, and other writes of them wait. In a table shared "
    "with Apache Hudi, conflicts lost to Apache Hudi's writers do not count, because those do not wait; a write that loses this "
    "many of them in spite of the lock gives up its priority.",
    unit="conflicts",
    minimum=1,
)
PRIORITY_WAIT_S = Option(
    "tideline.write.priority.wait",
    600.0,
    "How long a write waits for another write with priority before it proceeds anyway; also how long it waits, over all of its "
    "attempts, for clusterings with priority (`tideline.clustering.yields`) before it fails.",
    unit="seconds",
    minimum=0,
)
BACKLOG_LOG_FILES = Option(
    "tideline.write.backlog.log.files",
    50,
    "Log files that one file slice has before compaction counts as outrun by the writers: `tideline status` and the health of the "
    "table say so, and writes to the partition of the slice follow `tideline.write.backlog.response`.",
    unit="log files",
    minimum=1,
)
BACKLOG_RESPONSE = Option(
    "tideline.write.backlog.response",
    "warn",
    "What an upsert or delete of a merge-on-read table does, and an insert into log files, if its partitions have a slice with a "
    "backlog (`tideline.write.backlog.log.files`): nothing (none), log a warning (warn), wait before it begins (slow; "
    "`tideline.write.backlog.wait`), or fail before anything is written (refuse). Writes that only add or replace file groups are "
    "not concerned.",
    choices=("none", "warn", "slow", "refuse"),
)
BACKLOG_WAIT_S = Option(
    "tideline.write.backlog.wait",
    10.0,
    "How long a write waits at most with `tideline.write.backlog.response` `slow`, at twice as many log files as "
    "`tideline.write.backlog.log.files`; proportionally shorter below, but at least a tenth of it. The wait ends when a compaction "
    "has merged the log files.",
    unit="seconds",
    minimum=0,
)
PLAN_AGE_S = Option(
    "tideline.plan.age",
    3600.0,
    "A plan that is pending for longer than this without a process that runs it is a finding in `tideline status` and in the "
    "health of the table.",
    unit="seconds",
    minimum=0,
)
LOCK_WAIT_S = Option("tideline.lock.wait", 60.0, "How long a commit waits for the table lock.", unit="seconds", minimum=0)
LOCK_UNREACHABLE = Option(
    "tideline.lock.unreachable",
    "wait",
    "What a commit does while the Redis server of the locks does not answer: retry for `tideline.lock.wait`, then fail (wait); "
    "fail immediately (fail); or use leases and reservations in the table's folder (storage). The last two require locks on "
    "`redis:` or `rediss:`. A table shared with Apache Hudi always uses Apache Hudi's lock; there the option concerns reservations "
    "only: they move to the table's folder with `storage`, and are omitted otherwise.",
    choices=("wait", "fail", "storage"),
)
LOCK_TTL_S = Option("tideline.lock.ttl", 30.0, "Duration of the table lock's lease.", unit="seconds", minimum=1)
INSTANT_SKEW_S = Option(
    "tideline.instant.max.skew",
    2.0,
    "How far a writer's clock may be ahead of the store's; in a table shared with Apache Hudi also how far the last instant may be "
    "ahead of the clock.",
    unit="seconds",
    minimum=0,
)
