"""Log files for tests: those that Apache Hudi wrote, and small ones by hand."""

import zipfile
from pathlib import Path

import pyarrow as pa

from tideline_table.log_format import avro_block, scan_log
from tideline_table.log_format.avro import row_schema
from tideline_table.storage import MemoryStorage

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCHEMA = (
    '{"type":"record","name":"r","namespace":"a","fields":[{"name":"_hoodie_record_key","type":["null","string"]},'
    '{"name":"n","type":"long"}]}'
)


class CountingStorage(MemoryStorage):
    """Remembers the ranges that were asked for."""

    def __init__(self):
        super().__init__()
        self.ranges = []

    def read_range(self, path, start, length):
        self.ranges.append((start, length))
        return super().read_range(path, start, length)


def stored(content, storage=None):
    storage = storage or MemoryStorage()
    storage.put("log", content)
    return storage


def scan(content):
    return scan_log(stored(content), "log")


def rows(*numbers):
    keys = pa.array([f"k{n}" for n in numbers], pa.string())
    return pa.table([keys, pa.array(numbers, pa.int64())], row_schema(SCHEMA))


def data(instant, *numbers):
    return avro_block(rows(*numbers), SCHEMA, instant)


def single_log(folder):
    (path,) = (p for p in (FIXTURES / "log_files" / folder).iterdir() if p.is_file())
    return path.read_bytes()


def logs_of_tables():
    """Name and bytes of every log file in the zipped tables, metadata tables included."""
    found = {}
    for archive in sorted((FIXTURES / "tables").glob("*.zip")):
        with zipfile.ZipFile(archive) as table:
            for name in table.namelist():
                last = name.rsplit("/", 1)[-1]
                if "__MACOSX" not in name and last.startswith(".") and ".log." in last and not last.endswith(".crc"):
                    found[f"{archive.stem}/{name}"] = table.read(name)
    return found
