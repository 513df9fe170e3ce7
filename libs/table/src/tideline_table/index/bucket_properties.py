"""The bucket index that a table's properties or the options of a writer declare, and properties that declare one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tideline_table.config import (
    BUCKET_ENGINE,
    BUCKET_HASH_FIELD,
    BUCKET_NUMBER,
    BUCKET_PARTITION_RULE_TYPE,
    BUCKET_PARTITION_RULES,
    INDEX_TYPE,
    column_list,
)
from tideline_table.errors import InvalidOption, UnsupportedTable
from tideline_table.index.bucket import BUCKET, BY_PARTITION, RESIZING, SEVERAL_FILE_GROUPS, BucketIndex, Engine
from tideline_table.index.bucket_kinds import RingIndex, SeveralGroupsIndex
from tideline_table.index.partition_rules import NO_RULES, RULE_TYPE, PartitionRules

_RESTORE = "restore hoodie.properties as the table was created, or write the table with Apache Hudi"


def bucket_index(
    number: int,
    fields: Sequence[str],
    key_fields: Sequence[str],
    engine: Engine = Engine.SIMPLE,
    rules: PartitionRules = NO_RULES,
    *,
    has_several: bool = False,
) -> BucketIndex:
    """Return the index.

    Raises `InvalidOption` for a number out of range, for hash fields outside the record key, and for rules or several file
    groups in each bucket with a hash ring, which fixes the file ids.
    """
    kind = RingIndex if engine is Engine.CONSISTENT else SeveralGroupsIndex if has_several else BucketIndex
    if has_several and kind is not SeveralGroupsIndex:
        raise InvalidOption(
            "several file groups in each bucket, with consistent hashing",
            expected="one of them: consistent hashing splits a bucket that outgrows its size",
        )
    if not 1 <= number <= kind.most:
        raise InvalidOption(f"{number} buckets", expected=f"1 to {kind.most}")
    unknown = [name for name in fields if name not in key_fields]
    if unknown or len(set(fields)) < len(fields):
        raise InvalidOption(
            f"hash fields {', '.join(fields)}", expected=f"each once, and columns of the record key ({', '.join(key_fields)})"
        )
    if rules and not kind.has_rules:
        raise InvalidOption(f"the partition rules {rules.text} with consistent hashing", expected="the simple engine")
    # Hudi takes the values in the order of the key, whatever the order of the hash fields.
    own = tuple(name for name in key_fields if not fields or name in fields)
    return kind(number, own, tuple(key_fields), rules)


def declares_index(properties: Mapping[str, str]) -> bool:
    """Whether a table's properties declare a bucket index, also one that cannot be written."""
    return properties.get(INDEX_TYPE.key, "").upper() == BUCKET or RESIZING in properties


def declared_index(properties: Mapping[str, str], key_fields: Sequence[str]) -> BucketIndex | None:
    """Return the index that a table's properties declare, None if they declare none.

    Raises `UnsupportedTable` for an engine, a number, hash fields or partition rules that cannot be written.
    """
    is_resizing = RESIZING in properties
    if not declares_index(properties):
        return None
    engine = properties.get(BUCKET_ENGINE.key, Engine.SIMPLE).upper()
    number = properties[RESIZING] if is_resizing else properties.get(BUCKET_NUMBER.key, "")
    kind = properties.get(BUCKET_PARTITION_RULE_TYPE.key, RULE_TYPE)
    if engine not in set(Engine) or not (number.isascii() and number.isdecimal()) or kind != RULE_TYPE:
        raise UnsupportedTable(
            f"a bucket index with {BUCKET_ENGINE.key}={engine}, {BUCKET_NUMBER.key}={number} and "
            f"{BUCKET_PARTITION_RULE_TYPE.key}={kind}",
            expected=f"the engine {' or '.join(Engine)}, a number of buckets and, for partition rules, {RULE_TYPE}",
            remedy=_RESTORE,
        )
    try:
        rules = PartitionRules.parse(properties.get(BUCKET_PARTITION_RULES.key, ""))
        fields, several = column_list(properties.get(BUCKET_HASH_FIELD.key, "")), SEVERAL_FILE_GROUPS in properties
        return bucket_index(int(number), fields, key_fields, Engine(engine), rules, has_several=several)
    except InvalidOption as error:
        raise UnsupportedTable(f"a bucket index with {error.found}", expected=error.expected, remedy=_RESTORE) from None


def resizing_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a table while its buckets are split: Apache Hudi finds no bucket index in them."""
    hidden = {INDEX_TYPE.key, BUCKET_NUMBER.key}
    return {**{k: v for k, v in properties.items() if k not in hidden}, RESIZING: properties[BUCKET_NUMBER.key]}


def with_numbers_of(index: BucketIndex, text: str) -> BucketIndex:
    """Return `index` with the numbers of buckets in `text`, a `BucketIndex.text` with the same hash fields."""
    head, _, rules = text.removesuffix(index.suffix).partition(BY_PARTITION)
    return replace(index, number=int(head.partition(" ")[0]), rules=PartitionRules.parse(rules))


def with_numbers(properties: Mapping[str, str], number: int, rules: str) -> dict[str, str]:
    """Return properties that declare a bucket index with this number of buckets and text of partition rules (or none)."""
    kept = {k: v for k, v in properties.items() if k not in (RESIZING, BUCKET_PARTITION_RULE_TYPE.key)}
    declared = {INDEX_TYPE.key: BUCKET, BUCKET_NUMBER.key: str(number), BUCKET_PARTITION_RULES.key: rules}
    return {**kept, **declared, **({BUCKET_PARTITION_RULE_TYPE.key: RULE_TYPE} if rules else {})}
