"""One error hierarchy for everything that Tideline tells its callers.

A class says what the caller can do (`Recovery`); an instance says what was found, what was expected and what to do about it.
Prose lives in those three fields only, so that a command line prints one line and a program reads fields.
"""

from __future__ import annotations

import enum


class Recovery(enum.Enum):
    """What the caller can do about an error."""

    RETRY = "retry"
    """The same call may succeed later; nothing was changed."""
    REFRESH = "refresh"
    """The world moved: read it again, decide again, then retry."""
    STOP = "stop"
    """The same call will fail again until somebody changes the input, the settings or the table."""


class TidelineError(Exception):
    """Root of all errors that Tideline raises on purpose.

    `found` says what was found, `expected` what should have been there, `remedy` what to do.
    """

    recovery: Recovery = Recovery.STOP

    def __init__(self, found: str, *, expected: str = "", remedy: str = "") -> None:
        self.found = found
        self.expected = expected
        self.remedy = remedy
        super().__init__(found, expected, remedy)

    def __str__(self) -> str:
        parts = [self.found]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.remedy:
            parts.append(self.remedy)
        return "; ".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark workers, multiprocessing): rebuild from the fields.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(kind: type[TidelineError], fields: dict[str, object]) -> TidelineError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    error.args = (fields.get("found"), fields.get("expected"), fields.get("remedy"))
    return error


# --- storage -------------------------------------------------------------------------------------------------------------


class StorageError(TidelineError):
    """An object store or disk answered with a failure that may pass."""

    recovery = Recovery.RETRY


class StorageRefused(StorageError):
    """The store understood and refused: no such bucket, wrong credentials, missing rights. Nothing was changed."""

    recovery = Recovery.STOP


class ObjectNotFound(TidelineError):
    """The named object is not there."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no object at {path!r}")
        self.path = path


class ObjectExists(TidelineError):
    """A put-if-absent was refused because an object of that name is there."""

    recovery = Recovery.REFRESH

    def __init__(self, path: str) -> None:
        super().__init__(f"an object exists at {path!r}")
        self.path = path


class UnsafePath(TidelineError):
    """A path that leaves the folder it belongs to, or that no table may contain."""


# --- input ---------------------------------------------------------------------------------------------------------------


class TableNotFound(TidelineError):
    """There is no Hudi table at the base path."""


class TableExists(TidelineError):
    """A table is already there."""


class UnsupportedTable(TidelineError):
    """The table is sound, but of a kind that this operation does not handle."""


class InvalidOption(TidelineError):
    """An unknown option, or a value that does not fit its declaration."""


class SchemaMismatch(TidelineError):
    """Rows whose schema does not fit the schema of the table."""


class InvalidRecord(TidelineError):
    """A row that cannot be written: null record key, unsafe partition value and the like."""


class DuplicateKey(TidelineError):
    """An insert found a key twice and its duplicate policy is to fail."""


class InstantNotFound(TidelineError):
    """An instant that the table does not have."""


class HistoryUnavailable(TidelineError):
    """Changes whose files cleaning removed: begin again with a snapshot."""


class HistoryRewritten(HistoryUnavailable):
    """Changes across a restore: whoever asks has read writes that were taken back. Begin again with a snapshot."""


class WritesMissed(TidelineError):
    """Writes of Apache Hudi to a shared table left the timeline before anybody adopted them: what the table holds cannot be said any more."""


# --- state on storage that is not what it should be -----------------------------------------------------------------------


class CorruptMetadata(TidelineError):
    """A timeline file, plan, properties file or table log entry that cannot be understood."""


class TableFrozen(TidelineError):
    """The table may not be written until somebody decides what to do about what was found."""


class ClockSkew(TidelineError):
    """The last instant of the table lies too far ahead of this machine's clock."""

    recovery = Recovery.RETRY


# --- transactions --------------------------------------------------------------------------------------------------------


class SavepointRefused(TidelineError):
    """A savepoint that cannot be made, or restored to, as the table stands. Nothing was changed."""


class WriteConflict(TidelineError):
    """Another writer or table service changed what this transaction read or wrote.

    `with_instant` names the other side. The transaction is rolled back; begin again on fresh state.
    """

    recovery = Recovery.REFRESH

    def __init__(self, found: str, *, with_instant: str, expected: str = "", remedy: str = "read again and retry") -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.with_instant = with_instant


class ClusteringFirst(WriteConflict):
    """A file group that a write changes is under a clustering, `with_instant`, that goes before it: the write waits, or fails when it waited too long."""


class RestorePending(WriteConflict):
    """The table is being brought back to a savepoint: nothing may be written until that is done. `with_instant` is the restore."""


class ProgressMoved(TidelineError):
    """The progress that a commit was to move is no longer where it was expected: somebody else committed what this one holds, or more.

    The transaction is rolled back and not tried again. `key` names the progress, `held` is its value now (None: never set).
    """

    recovery = Recovery.REFRESH

    def __init__(self, found: str, *, key: str, held: str | None, expected: str = "", remedy: str = "") -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.key = key
        self.held = held


class TransactionRolledBack(TidelineError):
    """This transaction was rolled back by somebody else (its heartbeat expired); its files will never become visible."""

    recovery = Recovery.REFRESH


class RestoredMeanwhile(TransactionRolledBack):
    """The table was brought back to a savepoint while this transaction ran: what it read may be gone, so it is not tried again by itself."""


class CommitUnknown(TidelineError):
    """The commit point was sent, its outcome could not be learned; the table log knows."""

    recovery = Recovery.REFRESH


class AppendOutrun(TidelineError):
    """A step never came to its turn in the table log, so many others went first. Nothing was appended."""

    recovery = Recovery.RETRY


class IllegalTransition(TidelineError):
    """A step that the life cycle of an action does not have."""


class VerificationFailed(TidelineError):
    """A table service's own check (row counts, key hashes) failed before its commit; nothing became visible."""
