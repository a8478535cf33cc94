"""One lane that gives up does not take the others along; bad data is the fault of its message alone."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from lane_checker import check, check_store, counts, dead_letters
from lane_failing import finish, started
from lane_hosts import host_of, of_lane, opened
from lane_pausing import some
from lane_workloads import Workload, asking, avro_codecs, counting, reminding
from lane_worlds import FakeWorld, Post, World
from structlog.testing import capture_logs
from test_lane_dead_letters import handled
from test_lane_host import Fatal
from test_lane_timers import asking_for

import streams.model.policy.reopening
from streams.engine.life.watchdog import STUCK_AFTER
from streams.errors import ClusterUnavailable, OutcomeUnknown, PermanentError, Undecodable
from streams.model.codecs import MakeCodec, Schemas, json_without_schema
from streams.model.outcome import Timer, outcome
from streams.model.policy.breaker import BreakerPolicy, BreakerState
from streams.ports import TP
from tests.keyed import Keyed


class Unasked(Keyed, frozen=True):
    TOPIC: ClassVar[str] = "bench.unasked.v1"


class Outage:
    def __init__(self, error: Callable[[], Exception]) -> None:
        self.times = 0
        self.on = True
        self._error = error

    async def reach(self, point: str) -> None:
        if self.on and point == "sent":
            self.times += 1
            raise self._error()


@pytest.mark.promise("quarantine")
@pytest.mark.promise("impossible-states")
async def test_a_lane_that_cannot_commit_is_quarantined_alone(
    world: World, fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams.model.policy.reopening, "DELAY", 0.001)
    monkeypatch.setattr(streams.model.policy.reopening, "QUARANTINE", 5.0)
    await world.start(work := counting(world.name), partitions=2, lanes=2)
    events = some(world, work, range(3))
    ours, others = of_lane(world, events, 0), of_lane(world, events, 1)
    cluster = Refusing(world.cluster, work.output, dict(ours[5].headers)["ce_id"])
    host = host_of(world, fatal, cluster=cluster)
    await world.post(*events)
    host.assign({0, 1}, set(), world.app.sources)
    await world.until(lambda: host.lanes[0].state == "quarantined")
    assert cluster.refused > 5
    assert host.stuck() == [host.lanes[0]]
    await world.post(*(more := of_lane(world, some(world, work, range(3, 4)), 1)))
    done = len(others + more)
    await world.until(lambda: host.lanes[1].counters.handled == done and not host.lanes[1].backlog)
    await world.until_at({TP(work.source, 0): 5})
    await check(world, work, ours[:5] + others + more, settled=False)
    cluster.mended = True
    await world.settled(work.source)
    await host.stop()
    assert fatal == []
    await check(world, work, events + more)


class Refusing:
    """A cluster whose producer fails over what is sent in answer to one message, until it is mended."""

    def __init__(self, cluster: Any, topic: str, caused_by: bytes) -> None:
        self._cluster = cluster
        self._topic = topic
        self._caused_by = caused_by
        self.refused = 0
        self.mended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def transactions(self, transactional_id: str) -> Any:
        producer = self._cluster.transactions(transactional_id)
        send = producer.send

        async def refuse(batches: Any) -> Any:
            for tp, records in batches.items():
                if (
                    not self.mended
                    and tp.topic == self._topic
                    and any(dict(record.headers)["ce_causationid"] == self._caused_by for record in records)
                ):
                    self.refused += 1
                    raise KeyError("a mistake of ours")
            return await send(batches)

        producer.send = refuse
        return producer


@pytest.mark.promise("quarantine")
@pytest.mark.parametrize("error", [OutcomeUnknown, ClusterUnavailable, TimeoutError, OSError])
async def test_an_outage_however_long_quarantines_nobody_but_is_seen(
    fake: FakeWorld, fatal: Fatal, error: type[Exception]
) -> None:
    await fake.start(work := counting(fake.name))
    await fake.post(*(events := some(fake, work, range(3))))
    outage = Outage(lambda: error("the network is down"))
    host = host_of(fake, fatal, outage)
    host.assign({0}, set(), fake.app.sources)
    start = fake.clock.now()
    await fake.until(lambda: fake.clock.now() - start > STUCK_AFTER + 10 and outage.times > 10)
    assert host.stuck() == [host.lanes[0]]
    outage.on = False
    await fake.settled(work.source)
    assert host.stuck() == []
    await host.stop()
    assert fatal == []
    await check(fake, work, events)


async def test_a_lane_that_cannot_open_or_work_is_stuck(fake: FakeWorld, fatal: Fatal) -> None:
    go_on = asyncio.Event()

    async def ask(key: str, i: int) -> None:
        await go_on.wait()

    await fake.start(work := asking(fake.name, ask))
    host = host_of(fake, fatal)
    host.assign({0}, set(), fake.app.sources)
    host.membership_unsure()
    await fake.clock.advance(STUCK_AFTER - 1)
    assert host.stuck() == []
    await fake.clock.advance(2)
    assert host.stuck() == [host.lanes[0]]
    host.assign({0}, set(), fake.app.sources)
    await opened(fake, host)
    await fake.clock.advance(3 * STUCK_AFTER)
    assert host.stuck() == []
    await fake.post(fake.event(work, "a", 1))
    await fake.until(lambda: host.lanes[0].backlog)
    assert host.stuck() == []
    await fake.clock.advance(STUCK_AFTER + 1)
    assert host.stuck() == [host.lanes[0]]
    go_on.set()
    await fake.settled(work.source)
    assert host.stuck() == []


BREAKER = BreakerPolicy(minimum=5, open_for=1.0, max_open_for=1.0, probes=2)
#: A text that is no Unicode: no codec can write it.
NO_TEXT = "\ud800"


async def twelve_are_bad(
    world: World, work: Workload, error: bytes, codecs: MakeCodec = json_without_schema
) -> list[Post]:
    """Twelve of 16 events become dead letters at the first try, and the breaker stays closed. Returns the
    others.
    """
    await started(world, work, breaker=BREAKER, codecs=codecs)
    await world.post(*(events := [world.event(work, "a", i) for i in range(16)]))
    lane = await world.open()
    await world.settled(work.source)
    assert lane.lane.gates["bench.count"].breaker.state is BreakerState.CLOSED
    await lane.stop()
    assert [i for _, i in work.hooks.calls] == list(range(16))
    assert lane.lane.reopened == 0
    letters = await dead_letters(world, work.source)
    assert [dict(letter.headers)["dlq-error-type"] for letter in letters] == [error] * 12
    await check_store(world)
    return events[12:]


@pytest.mark.promise("unwritable-outcome")
@pytest.mark.parametrize("how", ["avro", "json"])
@pytest.mark.parametrize("what", ["text", "passed"], ids=["row", "output"])
async def test_the_unencodable_is_a_dead_letter_and_opens_no_breaker(
    world: World, what: str, how: str
) -> None:
    work = counting(world.name)
    setattr(work.hooks, what, lambda event: NO_TEXT if event.i < 12 else "")
    codecs = avro_codecs(Schemas()) if how == "avro" else json_without_schema
    good = await twelve_are_bad(world, work, b"Unencodable", codecs)
    assert len(await world.records(work.output)) == len(good)
    if how == "json":
        await check(world, work, good)


@pytest.mark.promise("read-back")
@pytest.mark.parametrize("how", ["avro", "json"])
@pytest.mark.parametrize(
    ("what", "where"),
    [("text", "a row of table counts: Count"), ("passed", "Counted")],
    ids=["row", "output"],
)
async def test_what_would_read_back_otherwise_stops_its_message_alone(
    fake: FakeWorld, what: str, where: str, how: str
) -> None:
    work = counting(fake.name)
    setattr(work.hooks, what, lambda event: [7] if event.i == 1 else "")
    await fake.start(work, codecs=avro_codecs(Schemas()) if how == "avro" else json_without_schema)
    await fake.post(*(fake.event(work, "a", i) for i in range(4)))
    lane = await fake.open()
    await fake.settled(work.source)
    (letter,) = await dead_letters(fake, work.source)
    told = dict(letter.headers)
    assert told["dlq-error-type"] == b"Unencodable"
    assert told["dlq-error-message"].decode().startswith(where)
    assert b"text" in told["dlq-error-message"]
    assert len(await fake.records(work.output)) == 3
    assert lane.lane.state == "open"


@pytest.mark.promise("unwritable-outcome")
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "bench.count returned NoneType: return outcome(...) or nothing(...)"),
        ({"count": None}, "bench.count returned dict"),
        (outcome(other=None), "bench.count returned a row named 'other', but is declared with ['count']"),
        (outcome(send=[Unasked(k="a")]), "bench.count sent Unasked, which it is not declared to send"),
        (outcome(send="a"), "bench.count sent str, which it is not declared to send"),
        (outcome(send=7), "object is not iterable"),
        (outcome(cancel="alarm"), "cancel='alarm': give the names of timers in a list"),
        (outcome(timers=[Timer("t", 5.0, Unasked(k="a"))]), "bench.count sent Unasked"),
        (
            outcome(timers=[Timer("t", "soon", Unasked(k="a"))]),
            "bench.count returned something that cannot be written",
        ),
    ],
)
async def test_wrong_outcomes_are_dead_letters_and_open_no_breaker(
    world: World, returned: Any, said: str
) -> None:
    work = counting(world.name)
    work.hooks.returned = lambda event, right: returned if event.i < 12 else right
    await check(world, work, await twelve_are_bad(world, work, b"Unencodable"))
    letters = await dead_letters(world, work.source)
    assert all(said in dict(letter.headers)["dlq-error-message"].decode() for letter in letters)


@pytest.mark.parametrize("due", [1e300, -5.0, 1e17])
async def test_a_timer_at_no_time_is_a_dead_letter(world: World, due: float) -> None:
    await started(world, work := reminding(world.name))
    await world.post(asking_for(world, work, 1, due), asking_for(world, work, 2, None))
    await handled(world, work.asked.TOPIC)
    (letter,) = await dead_letters(world, work.asked.TOPIC)
    assert dict(letter.headers)["dlq-error-type"] == b"Unencodable"
    assert await counts(world, "asks") == {"a": 1}


@pytest.mark.promise("unwritable-outcome")
async def test_answers_that_are_permanent_errors_open_no_breaker(world: World) -> None:
    """Who answers, if only that it cannot be, is there: such messages are no outage, however many."""

    def before(event: Any) -> None:
        if event.i < 12:
            raise PermanentError("404")

    work = counting(world.name)
    work.hooks.before = before
    await check(world, work, await twelve_are_bad(world, work, b"PermanentError"))


@pytest.mark.promise("unwritable-outcome")
async def test_bad_data_does_not_end_an_outage(fake: FakeWorld) -> None:
    down = True

    def before(event: Any) -> None:
        if event.i == 9:
            raise Undecodable("what it carries is no reply")
        if down:
            raise ConnectionError("nobody there")

    await started(fake, work := counting(fake.name), breaker=BREAKER)
    work.hooks.before = before
    await fake.post(*(good := [fake.event(work, f"k{n}", 0) for n in range(8)]))
    lane = await fake.open()
    await fake.until(lambda: lane.lane.gates["bench.count"].breaker.state is BreakerState.OPEN)
    with capture_logs() as logs:
        await fake.post(*(fake.event(work, f"b{n}", 9) for n in range(8)))
        await fake.until(lambda: lane.lane.counters.dead_letters == 8)
    changes = [entry["after"] for entry in logs if entry["event"] == "breaker_changed"]
    assert "half_open" in changes
    assert "closed" not in changes
    down = False
    await fake.until(lambda: len(fake.cluster.visible(work.output)) == 8)
    await finish(fake, work, lane, good)
