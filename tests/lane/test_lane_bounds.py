"""Whatever size or time a message has, it is handled or a dead letter, and the lane goes on."""

from typing import Any

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_failing import LATER, Failing, finish, letters_of, started
from lane_relays import relay
from lane_scenes import counter, opened, some, stopped
from lane_workloads import counting, reminding
from lane_worlds import FakeWorld, Running, World
from test_lane_dead_letters import as_it_came, handled, with_header
from test_lane_host import hosting
from test_lane_timers import asking_for

from streams.engine.way.intake import FETCH_RECORDS
from streams.errors import TransientError
from streams.model.envelope import MAX_ID_BYTES
from streams.model.row_keys import MAX_KEY_BYTES

LONG = MAX_ID_BYTES + 1
LANES = 8
BOUND_BYTES = 100_000
LARGE = 2_000
LIMITS = {"max_batch": 1000, "max_backlog": 10_000, "max_backlog_bytes": BOUND_BYTES}


@pytest.mark.promise("size-limits")
@pytest.mark.parametrize("size", [LONG, 15_000])
@pytest.mark.parametrize("name", ["ce_id", "ce_source", "ce_correlationid"])
async def test_ids_too_long_to_be_kept_make_dead_letters(world: World, name: str, size: int) -> None:
    await world.start(work := counting(world.name, tallied=True))
    events = [world.event(work, "a", i) for i in range(10)]
    long = [with_header(name, b"%d" % i + b"." * (size - 1))(events[i]) for i in range(5)]
    await world.post(*long, *events[5:])
    await handled(world, work.source)
    for letter, post in zip(await dead_letters(world, work.source), long, strict=True):
        assert as_it_came(letter, post)["dlq-error-type"] == b"HeaderTooLong"
    await check(world, work, events[5:])
    await check_store(world)


async def test_messages_with_the_longest_ids_are_handled_once(world: World) -> None:
    """All in one transaction."""
    await world.start(work := counting(world.name, tallied=True))
    events = [world.event(work, "a", i, message_id=f"a-{i}".ljust(MAX_ID_BYTES, ".")) for i in range(50)]
    await world.post(*events, *events)
    lane = await world.open()
    await world.until(lambda: lane.lane.counters.duplicates == 100)
    await finish(world, work, lane, events)
    assert lane.lane.reopened == 0


@pytest.mark.promise("size-limits")
async def test_the_longest_keys_are_handled_a_longer_one_is_not(world: World) -> None:
    await world.start(work := counting(world.name), partitions=1, retry=LATER, max_message_bytes=400_000)
    key = "k" * MAX_KEY_BYTES
    work.hooks.before = Failing(world, {(key, 0): 1}, TransientError("busy"))
    events = [world.event(work, key, i, message_id=f"long-{i}") for i in range(2)]  # one waits for the other
    events.append(world.event(work, "a", 0))
    longer = world.event(work, key + "k", 0, message_id="longer")
    await world.post(longer, *events)
    lane = await world.open()
    await world.until(lambda: len(work.hooks.calls) == 4)  # the first twice, what waited, and another key's
    await finish(world, work, lane, events)
    assert lane.lane.reopened == 0
    (letter,) = await dead_letters(world, work.source)
    assert as_it_came(letter, longer)["dlq-error-type"] == b"TooLarge"


async def test_a_traceparent_that_is_none_is_not_passed_on(world: World) -> None:
    await world.start(work := counting(world.name))
    traces = [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"0" * 9_000]
    sent = [with_header("traceparent", trace)(world.event(work, "a", i)) for i, trace in enumerate(traces)]
    await world.post(*sent)
    await finish(world, work, await world.open(), sent)
    passed_on = [dict(record.headers).get("traceparent") for record in await world.records(work.output)]
    assert passed_on == [traces[0], None]


async def test_a_timer_with_too_long_a_name_cannot_be_cancelled(fake: FakeWorld) -> None:
    await fake.start(work := reminding(fake.name))
    post = asking_for(fake, work, 1, None)
    long = post._replace(value=(post.value or b"").replace(b'"alarm"', b'"' + b"n" * 25_000 + b'"'))
    await fake.post(long, asking_for(fake, work, 2, None))
    await handled(fake, work.asked.TOPIC)
    (letter,) = await dead_letters(fake, work.asked.TOPIC)
    assert dict(letter.headers)["dlq-error-type"] == b"TooLarge"
    assert await counts(fake, "asks") == {"a": 1}


# -- what a worker holds in memory ---------------------------------------------------------------------------


@pytest.mark.promise("bounded-memory")
async def test_lanes_that_cannot_commit_hold_their_share_alone(
    fake: FakeWorld, fatal: list[BaseException]
) -> None:
    """Each lane had a bound of its own alone: a worker of 64 lanes took a gigabyte behind a slow broker."""
    work, most = counting(fake.name), 400
    limits = {"max_batch": 1000, "max_backlog": 10_000, "max_worker_backlog": most}
    await fake.start(work, partitions=LANES, lanes=LANES, **limits)
    pauses = [fake.faults.pause_at("staged", nth) for nth in range(1, LANES + 1)]
    await fake.post(*(events := [fake.event(work, f"key-{n % 64}", n) for n in range(8000)]))
    host = await hosting(fake, fatal, set(range(LANES)), faults=fake.faults)
    lanes = host.lanes.values()
    await fake.until(lambda: all(lane.backlog >= most // LANES for lane in lanes))
    for _ in range(100):
        await fake._tick()
    # Each may have asked when all had room.
    assert sum(lane.backlog for lane in lanes) <= most + LANES * FETCH_RECORDS
    for pause in pauses:
        pause.resume()
    await fake.settled(work.source)
    await host.stop()
    assert fatal == []
    await check(fake, work, events)


async def full(world: World) -> Running:
    """A lane that cannot commit, when it has taken all that it takes; its commits go on afterwards."""
    pause = world.faults.pause_at("staged", world.faults.reached["staged"] + 1)
    lane = await world.open()
    await world.until(lambda: lane.lane.backlog * LARGE >= BOUND_BYTES)
    for _ in range(100):
        await world._tick()
    held = lane.lane.backlog
    pause.resume()
    assert held < BOUND_BYTES / LARGE + FETCH_RECORDS
    return lane


@pytest.mark.promise("bounded-memory")
async def test_what_is_taken_and_not_committed_is_bounded_in_bytes(world: World) -> None:
    await world.start(work := counting(world.name), **LIMITS)
    large = with_header("note", b"x" * LARGE)
    await world.post(*(events := [large(world.event(work, f"k{i % 8}", i)) for i in range(1500)]))
    await finish(world, work, await full(world), events)


@pytest.mark.promise("bounded-memory")
@pytest.mark.parametrize("what", ["text", "passed"], ids=["row", "output"])
async def test_rows_and_outputs_count_among_the_bytes_held(fake: FakeWorld, what: str) -> None:
    await fake.start(work := counting(fake.name), **LIMITS)
    events = [fake.event(work, "a", i) for i in range(2000)]
    setattr(work.hooks, what, lambda _: "x" * LARGE)
    await fake.post(*events)
    await finish(fake, work, await full(fake), events)


@pytest.mark.promise("bounded-memory")
async def test_messages_of_timers_count_among_the_bytes_held(fake: FakeWorld) -> None:
    await fake.start(work := reminding(fake.name), **LIMITS)
    due = fake.clock.now() + 1000.0
    asked = [asking_for(fake, work, i, due, key=f"k{i}") for i in range(1000)]
    long = b"a" * LARGE
    await fake.post(*(post._replace(value=(post.value or b"").replace(b"alarm", long)) for post in asked))
    lane = await fake.open()
    await fake.settled(work.asked.TOPIC)
    await lane.stop()
    await fake.clock.advance(1000.0)
    lane = await full(fake)
    await fake.until(lambda: lane.handled == 1000)
    await lane.stop()
    assert len(fake.cluster.visible(work.rang.TOPIC)) == 1000


@pytest.mark.promise("bounded-memory")
async def test_headers_count_among_the_bytes_that_wait(fake: FakeWorld) -> None:
    await started(fake, work := counting(fake.name), retry=LATER, max_waiting_bytes=30_000)
    work.hooks.before = Failing(fake, {("a", 0): 1}, TransientError("busy"))
    events = [with_header("note", b"x" * 9_000)(fake.event(work, "a", i)) for i in range(4)]
    await fake.post(*events)
    lane = await fake.open()
    await fake.until(lambda: len(fake.cluster.visible(work.output)) == 3)
    await finish(fake, work, lane, events[:3])
    (letter,) = await letters_of(fake, work)
    assert letter["dlq-error-type"] == b"QueueFull"


#: Seconds: what each message adds to its transaction, and what a transaction may take.
EACH, TIMEOUT = 0.3, 1.0
MESSAGES = 16


class Slow:
    """The cluster beside brokers, or a worker, so busy that a transaction's time goes with its size."""

    def __init__(self, cluster: Any, clock: Any, topic: str) -> None:
        self._cluster = cluster
        self._clock = clock
        self._topic = topic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def transactions(self, transactional_id: str) -> Any:
        producer = self._cluster.transactions(transactional_id)
        send = producer.send

        async def slowly(batches: Any) -> Any:
            ends = await send(batches)
            outputs = sum(len(records) for tp, records in batches.items() if tp.topic == self._topic)
            await self._clock.sleep(EACH * outputs)
            return ends

        producer.send = slowly
        return producer


@pytest.mark.promise("smaller-transactions")
async def test_a_transaction_slower_than_its_timeout_becomes_smaller(world: World) -> None:
    work = await counter(world, transaction_timeout=TIMEOUT, max_batch=MESSAGES)
    world.cluster = Slow(world.cluster, world.clock, work.output)
    events = some(world, work, range(MESSAGES // 4))
    lane = await opened(world, *events)
    await world.settled(work.source)
    assert lane.lane.fenced >= 2  # the first may be another owner's doing
    await lane.stop()
    await check(world, work, events)
    await check_store(world)


@pytest.mark.promise("smaller-transactions")
async def test_a_slow_lane_loops_no_more_than_may_be_held(fake: FakeWorld) -> None:
    work = relay(fake.name)
    await fake.start(work, partitions=1, transaction_timeout=TIMEOUT)
    fake.cluster = Slow(fake.cluster, fake.clock, work.middle)
    lane = await opened(fake, fake.event(work, "a", -30))
    await fake.until(lambda: fake.cluster.visible(work.end) or lane.lane.fenced > 10)
    await stopped(fake, lane, work.source, work.middle, work.end)
    assert 2 <= lane.lane.fenced <= 10
    assert len(await fake.records(work.middle)) == 31
    assert len(await fake.records(work.end)) == 1
