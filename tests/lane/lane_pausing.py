"""An operator of whole handlers in tests: commands as messages to partitions, and what has become of them."""

import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from lane_checker import latest
from lane_worlds import Post, World

from streams.engine.waiting.operations.pauses import read_pause
from streams.engine.waiting.queue import read_queue
from streams.model.envelope import new_headers
from streams.model.operations import (
    HANDLER_OPERATION,
    HandlerCommand,
    HandlerOperation,
    PauseState,
    encode_operation,
)

COUNT = "bench.count"
KEYS = "abcdefgh"


def commanded(
    world: World,
    kind: HandlerCommand,
    handler: str = COUNT,
    *,
    operation_id: str = "",
    partitions: Collection[int] | None = None,
    who: str = "ann",
) -> list[Post]:
    command = HandlerOperation(kind=kind, handler=handler, who=who, why="the bank is down", at_ms=1)
    name = operation_id or f"{kind}-{handler}"
    headers = new_headers(HANDLER_OPERATION, handler, source="desk", time=1e9, message_id=name)
    topic, data = world.app.layout.operations, encode_operation(command)
    chosen = range(world.app.layout.partitions) if partitions is None else partitions
    return [Post(topic, number, handler.encode(), data, headers) for number in chosen]


async def asked(world: World, kind: HandlerCommand, handler: str = COUNT, **more: Any) -> None:
    """Ask, and wait until it is settled everywhere."""
    await world.post(*commanded(world, kind, handler, **more))
    await world.settled(world.app.layout.operations)


async def states(world: World, handler: str = COUNT) -> dict[int, PauseState]:
    """By partition, what the handler does where it does not just run."""
    rows = await latest(world, "lane")
    name = b"h" + handler.encode()
    return {partition: read_pause(value).state for (partition, key), value in rows.items() if key == name}


async def reasons(world: World) -> Counter[str]:
    """Why the heads of queues wait."""
    rows = await latest(world, "lane")
    return Counter(str(read_queue(value).reason) for (_, key), value in rows.items() if key[:1] == b"q")


async def told(world: World) -> list[tuple[str, int, str]]:
    """Of each operation on a handler: what it was, in which partition, and what came of it."""
    records = await world.records(world.app.layout.operations_log)
    done = [json.loads(record.value or b"") for record in records]
    return [(each["operation"], each["partition"], each["result"]) for each in done if "letter" not in each]


def some(world: World, work: Any, numbers: range, keys: str = KEYS) -> list[Post]:
    """Events of these numbers for each of the keys."""
    return [world.event(work, key, i) for i in numbers for key in keys]
