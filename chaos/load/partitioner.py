"""Where Kafka's clients put a key unless told otherwise, by another client's implementation."""

from __future__ import annotations

from aiokafka.partitioner import murmur2


def partition_of(key: bytes, partitions: int) -> int:
    """Of so many partitions."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)
