"""The form of a policy file, and the JSON schema of it that editors use (docs/policy.schema.json)."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tideline_runtime.policy.quantity import Bytes, Moment, Seconds, TimeOfDay, Zone

Scalar = str | int | float | bool
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def _every_day() -> list[Day]:
    return list(get_args(Day))


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Services(_Part):
    """Table services: true or false. A service that is off is neither planned nor run."""

    clustering: bool = Field(default=True, description="Rewrites small files as fewer, sorted ones.")
    compaction: bool = Field(default=True, description="Merges log files into base files (merge-on-read).")
    logcompaction: bool = Field(
        default=True,
        description="Merges many log files of a slice into one. true sets hoodie.log.compaction.enable; if absent, that option "
        "decides.",
    )
    clean: bool = Field(default=True, description="Deletes file slices that no retained query reads.")
    archival: bool = Field(default=True, description="Moves old instants off the timeline, after a clean.")
    rollback: bool = Field(default=True, description="Undoes the writes of dead writers. A pause does not stop it.")


class Budget(_Part):
    """How much services may rewrite."""

    bytes_per_day: Bytes | None = Field(
        default=None,
        ge=0,
        description="Most bytes that clustering, compaction and log compaction rewrite in any 24 hours; null: no limit.",
    )


class WindowModel(_Part):
    """A window of time in which plans may be published, in the local time of a zone."""

    from_: TimeOfDay = Field(alias="from", description="Local time at which it begins, HH:MM.")
    to: TimeOfDay = Field(description="Local time at which it ends; on the next day if it is not later than `from`.")
    time_zone: Zone = Field(description="IANA name of the zone, such as Europe/Berlin.")
    days: list[Day] = Field(default_factory=_every_day, min_length=1, description="Days on which it begins; all if absent.")


class Retention(_Part):
    """What is kept for queries of the past. The same as engine options, by names of their own."""

    commits: int | None = Field(
        default=None,
        ge=1,
        description="Cleaning keeps the files that queries of the last N writes may read (hoodie.cleaner.commits.retained).",
    )
    timeline_commits: int | None = Field(
        default=None, ge=2, description="Writes that archival leaves on the active timeline (hoodie.keep.min.commits)."
    )
    log: Seconds | None = Field(
        default=None, description="How long entries of the table log are kept at least (tideline.log.retention)."
    )


class LogCompactionModel(_Part):
    """Which slices a log compaction takes. The same as engine options, by names of their own."""

    files: int | None = Field(
        default=None,
        ge=2,
        description="Slices of which a reader opens this many log files (hoodie.log.compaction.blocks.threshold).",
    )
    max_bytes: Bytes | None = Field(
        default=None,
        ge=1,
        description="Slices with more bytes in these log files are left to compaction (tideline.log.compaction.max.bytes).",
    )


class ObjectivesModel(_Part):
    """Bounds that services keep: a table near one of them is due, whatever the thresholds say. null: none."""

    small_files: int | None = Field(
        default=None, ge=1, description="Largest number of small files (below hoodie.clustering.plan.strategy.small.file.limit)."
    )
    log_to_base_ratio: float | None = Field(
        default=None, gt=0, description="Largest ratio of the bytes of log files to those of base files."
    )
    unmerged_log_age: Seconds | None = Field(
        default=None, description="Longest time that rows stay in log files before they are merged."
    )


class PauseModel(_Part):
    """Services leave the table alone: no plans, no runs, no cleans. Dead writers are still rolled back."""

    reason: str = Field(min_length=1, description="Why; shown by `tideline policy explain` and `tideline why`.")
    until: Moment | None = Field(default=None, description="When it expires, with a zone; absent: when the rule is removed.")


class Body(_Part):
    """What a rule gives. A field that is absent is left to wider rules."""

    mode: Literal["observe", "services", "write"] | None = Field(
        default=None,
        description="observe: the services write nothing to the table, neither plans nor rollbacks nor log entries; the mirror "
        "publishes what others write. services: the services work on it, and tideline-ingest does not write to it. write: both. "
        "Absent: as write for a table that Tideline created, as services for others.",
    )
    services: Services | None = None
    options: dict[str, Scalar] | None = Field(default=None, description="Engine options by key, docs/options.md.")
    settings: dict[str, dict[str, Any]] | None = Field(
        default=None, description="Settings per table by service, docs/table-resources.md: {planner: {clustering_min_files: 4}}."
    )
    freshness: Seconds | None = Field(
        default=None,
        description="Longest time between two looks of the mirror at the quiet table: 10s, 5m, 1h (mirror.freshness_s).",
    )
    sort_columns: list[Annotated[str, Field(min_length=1)]] | None = Field(
        default=None, description="Columns by which clustering sorts (hoodie.clustering.plan.strategy.sort.columns)."
    )
    windows: list[WindowModel] | None = Field(
        default=None, description="When clustering, compaction and log compaction may be planned; [] or absent: always."
    )
    priority: int | None = Field(
        default=None, ge=0, le=100, description="Of two tables, the one with more is served first; 50 if absent."
    )
    budget: Budget | None = None
    retention: Retention | None = None
    logcompaction: LogCompactionModel | None = None
    objectives: ObjectivesModel | None = None
    pause: PauseModel | None = Field(default=None, description="null in a narrower rule lifts the pause of a wider one.")


class Scope(_Part):
    """Which tables: base paths and patterns, without those of `exclude`."""

    paths: list[str] = Field(
        default_factory=list,
        description="Base paths, or patterns: `root/*` folders in root, `root/**` folders at any depth below it.",
    )
    exclude: list[str] = Field(default_factory=list, description="Base paths or patterns of tables to leave out.")


class Tag(Scope):
    """The tables that a tag names."""

    tables: list[str] = Field(default_factory=list, description="Single tables by base path or uid.")


class Match(Scope):
    """Which tables a rule is for: exactly one of `paths`, `tags`, `tables`."""

    tags: list[str] = Field(default_factory=list, description="Tags; a table with any of them matches.")
    tables: list[str] = Field(default_factory=list, description="Single tables, by base path or uid; never by name.")

    @model_validator(mode="after")
    def _one_kind(self) -> Match:
        if sum(map(bool, (self.paths, self.tags, self.tables))) != 1:
            raise ValueError("exactly one of paths, tags and tables, not empty")
        return self


class RuleModel(Body):
    """A rule: which tables, and what holds for them."""

    name: str = Field(default="", description="What `explain` calls the rule.")
    match: Match


class FleetModel(_Part):
    """Bounds for all tables of the fleet together. Each of N shards gets an Nth of them."""

    bytes_per_day: Bytes | None = Field(
        default=None,
        ge=0,
        description="Most bytes that clustering, compaction and log compaction rewrite in any 24 hours, over all tables.",
    )
    pending_plans: int | None = Field(default=None, ge=1, description="Most plans that wait or run at once, over all tables.")


class PolicyFile(_Part):
    """Policies per table of Tideline's services."""

    version: Literal[1] = Field(description="Version of this form.")
    fleet: FleetModel = FleetModel()
    defaults: Body = Body()
    tags: dict[str, Tag] = Field(default_factory=dict, description="Which tables each tag names.")
    rules: list[RuleModel] = Field(default_factory=list, description="In any order: the narrowest rule that gives a field decides.")


def policy_schema() -> dict[str, Any]:
    """Return the JSON schema of a policy file (draft 2020-12)."""
    schema = PolicyFile.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tideline policies",
        **{k: v for k, v in schema.items() if k != "title"},
    }


def policy_schema_text() -> str:
    """Return the schema as it is committed: docs/policy.schema.json."""
    return json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"
