"""What a claim check relies on in an object store, held by the one in memory and by S3 alike."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from streams.errors import BlobMissing, BlobsUnavailable
from streams.local import Stack, local_stack
from streams.ports import Blobs
from streams.s3 import S3Blobs, S3Options
from streams.settings import LOCAL_BUCKET, LOCAL_KEYS
from streams.testing.blobs import MemoryBlobs
from tests.waiting import eventually_async

TYPE = "application/avro"


class MemoryWorld:
    def __init__(self) -> None:
        self.blobs = self.impatient = MemoryBlobs(timeout=0.2)

    async def go_down(self) -> None:
        self.blobs.down = True

    async def come_back(self) -> None:
        self.blobs.down = False

    async def hang(self) -> None:
        self.blobs.slow = 1.0

    async def go_on(self) -> None:
        self.blobs.slow = 0.0


class S3World:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        options = S3Options(LOCAL_BUCKET, stack.url("s3"), *LOCAL_KEYS)
        self.blobs = S3Blobs(options)
        self.impatient = S3Blobs(replace(options, read_timeout=0.5, timeout=0.5))

    async def go_down(self) -> None:
        await asyncio.to_thread(self.stack.stop_process, "s3")

    async def come_back(self) -> None:
        await asyncio.to_thread(self.stack.start_process, "s3")

    async def hang(self) -> None:
        self.stack.signal_process("s3", signal.SIGSTOP)

    async def go_on(self) -> None:
        self.stack.signal_process("s3", signal.SIGCONT)


World = MemoryWorld | S3World


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with local_stack(tmp_path_factory.mktemp("s3"), brokers=0, buckets=[LOCAL_BUCKET]) as stack:
        yield stack


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.stack)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made: World = MemoryWorld() if request.param == "memory" else S3World(request.getfixturevalue("s3"))
    yield made
    await made.blobs.close()
    await made.impatient.close()


@pytest.fixture
async def blobs(world: World) -> AsyncIterator[Blobs]:
    yield world.blobs
    # A store that hung goes on with what it was sent meanwhile, and cannot list what it deletes.
    await eventually_async(lambda: emptied(world.blobs), "the store is emptied")


async def emptied(blobs: Blobs) -> bool:
    with suppress(BlobsUnavailable):
        await blobs.delete([blob.name async for blob in blobs.scan("")])
        return True
    return False


async def names(blobs: Blobs, prefix: str = "events/", *, older_than: float | None = None) -> list[str]:
    return [blob.name async for blob in blobs.scan(prefix, older_than=older_than)]


@pytest.mark.parametrize("data", [b"", b"a gift", bytes(range(256)) * 20_000], ids=["empty", "short", "5 MB"])
async def test_an_object_is_read_as_it_was_written(blobs: Blobs, data: bytes) -> None:
    before = int(time.time())
    await blobs.put("events/order/1-a", data, TYPE)
    assert await blobs.get("events/order/1-a") == data
    found = await blobs.head("events/order/1-a")
    assert found is not None
    assert found[:2] == ("events/order/1-a", len(data))
    assert before <= found.modified <= time.time()


async def test_no_more_is_read_than_wanted(blobs: Blobs) -> None:
    await blobs.put("events/order/1-a", b"a gift picture", TYPE)
    assert await blobs.get("events/order/1-a", at_most=6) == b"a gift"
    assert await blobs.get("events/order/1-a", at_most=1000) == b"a gift picture"


async def test_an_object_is_replaced_and_counts_as_new(world: World, blobs: Blobs) -> None:
    await blobs.put("events/order/1-a", b"old", TYPE)
    first = await blobs.head("events/order/1-a")
    assert first is not None

    async def is_newer() -> bool:
        await blobs.put("events/order/1-a", b"newer", TYPE)
        again = await blobs.head("events/order/1-a")
        assert again is not None
        return again.size == 5 and again.modified > first.modified

    await eventually_async(is_newer, "the object counts as new")
    assert await blobs.get("events/order/1-a") == b"newer"


async def test_an_object_that_is_not_there_is_missing_by_name(blobs: Blobs) -> None:
    with pytest.raises(BlobMissing, match=r"s3://event-payloads/events/order/none is not there"):
        await blobs.get("events/order/none")
    assert await blobs.head("events/order/none") is None


@pytest.mark.parametrize("name", ["%2F%25", "a%20b", "~_.-", "%C3%A9", "x" * 190])
async def test_a_name_is_kept_as_it_is(blobs: Blobs, name: str) -> None:
    await blobs.put(f"events/order/{name}", b"x", TYPE)
    assert await blobs.get(f"events/order/{name}") == b"x"
    assert await names(blobs) == [f"events/order/{name}"]


async def test_objects_are_listed_by_prefix_in_order_of_name(blobs: Blobs) -> None:
    some = ["events/b/1", "events/a/2", "events/a/10", "events/a-b/1", "events/a.b/1", "events/B/1"]
    for name in some:
        await blobs.put(name, b"x", TYPE)
    await blobs.put("other/1", b"x", TYPE)
    assert await names(blobs) == sorted(some)
    assert await names(blobs, "events/a/") == ["events/a/10", "events/a/2"]
    assert await names(blobs, "none/") == []


async def test_many_objects_are_listed_over_pages_and_deleted(blobs: Blobs) -> None:
    many = [f"events/order/{number:04}" for number in range(1100)]
    for start in range(0, len(many), 50):
        await asyncio.gather(*(blobs.put(name, b"x", TYPE) for name in many[start : start + 50]))
    assert await names(blobs) == many
    await blobs.delete([*many[1:], "events/order/none"])
    assert await names(blobs) == many[:1]


async def test_only_what_is_old_enough_is_listed(blobs: Blobs) -> None:
    await blobs.put("events/order/1-a", b"x", TYPE)
    found = await blobs.head("events/order/1-a")
    assert found is not None
    assert [blob async for blob in blobs.scan("events/", older_than=found.modified + 1)] == [found]
    assert await names(blobs, older_than=found.modified) == []


async def test_deleting_nothing_is_no_error(blobs: Blobs) -> None:
    await blobs.delete([])
    await blobs.delete(["events/order/none"])


async def requests(blobs: Blobs) -> list[type]:
    """One of each, all at once; the types of what comes back."""

    async def scan() -> None:
        await names(blobs)

    answers = await asyncio.gather(
        blobs.put("events/order/2-b", b"x", TYPE), blobs.get("events/order/1-a"),
        blobs.head("events/order/1-a"), blobs.delete(["events/order/none"]), scan(), return_exceptions=True,
    )  # fmt: skip
    return [type(answer) for answer in answers]


@pytest.mark.parametrize("hangs", [False, True], ids=["down", "hanging"])
async def test_a_store_is_unavailable_while_it_is_away(world: World, blobs: Blobs, hangs: bool) -> None:
    await blobs.put("events/order/1-a", b"kept", TYPE)
    await (world.hang if hangs else world.go_down)()
    try:
        assert await requests(world.impatient if hangs else blobs) == [BlobsUnavailable] * 5
    finally:
        await (world.go_on if hangs else world.come_back)()
    assert await blobs.get("events/order/1-a") == b"kept"
