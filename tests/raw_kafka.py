"""Batches of any bytes in the log of a real broker: produced as they are if it takes them, else put in the
place of a sound one on its disk, as a failing disk or an older broker may leave them.
"""

import asyncio
from collections.abc import Callable
from itertools import product
from pathlib import Path

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.produce import ProduceRequest

from streams.kafka.records.heads import HEADER, head_of, split
from streams.ports import TP
from streams.testing.batches import batch, record
from tests.waiting import BOUND

#: Of a batch's head what the broker has set: base offset, length, leader epoch.
_OF_THE_BROKER = 16


async def produced(bootstrap: str, tp: TP, raw: bytes) -> int:
    """Produce a batch as it is; returns its first offset. Raises KafkaError when the broker refuses it."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    try:
        return await sent(client, tp, raw)
    finally:
        await client.close()


async def sent(client: AIOKafkaClient, tp: TP, raw: bytes) -> int:
    await client.add_topic(tp.topic)
    async with asyncio.timeout(BOUND):
        while True:
            node = client.cluster.leader_for_partition(tp)
            if node not in (None, -1):
                request = ProduceRequest(None, -1, 10_000, [(tp.topic, [(tp.partition, raw)])])
                answer = await client.send(node, request)
                ((_, ((_, code, offset, *_),)),) = answer.topics
                if not code:
                    return int(offset)
                if not for_code(code).invalid_metadata:  # the topic may be too new
                    raise for_code(code)
            await client.force_metadata_update()


async def planted(bootstrap: str, data: Path, tp: TP, raw: bytes, offsets: int) -> int:
    """Have a batch in a log that its broker would not take. `data` is above its logs; `offsets` is how many
    it has the place of.
    """
    first = await produced(bootstrap, tp, _sound(len(raw), offsets))
    overwrite(data, tp, first, lambda _: raw)
    return first


def overwrite(data: Path, tp: TP, offset: int, change: Callable[[bytes], bytes]) -> None:
    """Change the batch of an offset on the disk; what the broker has set in its head stays."""
    # Not by looking through all of it: directories of deleted topics go while one looks.
    (segment,) = data.glob(f"*/{tp.topic}-{tp.partition}/00000000000000000000.log")
    place = 0
    for found, _ in split(segment.read_bytes()):
        head = head_of(found)
        assert head is not None
        if head.base <= offset <= head.last:
            break
        place += len(found)
    else:
        raise AssertionError(f"{segment} has no offset {offset}")
    changed = change(found)
    assert len(changed) == len(found)
    with segment.open("r+b") as file:
        file.seek(place + _OF_THE_BROKER)
        file.write(changed[_OF_THE_BROKER:])


def spoiled(raw: bytes) -> bytes:
    """A batch with another byte at its end, and the checksum of before."""
    return raw[:-1] + bytes([raw[-1] ^ 0xFF])


def _sound(size: int, offsets: int) -> bytes:
    """A sound batch of so many bytes and offsets."""
    small = [record(delta, None, b"") for delta in range(offsets - 1)]
    left = size - HEADER.size - sum(map(len, small))
    for key, value in product(range(3), range(max(left - 16, 0), left)):
        last = record(offsets - 1, bytes(key), bytes(value))
        if len(last) == left:
            return batch([*small, last])
    raise ValueError(f"no batch of {offsets} records has {size} bytes")


async def in_the_log(bootstrap: str, data: Path, tp: TP, raw: bytes, offsets: int | None = None) -> bool:
    """Have a batch in a log; returns whether the broker has taken it as it is."""
    head = head_of(raw)
    assert head is not None
    try:
        await produced(bootstrap, tp, raw)
    except KafkaError:
        await planted(bootstrap, data, tp, raw, head.last_delta + 1 if offsets is None else offsets)
        return False
    return True


def cut_off(data: Path, tp: TP, offset: int) -> None:
    """Remove all from an offset on from the disk of a broker that is down, as one that has lost its newest
    writes. The offset is that of a batch.
    """
    (segment,) = data.glob(f"*/{tp.topic}-{tp.partition}/00000000000000000000.log")
    place = 0
    for found, _ in split(segment.read_bytes()):
        head = head_of(found)
        assert head is not None
        if head.base >= offset:
            break
        place += len(found)
    else:
        raise AssertionError(f"{segment} has no offset {offset}")
    with segment.open("r+b") as file:
        file.truncate(place)
