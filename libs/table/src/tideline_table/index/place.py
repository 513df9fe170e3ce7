"""Places in which a key is looked up and rows are placed.

A partition, or a bucket of one whose buckets have several file groups.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from tideline_table.file_group.slice import FileGroupId
from tideline_table.hudi.file_names import bucket_of_file_id, in_bucket


class BucketPlace(NamedTuple):
    """A bucket of a partition, where a bucket index allows several file groups in a bucket."""

    partition_path: str
    bucket: int

    @classmethod
    def of(cls, group: FileGroupId) -> BucketPlace:
        """Return the bucket of a file group, whose id begins with its number."""
        bucket = bucket_of_file_id(group.file_id)
        assert bucket is not None, "checked by BucketIndex.groups"
        return cls(group.partition_path, bucket)


PlaceT = TypeVar("PlaceT", str, BucketPlace)
"""A partition path, or a bucket."""


def partition_of(place: str | BucketPlace) -> str:
    """Return the partition path of a place."""
    return place if isinstance(place, str) else place.partition_path


def file_id_in(place: str | BucketPlace, file_id: str) -> str:
    """Return the id of a new file group of a place: `file_id`, with the bucket number in it."""
    return file_id if isinstance(place, str) else in_bucket(file_id, place.bucket)
