"""What the broker refuses: waited out where it passes, a dead letter where one message is the cause."""

import pytest
from lane_checker import check, check_store, counts
from lane_hosts import host_of, opened
from lane_scenes import counter, some, stopped
from lane_worlds import FakeWorld, ids
from structlog.testing import capture_logs

from streams.ports import TP

pytestmark = pytest.mark.promise("refusals")

LARGE = 5_000
Fatal = list[BaseException]


@pytest.mark.parametrize("refusal", ["clock ahead", "clock behind", "right"])
async def test_a_passing_refusal_is_waited_out_and_named(fake: FakeWorld, fatal: Fatal, refusal: str) -> None:
    work = await counter(fake, lanes=2)
    host = host_of(fake, fatal)
    if refusal == "right":
        fake.cluster.refuses = said = "this worker may not write to a topic"
    else:
        fake.cluster.clock_ahead = 3700.0 if refusal == "clock ahead" else -3700.0
        said = "this machine's clock is 3,700 s " + refusal.removeprefix("clock ")
    await fake.post(*(events := some(fake, work, range(4))))
    with capture_logs() as logs:
        host.assign({0, 1}, set(), fake.app.sources)
        await fake.until(lambda: all(lane.trouble.startswith(said) for lane in host.lanes.values()))
        tried = fake.cluster.refused
        await fake.clock.advance(600)
        assert 20 < fake.cluster.refused - tried < 60  # each lane every half minute
        assert {str(lane.state) for lane in host.lanes.values()} <= {"backing_off", "open", "opening"}
        assert host.stuck() == list(host.lanes.values())
        assert (host.waited_for_machine() > 300) is (refusal != "right")  # every worker has that
        fake.cluster.clock_ahead, fake.cluster.refuses = 0.0, ""
        await fake.settled(work.source)
        await fake.until(lambda: not any(lane.trouble for lane in host.lanes.values()))
    assert (host.stuck(), fatal, host.waited_for_machine()) == ([], [], 0.0)
    assert said in next(each["cause"] for each in logs if each["event"] == "lane_waits")
    assert {each["lane"] for each in logs if each["event"] == "lane_goes_on"} == {0, 1}
    await host.stop()
    await check(fake, work, events)


def lowered(fake: FakeWorld, topic: str, limit: int) -> None:
    fake.cluster.limits[topic] = limit


@pytest.mark.parametrize("of", ["output", "row"])
@pytest.mark.parametrize("max_batch", [1, 50])
async def test_a_message_over_a_lowered_limit_is_buried_alone(
    fake: FakeWorld, fatal: Fatal, of: str, max_batch: int
) -> None:
    work = await counter(fake, max_batch=max_batch, partitions=8)
    refused = fake.event(work, "d", 5)
    large = lambda event: "x" * LARGE if (event.k, event.i) == ("d", 5) else ""  # noqa: E731 - a hook
    if of == "output":
        work.hooks.passed, topic = large, work.output
    else:
        work.hooks.text, topic = large, fake.app.layout.changelog("counts")
    lowered(fake, topic, 2_000)
    host = host_of(fake, fatal)
    host.assign({0}, set(), fake.app.sources)
    await opened(fake, host)
    events = some(fake, work, range(6))
    assert refused in events
    await fake.post(*events)
    await fake.settled(work.source)
    lane = host.lanes[0]
    assert (host.stuck(), fatal, lane.trouble) == ([], [], "")
    (letter,) = await fake.records(f"{work.source}.dlq")
    headers = dict(letter.headers)
    assert (letter.key, headers["ce_id"]) == (b"d", b"d-5")
    assert headers["dlq-error-type"] == b"NotCommittable"
    message = headers["dlq-error-message"].decode()
    assert topic in message
    assert "2000" in message
    lowered(fake, topic, 20_000)
    more = [fake.event(work, "d", 5, message_id="d-5-again"), *some(fake, work, range(6, 9))]
    await fake.post(*more)
    await fake.settled(work.source)
    await host.stop()
    await check(fake, work, [each for each in events + more if each != refused])
    await check_store(fake)


async def test_a_refused_record_of_added_partitions_is_buried(fake: FakeWorld, fatal: Fatal) -> None:
    work = await counter(fake, partitions=2)
    await fake.add_partitions(work.source, 3)
    host = host_of(fake, fatal)
    host.assign({0}, set(), fake.app.sources)
    await opened(fake, host)
    (good,) = [event._replace(partition=2) for event in some(fake, work, range(1), "a")]
    large = fake.raw(work.source, "a", b"x" * LARGE, fake.event(work, "a", 1).headers, 2)
    await fake.post(large, good)
    lowered(fake, fake.app.layout.repartition(work.source), 2_000)
    await fake.until_at({TP(work.source, 2): 2})
    await fake.settled(work.source)
    assert (host.stuck(), fatal, host.lanes[0].trouble) == ([], [], "")
    await host.stop()
    (letter,) = await fake.records(f"{work.source}.dlq")
    headers = dict(letter.headers)
    assert (letter.value, headers["dlq-error-type"]) == (large.value, b"NotCommittable")
    assert await counts(fake) == {"a": 1}
    await check_store(fake)


async def test_a_letter_that_is_refused_too_goes_without_its_value(fake: FakeWorld) -> None:
    work = await counter(fake, max_batch=1)
    work.hooks.passed = lambda event: "x" * LARGE if event.i == 1 else ""
    large = fake.raw(work.source, "a", b"x" * LARGE, fake.event(work, "a", 1).headers)
    letters, rows = f"{work.source}.dlq", fake.app.layout.changelog("dead_letters")
    assert rows in fake.app.changelogs
    lowered(fake, letters, 4_500)
    lowered(fake, rows, 4_500)
    lane = await fake.open()
    await fake.post(large, good := fake.event(work, "a", 2))
    await stopped(fake, lane, work.source)
    (letter,) = await fake.records(letters)
    assert (letter.key, letter.value) == (b"a", None)
    assert "dlq-omitted-bytes" in dict(letter.headers)
    assert ids(await fake.records(work.output)) == [dict(good.headers)["ce_id"].decode()]


@pytest.mark.parametrize(
    ("max_batch", "limit", "refusals", "says"),
    [*((4, 10, n, "") for n in (1, 2, 4)), (1, 70, 1, "raise the limit")],
)
async def test_no_message_is_buried_for_positions_that_are_refused(
    fake: FakeWorld, max_batch: int, limit: int, refusals: int, says: str
) -> None:
    """However soon the limit is raised."""
    work = await counter(fake, max_batch=max_batch)
    lowered(fake, fake.app.layout.changelog("lane"), limit)
    fake.cluster.refused = 0
    lane = fake.lane()
    await fake.post(*(events := some(fake, work, range(2))))
    await fake.until(lambda: fake.cluster.refused >= refusals and says in lane.lane.trouble)
    lowered(fake, fake.app.layout.changelog("lane"), 20_000)
    await stopped(fake, lane, work.source)
    assert await fake.records(f"{work.source}.dlq") == []
    await check(fake, work, events)
