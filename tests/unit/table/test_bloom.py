"""Bloom filters: the bits are those that Apache Hudi writes."""

import base64
import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tideline_table.bloom import BloomFilter, KeyBytes
from tideline_table.errors import CorruptMetadata

TABLES = Path(__file__).parents[2] / "fixtures" / "tables"


def test_hashes_are_hadoops_murmur():
    """Vectors of the format reference (8.3): position = |h rem m|, here with m beyond every hash."""
    keys = pa.array(["a", "ab", "abc", "k0000", "é漢"])
    found = np.empty(5, dtype=np.int64)
    for chosen, positions in KeyBytes(keys).positions(1, 2**32 - 1):
        found[chosen] = positions[0]
    assert found.tolist() == [1838653602, 1525573013, 1775488903, 2068872719, 1951169939]
    for _, second in KeyBytes(pa.array(["k0000"])).positions(2, 2**32 - 1):
        assert second[:, 0].tolist() == [2068872719, 158211269], "the next function begins with the hash before"


def hudi_files():
    for archive in sorted(TABLES.glob("*v6_nonpartitioned.zip")) + sorted(TABLES.glob("*v6_simplekeygen*.zip")):
        with zipfile.ZipFile(archive) as files:
            for name in files.namelist():
                if name.endswith(".parquet") and "/." not in name:
                    yield pq.ParquetFile(io.BytesIO(files.read(name)))


def test_filters_are_bit_for_bit_those_of_apache_hudi():
    compared = 0
    for file in hudi_files():
        pairs = file.metadata.metadata
        if b"org.apache.hudi.bloomfilter" not in pairs:
            continue
        is_dynamic = pairs.get(b"hoodie_bloom_filter_type_code") == b"DYNAMIC_V0"
        theirs = BloomFilter.from_bytes(base64.b64decode(pairs[b"org.apache.hudi.bloomfilter"]), is_dynamic=is_dynamic)
        keys = KeyBytes(file.read(columns=["_hoodie_record_key"]).column(0))
        ours = BloomFilter.sized(60_000, 1e-9)
        assert (ours.hashes, ours.bits) == (theirs.hashes, theirs.bits)
        assert ours.with_keys(keys).rows == theirs.rows
        assert theirs.may_hold(keys).all()
        assert not theirs.may_hold(KeyBytes(pa.array([f"no such key {n}" for n in range(100)]))).any()
        compared += 1
    assert compared >= 3


GOLDEN = json.loads((TABLES.parent / "bloom_filters.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["case"])
def test_filters_of_apache_hudi_hold_their_keys(case):
    """Written once by Apache Hudi 1.2.0 with small filters: fuller than they are sized for, of one row and of several."""
    content = base64.b64decode(case["footer"]["org.apache.hudi.bloomfilter"])
    is_dynamic = case["footer"].get("hoodie_bloom_filter_type_code") == "DYNAMIC_V0"
    assert is_dynamic == (case["type"] == "DYNAMIC_V0")
    theirs = BloomFilter.from_bytes(content, is_dynamic=is_dynamic)
    keys = KeyBytes(pa.array(case["keys"]))
    assert theirs.may_hold(keys).all()
    strangers = theirs.may_hold(KeyBytes(pa.array([f"no such key {n}" for n in range(5000)])))
    assert strangers.mean() < {"simple": 0.7, "dynamic_rows": 0.05, "dynamic": 0.001}[case["case"]]
    empty = BloomFilter.sized(case["entries"], case["false_positives"])
    if len(theirs.rows) == 1:
        ours = empty.with_keys(keys)
        written = ours.to_dynamic_bytes(case["entries"], keys.count) if is_dynamic else ours.to_bytes()
        assert written == content, "ours are theirs, byte for byte"
    else:
        assert theirs.to_dynamic_bytes(case["entries"], int.from_bytes(content[17:21])) == content
        assert (theirs.hashes, theirs.bits, len(theirs.rows)) == (empty.hashes, empty.bits, 3)


def test_members_are_found_and_few_others():
    keys = pa.chunked_array([[f"k{n}" * (n % 7) for n in range(3000)], [], ["x" * 5000]], pa.string())
    octets = KeyBytes(keys)
    found = BloomFilter.sized(len(keys), 0.001).with_keys(octets)
    assert found.may_hold(octets).all()
    assert found.may_hold(KeyBytes(pa.array([f"other{n}" for n in range(20_000)]))).mean() < 0.002
    assert BloomFilter.from_bytes(found.to_bytes()) == found
    both = found.with_keys(KeyBytes(pa.array(["later"])))
    assert both.may_hold(KeyBytes(pa.array(["later", "k1"]))).all()
    assert not BloomFilter.sized(10, 0.001).may_hold(octets).any(), "an empty filter holds nothing"


def test_sliced_and_empty_columns():
    whole = pa.array([f"key {n}" for n in range(50)])
    part = BloomFilter.sized(10, 0.001).with_keys(KeyBytes(whole.slice(20, 10)))
    assert part == BloomFilter.sized(10, 0.001).with_keys(KeyBytes(pa.array(whole.slice(20, 10).to_pylist())))
    assert part.with_keys(KeyBytes(pa.array([], pa.string()))) == part


SOUND = BloomFilter.sized(10, 0.01).to_bytes()


@pytest.mark.parametrize(
    ("content", "is_dynamic"),
    [
        (b"", False),
        (SOUND[:-1], False),
        (SOUND + b"\0", False),
        (struct.pack(">iibi", 3, 7, 1, 8) + b"\0", False),
        (struct.pack(">iibi", -1, 65, 1, 8) + b"\0", False),
        (struct.pack(">iibi", -1, 7, 0, 8) + b"\0", False),
        (struct.pack(">iibi", -1, 7, 1, -8), False),
        (struct.pack(">iibi", -1, 7, 1, 2**31 - 1), False),
        (SOUND, True),
        (SOUND[:13] + struct.pack(">iii", 10, 0, 0), True),
        (SOUND[:13] + struct.pack(">iii", 10, 0, 2**31 - 1) + SOUND, True),
        (SOUND[:13] + struct.pack(">iii", 10, 0, 2) + SOUND + BloomFilter.sized(20, 0.01).to_bytes(), True),
    ],
)
def test_broken_filters_are_refused(content, is_dynamic):
    with pytest.raises(CorruptMetadata, match="Bloom filter"):
        BloomFilter.from_bytes(content, is_dynamic=is_dynamic)


def test_keys_of_many_lengths_have_the_hashes_that_each_has_alone(monkeypatch):
    monkeypatch.setattr("tideline_table.bloom._WORK_BYTES", 5_000)
    keys = ["", "a", "k" * 3, "k" * 4, "é漢😀", "longer than others " * 9, *(f"key {n * n}" for n in range(500)), "x" * 7_000]
    together = BloomFilter.sized(600, 1e-9).with_keys(KeyBytes(pa.array(keys)))
    alone = BloomFilter.sized(600, 1e-9)
    for key in keys:
        alone = alone.with_keys(KeyBytes(pa.array([key])))
    assert together == alone
    later = BloomFilter.sized(600, 1e-9).with_keys(KeyBytes(pa.chunked_array([keys[:200], keys[200:]])))
    assert later == together
    assert BloomFilter.sized(600, 1e-9).with_keys(KeyBytes(pa.array(["no", *keys]).slice(1))) == together
