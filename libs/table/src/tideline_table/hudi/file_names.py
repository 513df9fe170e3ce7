"""Names of base and log files (format reference 8.1, 9.1)."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

_BASE = re.compile(r"^([^_./][^_/]*)_([^_/]+)_(\d{14,23})\.([a-z]+)\Z", re.ASCII)
_LOG = re.compile(r"^\.([^_/]+)_(\d{14,23})\.log\.(\d+)(?:_(\d+-\d+-\d+))?(\.cdc)?\Z", re.ASCII)
CHANGES_SUFFIX = ".cdc"
FIXED_ID = "-0000-0000-0000-000000000000-0"
"""Behind the number of a bucket, the file id that all writers give it which look for no conflicts (4.1 of 8 and 9)."""
_BUCKET = re.compile(r"^(\d{8})-", re.ASCII)
_RING = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-3[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}-0\Z", re.ASCII)
_FILE_IDS = uuid.UUID("5f1d2a9c-6c4b-5c0e-9d8e-0b6f3b1f7a11")

MAX_BUCKETS = 99_999
"""The largest number of buckets of a table. File ids then begin with three zeros, as one in 4,096 random ids does."""


@dataclass(frozen=True, slots=True)
class BaseFileName:
    """`<file id>_<write token>_<instant>.<extension>`."""

    file_id: str
    write_token: str
    instant: str
    extension: str


@dataclass(frozen=True, slots=True)
class LogFileName:
    """`.<file id>_<instant>.log.<version>_<write token>[.cdc]`."""

    file_id: str
    instant: str
    """The base instant of the slice, or the instant of the write, by the table's version (`TableFormat.log_file_name`)."""
    version: int
    write_token: str
    is_cdc: bool


def base_file_name(file_id: str, write_token: str, instant: str, extension: str) -> str:
    """Return the name of a base file."""
    return f"{file_id}_{write_token}_{instant}.{extension}"


def parse_base_file_name(name: str) -> BaseFileName | None:
    """Return the parts of a base file name, None for other names."""
    match = _BASE.match(name)
    return BaseFileName(*match.groups()) if match else None


def parse_log_file_name(name: str) -> LogFileName | None:
    """Return the parts of a log file name, None for other names (including checksum files)."""
    match = _LOG.match(name)
    if match is None:
        return None
    file_id, base, version, token, cdc = match.groups()
    return LogFileName(file_id, base, int(version), token or "", bool(cdc))


def change_file_name(base_name: str) -> str:
    """Return the name of the change file beside a base file that replaced another one."""
    base = parse_base_file_name(base_name)
    assert base is not None
    return f".{base.file_id}_{base.instant}.log.1_{base.write_token}{CHANGES_SUFFIX}"


def is_log_path(path: str) -> bool:
    """Return whether a data file is a log file, or belongs to one."""
    return ".log." in path.rsplit("/", 1)[-1]


def new_file_id(instant: str, task: str, number: int = 0) -> str:
    """Return the id of a new file group. All attempts of a task get the same id, so a late attempt cannot add a second group."""
    return f"{uuid.uuid5(_FILE_IDS, f'{instant}/{task}')}-{number}"


def new_bucket_file_id(instant: str, partition_path: str, bucket: int) -> str:
    """Return the id of the new file group of a bucket that has one only.

    The bucket number in place of the first eight characters (8.1).
    """
    return in_bucket(new_file_id(instant, f"{partition_path}/{bucket}"), bucket)


def in_bucket(file_id: str, bucket: int) -> str:
    """Return `file_id` with the bucket number in place of its first eight characters."""
    return f"{bucket:08}{file_id[8:]}"


def bucket_of_file_id(file_id: str) -> int | None:
    """Return the bucket number that a file id begins with, None if it begins with none. Random ids may begin with eight digits."""
    match = _BUCKET.match(file_id)
    return int(match.group(1)) if match else None


def is_ring_file_id(file_id: str) -> bool:
    """Return whether a file group is one of a hash ring, as far as file ids show it: a version-3 UUID, which no other writer uses.

    Apache Hudi's resizes give random ids, which do not show it (12.2).
    """
    return _RING.match(file_id) is not None


def write_token(task: int, attempt: int) -> str:
    """Return `<task>-<stage>-<attempt>` (of stage 0), which distinguishes the attempts to write a file."""
    return f"{task}-0-{attempt}"


def log_write_token(task: int, attempt: int, instant: str) -> str:
    """Return a write token for one instant: unlike base file names, log file names do not contain their writing instant.

    The middle number is less than 2^31, because Java readers parse it as an int.
    """
    return f"{task}-{instant_token(instant)}-{attempt}"


def token_behind(token: str, attempt: int, instant: str) -> str:
    """Return a log write token of `instant` that sorts as text behind `token`, that of a log file with the same version.

    All readers order log files of one version by their tokens (format reference 9.1).
    """
    first = int(token.split("-", 1)[0]) if token else 0
    # Of n and n + 1 with the same number of digits, the larger one sorts behind. "90-" sorts behind "9-".
    larger = first + 1 if len(str(first + 1)) == len(str(first)) else first * 10
    return log_write_token(larger, attempt, instant)


def instant_token(instant: str) -> str:
    """Return the middle number of the write tokens of an instant's log files."""
    return str(int(instant) % 2_147_483_647)
