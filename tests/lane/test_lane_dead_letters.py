"""What cannot be handled goes to the dead letters as it came, and the lane goes on."""

from collections.abc import Callable
from typing import Any

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_commands import Pages
from lane_failing import finish
from lane_scenes import counter
from lane_workloads import Workload, counting
from lane_worlds import FakeWorld, Post, World
from structlog.testing import capture_logs

from streams.control.overview.overview import readiness
from streams.engine.waiting.dead_letters.bursts import MANY, TOLD_FOR, WITHIN, Bursts
from streams.errors import PermanentError
from streams.model.policy.assignment import Assignment

Spoil = Callable[[Post], Post]


def without(name: str) -> Spoil:
    return lambda post: post._replace(headers=[h for h in post.headers if h[0] != name])


def with_header(name: str, value: bytes | None) -> Spoil:
    return lambda post: post._replace(headers=[h for h in post.headers if h[0] != name] + [(name, value)])


def with_value(value: bytes | None) -> Spoil:
    return lambda post: post._replace(value=value)


#: Deeper than CPython goes down: 3.13 reads 9,000 levels.
NESTED = b"[" * 15_000
SPOILED: dict[str, tuple[Spoil, str]] = {
    "no id": (without("ce_id"), "MissingHeader"),
    "empty id": (with_header("ce_id", b""), "MissingHeader"),
    "null id": (with_header("ce_id", None), "MissingHeader"),
    "no key": (lambda post: post._replace(key=None), "MissingHeader"),
    "no value": (with_value(None), "MissingHeader"),
    "empty value": (with_value(b""), "Undecodable"),
    "not JSON": (with_value(b"\x00\xff\xfe"), "Undecodable"),
    "truncated": (with_value(b'{"k":"a","i":'), "Undecodable"),
    "a field is missing": (with_value(b'{"i":1}'), "Undecodable"),
    "another type": (with_value(b'{"k":1,"i":1}'), "Undecodable"),
    "bytes that are no UTF-8": (with_value(b'{"k":"\xff","i":1}'), "Undecodable"),
    "nested without end": (with_value(b'{"k":"a","i":1,"x":' + NESTED), "Undecodable"),
    "another key": (with_value(b'{"k":"b","i":1}'), "KeyMismatch"),
}


async def beside_good_ones(world: World, work: Workload, bad: Post) -> Any:
    """Handle good events before and after a bad one; returns the dead letter."""
    good = [world.event(work, "a", i) for i in range(4)]
    await world.post(*good[:2], bad, *good[2:])
    lane = await world.open()
    await finish(world, work, lane, good)
    assert lane.lane.reopened == 0
    assert lane.lane.counters.dead_letters == 1
    (letter,) = await dead_letters(world, work.source)
    return letter


def as_it_came(letter: Any, post: Post) -> dict[str, bytes]:
    """Key, value and headers are those of the original; returns the headers that were added."""
    assert (letter.key, letter.value) == (post.key, post.value)
    n = len(post.headers)
    assert list(letter.headers[:n]) == post.headers
    added = dict(letter.headers[n:])
    assert all(name.startswith("dlq-") for name in added)
    assert added["dlq-source-topic"] == post.topic.encode()
    assert added["dlq-source-partition"] == b"%d" % post.partition
    return added


async def handled(world: World, *topics: str) -> Any:
    """A lane that has handled all that is there without an error of its own, and has stopped."""
    lane = await world.open()
    await world.settled(*topics)
    await lane.stop()
    assert lane.lane.reopened == 0
    return lane


@pytest.mark.promise("undecodable")
@pytest.mark.parametrize("how", SPOILED)
async def test_a_message_that_is_none_is_buried_as_it_came(world: World, how: str) -> None:
    await world.start(work := counting(world.name))
    spoil, error_type = SPOILED[how]
    bad = spoil(world.event(work, "a", 9))
    added = as_it_came(await beside_good_ones(world, work, bad), bad)
    assert added["dlq-error-type"] == error_type.encode()
    assert added["dlq-source-offset"] == b"2"
    assert added["dlq-consumer-group"] == world.name.encode()


async def test_a_source_without_a_value_is_an_empty_one(world: World) -> None:
    await world.start(work := counting(world.name))
    post = with_header("ce_source", None)(world.event(work, "a", 1))
    await world.post(post, post)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.duplicates == 1)
    await finish(world, work, lane, [post])


def failing(error: Exception, when: int) -> Callable[[Any], None]:
    def before(event: Any) -> None:
        if event.i == when:
            raise error

    return before


@pytest.mark.promise("own-handler")
async def test_a_permanent_error_buries_the_message_for_its_handler_alone(world: World) -> None:
    await world.start(work := counting(world.name, tallied=True))
    work.hooks.before = failing(PermanentError("no"), 1)
    work.hooks.before_tally = failing(PermanentError("no such thing"), 2)
    events = [world.event(work, "a", i) for i in range(4)]
    await world.post(*events, *events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.duplicates == 8)
    await finish(world, work, lane, [events[0], *events[2:]])
    assert await counts(world, "tallies") == {"a": 3}
    await check_store(world)
    first, letter = await dead_letters(world, work.source)
    assert dict(first.headers)["dlq-handler"] == b"bench.count"
    added = as_it_came(letter, events[2])
    assert added["dlq-handler"] == b"bench.tally"
    assert added["dlq-error-type"] == b"PermanentError"
    assert b"no such thing" in added["dlq-error-message"]
    assert b"before_tally" in added["dlq-stack-trace"]


@pytest.mark.promise("size-limits")
@pytest.mark.parametrize("what", ["text", "passed"], ids=["row", "output"])
async def test_what_is_too_large_fails_its_own_message_only(world: World, what: str) -> None:
    await world.start(work := counting(world.name, tallied=True))
    setattr(work.hooks, what, lambda event: "x" * 30_000 if event.i == 9 else "")
    letter = await beside_good_ones(world, work, world.event(work, "a", 9))
    assert dict(letter.headers)["dlq-error-type"] == b"TooLarge"
    assert await counts(world, "tallies") == {"a": 5}


@pytest.mark.promise("undecodable")
async def test_a_spoiled_message_of_the_largest_size_is_buried(world: World) -> None:
    await world.start(work := counting(world.name))
    post = world.event(work, "a", 1)
    frame = 120 + sum(len(name) + len(value) + 3 for name, value in post.headers)
    bad = post._replace(value=b"?" * (world.app.lane_options.max_message_bytes - frame))
    as_it_came(await beside_good_ones(world, work, bad), bad)


@pytest.mark.promise("misrouted")
@pytest.mark.landing
async def test_a_misrouted_message_is_sent_on_and_handled_once(world: World) -> None:
    await world.start(work := counting(world.name), partitions=4, lanes=2)
    events = [world.event(work, key, i) for i in range(3) for key in "abcd"]
    astray = [post._replace(partition=(post.partition + 1 + i % 3) % 4) for i, post in enumerate(events)]
    await world.post(*astray, *events)
    lanes = [await world.open(number) for number in (0, 1)]
    await world.until(lambda: sum(lane.lane.counters.duplicates for lane in lanes) == len(events))
    await world.settled(work.source)
    for lane in lanes:
        await lane.stop()
    assert sum(lane.lane.counters.misrouted for lane in lanes) == len(events)
    await check(world, work, events)
    for number in (0, 1):
        await check_store(world, number)


@pytest.mark.promise("undecodable")
@pytest.mark.parametrize(("how", "error"), [("undecodable", b"Undecodable"), ("astray", b"TooLarge")])
async def test_a_message_larger_than_any_record_stops_no_lane(
    fake: FakeWorld, how: str, error: bytes
) -> None:
    """As it comes when it was compressed."""
    await fake.start(work := counting(fake.name))
    bad = fake.event(work, "a", 9)
    if how == "undecodable":
        bad = bad._replace(value=b"?" * 200_000)
    else:
        padded = (bad.value or b"")[:-1] + b" " * 200_000 + b"}"
        bad = bad._replace(value=padded, partition=1 - bad.partition)
    letter = await beside_good_ones(fake, work, bad)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (b"a", None)
    assert int(headers["dlq-omitted-bytes"]) > 200_000
    assert headers["dlq-error-type"] == error


async def test_a_message_that_cannot_say_its_key_is_buried(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fake.start(work := counting(fake.name))

    def key(event: Any) -> str:
        if event.i == 9:
            raise IndexError("no lines")
        return str(event.k)

    bad = fake.event(work, "a", 9)
    monkeypatch.setattr(work.made, "key", property(key))
    letter = await beside_good_ones(fake, work, bad)
    assert dict(letter.headers)["dlq-error-type"] == b"KeyMismatch"


async def test_many_dead_letters_warn_with_handler_key_and_number(fake: FakeWorld) -> None:
    work = await counter(fake, max_backlog=4000)

    def before(event: Any) -> None:
        if event.i < 3000:
            raise PermanentError("there is a bug")

    work.hooks.before = before
    lane = await fake.open()
    pages = Pages(fake, lane.lane)
    pages.assignment = Assignment(owners={0: "here"}, topics=tuple(fake.app.sources))
    assert readiness(pages).status == "ready"  # type: ignore[arg-type]
    with capture_logs() as logs:
        await fake.post(*(fake.event(work, "hot" if i % 3 else f"k{i}", i) for i in range(3010)))
        await fake.settled(work.source)
    health = readiness(pages)  # type: ignore[arg-type]
    assert health.status == "degraded"
    (warning,) = health.warnings
    assert warning.startswith(
        "3000 messages became dead letters of bench.count within 1 s, 2000 of key 'hot'"
    )
    assert "PermanentError: see `steadfaust dlq groups`" in warning
    assert sum(each["event"] == "dead_letters_in_a_burst" for each in logs) == 1
    await fake.clock.sleep(TOLD_FOR + 1)
    assert readiness(pages).status == "ready"  # type: ignore[arg-type]


def test_a_few_dead_letters_now_and_then_warn_of_nothing() -> None:
    bursts = Bursts()
    for n in range(5 * MANY):
        bursts.add("a.b", b"k%d" % n, "ValueError", n * 2 * WITHIN / MANY)
    assert bursts.texts(5 * 2 * WITHIN) == []


def test_what_no_handler_has_seen_counts_as_well() -> None:
    bursts = Bursts()
    for n in range(MANY):
        bursts.add("", None if n % 2 else b"k", "Undecodable", 1.0)
    (text,) = bursts.texts(2.0)
    assert text.startswith(f"{MANY} messages became dead letters of no handler within 1 s, 50 of key ")
