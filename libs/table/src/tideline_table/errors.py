"""The error hierarchy of Tideline.

The class of an error says what the caller can do (`Recovery`). Its fields say what was found, what was expected and how to solve
the problem. They hold all texts, so that a command line prints one line and a program reads fields.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager


class Recovery(enum.Enum):
    """What the caller can do about an error."""

    RETRY = "retry"
    """The same call may succeed later. Nothing was changed."""
    REFRESH = "refresh"
    """The state of the table changed: read it again, decide again, then retry."""
    STOP = "stop"
    """The same call fails again until a user changes the input, the settings or the table."""


class TidelineError(Exception):
    """Root of all errors that Tideline raises on purpose.

    `found` says what was found, `expected` what was expected instead, `remedy` how to solve the problem.
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
        # Errors cross process boundaries (Spark workers, multiprocessing). Rebuild them from their fields.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(kind: type[TidelineError], fields: dict[str, object]) -> TidelineError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    error.args = (fields.get("found"), fields.get("expected"), fields.get("remedy"))
    return error


class MissingExtra(TidelineError, ImportError):
    """A package that an extra of the distribution installs is missing (`tideline_table.extras`)."""

    def __init__(self, package: str, extra: str, command: str) -> None:
        super().__init__(f"package {package!r} is not installed", expected=f"the extra {extra!r} of Tideline", remedy=command)


# --- what callers catch: one class for each thing that they can do (docs/errors.md) -----------------------------------------------


class InvalidInput(TidelineError):
    """The request, its options or its rows are wrong, or do not fit the table. Nothing was written."""


class Conflict(TidelineError):
    """Another process changed what this one read or wrote. Its work is undone: read again, decide again, then retry."""

    recovery = Recovery.REFRESH


class Unavailable(TidelineError):
    """Storage, a lock, the clock or the source of the rows does not serve now. The same call may succeed later."""

    recovery = Recovery.RETRY


class DamagedTable(TidelineError):
    """Files of the table are missing or damaged, or contradict each other. Nothing was changed. An operator has to decide."""


# --- storage -------------------------------------------------------------------------------------------------------------


class StorageError(Unavailable):
    """An object store or disk reported a failure that may be temporary."""

    changed_nothing = False
    """Whether the failed call is known to have changed nothing. If False, it may have taken effect."""


class StorageRefused(StorageError):
    """The store rejected the request: the bucket is missing, or credentials or permissions are wrong. Nothing was changed."""

    recovery = Recovery.STOP
    changed_nothing = True


class StorageFull(StorageRefused):
    """No space, inode or quota is left for a write. Nothing was changed. The same call succeeds once space is free."""

    recovery = Recovery.RETRY


class ObjectNotFound(DamagedTable):
    """The named object does not exist."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no object at {path!r}")
        self.path = path


class ObjectExists(Conflict):
    """A put-if-absent failed because an object of that name exists."""

    def __init__(self, path: str) -> None:
        super().__init__(f"an object exists at {path!r}")
        self.path = path


class UnsafePath(InvalidInput):
    """A path that leads out of its root folder, or that no table may contain."""


# --- input ---------------------------------------------------------------------------------------------------------------


class TableNotFound(InvalidInput):
    """No Hudi table exists at the base path."""


class TableExists(InvalidInput):
    """A table already exists at the base path."""


class UnsupportedTable(InvalidInput):
    """The table is valid, but this operation does not support its kind."""


class TableUpgraded(UnsupportedTable):
    """Apache Hudi gave a shared table another version. A service, or `tideline share`, shares it in that version."""


class MergerUnusable(UnsupportedTable):
    """The code that merges the rows of a table is not installed, fails, or returns other rows than it should."""


class InvalidOption(InvalidInput):
    """An unknown option, or a value that its declaration does not allow."""


class InvalidPredicate(InvalidInput):
    """A filter text that cannot be parsed, or that does not match the columns of the table."""


class InvalidStatement(InvalidInput):
    """An SQL statement that cannot be parsed, or that does something else than query a table or change its rows."""


class SchemaMismatch(InvalidInput):
    """Rows whose schema does not match the schema of the table."""


class InvalidRecord(InvalidInput):
    """A row that cannot be written, for example because of a null record key or an unsafe partition value."""


class SourceFailed(Unavailable):
    """The source of the rows to write failed before their end, for a reason outside the table. Nothing was written."""


class DuplicateKey(InvalidInput):
    """An insert found a duplicate key and its duplicate policy is to fail."""


class InstantNotFound(InvalidInput):
    """An instant that the table does not contain."""


class HistoryUnavailable(TidelineError):
    """The files or instants of the requested changes were cleaned or archived. Begin again with a snapshot query."""


class HistoryRewritten(HistoryUnavailable):
    """A restore removed writes that the reader of the changes has read already. Begin again with a snapshot query."""


class WritesMissed(DamagedTable):
    """Apache Hudi archived writes of a shared table before Tideline adopted them, so the table's content is unknown."""


# --- state on storage that is not what it should be -----------------------------------------------------------------------


class CorruptMetadata(DamagedTable):
    """A timeline file, plan, properties file or table log entry that cannot be parsed."""


class DamagedFile(CorruptMetadata):
    """A data file is not what the completed commit that names it wrote. Nothing was read of it, and nothing was changed.

    `path` is the file.
    """

    def __init__(self, path: str, found: str, *, expected: str) -> None:
        super().__init__(
            f"data file {str(path)!r} {found}",
            expected=expected,
            remedy="restore the file from a copy of the storage, or the table to a savepoint before its commit; "
            "tideline check --deep PATH lists all damaged files",
        )
        self.path = str(path)


class TableIncomplete(CorruptMetadata):
    """Files that say what the table holds are missing, while other files show that they existed. Nothing was changed.

    A reader that went on would miss rows, and a writer would lose them for good.
    """


RESTORE_FILE = "restore the file; nothing was changed"
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""Exceptions of Python for a document of another shape than the code that reads it expects."""


@contextmanager
def parsing(document: str, expected: str) -> Iterator[None]:
    """Translate `MALFORMED` exceptions while `document` is read into `CorruptMetadata`."""
    try:
        yield
    except MALFORMED as error:
        raise CorruptMetadata(
            f"{document} cannot be read ({type(error).__name__}: {error})", expected=expected, remedy=RESTORE_FILE
        ) from None


class TableFrozen(DamagedTable):
    """The table must not be written until an operator has decided about the problem that was found."""


class ClockSkew(Unavailable):
    """A clock or an instant is too far ahead of the store's time, which dates the files of the table. Nothing was written."""


# --- transactions --------------------------------------------------------------------------------------------------------


class SavepointRefused(InvalidInput):
    """In the current state of the table, the savepoint cannot be made or restored. Nothing was changed."""


class CleanRefused(InvalidInput):
    """A clean would delete a larger part of the table than the options allow. Nothing was deleted."""


class MetadataExists(InvalidInput):
    """The table already has a metadata table. Nothing was changed."""


class MetadataNotFound(InvalidInput):
    """The table has no metadata table. Nothing was changed."""


class MetadataDamaged(DamagedTable):
    """The metadata table is missing what the operation needs, cannot be read, or contradicts the table log. Nothing was changed."""


class WriteConflict(Conflict):
    """Another writer or table service changed what this transaction read or wrote.

    `with_instant` is the instant of the other transaction. This transaction is rolled back. Read the table again, then retry.
    """

    def __init__(self, found: str, *, with_instant: str, expected: str = "", remedy: str = "read again and retry") -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.with_instant = with_instant


class ClusteringFirst(WriteConflict):
    """The write changes a file group under clustering `with_instant`, which has priority. It waits, and fails on timeout."""


class RestorePending(WriteConflict):
    """Restore `with_instant` is pending. Nothing may be written until it has completed."""


class BacklogTooLarge(Unavailable):
    """Compaction has not kept up with the writers, and `tideline.write.backlog.response` refuses more writes.

    Nothing was written.
    """


class ProgressMoved(Conflict):
    """The stored progress is not the value that the commit expected: another writer committed the same input, or more.

    The transaction is rolled back and not retried. `key` names the progress, `held` is its current value (None: never set).
    """

    def __init__(self, found: str, *, key: str, held: str | None, expected: str = "", remedy: str = "") -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.key = key
        self.held = held


class TransactionRolledBack(Conflict):
    """Another writer rolled this transaction back, usually because its heartbeat expired. Its files will never become visible."""


class RestoredMeanwhile(TransactionRolledBack):
    """The table was restored while this transaction ran. There is no automatic retry: data that it read may be gone."""


class CommitUnknown(TidelineError):
    """The commit was sent, but its outcome could not be read. The table log holds the outcome."""

    recovery = Recovery.REFRESH


class AppendOutrun(Unavailable):
    """Other writers appended to the table log first in every attempt. Nothing was appended."""


class IllegalTransition(Conflict):
    """A transition that the life cycle of the action does not allow."""

    recovery = Recovery.STOP


class VerificationFailed(DamagedTable):
    """The check of an operation before its commit (row counts, key hashes) failed. Nothing became visible."""
