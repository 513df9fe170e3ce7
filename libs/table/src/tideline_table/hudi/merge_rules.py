"""Merge rules that a table can declare by name, and the payload class of Apache Hudi that each stands for (format reference 2.3).

Versions 6 and 8 declare the class, version 9 what it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tideline_table.hudi import properties as p

EVENT_TIME = "EVENT_TIME_ORDERING"
COMMIT_TIME = "COMMIT_TIME_ORDERING"
CUSTOM = "CUSTOM"
STRATEGIES = {
    EVENT_TIME: "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
    COMMIT_TIME: "ce9acb64-bde0-424c-9b91-f6ebba25356d",
    CUSTOM: "00000000-0000-0000-0000-000000000000",
}
"""The strategy id of each merge mode. That of `CUSTOM` leaves merging to the code of the payload class."""
_MODELS = "org.apache.hudi.common.model."
UNAVAILABLE_VALUE = "__debezium_unavailable_value"
"""The text that Debezium writes in place of a value that the database did not log."""


@dataclass(frozen=True, slots=True)
class MergeRule:
    """How two versions of a row become one."""

    name: str
    """The name by which Tideline's users ask for it."""
    payload_class: str
    mode: str
    """The merge mode that version 9 declares for it."""
    partial: str = ""
    """The partial update mode of version 9, empty for none."""
    unavailable: str = ""
    """The text of values that were not available."""
    deletion: tuple[str, str] | None = None
    """The column and the value in it that mark deletions."""
    ordering: str = ""
    """The only ordering fields that the class compares, empty for those that the user chooses."""
    strategy: str = ""
    """The strategy id of a merger that another package registers by this name; empty for the rules of this module."""
    needs_modes: bool = False
    """Whether only version 9 can declare it so that Apache Hudi merges base files and logs alike."""

    @property
    def mode_before_9(self) -> str:
        """The merge mode that version 8 declares, beside the payload class."""
        return self.mode if self.payload_class in _BY_MODE else CUSTOM

    @property
    def properties(self) -> Mapping[str, str]:
        """What version 9 declares beside the mode. Apache Hudi keeps the name of a class that it replaced by properties."""
        if self.strategy:
            return {p.MERGE_STRATEGY: self.strategy, p.MERGER: self.name}
        found = {} if self.payload_class in _BY_MODE else {p.LEGACY_PAYLOAD_CLASS: self.payload_class}
        if self.partial:
            found[p.PARTIAL_UPDATE_MODE] = self.partial
        if self.unavailable:
            found[p.UNAVAILABLE_VALUE] = self.unavailable
        if self.deletion is not None:
            found |= {p.DELETE_FIELD: self.deletion[0], p.DELETE_MARKER: self.deletion[1]}
        return found


_EVENT_TIME_PAYLOAD = _MODELS + "EventTimeAvroPayload"
_BY_MODE = frozenset({p.DEFAULT_PAYLOAD, p.OVERWRITE_PAYLOAD, _EVENT_TIME_PAYLOAD})
"""Classes that do what a merge mode says."""
BY_COMMIT_TIME = MergeRule("commit_time", p.OVERWRITE_PAYLOAD, COMMIT_TIME)
BY_EVENT_TIME = MergeRule("event_time", p.DEFAULT_PAYLOAD, EVENT_TIME)
POSTGRES = MergeRule(
    "postgres_debezium",
    _MODELS + "debezium.PostgresDebeziumAvroPayload",
    EVENT_TIME,
    "FILL_UNAVAILABLE",
    UNAVAILABLE_VALUE,
    ("_change_operation_type", "d"),
    "_event_lsn",
)
MERGE_RULES = (
    BY_COMMIT_TIME,
    BY_EVENT_TIME,
    MergeRule("partial_update", _MODELS + "PartialUpdateAvroPayload", EVENT_TIME, "IGNORE_DEFAULTS"),
    MergeRule("overwrite_non_defaults", _MODELS + "OverwriteNonDefaultsWithLatestAvroPayload", COMMIT_TIME, "IGNORE_DEFAULTS"),
    MergeRule("aws_dms", _MODELS + "AWSDmsAvroPayload", COMMIT_TIME, deletion=("Op", "D")),
    POSTGRES,
    MergeRule(
        "mysql_debezium",
        _MODELS + "debezium.MySqlDebeziumAvroPayload",
        EVENT_TIME,
        deletion=("_change_operation_type", "d"),
        ordering="_event_bin_file,_event_pos",
        needs_modes=True,
    ),
)
"""All rules that `create` takes by name."""
_BY_CLASS = {
    **{rule.payload_class: rule for rule in MERGE_RULES},
    _EVENT_TIME_PAYLOAD: replace(BY_EVENT_TIME, payload_class=_EVENT_TIME_PAYLOAD),
}


def rule_of_class(payload_class: str) -> MergeRule | None:
    """Return the rule that a payload class stands for, None for a class that is unknown here."""
    return _BY_CLASS.get(payload_class)
