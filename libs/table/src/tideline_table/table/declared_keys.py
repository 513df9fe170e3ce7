"""Key generators in `hoodie.properties` (format reference 2.1)."""

from __future__ import annotations

from collections.abc import Mapping

from tideline_table.config import column_list
from tideline_table.errors import InvalidOption
from tideline_table.hudi import properties as p
from tideline_table.keygen import KeyGenerator, KeyGeneratorType, PartitionType, TimeBased
from tideline_table.keygen.timebased import PREFIX, SETTINGS

_CLASSES = {
    f"{stem.format(twin)}": kind
    for kind, stem in {
        KeyGeneratorType.SIMPLE: "Simple{}KeyGenerator",
        KeyGeneratorType.COMPLEX: "Complex{}KeyGenerator",
        KeyGeneratorType.TIMESTAMP: "TimestampBased{}KeyGenerator",
        KeyGeneratorType.CUSTOM: "Custom{}KeyGenerator",
        KeyGeneratorType.NON_PARTITION: "Nonpartitioned{}KeyGenerator",
        KeyGeneratorType.GLOBAL_DELETE: "Global{}DeleteKeyGenerator",
    }.items()
    for twin in ("", "Avro")
}
KEY_SETTINGS = frozenset({*(PREFIX + name for name in SETTINGS), p.COMPLEX_NEW_ENCODING, p.LOGICAL_TIMESTAMPS})
"""Properties of the key generator that a request for a new table may set."""
_PACKAGES = ("org.apache.hudi.keygen.", "com.uber.hoodie.")


def read_keygen(properties: Mapping[str, str]) -> KeyGenerator:
    """Return the key generator that a table's properties declare.

    Never fails: `KeyGenerator.problem` names what is unsupported, because such a table can still be read.
    """
    keys = column_list(properties.get(p.KEY_FIELDS, ""))
    declared = column_list(properties.get(p.PARTITION_FIELDS, ""))
    names = tuple(field.partition(":")[0] for field in declared)
    kind = _declared_type(properties)
    effective = kind or KeyGeneratorType.inferred(keys, names)
    types: tuple[PartitionType, ...] = ()
    time_based, problem = None, ""
    try:
        if effective is KeyGeneratorType.CUSTOM:
            types = _partition_types(declared, names, properties.get(p.PARTITION_PATH_FIELD, ""))
        if effective is KeyGeneratorType.TIMESTAMP or PartitionType.TIMESTAMP in types:
            time_based = TimeBased.from_settings(properties)
        problem = _problem(effective, keys, names, properties)
    except InvalidOption as error:
        problem = str(error)
    return KeyGenerator(
        key_fields=keys,
        partition_fields=names,
        hive_style=_is_true(properties, p.HIVE_STYLE),
        url_encode=_is_true(properties, p.URL_ENCODE),
        declared_type=kind,
        partition_types=types,
        time_based=time_based,
        bare_single_key=_is_true(properties, p.COMPLEX_NEW_ENCODING),
        logical_timestamps=_is_true(properties, p.LOGICAL_TIMESTAMPS),
        problem=problem,
    )


def keygen_properties(keygen: KeyGenerator) -> dict[str, str]:
    """Return the properties of a new table that describe its key generator. `read_keygen` is the inverse."""
    properties = {
        **({p.KEY_FIELDS: ",".join(keygen.key_fields)} if keygen.key_fields else {}),
        p.KEYGEN_CLASS: keygen.class_name,
        p.HIVE_STYLE: str(keygen.hive_style).lower(),
        p.URL_ENCODE: str(keygen.url_encode).lower(),
    }
    if keygen.partition_fields:
        properties[p.PARTITION_FIELDS] = ",".join(keygen.partition_fields)
    if keygen.partition_types:
        # A version 6 table lists its partition fields without types; Hudi's writers read the types from this key.
        pairs = zip(keygen.partition_fields, keygen.partition_types, strict=True)
        properties[p.PARTITION_PATH_FIELD] = ",".join(f"{name}:{kind}" for name, kind in pairs)
    if keygen.time_based is not None:
        properties |= {PREFIX + name: value for name, value in keygen.time_based.settings}
    if keygen.bare_single_key:
        properties[p.COMPLEX_NEW_ENCODING] = "true"
    if keygen.logical_timestamps:
        properties[p.LOGICAL_TIMESTAMPS] = "true"
    return properties


def _declared_type(properties: Mapping[str, str]) -> KeyGeneratorType | None:
    name = properties.get(p.KEYGEN_TYPE, "").upper().removesuffix("_AVRO")
    if name:
        return KeyGeneratorType(name) if name in set(KeyGeneratorType) else KeyGeneratorType.OTHER
    class_name = properties.get(p.KEYGEN_CLASS, "")
    if not class_name:
        return None
    return key_generator_named(class_name) if "." in class_name else KeyGeneratorType.OTHER


def key_generator_named(name: str) -> KeyGeneratorType:
    """Return the key generator that a class of Hudi, or a name of its type, stands for; OTHER for one outside Hudi."""
    package, _, short = name.rpartition(".")
    if not package:
        kind = name.upper().removesuffix("_AVRO")
        return KeyGeneratorType(kind) if kind in set(KeyGeneratorType) else KeyGeneratorType.OTHER
    return _CLASSES.get(short, KeyGeneratorType.OTHER) if f"{package}." in _PACKAGES else KeyGeneratorType.OTHER


def _partition_types(declared: tuple[str, ...], names: tuple[str, ...], told: str) -> tuple[PartitionType, ...]:
    types = {field.partition(":")[0]: field.partition(":")[2].upper() for field in column_list(told)}
    types |= {field.partition(":")[0]: field.partition(":")[2].upper() for field in declared if ":" in field}
    wrong = [name for name in names if types.get(name) not in set(PartitionType)]
    if wrong:
        raise InvalidOption(
            f"a custom key generator with the partition field {wrong[0]!r} of type {types.get(wrong[0], 'unknown')!r}",
            expected=f"{wrong[0]}:SIMPLE or {wrong[0]}:TIMESTAMP in {p.PARTITION_FIELDS} or {p.PARTITION_PATH_FIELD}",
        )
    return tuple(PartitionType(types[name]) for name in names)


def _problem(kind: KeyGeneratorType, keys: tuple[str, ...], partitions: tuple[str, ...], properties: Mapping[str, str]) -> str:
    if kind is KeyGeneratorType.OTHER:
        return f"the key generator {properties.get(p.KEYGEN_CLASS) or properties.get(p.KEYGEN_TYPE)}"
    if kind is KeyGeneratorType.GLOBAL_DELETE:
        return f"the key generator {kind}, which derives keys of deletions only"
    if kind in (KeyGeneratorType.SIMPLE, KeyGeneratorType.TIMESTAMP) and (len(keys) > 1 or len(partitions) != 1):
        return f"the key generator {kind} with {len(keys)} key and {len(partitions)} partition field(s), not one of each"
    if kind is KeyGeneratorType.NON_PARTITION and partitions:
        return f"the key generator {kind} with partition fields"
    return ""


def _is_true(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(key, "false").lower() == "true"
