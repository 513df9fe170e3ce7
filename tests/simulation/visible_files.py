"""Which files a query reads, worked out from what commits say: a second opinion beside the engine's `TableState`.

A group shows its newest base file and the log files named after that one's instant or a later one, by instant and version
(format reference 11.2). A log compaction adds a log file that stands for all log files before it, which stay. The engine gets
there entry by entry and knows of plans, cleaning and time travel; here is none of that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tideline_table.hudi.write_stats import CommitMetadata, WriteStat
from tideline_table.log.action import LOG_COMPACT

GroupId = tuple[str, str]
Paths = tuple[str, ...]
_LOG = re.compile(r"\.(?P<file>.+)_(?P<base>\d{17})\.log\.(?P<version>\d+)_[-\d]+")


def is_data_file(path: str) -> bool:
    """Whether a path is that of a base or log file."""
    return not path.startswith(".hoodie") and (path.endswith(".parquet") or _LOG.fullmatch(path.rsplit("/", 1)[-1]) is not None)


@dataclass(frozen=True, slots=True)
class _Group:
    base: tuple[str, str] = ("", "")
    """Instant and path of the newest base file."""
    logs: tuple[tuple[str, int, str], ...] = ()
    """Base instant, version and path."""
    merges: frozenset[str] = frozenset()
    """Paths of log files that stand for those before them."""

    @property
    def read(self) -> Paths:
        """What a reader opens that skips log files which a later one stands for."""
        last = max((at for at, path in enumerate(self.paths) if path in self.merges), default=0)
        return tuple(path for path in self.paths[:1] if last and path == self.base[1]) + self.paths[last:]

    @property
    def paths(self) -> Paths:
        instant, base = self.base
        return ((base,) if base else ()) + tuple(path for at, _, path in sorted(self.logs) if at >= instant)

    def with_file(self, instant: str, path: str, *, merges: bool = False) -> _Group:
        log = _LOG.fullmatch(path.rsplit("/", 1)[-1])
        if log is None:
            return replace(self, base=max(self.base, (instant, path)))
        logs = (*self.logs, (log["base"], int(log["version"]), path))
        return replace(self, logs=logs, merges=self.merges | {path} if merges else self.merges)


@dataclass(frozen=True, slots=True)
class VisibleFiles:
    """The files of each group after some entry. A value: a commit makes a new one."""

    groups: Mapping[GroupId, _Group] = field(default_factory=dict)

    def after(self, instant: str, metadata: CommitMetadata) -> VisibleFiles:
        """What is visible behind this commit."""
        groups = dict(self.groups)
        for stat in metadata.stats:
            if stat.path:
                group = _group_of(stat)
                groups[group] = groups.get(group, _Group()).with_file(instant, stat.path, merges=metadata.operation == LOG_COMPACT)
        for partition, file_ids in (metadata.replaced or {}).items():
            for file_id in file_ids:
                groups.pop((partition, file_id), None)
        return VisibleFiles(groups)

    @property
    def slices(self) -> dict[GroupId, Paths]:
        """Group → its base file, if any, and its log files in the order in which they are merged."""
        return {group: found.paths for group, found in sorted(self.groups.items())}

    @property
    def read(self) -> dict[GroupId, Paths]:
        """As `slices`, without the log files for which a later one stands."""
        return {group: found.read for group, found in sorted(self.groups.items())}

    def twice(self) -> list[str]:
        """Log files that share base instant and version with another one of their group: nobody could tell which comes first.

        One that stands for those before it is behind the last of them by its write token.
        """
        written = [[log for log in sorted(group.logs) if log[2] not in group.merges] for group in self.groups.values()]
        return [
            path
            for logs in written
            for number, (base, version, path) in enumerate(logs)
            if (base, version) in [(b, v) for b, v, _ in logs[:number]]
        ]


def _group_of(stat: WriteStat) -> GroupId:
    return (stat.partition_path, stat.file_id)
