"""Messages and rows of an unknown schema wait, while everything else goes on."""

from __future__ import annotations

import pytest
from lane_checker import check_store, dead_letters
from lane_workloads import COUNT, MADE_NEWER, MADE_OLDER, avro_codecs, counting
from lane_worlds import FakeWorld, Post, World

from streams.codecs import Schemas, fingerprint_of
from streams.ports import Write


def written_as(post: Post, fingerprint: str, value: bytes) -> Post:
    headers = [h for h in post.headers if h[0] != "schema-fingerprint"]
    return post._replace(value=value, headers=[*headers, ("schema-fingerprint", fingerprint.encode())])


#: k, i, colour in the order of MADE_NEWER: colour, i, k.
def newer(post: Post, key: str, i: int) -> Post:
    return written_as(
        post, fingerprint_of(MADE_NEWER), b"\x06red" + bytes([2 * i, 2 * len(key)]) + key.encode()
    )


async def test_a_message_of_an_unknown_schema_waits_and_everything_else_goes_on(world: World) -> None:
    work, schemas = counting(world.name), Schemas()
    await world.start(work, codecs=avro_codecs(schemas), partitions=2)
    here, there = "a", next(k for k in "bcdefgh" if world.app.layout.partition_of(k.encode()) != _home(world))
    first, waiting = world.event(work, here, 0), newer(world.event(work, here, 1), here, 1)
    behind = [world.event(work, here, i) for i in range(2, 5)]
    others = [world.event(work, there, i) for i in range(5)]
    await world.post(first, waiting, *behind, *others)
    lane = await world.open()
    await world.until(lambda: lane.handled == 6)
    assert await dead_letters(world, work.source) == []
    schemas.add(MADE_NEWER)
    await world.until(lambda: lane.handled == 10)
    await world.settled(work.source)
    await lane.stop()
    assert work.hooks.calls.index((here, 1)) < work.hooks.calls.index((here, 2))
    assert await outputs_of(world, work) == 10
    await check_store(world)


def _home(world: World) -> int:
    return world.app.layout.partition_of(b"a")


async def outputs_of(world: World, work: object) -> int:
    return len(await world.records(work.output))


async def test_a_partition_that_waits_does_not_fill_the_lane_up(world: World) -> None:
    work, schemas = counting(world.name), Schemas()
    await world.start(work, codecs=avro_codecs(schemas), partitions=2, max_backlog=20)
    there = next(k for k in "bcdefgh" if world.app.layout.partition_of(k.encode()) != _home(world))
    waiting = newer(world.event(work, "a", 0), "a", 0)
    await world.post(waiting, *(world.event(work, "a", i) for i in range(1, 60)))
    lane = await world.open()
    await world.post(*(world.event(work, there, i) for i in range(5)))
    await world.until(lambda: lane.handled == 5, timeout=3)
    schemas.add(MADE_NEWER)
    await world.until(lambda: lane.handled == 65)
    await world.settled(work.source)
    await lane.stop()
    await check_store(world)


async def test_what_older_and_newer_writers_wrote_is_read_by_our_schema(world: World) -> None:
    work, schemas = counting(world.name), Schemas()
    await world.start(work, codecs=avro_codecs(schemas))
    schemas.add(MADE_NEWER)
    schemas.add(MADE_OLDER)
    post = world.event(work, "a", 7)
    older = written_as(world.event(work, "a", 0), fingerprint_of(MADE_OLDER), b"\x02a")
    await world.post(post, newer(world.event(work, "a", 3), "a", 3), older)
    lane = await world.open()
    await world.settled(work.source)
    await lane.stop()
    assert work.hooks.calls == [("a", 7), ("a", 3), ("a", 0)]


@pytest.mark.parametrize("fingerprint", [b"garbage", b"\xff\xfe", b"0123456789abcdef0", b"0123456789abcdeg"])
async def test_what_is_no_fingerprint_can_never_be_announced_and_does_not_wait(
    fake: FakeWorld, fingerprint: bytes
) -> None:
    work, schemas = counting(fake.name), Schemas()
    await fake.start(work, codecs=avro_codecs(schemas))
    post = fake.event(work, "a", 1)
    bad = [h for h in post.headers if h[0] != "schema-fingerprint"] + [("schema-fingerprint", fingerprint)]
    await fake.post(post._replace(headers=bad), fake.event(work, "a", 2))
    lane = await fake.open()
    await fake.until(lambda: lane.handled == 1)
    await fake.settled(work.source)
    await lane.stop()
    (letter,) = await dead_letters(fake, work.source)
    assert dict(letter.headers)["dlq-error-type"] == b"Undecodable"


async def test_a_row_of_an_unknown_schema_waits_until_it_is_announced(fake: FakeWorld) -> None:
    work, schemas = counting(fake.name), Schemas()
    await fake.start(work, codecs=avro_codecs(schemas))
    await fake.post(fake.event(work, "a", 0))
    lane = await fake.open()
    await fake.until(lambda: lane.handled == 1)
    await fake.settled(work.source)
    store = lane.lane.store
    ((key, value),) = store.scan("counts")
    newer_row = COUNT.replace('"fields": [', '"fields": [{"name": "more", "type": "int"},')
    store.apply([Write("counts", key, bytes.fromhex(fingerprint_of(newer_row)) + b"\x02" + value[8:])], {})
    await fake.post(fake.event(work, "a", 1))
    await fake.until(lambda: lane.lane.reopened > 20)
    assert lane.lane.state != "quarantined"
    schemas.add(newer_row)
    await fake.until(lambda: lane.handled == 2)
    await fake.settled(work.source)
    await lane.stop()
    assert await outputs_of(fake, work) == 2
