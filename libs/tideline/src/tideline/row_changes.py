"""Updates and deletions of the rows that a condition selects, as one commit each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tideline.expressions import DIALECT, Selection, fitted, parsed
from tideline.opened import Options
from tideline.results import Commit
from tideline_table import action
from tideline_table import table as engine
from tideline_table.action import ChangeSource, RowChange
from tideline_table.errors import SchemaMismatch
from tideline_table.log import ProgressStep
from tideline_table.writer import Operation


def delete_rows(table: engine.Table, selection: Selection, progress: ProgressStep | None = None, options: Options = None) -> Commit:
    """Delete the rows that `selection` selects."""

    def compute(snapshot: engine.Snapshot) -> RowChange:
        found = _selected(table, snapshot, selection)
        none = found.slice(0, 0)
        return RowChange(none, none, found, none)

    return commit_change(_source(table, compute, selection), progress, options)


def update_rows(
    table: engine.Table,
    assigned: Mapping[str, object],
    selection: Selection,
    progress: ProgressStep | None = None,
    options: Options = None,
) -> Commit:
    """Give the rows that `selection` selects the values `assigned`: texts are SQL, other objects values or Arrow expressions."""
    check_assigned(table, assigned)

    def compute(snapshot: engine.Snapshot) -> RowChange:
        found = _selected(table, snapshot, selection)
        none = found.slice(0, 0)
        return RowChange(found, with_values(found, assigned, selection), none, none, assigned=frozenset(assigned))

    return commit_change(_source(table, compute, selection), progress, options)


def _source(table: engine.Table, compute: Callable[[engine.Snapshot], RowChange], selection: Selection) -> ChangeSource:
    return ChangeSource(table, compute, selection.selects, None if selection.reads_table else selection.arrow)


def commit_change(source: ChangeSource, progress: ProgressStep | None, options: Options) -> Commit:
    """Commit a change as an upsert, and return how many rows it updated, deleted and inserted."""
    done = action.write_rows(source.table, source, Operation.UPSERT, options=options, progress=progress)
    commit = Commit.of(done, action.run_inline(source.table, options))
    change = source.change
    assert change is not None
    counts = {
        "rows_updated": change.new.num_rows,
        "rows_deleted": change.deleted.num_rows,
        "rows_inserted": change.inserted.num_rows,
    }
    return replace(commit, **counts)


def check_assigned(table: engine.Table, assigned: Mapping[str, object], *, keys: bool = True) -> None:
    """Raise `SchemaMismatch` for columns that the table does not have; with `keys` also for those of the record key."""
    names = table.schema.names
    if not assigned:
        raise SchemaMismatch("an update without columns", expected="a mapping from columns to values")
    for name in assigned:
        if name not in names:
            raise SchemaMismatch(f"column {name!r} is not in the table", expected=f"one of {', '.join(names)}")
    of_key = {name.split(".")[0] if name not in names else name for name in table.definition.keygen.key_fields}
    for name in sorted(of_key & assigned.keys()) if keys else ():
        raise SchemaMismatch(
            f"an update of column {name!r}, which the record key consists of",
            expected="updates of other columns",
            remedy="delete the rows and insert them with the new key",
        )


def with_values(rows: pa.Table, assigned: Mapping[str, object], selection: Selection) -> pa.Table:
    """Return the rows with the values assigned, computed from the rows as they are."""
    texts = {name: value for name, value in assigned.items() if isinstance(value, str)}
    columns: dict[str, pa.ChunkedArray] = {}
    if texts:  # also without rows: a wrong text is refused whatever the condition selects
        kinds = selection.evaluator.kinds(rows)
        sql = {
            name: f"cast(({parsed(text, f'value of column {name!r}').sql(DIALECT)}) as {kinds[name]})"
            for name, text in texts.items()
        }
        found = selection.evaluator.values(rows, sql, selection.name)
        columns = {name: found.column(name) for name in texts}
    for name, value in assigned.items():
        if not isinstance(value, str):
            columns[name] = value_of(rows, value, rows.schema.field(name))
    made = rows
    for name, column in columns.items():
        wanted = rows.schema.field(name)
        made = made.set_column(rows.schema.get_field_index(name), wanted, fitted(column, wanted))
    return made


def value_of(rows: pa.Table, value: object, wanted: pa.Field) -> pa.ChunkedArray:
    """Return the value of a column that is no SQL text, for each row. Raises `SchemaMismatch` if the column cannot hold it."""
    if isinstance(value, pc.Expression):
        import pyarrow.dataset as ds

        try:
            return ds.dataset(rows).to_table(columns={wanted.name: value}).column(0)
        except (pa.ArrowException, TypeError, KeyError) as error:
            raise SchemaMismatch(f"an expression for column {wanted.name!r} that Arrow refuses ({error})") from None
    try:
        one = value.cast(wanted.type) if isinstance(value, pa.Scalar) else pa.scalar(value, wanted.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise SchemaMismatch(
            f"{value!r} for column {wanted.name!r} ({str(error).splitlines()[0]})",
            expected=f"a value of type {wanted.type}, or SQL text",
        ) from None
    return pa.chunked_array([pa.repeat(one, rows.num_rows)], wanted.type)


def _selected(table: engine.Table, snapshot: engine.Snapshot, selection: Selection) -> pa.Table:
    names = table.schema.names
    if selection.rest is None:
        return snapshot.read(names, selection.arrow)
    return selection.of(snapshot.read(None, selection.arrow)).select(names)
