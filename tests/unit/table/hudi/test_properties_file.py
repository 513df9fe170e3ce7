import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from tideline_table.errors import CorruptMetadata, ObjectNotFound, StorageError
from tideline_table.hudi.properties import (
    BACKUP_PATH,
    CHECKSUM,
    PROPERTIES_PATH,
    change_properties,
    checksum,
    format_properties,
    parse_properties,
    read_properties,
)
from tideline_table.storage import LocalStorage, MemoryStorage


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"hoodie.table.name": "t1"}, "3609136688"),
        ({"hoodie.table.name": "t1", "hoodie.database.name": ""}, "3609136688"),
        ({"hoodie.table.name": "t1", "hoodie.database.name": "default"}, "3709403181"),
        ({"hoodie.table.name": "tbl", "hoodie.database.name": "db"}, "3247436821"),
    ],
)
def test_checksum_vectors(properties, expected):
    assert checksum(properties) == expected
    assert parse_properties(format_properties({**properties, CHECKSUM: expected}, "c"))[CHECKSUM] == expected
    with pytest.raises(CorruptMetadata, match=expected[:4]):
        parse_properties(format_properties({**properties, CHECKSUM: str(int(expected) + 1)}, "c"))


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("a:b", "a", "b"),
        ("a b", "a", "b"),
        ("a = b ", "a", "b "),
        ("  a\t:\tb", "a", "b"),
        ("a==b", "a", "=b"),
        (r"a\ b\:c\=d=e", "a b:c=d", "e"),
        (r'schema={"type"\:"record"}', "schema", '{"type":"record"}'),
        (r"a=\u00e9\u6f22", "a", "é漢"),
        (r"a=\uD83D\uDE00", "a", "😀"),
        (r"a=x\ty\nz\\", "a", "x\ty\nz\\"),
        (r"a=\q", "a", "q"),
        (r"a=C\:\\users", "a", r"C:\users"),
        ("a", "a", ""),
        ("a=1\\\n   2", "a", "12"),
        ("a=1\\\\", "a", "1\\"),
        ("a=caf\xe9", "a", "café"),
        ("a=1 # no comment", "a", "1 # no comment"),
    ],
)
def test_java_syntax(line, key, value):
    content = f"#comment\r\n!other\n\n{line}\r\nlast=1".encode("iso-8859-1")
    assert parse_properties(content) == {key: value, "last": "1"}


def test_a_comment_line_inside_a_continued_value_is_value():
    assert parse_properties(b"a=1\\\n#2\nb=3") == {"a": "1#2", "b": "3"}


def test_malformed_escape_is_named():
    with pytest.raises(CorruptMetadata, match="escape"):
        parse_properties(rb"a=\u12g4")


def test_written_text_is_what_java_writes():
    text = format_properties({"b": '{"x":1}', "a b": " lead=#!\\\té😀"}, "made").decode("ascii").split("\n")
    assert text == ["#made", r"a\ b=\ lead\=\#\!\\\t\u00E9\uD83D\uDE00", r'b={"x"\:1}', ""]


def test_size_is_bounded():
    with pytest.raises(CorruptMetadata, match="bytes"):
        parse_properties(b"a=" + b"x" * (16 * 1024 * 1024))


def test_half_a_file_gives_way_to_the_backup_wherever_it_ends():
    before = {"hoodie.table.name": "t1", "hoodie.table.version": "6", "a": "old", CHECKSUM: "3609136688"}
    whole = format_properties({**before, "a": "new", "zz": "more"}, "c")
    storage = MemoryStorage()
    storage.put(BACKUP_PATH, format_properties(before, "c"))
    for end in range(len(whole) - 1):
        storage.put(PROPERTIES_PATH, whole[:end])
        assert read_properties(storage) == before, whole[:end]
    # The next change keeps the properties that count as the backup, not the half.
    puts = []
    put, replace = storage.put, storage.put_if_version
    storage.put = lambda path, content: puts.append((path, content)) or put(path, content)
    storage.put_if_version = lambda path, content, version: puts.append((path, content)) or replace(path, content, version)
    assert change_properties(storage, lambda found: {**found, "a": "newer"})
    assert [(path, parse_properties(content)["a"]) for path, content in puts] == [(BACKUP_PATH, "old"), (PROPERTIES_PATH, "newer")]
    assert read_properties(storage)["a"] == "newer"
    with pytest.raises(ObjectNotFound):
        storage.read(BACKUP_PATH)


def test_properties_without_a_checksum_count_unless_the_backup_has_one():
    """Old releases of Apache Hudi write none."""
    storage, plain = MemoryStorage(), {"hoodie.table.name": "t1"}
    storage.put(PROPERTIES_PATH, format_properties(plain, "c"))
    assert read_properties(storage) == plain
    storage.put(BACKUP_PATH, format_properties({**plain, "a": "old"}, "c"))
    assert read_properties(storage) == plain
    storage.delete(BACKUP_PATH)
    storage.put(PROPERTIES_PATH, format_properties({**plain, CHECKSUM: "1"}, "c"))
    with pytest.raises(CorruptMetadata):
        read_properties(storage)


STORAGES = {"memory": lambda _: MemoryStorage(), "disk": LocalStorage}


@pytest.fixture(params=STORAGES)
def storage(request, tmp_path):
    made = STORAGES[request.param](tmp_path)
    made.put(PROPERTIES_PATH, format_properties({"hoodie.table.name": "t1"}, "c"))
    return made


def test_a_change_beside_another_one_keeps_it(storage):
    beside = iter([{"b": "2"}, {"c": "3"}, {}])

    def change(found):
        more = next(beside)
        assert change_properties(storage, lambda now: {**now, **more}) == bool(more)
        return {**found, "a": "1"}

    assert change_properties(storage, change)
    assert read_properties(storage) == {"hoodie.table.name": "t1", "a": "1", "b": "2", "c": "3"}
    assert not change_properties(storage, lambda found: found)
    with pytest.raises(ObjectNotFound):
        storage.read(BACKUP_PATH)


def test_of_changes_at_once_none_is_lost(storage):
    def count(name):
        for _ in range(5):
            assert change_properties(storage, lambda found: {**found, name: str(int(found.get(name, "0")) + 1)})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count, "abc"))
    assert read_properties(storage) == {"hoodie.table.name": "t1", "a": "5", "b": "5", "c": "5"}


def test_a_put_whose_reply_was_lost_is_one_change():
    storage = MemoryStorage()
    storage.put(PROPERTIES_PATH, format_properties({"hoodie.table.name": "t1"}, "c"))
    replace, asked = storage.put_if_version, []

    def lost(path, content, version):
        asked.append(path)
        assert replace(path, content, version)
        return False

    storage.put_if_version = lost
    assert change_properties(storage, lambda found: {**found, "n": found.get("n", "") + "1"})
    assert (read_properties(storage)["n"], len(asked)) == ("1", 1)


def test_a_file_that_another_process_mends_meanwhile_is_no_error():
    """Another process replaces the missing file and deletes the backup, which this one is about to read."""
    storage, read = MemoryStorage(), MemoryStorage.read
    storage.put(BACKUP_PATH, format_properties({"hoodie.table.name": "t1"}, "c"))

    def mended_before(path):
        if path == BACKUP_PATH:
            storage.read = lambda path: read(storage, path)
            assert change_properties(storage, lambda found: {**found, "b": "2"})
        return read(storage, path)

    storage.read = mended_before
    assert change_properties(storage, lambda found: {**found, "a": "1"})
    assert read_properties(storage) == {"hoodie.table.name": "t1", "a": "1", "b": "2"}
    storage.delete(PROPERTIES_PATH)
    with pytest.raises(ObjectNotFound):
        change_properties(storage, lambda found: {**found, "a": "3"})


def test_processes_that_are_always_faster_are_named():
    storage, numbers = MemoryStorage(), itertools.count()
    storage.put(PROPERTIES_PATH, format_properties({"hoodie.table.name": "t1"}, "c"))

    def change(found):
        storage.put(PROPERTIES_PATH, format_properties({**found, "other": str(next(numbers))}, "c"))
        return {**found, "a": "1"}

    with pytest.raises(StorageError, match="changed by other processes"):
        change_properties(storage, change)
    assert "a" not in read_properties(storage)
