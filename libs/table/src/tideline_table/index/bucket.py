"""The bucket index: the record key alone says which bucket of its partition holds a row (RFC-29).

Apache Hudi's simple engine, bit for bit (format reference 12.1): the values of the hash fields are cut out of the text of the
record key, hashed as a Java list of strings, and counted off by the number of buckets. The first eight characters of a file id
are the bucket number. A bucket is one file group (pattern 1 of the RFC), so tagging reads no file, or several (pattern 2),
among which key ranges and Bloom filters find the one of a key.

With consistent hashing (12.2), the same values have another hash, and a ring for each partition says to which bucket it belongs
(`hash_ring`). A bucket number is then the position of a node in the ring of its partition.

With rules (12.3), the path of a partition says how many buckets it has: `BucketIndex.in_partition` returns the index to use there.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tideline_table.config import (
    BUCKET_ENGINE,
    BUCKET_HASH_FIELD,
    BUCKET_NUMBER,
    BUCKET_PARTITION_RULE_TYPE,
    BUCKET_PARTITION_RULES,
    INDEX_TYPE,
    Options,
    column_list,
)
from tideline_table.errors import InvalidOption, InvalidRecord, UnsupportedTable
from tideline_table.hudi.file_names import MAX_BUCKETS, bucket_of_file_id
from tideline_table.index.hash_ring import MAX_NODES, HashRing
from tideline_table.index.java_hash import string_hashes
from tideline_table.index.partition_rules import NO_RULES, RULE_TYPE, PartitionRules
from tideline_table.index.xx_hash import text_hashes
from tideline_table.keygen import EMPTY_KEY, NULL_KEY

BUCKET = "BUCKET"
RESIZING = "tideline.bucket.index.resizing"
"""The number of buckets before a resize that has not completed, in place of the properties of the index that Apache Hudi reads."""
SEVERAL_FILE_GROUPS = "tideline.bucket.index.several.file.groups"
"""Property of a table whose buckets grow by file groups (pattern 2 of RFC-29); absent otherwise."""
PLAIN_KEYS = "tideline.bucket.index.plain.keys"
"""Property of a table all of whose writers refuse what `BucketIndex.check_plain` refuses."""
BY_PARTITION = ", by partition "
"""In `BucketIndex.text`: before the rules."""
_SEVERAL = ", several file groups each"
_RESTORE = "restore hoodie.properties as the table was created, or write the table with Apache Hudi"


class Engine(enum.StrEnum):
    """How a hash is assigned to a bucket. The values are those of `hoodie.index.bucket.engine`."""

    SIMPLE = "SIMPLE"
    CONSISTENT = "CONSISTENT_HASHING"


@dataclass(frozen=True, slots=True)
class BucketIndex:
    """`number` buckets in each partition, by the hash of `fields` (columns of the record key, in its order)."""

    number: int
    """With consistent hashing, the number of buckets with which each partition begins; with rules, that of partitions without
    one."""
    fields: tuple[str, ...]
    key_fields: tuple[str, ...]
    engine: Engine = Engine.SIMPLE
    rules: PartitionRules = NO_RULES
    """Numbers of buckets by partition path. With rules, only the index of a partition (`in_partition`) has bucket numbers."""
    has_several: bool = False
    """Whether a bucket may have several file groups of a partition (pattern 2 of RFC-29). A key is then looked up in those of its
    bucket."""

    @property
    def is_consistent(self) -> bool:
        """Whether the ring of a partition says which bucket a row belongs to; `ring` arguments then need that ring."""
        return self.engine is Engine.CONSISTENT

    @property
    def text(self) -> str:
        """The number of buckets, the hash fields and the rules, for messages and comparison."""
        rules = f"{BY_PARTITION}{self.rules.text}" if self.rules else ""
        kind = "consistent " if self.is_consistent else ""
        return f"{self.number} {kind}bucket(s) by {','.join(self.fields)}{rules}{_SEVERAL if self.has_several else ''}"

    def in_partition(self, partition_path: str) -> BucketIndex:
        """Return the index of one partition, which has no rules."""
        if not self.rules:
            return self
        return replace(self, number=self.rules.number_of(partition_path, self.number), rules=NO_RULES)

    def common_number(self, partitions: Iterable[str]) -> int:
        """Return the greatest common divisor of the numbers of buckets of all these partitions.

        Modulo it, equal keys have equal bucket numbers.

        Rows with one hash are in buckets that are equal modulo this number. Raises `InvalidOption` if it is 1 because of the rules.
        """
        numbers = {self.in_partition(name).number for name in partitions} if self.rules else {self.number}
        found = math.gcd(*numbers) or self.number
        if found == 1 and len(numbers) > 1:
            raise InvalidOption(
                f"partitions with {', '.join(map(str, sorted(numbers)[:5]))} buckets",
                expected="numbers with a common divisor, such as N and multiples of N: the buckets of one hash have no common "
                "number",
                remedy="read the table without buckets",
            )
        return found

    @classmethod
    def checked(
        cls,
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
        if has_several and engine is Engine.CONSISTENT:
            raise InvalidOption(
                "several file groups in each bucket, with consistent hashing",
                expected="one of them: consistent hashing splits a bucket that outgrows its size",
            )
        largest = MAX_NODES if engine is Engine.CONSISTENT else MAX_BUCKETS
        if not 1 <= number <= largest:
            raise InvalidOption(f"{number} buckets", expected=f"1 to {largest}")
        unknown = [name for name in fields if name not in key_fields]
        if unknown or len(set(fields)) < len(fields):
            raise InvalidOption(
                f"hash fields {', '.join(fields)}", expected=f"each once, and columns of the record key ({', '.join(key_fields)})"
            )
        if rules and engine is not Engine.SIMPLE:
            raise InvalidOption(f"the partition rules {rules.text} with consistent hashing", expected="the simple engine")
        # Hudi takes the values in the order of the key, whatever the order of the hash fields.
        own = tuple(name for name in key_fields if not fields or name in fields)
        return cls(number, own, tuple(key_fields), engine, rules, has_several)

    @classmethod
    def of_properties(cls, properties: Mapping[str, str], key_fields: Sequence[str]) -> BucketIndex | None:
        """Return the index that a table's properties declare, None if they declare none.

        Raises `UnsupportedTable` for an engine, a number, hash fields or partition rules that cannot be written.
        """
        is_resizing = RESIZING in properties
        if properties.get(INDEX_TYPE.key, "").upper() != BUCKET and not is_resizing:
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
            return cls.checked(int(number), fields, key_fields, Engine(engine), rules, has_several=several)
        except InvalidOption as error:
            raise UnsupportedTable(f"a bucket index with {error.found}", expected=error.expected, remedy=_RESTORE) from None

    @property
    def properties(self) -> dict[str, str]:
        """The properties that keep the index with the table. Apache Hudi's Spark writers take them as defaults of their options."""
        return {
            INDEX_TYPE.key: BUCKET,
            BUCKET_ENGINE.key: self.engine.value,
            BUCKET_NUMBER.key: str(self.number),
            BUCKET_HASH_FIELD.key: ",".join(self.fields),
            **self._rule_properties,
            **({SEVERAL_FILE_GROUPS: "true"} if self.has_several else {}),
        }

    @property
    def _rule_properties(self) -> dict[str, str]:
        """An empty text without rules: with the key in its place, Apache Hudi refuses writers whose options name rules."""
        if self.is_consistent:
            return {}
        return {BUCKET_PARTITION_RULES.key: self.rules.given, **({BUCKET_PARTITION_RULE_TYPE.key: RULE_TYPE} if self.rules else {})}

    def buckets(self, keys: pa.ChunkedArray | pa.Array, ring: HashRing | None = None) -> np.ndarray:
        """Return the bucket number of each record key, of the partition with this `ring` if there is consistent hashing."""
        return self.buckets_of(self.hash_codes(keys), ring)

    def buckets_of(self, codes: np.ndarray, ring: HashRing | None = None) -> np.ndarray:
        """Return the bucket number of each result of `hash_codes`."""
        assert (ring is not None) == self.is_consistent, "a ring for consistent hashing, and for nothing else"
        assert not self.rules, "the index of a partition says the bucket"
        return codes % self.number if ring is None else ring.nodes_of(codes)

    def hash_codes(self, keys: pa.ChunkedArray | pa.Array) -> np.ndarray:
        """Return the hash of each record key, 0 to 2^31 - 1, which decides its bucket."""
        return _positive(text_hashes(self._joined(keys)) if self.is_consistent else self._hashes(keys)).astype(np.int64)

    def check_values(self, keys: pa.ChunkedArray) -> None:
        """Raise `InvalidRecord` if a hash field is null in one of these composite keys.

        Hudi gives all such rows the hash of nothing. A key of one column is never null.
        """
        if len(self.key_fields) < 2:
            return
        suspects = pc.filter(keys, pc.match_substring(keys, NULL_KEY))
        for key in suspects.to_pylist():
            if None in hash_values(key, self.fields):
                raise InvalidRecord(
                    f"a null hash field in the record key {key!r}",
                    expected=f"values in {', '.join(self.fields)}: all rows with null values would be in few buckets",
                    remedy="fill the column, or create the table with other hash fields",
                )

    @property
    def is_cut_from_keys(self) -> bool:
        """Whether only some columns of the key decide: their values are cut out of a text that holds others, too."""
        return len(self.fields) < len(self.key_fields)

    def check_plain(self, keys: pa.ChunkedArray) -> None:
        """Raise `InvalidRecord` if a record key holds a text that is cut like the pair of a hash field, such as `,user:` in a page.

        Readers could not tell the bucket of such a row from the hash fields alone.
        """
        for name in self.fields if self.is_cut_from_keys else ():
            pair = f",{name}:"
            expected = 0 if name == self.key_fields[0] else 1
            wrong = pc.filter(keys, pc.not_equal(pc.count_substring(keys, pair), expected))
            if len(wrong):
                raise InvalidRecord(
                    f"{len(wrong)} record key(s) such as {wrong[0].as_py()!r}, in which {pair!r} is part of a value",
                    expected=f"no key column that holds {pair!r}: the bucket index reads it as the hash field {name}",
                    remedy="change the value, or create the table with all key columns as hash fields",
                )

    def check_members(self, file_id: str, keys: pa.ChunkedArray, ring: HashRing | None = None) -> None:
        """Raise `UnsupportedTable` if a file group holds a record key of another bucket: a writer with other settings wrote it."""
        bucket = bucket_of_file_id(file_id) if ring is None else ring.position_of(file_id)
        strays = len(keys) if bucket is None else int((self.buckets(keys, ring) != bucket).sum())
        if strays:
            raise UnsupportedTable(
                f"file group {file_id} holds {strays} row(s) of other buckets",
                expected=f"rows of one of {self.text}",
                remedy="a writer with other settings wrote the table: read it, and write its rows into a new table",
            )

    def _hashes(self, keys: pa.ChunkedArray | pa.Array) -> np.ndarray:
        """Return `List.hashCode` of the hash values of each key: 31 + the value's hash for one value, and so on for more."""
        column = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        hashes = string_hashes(column) + np.uint32(31)
        composite = np.flatnonzero(
            np.asarray(pc.and_(pc.match_substring(column, ","), pc.match_substring(column, ":"))).astype(bool)
        )
        if len(composite):
            hashes[composite] = self._composite_hashes(column.take(pa.array(composite)))
        return hashes

    def _joined(self, keys: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
        """Return the hash values of each key as one text, without separator. A null value reads `null`, as in Java."""
        composite = pc.and_(pc.match_substring(keys, ","), pc.match_substring(keys, ":"))
        if not pc.any(composite).as_py():
            return keys
        texts = keys.to_pylist()
        for row in np.flatnonzero(np.asarray(composite)).tolist():
            texts[row] = "".join("null" if v is None else v for v in hash_values(texts[row], self.fields))
        return pa.array(texts, pa.string())

    def _composite_hashes(self, keys: pa.Array) -> np.ndarray:
        hashes = np.ones(len(keys), dtype=np.uint32)
        parts = pc.extract_regex(keys, pattern=self._plain_pattern())
        for at, name in enumerate(self.key_fields):
            if name in self.fields:
                value = parts.field(f"v{at}")
                # `hashCode` of an empty string and of null is 0.
                none = pc.is_in(value, value_set=pa.array([NULL_KEY, EMPTY_KEY]))
                hashes = hashes * np.uint32(31) + np.where(np.asarray(none), np.uint32(0), string_hashes(value))
        for row in np.flatnonzero(~np.asarray(pc.is_valid(parts))).tolist():
            hashes[row] = _list_hash(hash_values(keys[row].as_py(), self.fields))
        return hashes

    def _plain_pattern(self) -> str:
        """Match composite keys whose values hold no separator: the usual ones, which need no walk."""
        return "^" + ",".join(f"{re.escape(name)}:(?P<v{at}>[^:,]*)" for at, name in enumerate(self.key_fields)) + "$"


def hash_values(key: str, fields: Sequence[str]) -> list[str | None]:
    """Return the values of the hash `fields` in the text of a record key, as Apache Hudi 1.2 cuts them out.

    A key without ',' or without ':' is one value. Otherwise it is read as `name:value` pairs: a value may hold ':' and ',', and
    ends at the last ',' before the ':' of the next name. The text decides, not the key generator: a value that looks like a
    pair is one.
    """
    if "," not in key or ":" not in key:
        return [key]
    values: list[str | None] = []
    start = 0
    while start < len(key):
        colon = key.index(":", start)
        name, end = key[start:colon], _value_end(key, colon)
        if name in fields:
            value = key[colon + 1 : end]
            values.append(None if value == NULL_KEY else "" if value == EMPTY_KEY else value)
        start = end + 1
    return values or [key]


def _value_end(key: str, colon: int) -> int:
    """Return the end of the value after `colon`: the ',' before the next name, or the end of the key."""
    following = key.find(":", colon + 1)
    while following >= 0:
        comma = key.rfind(",", colon, following)
        if comma >= 0:
            return comma
        following = key.find(":", following + 1)
    return len(key)


def _list_hash(values: Sequence[str | None]) -> np.uint32:
    hashes = (int(own) for own in string_hashes(pa.array(values, pa.string())))
    return np.uint32(reduce(_java_step, hashes, 1))


def _java_step(total: int, own: int) -> int:
    return (31 * total + own) % 2**32


def _positive(hashes: np.ndarray) -> np.ndarray:
    return hashes & np.uint32(0x7FFFFFFF)


def resizing_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a table while its buckets are split: Apache Hudi finds no bucket index in them."""
    hidden = {INDEX_TYPE.key, BUCKET_NUMBER.key}
    return {**{k: v for k, v in properties.items() if k not in hidden}, RESIZING: properties[BUCKET_NUMBER.key]}


def with_numbers_of(index: BucketIndex, text: str) -> BucketIndex:
    """Return `index` with the numbers of buckets in `text`, a `BucketIndex.text` with the same hash fields."""
    head, _, rules = text.removesuffix(_SEVERAL).partition(BY_PARTITION)
    return replace(index, number=int(head.partition(" ")[0]), rules=PartitionRules.parse(rules))


def with_numbers(properties: Mapping[str, str], number: int, rules: str) -> dict[str, str]:
    """Return properties that declare a bucket index with this number of buckets and text of partition rules (or none)."""
    kept = {k: v for k, v in properties.items() if k not in (RESIZING, BUCKET_PARTITION_RULE_TYPE.key)}
    declared = {INDEX_TYPE.key: BUCKET, BUCKET_NUMBER.key: str(number), BUCKET_PARTITION_RULES.key: rules}
    return {**kept, **declared, **({BUCKET_PARTITION_RULE_TYPE.key: RULE_TYPE} if rules else {})}


def check_index(index: BucketIndex | None, options: Options) -> None:
    """Raise `InvalidOption` if a writer's options name another index, number of buckets or hash fields than the table has."""
    given = options.given()
    if index is None:
        if given.get(INDEX_TYPE.key) == BUCKET:
            raise InvalidOption(
                f"{INDEX_TYPE.key}={BUCKET} for a table without a bucket index",
                expected="the index that the table was created with",
                remedy="create a table with it: tideline create PATH --index bucket --buckets N",
            )
        return
    wrong = []
    if given.get(INDEX_TYPE.key, BUCKET) != BUCKET:
        wrong.append(f"{INDEX_TYPE.key}={given[INDEX_TYPE.key]}")
    if given.get(BUCKET_ENGINE.key, index.engine.value) != index.engine.value:
        wrong.append(f"{BUCKET_ENGINE.key}={given[BUCKET_ENGINE.key]}")
    if given.get(BUCKET_NUMBER.key, str(index.number)) != str(index.number):
        wrong.append(f"{BUCKET_NUMBER.key}={given[BUCKET_NUMBER.key]}")
    rules = PartitionRules.parse(given.get(BUCKET_PARTITION_RULES.key, ""))
    if rules and rules.closed(index.number) != index.rules.closed(index.number):
        wrong.append(f"{BUCKET_PARTITION_RULES.key}={given[BUCKET_PARTITION_RULES.key]}")
    if BUCKET_HASH_FIELD.key in given and set(column_list(given[BUCKET_HASH_FIELD.key])) != set(index.fields):
        wrong.append(f"{BUCKET_HASH_FIELD.key}={given[BUCKET_HASH_FIELD.key]}")
    if wrong:
        raise InvalidOption(
            f"{', '.join(wrong)} for a table with a bucket index",
            expected=f"{index.text}, as the table was created",
            remedy="leave these options out: the table keeps them",
        )
