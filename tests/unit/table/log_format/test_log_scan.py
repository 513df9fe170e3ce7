"""Finding blocks in log files: those of Apache Hudi, and every kind of damage (format reference 9.2 to 9.5, 9.9)."""

import itertools
import struct

import pytest
from tests.unit.table.log_files import CountingStorage, data, logs_of_tables, scan, single_log, stored

from tideline_table.errors import CorruptMetadata, TidelineError, UnsupportedTable
from tideline_table.log_format import BlockType, HeaderKey, ScannedLog, command_block, read_rows, scan_log
from tideline_table.log_format.framing import frame_block

A, B, C = data("1", 1, 2), data("2", 3), data("3", 4, 5, 6)
MEBIBYTE = 1024 * 1024


def found(content):
    """What a scan finds, in file order: instants of blocks, sizes of gaps."""
    scanned = scan(content)
    places = {b.offset: b.instant for b in scanned.blocks} | {g.offset: g.size_bytes for g in scanned.gaps}
    return [places[offset] for offset in sorted(places)]


def reasons(content):
    return [gap.reason for gap in scan(content).gaps]


def with_int(block, offset, value, form=">q"):
    changed = bytearray(block)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


def test_a_data_block_of_hudi():
    (block,) = scan(single_log("valid_log_avro_data")).blocks
    assert (block.type, block.instant, block.offset, block.size_bytes) == (BlockType.AVRO, "20250316025828811", 0, 1172)
    assert block.content_offset + block.content_bytes == 1172 - 12
    assert block.schema_json.startswith('{"type":"record","name":"trips_quickstart_mor_avro_record"')
    assert (block.target_instant, block.is_partial) == ("", False)


def test_a_rollback_block_of_hudi_is_what_we_write():
    content = single_log("valid_log_rollback")
    (block,) = scan(content).blocks
    assert (block.type, block.instant, block.target_instant) == (BlockType.COMMAND, "20250126040936578", "20250126040826878")
    assert block.header[HeaderKey.COMMAND_BLOCK_TYPE] == "0"
    (ours,) = scan(command_block(block.instant, block.target_instant)).blocks
    assert ours == block


def test_log_files_of_hudi_tables():
    types = {}
    for name, content in logs_of_tables().items():
        scanned = scan(content)
        assert not scanned.gaps, name
        assert sum(block.size_bytes for block in scanned.blocks) == len(content)
        for block in scanned.blocks:
            types[block.type] = types.get(block.type, 0) + 1
    assert types == {BlockType.AVRO: 7, BlockType.PARQUET: 2, BlockType.DELETE: 107, BlockType.HFILE: 170}


def test_an_empty_file_has_no_blocks():
    assert scan(b"") == ScannedLog((), ())


def test_blocks_stand_back_to_back():
    assert found(A + B + C) == ["1", "2", "3"]


def test_a_file_torn_anywhere_keeps_what_is_whole():
    """Cut after every byte: whole blocks stay, the torn end is one gap."""
    for length in range(len(A) + len(B)):
        whole = ["1"] if length >= len(A) else []
        torn = length - (len(A) if whole else 0)
        assert found((A + B)[:length]) == whole + ([torn] if torn else []), length


def test_a_torn_block_in_the_middle_is_passed_over():
    for cut in (6, 13, 14, 22, 40, len(B) - 1):
        assert found(A + B[:cut] + C) == ["1", cut, "3"], cut


def test_a_torn_magic_in_the_middle_costs_a_neighbour_as_in_hudi():
    # The bytes behind the block before it are no magic, so that block is unsound.
    assert found(A + B[:1] + C) == [len(A) + 1, "3"]
    assert found(A + B[:4] + C) == [len(A) + 4, "3"]
    # Five bytes make a magic with the first of the next block; the search for another goes on behind it.
    assert found(A + B[:5] + C) == ["1", 5 + len(C)]
    assert found(A + B[:5] + C + A) == ["1", 5 + len(C), "1"]


def test_fewer_bytes_than_a_magic_after_the_last_block_cost_only_themselves():
    assert found(A + b"#HUDI") == ["1", 5]
    assert found(A + b"xxxxx") == ["1", 5]
    assert found(A + b"xxxxxx") == [len(A) + 6]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda b: b"#HUDJ#" + b[6:], "no magic"),
        (lambda b: with_int(b, 6, -1), "block size -1"),
        (lambda b: with_int(b, 6, 2**63 - 1), f"block size {2**63 - 1} runs past the end of the file"),
        (lambda b: with_int(b, 6, 3), "block size 3 runs past the end of the file"),
        (lambda b: with_int(b, len(b) - 8, 12), f"block size {len(b'') + len(B) - 14} at the start, trailing length 12 at the end"),
        (lambda b: with_int(b, 22, 2**31 - 1, ">i"), f"a map of {2**31 - 1} entries"),
        (lambda b: with_int(b, 22, -1, ">i"), "a map of -1 entries"),
        (lambda b: with_int(b, 22, 257, ">i"), "a map of 257 entries"),
        (lambda b: with_int(b, 30, 2**31 - 1, ">i"), "a map entry"),
        (lambda b: with_int(b, 30, -5, ">i"), "a map entry"),
        (lambda b: b[:34] + b"\xff" + b[35:], "a map entry that is not UTF-8"),
        (lambda b: with_int(b, len(b) - 12, 7, ">i"), "a map"),
    ],
)
def test_damage_inside_a_block(damage, reason):
    damaged = damage(B)
    assert len(damaged) == len(B)
    if damaged.startswith(b"#HUDI#"):
        assert found(A + damaged + C) == ["1", len(B), "3"]
    else:
        assert found(A + damaged + C) == [len(A) + len(B), "3"]
    assert found(damaged + C) == [len(B), "3"]
    alone = reasons(damaged + C)[0]
    assert alone.startswith(reason) or "size 3" in reason


def test_content_and_footer_must_fill_the_block():
    content_at = scan(B).blocks[0].content_offset
    for change in (1, -1, -4):
        (length,) = struct.unpack_from(">q", B, content_at - 8)
        assert found(A + with_int(B, content_at - 8, length + change) + C) == ["1", len(B), "3"]
    zeros = big("1", 64)
    content_at = scan(zeros).blocks[0].content_offset
    assert reasons(with_int(zeros, content_at - 8, 52)) == ["12 bytes between footer and trailing length"]


def test_a_magic_inside_a_damaged_block_begins_the_next_try():
    """Rows may hold the magic: a gap then ends there, and what follows is judged on its own."""
    inside = frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "2"}, b"#HUDI#" + b"y" * 20)
    assert found(inside) == ["2"]
    at = inside.index(b"#HUDI#", 6)
    assert found(with_int(inside, len(inside) - 8, 0) + C) == [at, len(inside) - at, "3"]


def test_a_block_without_an_instant_is_damaged_except_in_archives():
    nameless = frame_block(BlockType.AVRO, {HeaderKey.SCHEMA: "{}"}, b"")
    assert reasons(nameless) == ["a header without an instant"]
    assert [b.type for b in scan_log(stored(nameless), "log", needs_instant=False).blocks] == [BlockType.AVRO]


def test_a_rollback_without_a_target_and_a_block_marked_as_corrupt_are_damaged():
    header = {HeaderKey.INSTANT_TIME: "1", HeaderKey.COMMAND_BLOCK_TYPE: "0"}
    assert reasons(frame_block(BlockType.COMMAND, header, b"")) == ["a rollback block without a target instant"]
    assert reasons(frame_block(BlockType.CORRUPT, {HeaderKey.INSTANT_TIME: "1"}, b"")) == ["a block that is marked as corrupt"]


def test_header_keys_of_later_releases_are_kept():
    block = frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: "1", HeaderKey.IS_PARTIAL: "true"}, b"")
    (kept,) = scan(block).blocks
    assert kept.is_partial
    key_at = block.index(struct.pack(">ii", HeaderKey.IS_PARTIAL, 4))
    (later,) = scan(with_int(block, key_at, 99, ">i")).blocks
    assert later.header == {HeaderKey.INSTANT_TIME: "1", 99: "true"}
    assert not later.is_partial


@pytest.mark.parametrize(
    ("offset", "value", "named"),
    [(14, 0, "log format version 0"), (14, 2, "log format version 2"), (18, 7, "block type 7"), (18, -1, "block type -1")],
)
def test_formats_of_other_releases_are_refused_by_name(offset, value, named):
    with pytest.raises(UnsupportedTable, match=named):
        scan(A + with_int(B, offset, value, ">i") + C)


def test_version_0_is_told_from_damage_by_what_follows():
    """It has neither header nor trailing length: its size must lead to the next magic."""
    old = b"#HUDI#" + struct.pack(">qii", 30, 0, 3) + b"z" * 22
    with pytest.raises(UnsupportedTable, match="log format version 0"):
        scan(old + A)
    assert found(old + b"junkjunk" + A) == [len(old) + 8, "1"]


def test_other_commands_are_refused_by_name():
    header = {HeaderKey.INSTANT_TIME: "1", HeaderKey.TARGET_INSTANT_TIME: "0", HeaderKey.COMMAND_BLOCK_TYPE: "1"}
    with pytest.raises(UnsupportedTable, match="command '1'"):
        scan(frame_block(BlockType.COMMAND, header, b""))


def test_a_small_file_takes_one_request():
    storage = stored(A * 50 + B[:30] + C, CountingStorage())
    assert len(scan_log(storage, "log").blocks) == 51
    assert len(storage.ranges) == 1


def big(instant, size_bytes):
    return frame_block(BlockType.AVRO, {HeaderKey.INSTANT_TIME: instant}, bytes(size_bytes))


def test_a_large_file_is_read_by_ranges_and_never_whole():
    storage = stored(big("1", 9 * MEBIBYTE) + big("2", 9 * MEBIBYTE) + A + big("3", 20 * MEBIBYTE) + B, CountingStorage())
    assert [b.instant for b in scan_log(storage, "log").blocks] == ["1", "2", "1", "3", "2"]
    assert len(storage.ranges) <= 6
    assert sum(length for _, length in storage.ranges) < 6 * MEBIBYTE


def test_many_blocks_of_a_large_file_take_few_requests():
    blocks = 12 * MEBIBYTE // len(A)
    storage = stored(A * blocks, CountingStorage())
    assert len(scan_log(storage, "log").blocks) == blocks
    assert len(storage.ranges) < 14


@pytest.mark.parametrize("shift", range(-8, 3))
def test_a_magic_across_the_border_of_two_reads_is_found(shift):
    """The first read ends at 4 MiB, the damage goes on beyond it."""
    damaged = b"#HUDI#" + b"\xff" * (4 * MEBIBYTE - 6 + shift)
    assert found(damaged + C) == [len(damaged), "3"]


def test_a_gap_that_is_longer_than_a_read():
    assert found(A + b"#HUDI#" + bytes(30 * MEBIBYTE) + C) == ["1", 30 * MEBIBYTE + 6, "3"]


def test_a_file_of_damaged_places_is_refused():
    with pytest.raises(CorruptMetadata, match="more than 10000 damaged places"):
        scan(b"#HUDI#" * 10_002)


def test_every_changed_byte_of_the_frame_is_noticed_or_harmless():
    """A block with any one byte of its frame changed is a gap, refused by name, or still holds the same rows."""
    (sound,) = scan(B).blocks
    rows = read_rows(stored(B), sound)
    frame = [*range(sound.content_offset), *range(sound.content_offset + sound.content_bytes, len(B))]
    schema = range(B.index(b"{"), B.rindex(b"]}") + 2)
    for at, value in itertools.product((i for i in frame if i not in schema), (0x00, 0x7F, 0xFF)):
        content = B[:at] + bytes([value]) + B[at + 1 :]
        storage = stored(content)
        try:
            scanned = scan_log(storage, "log")
            assert len(scanned.blocks) + len(scanned.gaps) == 1
            for block in scanned.blocks:
                if block.type is BlockType.AVRO and block.header.keys() == sound.header.keys():
                    assert read_rows(storage, block) == rows
        except TidelineError as error:
            assert error.found  # noqa: PT017
