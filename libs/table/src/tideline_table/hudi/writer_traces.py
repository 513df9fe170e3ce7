"""By what Apache Hudi's writers can be told apart: a commit names no application, but carries traces of one. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextlib import suppress

from tideline_table.errors import MALFORMED
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.json_text import parse_json

_KINDS = (
    ("Spark streaming sink", "_hudi_streaming_sink_checkpoint"),
    ("Hudi streamer", "deltastreamer.checkpoint"),
    ("Hudi streamer", "streamer.checkpoint"),
    ("Spark SQL", "_hoodie.spark.sql."),
)
"""What a key of the extra metadata begins with, by the kind of application that writes it."""
_SINK = _KINDS[0][1]
_OTHER = "Spark or Flink job"
_ONLY_1X = frozenset({"prevBaseFile", "numUpdates", "totalLogReadTimeMs"})
"""Fields of write stats in JSON that releases before 1.0 do not write (format reference 5)."""


class Release(enum.StrEnum):
    """The family of releases that wrote a commit."""

    BEFORE_1 = "0.x"
    FROM_1 = "1.x"
    UNKNOWN = "unknown"


def kind_of(extra: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the kind of application that wrote a commit, and for Spark's streaming sink the identifiers of its queries."""
    kind = next((kind for kind, prefix in _KINDS if any(key.startswith(prefix) for key in extra)), _OTHER)
    identifiers: tuple[str, ...] = ()
    if _SINK in extra:
        with suppress(*MALFORMED):
            identifiers = tuple(sorted(parse_json(extra[_SINK].encode())))
    return kind, identifiers


def is_of_tideline(metadata: CommitMetadata) -> bool:
    """Return whether a commit has a trace of Tideline's writers: digests of its files, or a note. One without files may lack it."""
    return any(stat.record for stat in metadata.stats) or any(key.startswith("tideline.") for key in metadata.extra)


def release_of(content: bytes) -> Release:
    """Return the releases that wrote a commit file. Avro came with 1.0; JSON shows it in the fields of its stats."""
    if not content.startswith(b"{"):
        return Release.FROM_1
    with suppress(*MALFORMED, AttributeError):
        stats = [stat for stats in parse_json(content)["partitionToWriteStats"].values() for stat in stats]
        if stats:
            return Release.FROM_1 if _ONLY_1X & stats[0].keys() else Release.BEFORE_1
    return Release.UNKNOWN


def name_of(extra: Mapping[str, str], content: bytes) -> str:
    """Return the name of the writer of a commit file with this extra metadata."""
    return writer_name(*kind_of(extra), release_of(content))


def writer_name(kind: str, identifiers: tuple[str, ...], release: Release) -> str:
    """Return kind, identifiers and release of a writer, for people."""
    named = f"{kind} {', '.join(identifiers)}" if identifiers else kind
    return f"{named} ({release})"
