"""Creating and opening tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from tideline.opened import Options
from tideline.query import Columns
from tideline.rows import Schema, column_list, schema_from
from tideline.table import Table
from tideline_catalogs import locate
from tideline_locks import attach_lock, lock_url, open_hudi_lock
from tideline_table import config
from tideline_table import table as engine
from tideline_table.checked import checked
from tideline_table.errors import InvalidOption
from tideline_table.hudi_options import named_request, parse_hudi_options
from tideline_table.table import BloomIndex, BucketIndex, KeyIndex, RecordIndex

__all__ = ["BloomIndex", "BucketIndex", "RecordIndex", "create", "open"]
_DEFAULT_TYPE = "COW"


@checked
def create(
    path: str | os.PathLike[str],
    *,
    schema: Schema,
    key: Columns = (),
    partition: str | Iterable[str] = (),
    ordering: str | Iterable[str] = "",
    merge: str = "",
    type: str = "cow",  # noqa: A002 - the option's name in Hudi
    name: str = "",
    hive_style: bool = False,
    url_encode: bool = False,
    key_generator: str = "",
    key_settings: Mapping[str, str] | None = None,
    meta_fields: bool = True,
    index: KeyIndex | None = None,
    table_version: int = 0,
    options: Options = None,
    locks: str | None = None,
) -> Table:
    """Create an empty table at `path` (a local folder, `file:` or `s3://bucket/prefix`) and open it as `open` does.

    `schema` is an Arrow schema, rows whose schema is taken (no rows are written), a StructType of Spark, or text such as
    `"id VARCHAR, tags VARCHAR[]"`, which DuckDB reads. Any library with the Arrow PyCapsule interface can make the first two.
    `key` names the columns of the record key (None: rows are only added and read), `partition` those of the partition path. Of two
    versions of a row, the one with the larger value in the column `ordering` wins (of several columns, which tables of version 9
    may have, the first one that differs decides); without `ordering`, the later write wins. `merge` names another rule by which
    versions become one, such as `"partial_update"` or `"aws_dms"` (docs/merging.md). `type` is `"cow"` (copy-on-write) or `"mor"`
    (merge-on-read). `name` is by default the last part of `path`.

    `index` is how writers find the file group that holds a key: `BucketIndex(8)`, `BloomIndex()` or `RecordIndex()`. Without
    it, each writer chooses by `hoodie.index.type`.
    `table_version` is 6 by default, which all engines read; with 9 or 8, engines with Apache Hudi 1.x read the table.
    `options` are those of `open`, and Apache Hudi's own, which define the table in place of arguments
    (`hoodie.datasource.write.recordkey.field`, `hoodie.index.type=BUCKET` and others, docs/hudi-options.md). One with another value
    than its argument is refused.

    Raises `TableExists`, `SchemaMismatch` or `InvalidInput`, and then creates nothing.
    """
    found = parse_hudi_options(options or {})
    engine_options = config.Options(found.write_options()).given()  # validated before the table is created, as the locks are
    lock_url(locks)
    base_path = os.fspath(path)
    arguments: dict[str, Any] = {
        "name": name,
        "key_fields": None if key is None else column_list(key),
        "partition_fields": column_list(partition),
        "ordering_field": ",".join(column_list(ordering)),
        "merge": merge,
        "type": _named_type(type),
        "hive_style": hive_style,
        "url_encode": url_encode,
        "key_generator": key_generator.upper().replace("-", "_"),
        "key_settings": key_settings or {},
        "version": table_version,
        "index": index,
        **({} if meta_fields else {"meta_fields": False}),
    }
    request = named_request(found, arguments, engine.default_name(base_path), schema_from(schema))
    engine.create_table(base_path, request)
    found.warn()
    table, chosen = open(base_path, options=engine_options, locks=locks), config.Options(engine_options)
    if isinstance(request.index, RecordIndex):
        table.maintenance.create_metadata("record_index")
    elif chosen[config.METADATA_ENABLE]:
        table.maintenance.create_metadata()
    if chosen[config.METADATA_COLUMN_STATISTICS]:
        table.maintenance.create_metadata("column_stats")
    return table


def _named_type(name: str) -> engine.TableType | str:
    """Return the table type of this name; empty for the default, with which an option may name the other one."""
    if name.upper() not in engine.TableType.__members__:
        raise InvalidOption(f"table type {name!r}", expected="cow or mor")
    return engine.TableType[name.upper()] if name.upper() != _DEFAULT_TYPE else ""


@checked
def open(  # noqa: A001 - `tideline.open`
    path: str | os.PathLike[str], *, catalog: str = "", options: Options = None, locks: str | None = None
) -> Table:
    """Open the table at `path`, whether Tideline, Apache Hudi or both write it.

    With `catalog`, the URL of a Hive metastore (`hms://host:port`), `path` is the name of the table there, `database.table`
    (docs/catalogs.md). The names with `_ro` and `_rt` open the same table.

    `options` apply to all calls on this table (docs/options.md). `locks` is the URL of a lock at which writers queue,
    `redis://...` or `storage:`, by default that in the variable `TIDELINE_LOCKS`. Without a lock (`""`) writes are as safe: the
    table log decides between writers. A table that is shared with Apache Hudi is always written under the lock of both. Raises
    `TableNotFound`, `InvalidInput`, `DamagedTable`, and `Unavailable` if the catalog does not answer.
    """
    place = locate(os.fspath(path), catalog) if catalog else os.fspath(path)
    table = engine.Table.open(place, options=options, hudi_lock=open_hudi_lock)
    attach_lock(table, locks)
    return Table(table, locks)
