"""An operator in tests: what is broken until it is mended, operations as messages, letters as rows, and what
the log of operations says.
"""

import json
from typing import Any

from lane_checker import latest
from lane_workloads import Workload
from lane_worlds import Post, World

from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import Letter, decode_letter, letter_id, parse_id
from streams.errors import PermanentError
from streams.model.envelope import new_headers
from streams.model.operations import LetterCommand, Operation, encode_operation


class Broken:
    """A handler's bug: it fails for chosen events until it is mended."""

    def __init__(self, *which: tuple[str, int], error: Exception | None = None) -> None:
        self.which = set(which)
        self.error = error or PermanentError("there is a bug")

    def __call__(self, event: Any) -> None:
        if (event.k, event.i) in self.which:
            raise type(self.error)(*self.error.args)  # a new one: its traceback would grow

    def mend(self) -> None:
        self.which.clear()


async def letters_by_id(world: World) -> dict[str, Letter]:
    """All dead letters by their changelog, in order of source position."""
    rows = (await latest(world, "dead_letters")).items()
    found = [(letter_id(store_key(*key)), decode_letter(value)) for key, value in rows]
    return dict(sorted(found, key=lambda x: (x[1].topic, x[1].partition, x[1].offset, x[1].handler)))


async def letters(world: World) -> list[Letter]:
    return list((await letters_by_id(world)).values())


async def letter_ids(world: World) -> list[str]:
    return list(await letters_by_id(world))


def operation(world: World, kind: LetterCommand, letter: str, *, operation_id: str = "", **more: Any) -> Post:
    command = Operation(kind=kind, letter=letter, **{"who": "ann", "why": "mended", "at_ms": 1, **more})
    partition, _ = parse_id(letter)
    headers = new_headers(
        "operation", letter, source="desk", time=1e9, message_id=operation_id or f"{kind}-{letter}"
    )
    return Post(world.app.layout.operations, partition, letter.encode(), encode_operation(command), headers)


async def operated(world: World, lane: Any, *posts: Post) -> None:
    """Ask for operations and wait until they have been settled."""
    before = lane.lane.counters.operations
    await world.post(*posts)
    await world.until(lambda: lane.lane.counters.operations == before + len(posts))
    await world.settled(world.app.layout.operations)


async def operations_log(world: World) -> list[dict[str, Any]]:
    return [json.loads(r.value or b"") for r in await world.records(world.app.layout.operations_log)]


async def results(world: World) -> list[tuple[str, str]]:
    return [(done["operation"], done["result"].partition(":")[0]) for done in await operations_log(world)]


async def order_of(world: World, work: Workload, key: str) -> list[int]:
    """The numbers of a key's events, in the order in which they were passed on."""
    return [
        json.loads(r.value or b"")["i"] for r in await world.records(work.output) if r.key == key.encode()
    ]
