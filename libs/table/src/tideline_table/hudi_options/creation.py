"""The table that a job written for Apache Hudi defines: created, or compared with the one that exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tideline_table.config import column_list
from tideline_table.errors import InvalidOption
from tideline_table.hudi.merge_rules import BY_COMMIT_TIME, BY_EVENT_TIME, CUSTOM, STRATEGIES, MergeRule
from tideline_table.hudi.properties import DEFAULT_PAYLOAD, PARTITION_FIELDS
from tideline_table.hudi_options.parse import Given, HudiOptions
from tideline_table.index import RECORD_INDEX, Engine
from tideline_table.keygen import KeyGenerator, KeyGeneratorType
from tideline_table.table import BloomIndex, BucketIndex, RecordIndex, TableDefinition, TableRequest, TableType
from tideline_table.table.declared_keys import key_generator_named, read_keygen
from tideline_table.table.requested_merging import named_rule

HUDI_BUCKETS = 256
"""Buckets of each partition if a job names the index BUCKET without their number: Hudi's default."""
_BUCKET = "BUCKET"


def request_fields(options: HudiOptions) -> dict[str, Any]:
    """Return the fields of a `TableRequest` that the options name. Raises `InvalidOption` for values that are not supported."""
    given, fields = options.table, dict[str, Any]()
    for target in ("name", "database"):
        if target in given:
            fields[target] = given[target].value
    if "key" in given:
        fields["key_fields"] = column_list(given["key"].value)
    if "partition" in given:
        fields["partition_fields"] = column_list(given["partition"].value)
    if "ordering" in given:
        fields["ordering_field"] = _ordering(given["ordering"])
    if rule := _asked_rule(options):
        fields["merge"] = rule.payload_class or rule.name
    if "type" in given:
        fields["type"] = _type(given["type"])
    if "base_format" in given:
        fields["base_format"] = given["base_format"].value.upper()
    if "changes" in given:
        mode = given["changes_mode"].value.upper() if "changes_mode" in given else "DATA_BEFORE_AFTER"
        fields["changes"] = mode if _flag(given["changes"]) else ""
    for target in ("hive_style", "url_encode", "meta_fields"):
        if target in given:
            fields[target] = _flag(given[target])
    if "key_generator" in given:
        kind = _key_generator(given["key_generator"])
        fields["key_generator"] = kind.value
        if kind is KeyGeneratorType.NON_PARTITION:
            # Hudi's generator of this name leaves partition columns out.
            fields["partition_fields"] = ()
    if "version" in given:
        fields["version"] = _number(given["version"])
    if options.settings:
        fields["key_settings"] = dict(options.settings)
    return {**fields, **_index_fields(given)}


def _index_fields(given: Mapping[str, Given]) -> dict[str, Any]:
    kind = given["index"].value.upper() if "index" in given else ""
    if kind == RECORD_INDEX:
        return {"index": RecordIndex()}
    if kind != _BUCKET:
        return {}
    consistent = False
    if "bucket_engine" in given:
        engine = given["bucket_engine"].value.upper()
        if engine not in set(Engine):
            raise InvalidOption(f"{given['bucket_engine']}", expected=" or ".join(Engine))
        consistent = Engine(engine) is Engine.CONSISTENT
    return {
        "index": BucketIndex(
            _number(given["buckets"]) if "buckets" in given else HUDI_BUCKETS,
            column_list(given["hash_fields"].value) if "hash_fields" in given else (),
            given["partition_buckets"].value if "partition_buckets" in given else "",
            consistent,
        )
    }


def table_request(
    options: HudiOptions, name: str, schema: pa.Schema, partition_by: tuple[str, ...] = (), *, needs_key: bool = True
) -> TableRequest:
    """Return the table to create: named `name` unless the options name it, with the columns of `schema`.

    `partition_by` are the partition columns if the options name none. Raises `InvalidOption` for options that do not define a
    table that can be created here, and, with `needs_key`, without a record key.
    """
    arguments: dict[str, Any] = {} if "partition" in options.table else {"partition_fields": partition_by}
    return named_request(options, arguments if needs_key else {**arguments, "key_fields": None}, name, schema)


def named_request(options: HudiOptions, arguments: Mapping[str, Any], name: str, schema: pa.Schema) -> TableRequest:
    """Return the table that `arguments` (fields of a `TableRequest`; empty ones count as not given) and `options` define.

    Raises `InvalidOption` if both name one thing with different values, and if neither names a record key, unless the argument is
    None: then the table has none.
    """
    given = {field: value for field, value in arguments.items() if value or field == "meta_fields"}
    if "merge" in given:
        rule = named_rule(given["merge"])
        given["merge"] = rule.payload_class or rule.name
    fields = request_fields(options)
    if "index" in given:
        _check_index(given["index"], options.table)
        fields.pop("index", None)
    for field in given.keys() & fields.keys():
        if given[field] != fields[field]:
            raise InvalidOption(
                f"{field.replace('_', ' ')} {_shown(given[field])} by argument and {_shown(fields[field])} by an option of Hudi",
                expected="one of them",
            )
    request = TableRequest(**{"name": name, "key_fields": (), **fields, **given, "schema": schema})
    if not request.key_fields and arguments.get("key_fields", ()) is not None:
        raise InvalidOption(
            "no record key columns",
            expected="the argument key (--key), or the option hoodie.datasource.write.recordkey.field",
            remedy="name the columns that identify a row, or only add rows (key=None; on Spark the operation insert)",
        )
    if "merge" not in given and request.merge == DEFAULT_PAYLOAD and not request.ordering_field:
        # The class of Hudi's default compares nothing if there is nothing to compare.
        return replace(request, merge="")
    return request


def _check_index(index: object, options: Mapping[str, Given]) -> None:
    """Raise `InvalidOption` if options name another index than the argument `index`."""
    held = {"index": RECORD_INDEX if isinstance(index, RecordIndex) else ""}
    if isinstance(index, BloomIndex):
        held["index"] = "GLOBAL_BLOOM" if index.across_partitions else "BLOOM"
    if isinstance(index, BucketIndex):
        held = {
            "index": _BUCKET,
            "buckets": str(index.buckets),
            "bucket_engine": (Engine.CONSISTENT if index.consistent else Engine.SIMPLE).value,
            "hash_fields": ",".join(index.hash_fields),
            "partition_buckets": index.partition_buckets,
        }
    for target, present in held.items():
        given = options.get(target)
        if given is None:
            continue
        same = (
            column_list(given.value) == column_list(present) if target == "hash_fields" else given.value.upper() == present.upper()
        )
        if not same:
            raise InvalidOption(f"{given} for the index {index} by argument", expected="one of them")


def check_agrees(options: HudiOptions, found: TableDefinition, partition_by: tuple[str, ...] = ()) -> list[str]:
    """Compare the table that the options define with the one that exists, as Hudi's writers do.

    Returns what the options name otherwise without a consequence: the table stays as it is. Raises `InvalidOption` for another
    name, type, keys, partitions, ordering or merging.
    """
    asked, keygen, given = request_fields(options), found.keygen, options.table
    if partition_by and "partition_fields" not in asked:
        asked["partition_fields"] = partition_by
    if asked.get("changes") and found.changes and "changes_mode" not in given:
        asked["changes"] = found.changes
    names = tuple(name.partition(":")[0] for name in asked.get("partition_fields", keygen.partition_fields))
    held: list[tuple[str, object, object]] = [
        ("name", asked.get("name", found.name).casefold(), found.name.casefold()),
        ("type", asked.get("type", found.type).value, found.type.value),
        ("key", asked.get("key_fields", keygen.key_fields), keygen.key_fields),
        ("partition", names, keygen.partition_fields),
        ("ordering", asked.get("ordering_field", found.ordering_field), found.ordering_field),
        ("hive_style", asked.get("hive_style", keygen.hive_style), keygen.hive_style),
        ("url_encode", asked.get("url_encode", keygen.url_encode), keygen.url_encode),
        ("key_generator", asked.get("key_generator", keygen.type.value), keygen.type.value),
        ("meta_fields", asked.get("meta_fields", found.has_meta_fields), found.has_meta_fields),
        ("changes", asked.get("changes", found.changes), found.changes),
        ("base_format", asked.get("base_format", found.extension.upper()), found.extension.upper()),
    ]
    for target, wanted, present in held:
        if wanted != present:
            said = given.get(target, Given("partitionBy", ",".join(names)))
            raise InvalidOption(
                f"{said} for table {found.name!r}",
                expected=f"{_shown(present)}, as the table was created",
                remedy="leave the option out, or write another table",
            )
    _check_settings(options, found)
    if rule := _asked_rule(options):
        _check_rule(rule, _merging(options), found)
    return [str(given["version"])] if asked.get("version", found.version) != found.version else []


def _check_settings(options: HudiOptions, found: TableDefinition) -> None:
    """Raise `InvalidOption` if settings of the key generator would give keys or partition paths that the table does not have."""
    settings, own = dict(options.settings), found.keygen
    if "partition" in options.table and ":" in options.table["partition"].value:
        settings[PARTITION_FIELDS] = options.table["partition"].value
    if not settings or own.problem:
        return
    wanted = read_keygen({**found.properties, **settings})
    if wanted.problem or _paths_and_keys(wanted) != _paths_and_keys(own):
        raise InvalidOption(
            f"{', '.join(f'{key}={value}' for key, value in settings.items())} for table {found.name!r}",
            expected="the settings of the key generator with which the table was created",
            remedy="leave the options out, or write another table",
        )


def _paths_and_keys(keygen: KeyGenerator) -> tuple[object, ...]:
    """Return what settings decide of a key generator, without those that have no effect on it."""
    time_based = keygen.time_based and replace(keygen.time_based, settings=())
    bare = keygen.bare_single_key and keygen.type is KeyGeneratorType.COMPLEX
    return time_based, keygen.partition_types, keygen.logical_timestamps, bare


def _merging(options: HudiOptions) -> list[Given]:
    return [given for key, given in options.table.items() if key.startswith("hoodie.")]


def _asked_rule(options: HudiOptions) -> MergeRule | None:
    """Return the merge rule that the payload class or the merge mode names, None if neither is given."""
    given = _merging(options)
    modes = {said.value.upper(): said for said in given if said.value.upper() in STRATEGIES}
    rules = [named_rule(said.value) for said in given if said.value.upper() not in STRATEGIES]
    for rule in rules[1:]:
        if rule != rules[0]:
            raise InvalidOption(" and ".join(map(str, given)), expected="one merge rule")
    if not rules and modes.keys() == {CUSTOM}:
        raise InvalidOption(f"{modes[CUSTOM]} without a payload class", expected="hoodie.datasource.write.payload.class, too")
    named = rules or [rule for rule in (BY_EVENT_TIME, BY_COMMIT_TIME) if rule.mode in modes]
    for mode, said in modes.items():
        if mode not in (named[0].mode, named[0].mode_before_9):
            raise InvalidOption(f"{said} for rows merged by {named[0].name}", expected=named[0].mode)
    return named[0] if named else None


def _check_rule(rule: MergeRule, said: list[Given], found: TableDefinition) -> None:
    held = found.merge_rule
    nothing_to_compare = rule.payload_class == DEFAULT_PAYLOAD and not found.ordering_field
    if rule.name != held.name and not (nothing_to_compare and held.name == BY_COMMIT_TIME.name):
        raise InvalidOption(
            f"{' and '.join(map(str, said))} for table {found.name!r}, whose rows are merged by {held.name}",
            expected=f"{held.mode}, or {held.payload_class}",
            remedy="leave the option out, or write another table",
        )


def _ordering(given: Given) -> str:
    return ",".join(column_list(given.value))


def _type(given: Given) -> TableType:
    if given.value.upper() not in set(TableType):
        raise InvalidOption(f"{given}", expected=" or ".join(TableType))
    return TableType(given.value.upper())


def _key_generator(given: Given) -> KeyGeneratorType:
    found = key_generator_named(given.value)
    if found in (KeyGeneratorType.OTHER, KeyGeneratorType.GLOBAL_DELETE):
        kinds = [kind.value for kind in KeyGeneratorType if kind not in (KeyGeneratorType.OTHER, KeyGeneratorType.GLOBAL_DELETE)]
        raise InvalidOption(
            f"{given}, code that cannot run here",
            expected=f"a class of Hudi for {', '.join(kinds)}",
            remedy="compute the key and partition columns in the DataFrame",
        )
    return found


def _flag(given: Given) -> bool:
    if given.value.lower() not in ("true", "false"):
        raise InvalidOption(f"{given}", expected="true or false")
    return given.value.lower() == "true"


def _number(given: Given) -> int:
    if not (given.value.isascii() and given.value.isdecimal()):
        raise InvalidOption(f"{given}", expected="a whole number")
    return int(given.value)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return (",".join(value) if isinstance(value, tuple) else str(value)) or "none"
