"""What those take for committed who know nothing of the table log: they go by the timeline's files and the names of others.

A file counts when its instant completed on the timeline, or is older than the timeline's first completed write (format
reference 11.1). Archival moves that beginning: whatever lies in front of it has to be committed, or gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tests.simulation.file_contents import log_instants
from tests.simulation.visible_files import GroupId, is_data_file

from tideline_table.hudi.formats import UPGRADED, WRITTEN
from tideline_table.hudi.instant import WRITE_ACTIONS, Instant, State

Objects = Mapping[str, tuple[bytes, object]]


def completed_on_timeline(objects: Objects) -> set[str]:
    """Instants of writes whose completed file is there."""
    found = (parsed[0] for parsed in map(_parsed, objects) if parsed is not None)
    return {i.time for i in found if i.state is State.COMPLETED and i.action in WRITE_ACTIONS}


def _parsed(path: str) -> tuple[Instant, str] | None:
    """Return what the path of a timeline file says: its instant, and in layout 2 the completion time."""
    for form in (WRITTEN, UPGRADED):
        folder, _, name = path.rpartition("/")
        if folder == form.timeline_folder:
            return form.parse_timeline_file_name(name)
    return None


def taken_for_committed(objects: Objects, committed: Collection[str]) -> Iterator[tuple[str, str]]:
    """Files in front of the timeline's beginning, and their instants, which are none of `committed`."""
    first = min(completed_on_timeline(objects), default="")
    for path, (content, _) in objects.items():
        if is_data_file(path):
            yield from ((path, i) for i in _instants_of(path, content) if i < first and i not in committed)


def replaced_and_back(objects: Objects, replaced: Mapping[GroupId, str]) -> Iterator[tuple[str, str]]:
    """Files of groups, and the instant that replaced them, of which the timeline does not tell any more."""
    told = completed_on_timeline(objects)
    forgotten = {group: instant for group, instant in replaced.items() if instant not in told}
    for path in objects if forgotten else ():
        folder, _, name = path.rpartition("/")
        for (partition, file_id), instant in forgotten.items():
            if is_data_file(path) and folder == partition and file_id in name:
                yield path, instant


def _instants_of(path: str, content: bytes) -> set[str]:
    if path.endswith(".parquet"):
        return {path.rpartition("_")[2].removesuffix(".parquet")}
    return log_instants(content)
