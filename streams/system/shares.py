"""A lane's share of memory that is bounded for all lanes of a worker, up to 64 of them."""

from __future__ import annotations

from typing import NamedTuple

from streams.units import MIB


class Share(NamedTuple):
    """A lane's share, in bytes.

    Attributes:
        write_buffer: what its tables gather until they are flushed.
        fetch: what one fetch may bring from one broker.
        partition_fetch: what one fetch may bring of one partition. A record batch that is larger
            comes whole, when it is the first of what the broker answers.
    """

    write_buffer: int
    fetch: int
    partition_fetch: int


#: What a lane takes at most, however few there are.
MOST = Share(write_buffer=8 * MIB, fetch=8 * MIB, partition_fetch=MIB)


def share_of(lanes: int) -> Share:
    """The share where a worker may own so many lanes."""
    return Share(
        write_buffer=_between(MIB, 64 * MIB // lanes, MOST.write_buffer),
        fetch=_between(MIB, 64 * MIB // lanes, MOST.fetch),
        partition_fetch=_between(MIB // 8, 8 * MIB // lanes, MOST.partition_fetch),
    )


def _between(least: int, part: int, most: int) -> int:
    return max(least, min(most, part))
