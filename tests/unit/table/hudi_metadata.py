"""A metadata table as Apache Hudi's writers make it, and the death of a Tideline process in its delta commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tideline_table.action.write.transaction import WriteTransaction
from tideline_table.coordination.shared import timeline as shared_timeline
from tideline_table.hudi.instant import Action
from tideline_table.hudi.properties import METADATA_PARTITIONS, change_properties, format_properties, read_properties
from tideline_table.hudi.write_stats import CommitMetadata
from tideline_table.log_format.hfile_writer import batch_of, hfile_bytes
from tideline_table.metadata_table import stored
from tideline_table.metadata_table.files import files_of
from tideline_table.metadata_table.instant_files import begin_instant, complete_instant, file_info
from tideline_table.metadata_table.layout import PROPERTIES_PATH, base_name, file_path, metadata_properties
from tideline_table.metadata_table.records import encode_records
from tideline_table.storage import Storage
from tideline_table.table import Table


def make_metadata(table: Table, *more: str) -> str:
    """Make it, and advertise it together with the partitions `more`; return its first instant."""
    storage, state = table.storage, table.refresh()
    base = f"{state.last_instant}010"
    properties = read_properties(storage)
    records = batch_of(encode_records(files_of(state)))
    begin_instant(storage, base, Action.DELTA_COMMIT)
    storage.put(PROPERTIES_PATH, format_properties(metadata_properties(properties), "made by a test"))
    storage.put(file_path(base_name(base)), hfile_bytes(records, file_info(records)))
    complete_instant(storage, base, Action.DELTA_COMMIT, CommitMetadata("BULK_INSERT_PREPPED", ()))
    change_properties(storage, {**properties, METADATA_PARTITIONS: ",".join(("files", *more))})
    return base


class Died(KeyboardInterrupt):
    """The process ended here."""


@contextmanager
def dying(at: int) -> Iterator[None]:
    """The process dies before the file `at` of the delta commit; with 4, before the completed file of the table."""
    create, create_file, made = stored._create, shared_timeline.create_file, [0]

    def next_file(storage: Storage, path: str, content: bytes) -> None:
        if made[0] == at:
            raise Died
        made[0] += 1
        create(storage, path, content)

    def completed(*arguments: object) -> None:
        if made[0] == at:
            raise Died
        create_file(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stored, "_create", next_file)
        if at == 4:
            patched.setattr(shared_timeline, "create_file", completed)
        patched.setattr(WriteTransaction, "roll_back", lambda self: self.abandon())
        with pytest.raises(Died):
            yield
