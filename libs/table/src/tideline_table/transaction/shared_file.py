"""Creating a timeline file of a shared table, where it is the step itself: nothing may be taken for done, or for failed, without an answer."""

from __future__ import annotations

from tideline_table.errors import (
    CommitUnknown,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageRefused,
    TidelineError,
    TransactionRolledBack,
)
from tideline_table.storage import Storage
from tideline_table.timeline.instant import State
from tideline_table.timeline.log import Draft
from tideline_table.transaction.lock import HeldPeerLock

_READ_BACKS = 3


def create_file(storage: Storage, path: str, content: bytes, draft: Draft, held: HeldPeerLock) -> None:
    """Create a timeline file. Raises `TransactionRolledBack` where another's is there, `CommitUnknown` for a commit point without an answer."""
    # Nobody else has an instant of ours; a plan may be begun by either side, and both create the same empty file.
    is_ours_if_equal = draft.before is not State.REQUESTED
    unanswered: TidelineError | None = None
    for _ in range(_READ_BACKS):
        if unanswered is not None and not held.is_held():
            break  # what did not answer may have taken longer than the lock lasts
        try:
            storage.put_if_absent(path, content)
        except ObjectExists as error:
            unanswered = unanswered or error
        except StorageError as error:
            if isinstance(error, StorageRefused) and unanswered is None:
                raise
            # It may have taken effect: then its repetition is refused.
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
            f"timeline file {path} is there already",
            expected="no other attempt at it",
            remedy="somebody else completed or began it; read the table again",
        )
    if draft.after is State.COMPLETED:
        raise CommitUnknown(
            f"no answer about {path} ({unanswered})",
            remedy="read the table again: its timeline knows whether it was written",
        ) from unanswered
    raise StorageError(f"no answer about {path} ({unanswered})", remedy="check the storage, then retry") from unanswered
