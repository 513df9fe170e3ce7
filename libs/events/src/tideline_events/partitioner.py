"""The partition of a key, by Kafka's murmur2, as Java producers and librdkafka's `murmur2_random` compute it for a key."""

from __future__ import annotations

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the signed 32-bit hash, equal to `org.apache.kafka.common.utils.Utils.murmur2`."""
    whole = len(key) & ~3
    h = _SEED ^ len(key)
    for start in range(0, whole, 4):
        k = int.from_bytes(key[start : start + 4], "little") * _M & _MASK
        k = (k ^ k >> _R) * _M & _MASK
        h = h * _M & _MASK ^ k
    if tail := key[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of a key among `partition_count`."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
