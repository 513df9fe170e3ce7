"""Change files: what Apache Hudi's queries of changes read where a base file replaces another one (format reference 9.6).

The other changes follow from the base and log files themselves.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.errors import UnsupportedTable
from tideline_table.file_group.slice import join_path
from tideline_table.hudi.file_names import change_file_name
from tideline_table.hudi.properties import CHANGES_MODE, CHANGES_MODES
from tideline_table.log_format import BlockType, avro_block, row_schema
from tideline_table.schema.arrow import one_chunk
from tideline_table.schema.evolution import conform
from tideline_table.schema.meta_fields import META_FIELDS, MetaField
from tideline_table.storage import Storage
from tideline_table.writer.marker import create_marker, log_marker
from tideline_table.writer.task import WriteContext


def change_schema(avro_schema: str, mode: str) -> str:
    """Return the Avro schema of changes of rows with `avro_schema`: what Apache Hudi writes in this mode of a table.

    Raises `UnsupportedTable` for a mode that Apache Hudi does not have.
    """
    if mode not in CHANGES_MODES:
        raise UnsupportedTable(
            f"{CHANGES_MODE}={mode}", expected=" or ".join(CHANGES_MODES), remedy="set one of them in hoodie.properties"
        )
    image = json.loads(avro_schema)
    image["fields"] = [field for field in image["fields"] if field["name"] not in META_FIELDS]
    space = image.get("namespace")
    kinds = {"before": image, "after": f"{space}.{image['name']}" if space else image["name"]}
    fields = [{"name": n, "type": ["null", kinds.get(n, "string")], "default": None, "doc": ""} for n in CHANGES_MODES[mode]]
    return json.dumps({"type": "record", "name": "CDC", **({"namespace": space} if space else {}), "fields": fields})


def write_changes(
    context: WriteContext, base_path: str, gone: pa.Table | None, written: pa.Table | None, storage: Storage
) -> dict[str, int]:
    """Write the change file beside the base file at `base_path`; return its path and size.

    `gone` are the rows of the base file before that do not stay, `written` the rows that take their places or are new.
    """
    folder, _, name = base_path.rpartition("/")
    path, text = join_path(folder, change_file_name(name)), change_schema(context.avro_schema, context.changes)
    content = avro_block(_changes(text, context.instant, gone, written), text, context.instant, kind=BlockType.CDC)
    create_marker(storage, context.instant, path, log_marker(context.format))
    storage.put(path, content)
    return {path: len(content)}


def _changes(text: str, instant: str, gone: pa.Table | None, written: pa.Table | None) -> pa.Table:
    wanted = row_schema(text)
    old, new = (pa.array([], pa.string()) if r is None else one_chunk(r.column(MetaField.RECORD_KEY)) for r in (gone, written))
    place = pc.index_in(old, value_set=new)
    fresh = pc.indices_nonzero(pc.invert(pc.is_in(new, value_set=old)))
    updated = pc.if_else(pc.is_valid(place), "u", "d")
    columns: dict[str, list[pa.Array]] = {
        "op": [updated, pa.repeat("i", len(fresh))],
        "ts_ms": [pa.repeat(instant, len(old) + len(fresh))],
        "record_key": [old, new.take(fresh)],
    }
    if "before" in wanted.names:
        kind = wanted.field("before").type
        after = _images(written, kind)
        columns["before"] = [_images(gone, kind), pa.nulls(len(fresh), kind)]
        columns["after"] = [after.take(place), after.take(fresh)]
    return pa.table({f.name: pa.chunked_array(columns[f.name], f.type) for f in wanted}, wanted)


def _images(rows: pa.Table | None, kind: pa.StructType) -> pa.Array:
    if rows is None:
        return pa.nulls(0, kind)
    found = conform(rows.select([field.name for field in kind if field.name in rows.column_names]), pa.schema(list(kind)))
    return pa.StructArray.from_arrays([one_chunk(column) for column in found.columns], fields=list(kind))
