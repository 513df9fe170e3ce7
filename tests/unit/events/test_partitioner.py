import pytest
from hypothesis import given
from hypothesis import strategies as st

from tideline_events.partitioner import murmur2, partition_of

# Computed with org.apache.kafka.common.utils.Utils of kafka-clients 4.1.0: key, murmur2, partition of 12, partition of 7.
JAVA = [
    ("", 275646681, 9, 2),
    ("a", -1563381124, 4, 5),
    ("ab", 316155434, 2, 0),
    ("abc", 479470107, 3, 4),
    ("21", -973932308, 0, 3),
    ("foobar", -790332482, 6, 0),
    ("a-little-bit-long-string", -985981536, 8, 1),
    ("a-little-bit-longer-string", -1486304829, 11, 0),
    ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971, 5, 3),
    ("3f2b8c1e-6a54-4d0f-9b7e-0c1d2e3f4a5b", 755990800, 4, 5),
    ("00000000-0000-4000-8000-000000000000", -1337040123, 5, 3),
    ("ffffffff-ffff-4fff-bfff-ffffffffffff", -2096555001, 11, 0),
    ("tabelle-ä-表", 1911780444, 0, 0),
]


@pytest.mark.parametrize(("key", "hashed", "of_12", "of_7"), JAVA)
def test_hash_and_partition_are_javas(key: str, hashed: int, of_12: int, of_7: int) -> None:
    assert murmur2(key.encode()) == hashed
    assert (partition_of(key.encode(), 12), partition_of(key.encode(), 7)) == (of_12, of_7)


@given(st.binary(max_size=80), st.integers(1, 1000))
def test_every_key_has_a_partition(key: bytes, partition_count: int) -> None:
    assert 0 <= partition_of(key, partition_count) < partition_count
