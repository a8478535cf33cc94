"""What workers make of the topic that all of them read, whatever somebody has written there."""

from typing import Any

import pytest
from lane_workloads import MADE_NEWER, counting
from lane_worlds import Post, World
from structlog.testing import capture_logs

from streams.errors import ClusterUnavailable, LayoutMismatch, UnknownSchema
from streams.host.announcements import Announcements
from streams.host.ended_sessions import EndedSessions
from streams.model.codecs import Schemas, fingerprint_of

pytestmark = pytest.mark.promise("unreadable-operations")

NEWER = fingerprint_of(MADE_NEWER)
UNHEARD = b'{"type": "record", "name": "A", "fields": [{"name": "x", "type": "Unheard"}]}'
BAD = {
    "no JSON": (b"schema:a", b"{"),
    "no UTF-8": (b"schema:b", b"\xff\xfe"),
    "nothing": (b"schema:c", None),
    "JSON, but no schema": (b"schema:d", b"17"),
    "a record without a name": (b"schema:e", b'{"type": "record", "fields": []}'),
    "a type that nobody knows": (b"schema:f", UNHEARD),
    "nested without end": (b"schema:g", b'{"type":"array","items":' * 700),
    "a layout that is none": (b"layout", b"{}"),
    "a layout of words": (b"layout", b'{"partitions": "many"}'),
    "a layout nested without end": (b"layout", b'{"x":' * 3_000),
    "a layout of nothing": (b"layout", b'{"partitions": 0}'),
    "a layout that was deleted": (b"layout", None),
}  # fmt: skip


def announced(world: World, key: bytes, value: bytes | None) -> Post:
    return Post(world.app.layout.announcements, 0, key, value, [])


async def listener(world: World, **options: Any) -> tuple[Announcements, Schemas]:
    await world.start(counting(world.name), **options)
    schemas = Schemas()
    return Announcements(world.app, schemas, cluster=world.cluster, bootstrap=""), schemas


@pytest.mark.parametrize("what", BAD)
async def test_an_announcement_that_is_none_keeps_no_worker_from_starting(world: World, what: str) -> None:
    announcements, schemas = await listener(world)
    good = announced(world, b"schema:" + NEWER.encode(), MADE_NEWER.encode())
    bad = announced(world, *BAD[what])
    await world.post(bad, good, bad)
    with capture_logs() as logs:
        await announcements.read()
    assert NEWER in schemas
    told = [each["offset"] for each in logs if each["event"] == "announcement_unreadable"]
    assert (told, announcements.unreadable) == ([0, 2], 1)


async def test_a_running_worker_goes_on_learning_after_a_bad_announcement(world: World) -> None:
    announcements, schemas = await listener(world)
    world.spawn(announcements.follow())
    await world.post(announced(world, *BAD["no JSON"]), announced(world, b"schema:x", MADE_NEWER.encode()))
    await world.until(lambda: NEWER in schemas)
    assert announcements.unreadable == 1


async def test_a_bad_announcement_counts_until_a_good_one_replaces_it(world: World) -> None:
    announcements, schemas = await listener(world)
    unheard = announced(world, b"schema:0123456789abcdef", UNHEARD)
    await world.post(announced(world, b"schema:x", b"{"), announced(world, *BAD["nothing"]), unheard)
    for _ in range(2):  # the second time as one that follows them does, from their begin
        await announcements.read()
        assert announcements.unreadable == 3
    with pytest.raises(UnknownSchema):
        schemas.get("0123456789abcdef")
    await world.post(announced(world, b"schema:x", MADE_NEWER.encode()))
    await announcements.read()
    assert (NEWER in schemas, announcements.unreadable) == (True, 2)


async def test_a_layout_that_can_be_read_still_counts(world: World) -> None:
    announcements, _ = await listener(world, partitions=2)
    await world.post(announced(world, b"layout", b'{"partitions": 3}'), announced(world, b"layout", b"{"))
    with pytest.raises(LayoutMismatch, match="STEADFAUST_PARTITIONS=3"):
        await announcements.read()


# -- sessions that were ended ------------------------------------------------------------------------------


async def test_a_logout_elsewhere_is_learned_at_start_and_later(world: World) -> None:
    await world.start(counting(world.name))
    ended = EndedSessions(is_complete=False)
    announcements = Announcements(
        world.app, Schemas(), cluster=world.cluster, bootstrap="", ended_sessions=ended
    )
    until, over = b'{"until": 9e9}', b'{"until": 1.0}'
    await world.post(announced(world, b"session-ended:a", until), announced(world, b"session-ended:o", over))
    await announcements.read()
    assert ("a" in ended, "b" in ended, "o" in ended, ended.is_complete) == (True, False, False, True)
    world.spawn(announcements.follow())
    await world.post(announced(world, b"session-ended:b", until))
    await world.until(lambda: "b" in ended)
    assert announcements.unreadable == 0


async def test_records_of_ended_sessions_are_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    announcements, _ = await listener(world)
    await world.post(announced(world, b"session-ended:o", b'{"until": 1.0}'))
    await announcements.read()
    produced: dict[bytes, bytes | None] = {}

    async def produce(records: dict[bytes, bytes | None]) -> None:
        produced.update(records)

    monkeypatch.setattr(announcements, "_produce", produce)
    await announcements.announce()
    assert produced[b"session-ended:o"] is None


async def test_logout_without_kafka_is_told_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    announcements, _ = await listener(world)
    told: list[bytes] = []
    away = True

    async def produce(records: dict[bytes, bytes | None]) -> None:
        if away:
            raise ClusterUnavailable("no broker")
        told.extend(records)

    monkeypatch.setattr(announcements, "_produce", produce)
    with capture_logs() as logs:
        await announcements.end_session("a", 9e9)
    assert [each["event"] for each in logs] == ["logout_not_told"]
    assert told == []
    away = False
    world.spawn(announcements.follow())
    await world.until(lambda: told == [b"session-ended:a"])
