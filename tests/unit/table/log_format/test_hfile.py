"""HFiles of HBase and of Hudi, and ones that are wrong on purpose."""

import base64
import random
import struct
import tracemalloc
import zipfile

import pyarrow as pa
import pytest
from tests.unit.table.fixtures import FIXTURES, names
from tests.unit.table.hfiles import block, field, full_key, hadoop_length, hfile, varint

from tideline_table.errors import CorruptMetadata, InvalidRecord, UnsupportedTable
from tideline_table.log_format import hfile_writer
from tideline_table.log_format.checksum import crc32c
from tideline_table.log_format.hfile import HFile, open_hfile
from tideline_table.log_format.hfile_writer import JoinedEntries, batch_of, hfile_bytes
from tideline_table.log_format.protobuf import read_fields, read_varint
from tideline_table.storage import MemoryStorage


@pytest.mark.parametrize(
    ("name", "count"), [("hudi_1_0_hbase_2_4_9_16KB_NONE_5000", 5000), ("hudi_1_0_hbase_2_4_9_16KB_GZ_20000", 20000)]
)
def test_files_of_hbase(name, count):
    file = HFile((FIXTURES / "hfile" / f"{name}.hfile").read_bytes())
    rows = file.read()
    assert rows.schema.types == [pa.binary(), pa.binary()]
    assert rows.column("key").to_pylist() == [b"hudi-key-%09d" % n for n in range(count)]
    assert rows.column("value").to_pylist() == [b"hudi-value-%09d" % n for n in range(count)]
    assert file.entry_count == count
    assert file.file_info["hudi_hfile_testing.custom_key"] == b"hudi_custom_value"
    assert file.file_info["hfile.LASTKEY"][2:-10] == b"hudi-key-%09d" % (count - 1)
    assert list(file.meta_blocks) == ["bloomFilter"]
    batches = list(file.entries())
    assert sum(b.num_rows for b in batches) == count
    assert max(b.nbytes for b in batches) < 32 * 1024, "one data block at a time"


def test_every_file_of_metadata_tables():
    """Base files of Hudi's own writer."""
    found = 0
    for table in names("tables"):
        with zipfile.ZipFile(FIXTURES / "tables" / f"{table}.zip") as archive:
            for name in archive.namelist():
                if not name.endswith(".hfile") or "__MACOSX" in name:
                    continue
                file = HFile(archive.read(name))
                keys = file.read().column("key").to_pylist()
                assert keys == sorted(set(keys))
                assert len(keys) == file.entry_count
                assert b'"HoodieMetadataRecord"' in file.file_info["schema"]
                if keys:
                    assert file.file_info["minRecordKey"] == keys[0]
                    assert file.file_info["maxRecordKey"] == keys[-1]
                if "/files/" in name:
                    assert b"__all_partitions__" in keys
                found += 1
    assert found >= 70


def entries(count, start=0, key=b"k%06d"):
    return [(key % n, b"v%d" % n * (n % 4)) for n in range(start, start + count)]


def pairs(file: HFile):
    return [tuple(row.values()) for row in file.read().to_pylist()]


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_indexes_of_several_levels(levels, gz):
    blocks = [entries(7, 7 * n) for n in range(11)]
    file = HFile(hfile(blocks, levels=levels, gz=gz, metas={"bloomFilter": b"abc", "x": b""}, info={"schema": b"{}"}))
    assert pairs(file) == entries(77)
    assert file.meta_blocks == {"bloomFilter": b"abc", "x": b""}
    assert file.file_info["schema"] == b"{}"


@pytest.mark.parametrize("mvcc", [None, b"\0", b"\x05", b"\x8f\xff", b"\x8e\x12\x34"])
def test_version_numbers_behind_cells(mvcc):
    assert pairs(HFile(hfile([entries(5)], mvcc=mvcc))) == entries(5)


@pytest.mark.parametrize("length", [hadoop_length, varint])
@pytest.mark.parametrize("size", [100, 117, 118, 131, 244, 288, 300, 3000])
def test_long_keys(length, size):
    """From 128 bytes on both codings of an index entry's length differ."""
    blocks = [entries(3, 3 * n, b"%0" + str(size).encode() + b"d") for n in range(5)]
    assert pairs(HFile(hfile(blocks, length=length))) == [e for part in blocks for e in part]


@pytest.mark.parametrize("blocks", [[], [[]], [[(b"", b"")]], [[(b"", b""), (b"\0", b"x")], [(b"\xff", b"")]]])
def test_edges(blocks):
    assert pairs(HFile(hfile(blocks))) == [e for part in blocks for e in part]


@pytest.mark.parametrize("levels", [1, 2])
def test_of_a_large_file_only_blocks_that_are_asked_for_are_read(levels):
    held = [[(b"k%06d" % n, b"v" * 1000) for n in range(at, at + 40)] for at in range(0, 4000, 40)]
    storage, read = MemoryStorage(), []
    storage.put("f.hfile", content := hfile(held, levels=levels, metas={"bloomFilter": bytes(500_000)}))
    storage.read_range = lambda path, start, length: read.append(length) or MemoryStorage.read_range(storage, path, start, length)
    file = open_hfile(storage, "f.hfile", len(content))
    asked = [b"k000003", b"k002000", b"k002050", b"none"]
    found = {row["key"]: row["value"] for batch in file.blocks_of(asked) for row in batch.to_pylist()}
    assert {key: found.get(key) for key in asked} == {**dict.fromkeys(asked[:3], b"v" * 1000), b"none": None}
    assert sum(read) < (500_000 if levels == 1 else len(content))
    assert pairs(file) == [entry for part in held for entry in part]


@pytest.mark.parametrize("size", [-1, 1, 1000])
def test_a_large_file_of_another_size_than_listed_is_refused(size):
    storage = MemoryStorage()
    storage.put("f.hfile", content := hfile([[(b"k%06d" % n, bytes(1000))] for n in range(1200)]))
    with pytest.raises(CorruptMetadata):
        open_hfile(storage, "f.hfile", len(content) + size).read()


def test_a_sound_file_may_lie_in_a_larger_buffer():
    content = hfile([entries(3)])
    assert pairs(HFile(memoryview(b"xx" + content)[2:])) == entries(3)


TWO = [entries(3), entries(3, 3)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no trailer"),
        (bytes(5000), "no trailer"),
        (hfile(TWO)[:-1] + b"\x02", "version 2"),
        (hfile(TWO, count=5), "6 entries or more"),
        (hfile(TWO, count=7), "6 entries"),
        (hfile([entries(3, 3), entries(3)]), "out of order"),
        (hfile([entries(3), entries(3, 2)]), "out of order"),
        (hfile([[(b"b", b""), (b"a", b"")]]), "out of order"),
        (hfile([[(b"a", b""), (b"a", b"")]]), "out of order"),
        (hfile(TWO, trailer={5: 3}), "does not hold 3 entries"),
        (hfile(TWO, trailer={5: 1}), "does not hold 1 entries"),
        (hfile(TWO, trailer={5: 2**40}), "does not hold"),
        (hfile(TWO, trailer={6: 1}), "does not hold 1 entries"),
        (hfile(TWO, trailer={8: 0}), "0 levels"),
        (hfile(TWO, trailer={8: 9}), "9 levels"),
        (hfile(TWO, trailer={8: 2}), "IDXLEAF2"),
        (hfile(TWO, trailer={2: 2**63}), "offsets inside"),
        (hfile(TWO, trailer={1: 0}), "FILEINF2"),
        (hfile(TWO, mvcc=b"\x87\1\1\1\1\1\1\1\1\1"), "truncated or negative"),
        (hfile(TWO, mvcc=b"\x88\1\1"), "entr"),
    ],
)
def test_broken_files(content, words):
    with pytest.raises(CorruptMetadata, match=words) as caught:
        HFile(content).read()
    assert caught.value.found.startswith("an HFile with")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (hfile(TWO, trailer={12: 3}), "codec 3"),
        (hfile(TWO, trailer={12: 0}), "codec 0"),
        (hfile(TWO, trailer={13: b"key"}), "encrypted"),
        (hfile(TWO, info={"hfile.MAX_TAGS_LEN": b"\0\0\0\1"}), "tags"),
    ],
)
def test_what_hudi_never_writes(content, words):
    with pytest.raises(UnsupportedTable, match=words):
        HFile(content)


def test_without_a_codec_in_the_trailer():
    """A field that is left out has the value that it has in protobuf: none."""
    content = hfile(TWO)
    at = content.rindex(b'TRABLK"$')
    assert content[at + 8] < 128
    fields = content[at + 9 : at + 9 + content[at + 8]]
    assert fields.endswith(field(12, 2))
    shorter = fields[: -len(field(12, 2))]
    tail = (content[at : at + 8] + bytes([len(shorter)]) + shorter).ljust(4092, b"\0")
    assert pairs(HFile(content[:at] + tail + content[-4:])) == entries(6)


@pytest.mark.parametrize("name", ["hudi_1_0_hbase_2_4_9_16KB_NONE_5000", "hudi_1_0_hbase_2_4_9_16KB_GZ_20000"])
def test_checksums_notice_one_bit(name):
    content = (FIXTURES / "hfile" / f"{name}.hfile").read_bytes()
    end = len(content) - 4096
    for at in range(40, end, end // 60):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(CorruptMetadata):
            HFile(bytes(damaged)).read()


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (8, b"\x7f\xff\xff\xff", "sizes that fit"),
        (8, b"\xff\xff\xff\xff", "sizes that fit"),
        (12, b"\x7f\xff\xff\xff", "unpacks to"),
        (12, b"\xff\xff\xff\xff", "unpacks to"),
        (12, b"\0\0\0\1", "checksum"),
        (24, b"\7", "checksums of kind 7"),
        (25, b"\0\0\0\0", "per 0 bytes"),
        (25, b"\0\0\0\1", "bytes of checksums"),
        (29, b"\0\0\0\0", "sizes that fit"),
        (29, b"\x7f\xff\xff\xff", "sizes that fit"),
        (33, b"\xff", "checksum"),
    ],
)
def test_headers_are_not_believed(at, value, words):
    content = bytearray(hfile([entries(3)]))
    content[at : at + len(value)] = value
    with pytest.raises(CorruptMetadata, match=words):
        HFile(bytes(content)).read()


@pytest.mark.parametrize(
    "cells",
    [
        struct.pack(">ii", 11, 0) + bytes(11),
        struct.pack(">ii", 12, -1) + bytes(12),
        struct.pack(">ii", -5, 5) + bytes(12),
        struct.pack(">ii", 2**31 - 1, 2**31 - 1),
        struct.pack(">ii", 12, 0) + b"\0\1" + bytes(10),
        struct.pack(">ii", 14, 0) + b"\0\1k\1f" + bytes(9),
        b"\0\0\0",
    ],
)
def test_broken_cells(cells):
    data = block(b"DATABLK*", cells)
    root = struct.pack(">qi", 0, len(data)) + b"\1k"
    index, metas = block(b"IDXROOT2", root), block(b"IDXROOT2", b"")
    info = block(b"FILEINF2", b"PBUF\0")
    at = len(data) + len(index) + len(metas)
    trailer = b"".join(field(n, v) for n, v in {1: at, 2: len(data), 5: 1, 7: 1, 8: 1}.items())
    tail = (b'TRABLK"$' + varint(len(trailer)) + trailer).ljust(4092, b"\0") + b"\0\0\0\3"
    with pytest.raises(CorruptMetadata, match="HFile"):
        HFile(data + index + metas + info + tail).read()


def test_an_index_cannot_name_a_block_twice():
    """Otherwise one gzip block of kilobytes would unpack to any size."""
    data = block(b"DATABLK*", b"")
    index = block(b"IDXROOT2", (struct.pack(">qi", 0, len(data)) + b"\1k") * 50)
    metas, info = block(b"IDXROOT2", b""), block(b"FILEINF2", b"PBUF\0")
    fields = {1: len(data + index + metas), 2: len(data), 5: 50, 7: 0, 8: 1}
    trailer = b"".join(field(n, v) for n, v in fields.items())
    tail = (b'TRABLK"$' + varint(len(trailer)) + trailer).ljust(4092, b"\0") + b"\0\0\0\3"
    with pytest.raises(CorruptMetadata, match="an index entry for a block at 0"):
        HFile(data + index + metas + info + tail).read()


@pytest.mark.parametrize("claimed", [100, 1 << 20, (1 << 20) + 1, 1 << 27])
def test_a_block_unpacks_to_what_it_claims_and_no_further(claimed):
    bomb = block(b"DATABLK*", bytes(64 << 20), gz=True, claimed=claimed)
    rest = hfile([], gz=True)
    load = rest.index(b"IDXROOT2")
    assert load == 0
    info = rest.index(b"FILEINF2")
    index = block(b"IDXROOT2", struct.pack(">qi", 0, len(bomb)) + b"\1k", gz=True)
    metas, information = block(b"IDXROOT2", b"", gz=True), rest[info:-4096]
    fields = {1: len(bomb + index + metas), 2: len(bomb), 5: 1, 7: 1, 8: 1, 12: 1}
    trailer = b"".join(field(n, v) for n, v in fields.items())
    tail = (b'TRABLK"$' + varint(len(trailer)) + trailer).ljust(4092, b"\0") + b"\0\0\0\3"
    content = bomb + index + metas + information + tail
    file = HFile(content)
    tracemalloc.start()
    with pytest.raises(CorruptMetadata, match="unpacks to another size"):
        file.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * min(claimed, 64 << 20) + 2_000_000


def test_crc32c():
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C
    slow = 0xFFFFFFFF
    data = bytes(n * n % 251 for n in range(1000))
    for byte in data:
        slow ^= byte
        for _ in range(8):
            slow = slow >> 1 ^ (0x82F63B78 if slow & 1 else 0)
    assert crc32c(memoryview(data)) == slow ^ 0xFFFFFFFF


def test_protobuf():
    assert [read_varint(memoryview(varint(n)), 0) for n in (0, 127, 128, 2**64 - 1)] == [
        (0, 1),
        (127, 1),
        (128, 2),
        (2**64 - 1, 10),
    ]
    message = field(1, 300) + field(2, b"abc") + b"\x19" + bytes(8) + b"\x25" + bytes(4) + field(15, 0)
    assert [(n, v if isinstance(v, int) else bytes(v)) for n, v in read_fields(memoryview(message))] == [
        (1, 300),
        (2, b"abc"),
        (3, bytes(8)),
        (4, bytes(4)),
        (15, 0),
    ]
    for broken in (b"\x80", b"\xff" * 9 + b"\x7f", b"\x0a\x05abc", b"\x0b", b"\x09abc"):
        with pytest.raises(CorruptMetadata):
            list(read_fields(memoryview(broken)))


# --- the writer ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5_000])
def test_what_the_writer_writes_is_read_back(count, compressed):
    entries = [(f"key-{number:06}".encode(), bytes([number % 251]) * (number % 90)) for number in range(count)]
    found = HFile(hfile_bytes(iter(entries), {"schema": b"{}"}, created_ms=7, compressed=compressed))
    assert found.entry_count == count
    assert [(row["key"], row["value"]) for row in found.read().to_pylist()] == entries
    assert found.file_info["schema"] == b"{}"
    assert int.from_bytes(found.file_info["hfile.CREATE_TIME_TS"], "big") == 7
    assert found.file_info["hfile.LASTKEY"][2:].startswith(entries[-1][0])
    if count > 1_000:
        assert len(list(found.entries())) > 1, "several data blocks"


@pytest.mark.parametrize("keys", ["even", "uneven"])
def test_values_encoded_by_dictionary_give_the_same_file(keys):
    rows = [f"key-{number:06}{'x' * (number % 3 if keys == 'uneven' else 0)}".encode() for number in range(5_000)]
    codes = pa.array([number % 7 for number in range(5_000)], pa.int32())
    distinct = pa.array([bytes([number]) * number for number in range(7)], pa.binary())
    encoded = pa.DictionaryArray.from_arrays(codes, distinct)
    # As a slice, which does not begin at the start of its buffers.
    batches = [
        pa.RecordBatch.from_arrays([pa.array(rows, pa.binary()), data], names=["key", "value"]).slice(100, 4_000)
        for data in (encoded, encoded.dictionary_decode())
    ]
    found, plain = (hfile_bytes(batch, {}) for batch in batches)
    assert found == plain
    assert HFile(found).read().num_rows == 4_000


def test_slices_of_joined_entries_give_the_same_files():
    entries = [(f"{number // 900}-{number % 900:04}".encode(), b"v" * (number % 90)) for number in range(4_500)]
    groups = [entries[at : at + 900] for at in (1800, 0, 2700, 900)]
    joined = JoinedEntries.of(batch_of([pair for group in groups for pair in group]))
    for at, group in enumerate(groups):
        assert hfile_bytes(joined.slice(900 * at, 900 * (at + 1)), {}, created_ms=1) == hfile_bytes(group, {}, created_ms=1)
    assert hfile_bytes(joined.slice(5, 6), {}) == hfile_bytes(groups[0][5:6], {})
    with pytest.raises(InvalidRecord, match="b'0-0000' after b'2-0899'"):
        hfile_bytes(joined.slice(500, 1_000), {})


def test_a_file_without_repeated_texts():
    texts = [base64.b64encode(random.Random(number).randbytes(20_000)) for number in range(9)]
    entries = [(b"k%d" % number, text) for number, text in enumerate(texts)]
    found = hfile_bytes(entries, {})
    assert [tuple(row.values()) for row in HFile(found).read().to_pylist()] == entries
    assert len(found) < 0.8 * sum(map(len, texts)), "Base64 has six bits in each octet"


def test_first_and_last_key():
    entries = [(f"key-{number:06}".encode(), b"v" * 90) for number in range(5_000)]
    file = HFile(hfile_bytes(entries, {}))
    assert (file.first_key, file.last_key) == (entries[0][0], entries[-1][0])
    assert list(file.blocks_of([b"key-9"])) == list(file.blocks_of([b"a"])) == []
    assert len(list(file.blocks_of([entries[-1][0], b"key-9"]))) == 1


def in_java_order(keys):
    return sorted(keys, key=lambda key: key.decode().encode("utf-16-be"))


@pytest.mark.parametrize("per_block", [1, 2, 5, 40])
@pytest.mark.parametrize("order", [sorted, in_java_order])
def test_keys_are_found_in_either_order(order, per_block):
    """Apache Hudi up to 1.2.0 sorts the keys of the metadata table by UTF-16 units, 1.2.1 by octets."""
    starts = [
        "",
        "a",
        "a\ue000",
        "a\uff01",
        "a\U0001f600",
        "\ud7ff",
        "\ue000",
        "\uff01",
        "\uffff",
        "\U00010000",
        "\U0001f600",
        "\U0010ffff",
    ]
    keys = order({f"{start}{end}".encode() for start in starts for end in ("", "b", "\uff01", "\U0001f600")})
    blocks = [[(key, key) for key in keys[at : at + per_block]] for at in range(0, len(keys), per_block)]
    file = HFile(hfile(blocks, info={"hfile.LASTKEY": full_key(keys[-1])}))
    asked = [[key] for key in keys] + [sorted(keys)]
    for wanted in asked:
        assert file.first_key <= wanted[0] <= wanted[-1] <= file.last_key
        found = {key for batch in file.blocks_of(wanted) for key in batch.column("key").to_pylist()}
        assert found >= set(wanted)
    assert file.read()["key"].to_pylist() == keys
    # Neither order.
    keys[3:5] = keys[4:2:-1]
    with pytest.raises(CorruptMetadata, match="out of order"):
        HFile(hfile([[(key, key) for key in keys]])).read()


@pytest.mark.parametrize("longer", [0, 1], ids=["even", "uneven"])
def test_the_blocks_of_many_keys(longer, monkeypatch):
    wanted = [(f"key-{number:06}{'x' * (longer * number % 3)}".encode(), b"v" * (number % 90)) for number in range(20_000)]
    file = HFile(hfile_bytes(wanted, {}))
    keys = [key for key, _ in wanted[:-1:50]] + [wanted[-1][0]]
    for limit in (1, 300_000, 2**20):
        monkeypatch.setattr("tideline_table.log_format.hfile_entries._BYTES_AT_ONCE", limit)
        batches = list(file.blocks_of(keys))
        assert [(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()] == wanted
        assert (len(batches) < len(list(file.entries()))) == (limit > 1 and not longer)


def test_an_entry_that_reaches_into_the_next_block_is_found(monkeypatch):
    """With the entries of both blocks together, it would fit."""
    content = [(b"k%d" % number, b"v" * 70_000) for number in range(3)]
    file = HFile(hfile_bytes(content, {}, compressed=False))
    blocks = [block for _, block in file._blocks(file._root, b"DATABLK*")]
    assert len(blocks) == 3
    whole = b"".join(blocks)
    torn = [memoryview(whole)[:70_000], memoryview(whole)[70_000:]]
    monkeypatch.setattr(file, "_blocks", lambda references, magic: zip(file._root, torn, strict=False))
    with pytest.raises(CorruptMetadata):
        list(file.blocks_of([key for key, _ in content]))


def test_keys_are_found_in_files_that_are_joined_in_several_parts(monkeypatch):
    monkeypatch.setattr(hfile_writer, "_JOINED_BYTES", 100_000)
    wanted = [(f"key-{number:06}".encode(), b"v" * (number % 90)) for number in range(5_000)]
    file = HFile(hfile_bytes(wanted, {}))
    assert len(list(file.entries())) > 4
    assert [(row["key"], row["value"]) for row in file.read().to_pylist()] == wanted
    for key, value in wanted[::97]:
        (batch,) = file.blocks_of([key])
        assert {"key": key, "value": value} in batch.to_pylist()


@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("longer", [b"", b"y"], ids=["even", "uneven"])
def test_values_that_look_like_the_end_of_a_key(at, longer):
    end = b"\0\x7f" + b"\xff" * 7 + b"\x04"
    first = struct.pack(">iiH", 14, 3, 2) + b"zz" + end + b"abc"
    content = [(b"k%d" % n + longer * (n % 2), b"v" * n) for n in range(6)]
    for value in (end, end + b"\0" + first, b"x" * 7 + first + b"\0", end * 3):
        wanted = [(key, value if n == at else held) for n, (key, held) in enumerate(content)]
        found = HFile(hfile_bytes(wanted, {})).read()
        assert list(zip(found.column("key").to_pylist(), found.column("value").to_pylist(), strict=True)) == wanted


def test_equal_entries_give_equal_bytes():
    assert hfile_bytes([(b"a", b"1")], {}) == hfile_bytes([(b"a", b"1")], {})


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([], "without entries"),
        ([(b"b", b""), (b"a", b"")], "b'a' after b'b'"),
        ([(b"a", b""), (b"a", b"")], "b'a' after b'a'"),
        ([(b"", b"")], "key of 0 bytes"),
        ([(b"k" * 40_000, b"")], "key of 40000 bytes"),
    ],
)
def test_entries_that_no_hfile_can_hold(entries, found):
    with pytest.raises(InvalidRecord, match=found):
        hfile_bytes(entries, {})
