"""Creation of a timeline file that is the step itself, in a shared table: without an answer the step is neither done nor failed."""

from __future__ import annotations

from tideline_table.coordination.lock import HeldHudiTableLock
from tideline_table.errors import (
    CommitUnknown,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    TidelineError,
    TransactionRolledBack,
)
from tideline_table.hudi.instant import State
from tideline_table.log.table_log import Draft
from tideline_table.storage import Storage, exists

_READ_BACKS = 3


def create_file(storage: Storage, path: str, content: bytes, draft: Draft, held: HeldHudiTableLock) -> None:
    """Create a timeline file. Raises `TransactionRolledBack` if another attempt did, `CommitUnknown` for an unanswered commit."""
    # Only one writer has an instant. But both engines may begin a plan, and both create the same empty file.
    is_ours_if_equal = draft.before is not State.REQUESTED
    unanswered: TidelineError | None = None
    for _ in range(_READ_BACKS):
        if unanswered is not None and not held.is_held():
            break  # the unanswered request may have taken longer than the lock lasts
        try:
            storage.put_if_absent(path, content)
        except ObjectExists as error:
            unanswered = unanswered or error
        except StorageError as error:
            # The client of a full object store may have sent the request and lost the answer.
            sent = isinstance(error, StorageFull) and exists(storage, path)
            if error.changed_nothing and unanswered is None and not sent:
                raise
            # The request may have taken effect; then its repetition is refused.
            unanswered, is_ours_if_equal = error, True
        else:
            return
        try:
            there = storage.read(path)
        except ObjectNotFound:
            continue
        except StorageError as error:
            unanswered = error
            continue
        if there == content and is_ours_if_equal:
            return
        raise TransactionRolledBack(
            f"timeline file {path} exists already",
            expected="no file, because one process at a time takes this step",
            remedy="another process completed or began it; read the table again",
        )
    if draft.after is State.COMPLETED:
        raise CommitUnknown(
            f"no answer about {path} ({unanswered})",
            remedy="read the table again: its timeline knows whether it was written",
        ) from unanswered
    raise StorageError(f"no answer about {path} ({unanswered})", remedy="check the storage, then retry") from unanswered
