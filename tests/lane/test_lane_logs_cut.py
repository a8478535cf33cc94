"""A lane notices that a log has lost what it had read or written, also when it has grown again since."""

import asyncio
from collections import Counter

import pytest
from lane_checker import check_store, counts
from lane_scenes import counter, handled, some
from lane_workloads import Workload, asking
from lane_worlds import FakeWorld

import streams.engine.life.cluster_checks
from streams.engine.life.positions.review import At, accept, standings
from streams.engine.life.standby import Standby
from streams.errors import LogCut
from streams.model.layout import DEAD_LETTERS, INBOX, LANE
from streams.ports import TP, Ports
from streams.testing.faults import NoFaults
from streams.testing.store import MemoryStores

pytestmark = [
    pytest.mark.usefixtures("often"),
    pytest.mark.promise("truncated-logs"),
]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.engine.life.cluster_checks, "ASK_INTERVAL", 1.0)


async def has_counted(fake: FakeWorld, numbers: range = range(10)) -> Workload:
    work = await counter(fake, partitions=1)
    await handled(fake, work, some(fake, work, numbers, "a"))
    return work


async def refused(fake: FakeWorld, match: str, stores: MemoryStores | None = None) -> None:
    lane = fake.lane(stores=stores)
    with pytest.raises(LogCut, match=match):
        await lane.ended()
    assert lane.handled == 0


def lose(fake: FakeWorld, tp: TP, records: int) -> int:
    offset = fake.cluster.log(tp).end - records
    fake.cluster.cut(tp, offset)
    return offset


async def problems(fake: FakeWorld) -> dict[TP, tuple[str, int | None, int | None]]:
    found = await standings(fake.app.layout, fake.cluster)
    return {TP(x.topic, x.partition): (x.problem, x.cut, x.had) for x in found if x.problem}


async def test_no_message_is_skipped_where_a_log_grew_again(fake: FakeWorld) -> None:
    work = await has_counted(fake)
    source = TP(work.source, 0)
    assert lose(fake, source, 4) == 6
    await fake.post(*some(fake, work, range(10, 20), "a"))
    await refused(fake, r"\[0\] has lost the records from offset 6 to 10, .* accept --topic")
    await refused(fake, "from offset 6 to 10")
    assert await problems(fake) == {source: ("records were lost", 6, 10)}
    (accepted,) = await accept(fake.app.layout, fake.cluster, work.source, [0])
    assert (accepted.before, accepted.position) == (10, 6)
    assert await problems(fake) == {}
    await handled(fake, work, [])
    assert await counts(fake) == {"a": 20}


async def test_a_log_that_is_short_stays_cut_when_it_grows(fake: FakeWorld) -> None:
    """An earlier version has committed no epoch: once noticed, it is noted."""
    work = await has_counted(fake)
    source = TP(work.source, 0)
    fake.cluster._notes.clear()
    lose(fake, source, 4)
    await refused(fake, "from offset 6 to 10")
    await fake.post(*some(fake, work, range(10, 20), "a"))
    await refused(fake, "from offset 6 to 10")
    assert await problems(fake) == {source: ("records were lost", 6, 10)}


async def test_nothing_is_skipped_where_a_log_was_cut_twice(fake: FakeWorld) -> None:
    """The second cut is below the first, which was found before: what came in between was not handled."""
    work = await has_counted(fake)
    source = TP(work.source, 0)
    lose(fake, source, 2)
    await fake.post(*some(fake, work, range(10, 12), "a"))
    await refused(fake, "from offset 8 to 10")
    assert lose(fake, source, 4) == 6
    await fake.post(*some(fake, work, range(20, 30), "a"))
    await refused(fake, "from offset 6 to 10")
    assert await problems(fake) == {source: ("records were lost", 6, 10)}
    await accept(fake.app.layout, fake.cluster, work.source, [0])
    await handled(fake, work, [])
    assert await counts(fake) == {"a": 20}


async def test_nothing_is_skipped_where_messages_above_a_position_were_cut(fake: FakeWorld) -> None:
    asked: list[str] = []
    slow = asyncio.Event()

    async def ask(key: str, _: int) -> None:
        if key == "b":
            await slow.wait()
        asked.append(key)

    work = asking(fake.name, ask)
    await fake.start(work, partitions=1)
    await fake.post(*some(fake, work, range(1), "abcdef"))
    lane = fake.lane()
    await fake.until(lambda: lane.handled == 5 and lane.lane.backlog == 1)
    await fake.until_at({TP(work.source, 0): 1})
    await lane.stop()
    source = TP(work.source, 0)
    assert lose(fake, source, 2) == 4
    await fake.post(*some(fake, work, range(1), "ghijk"))
    await refused(fake, "from offset 4 to 6")
    assert await problems(fake) == {source: ("records were lost", 4, 6)}
    (accepted,) = await accept(fake.app.layout, fake.cluster, work.source, [0])
    assert (accepted.before, accepted.position) == (1, 1)
    assert await problems(fake) == {}
    slow.set()
    await handled(fake, work, [])
    assert Counter(asked) == dict.fromkeys("abcdefghijk", 1)


async def test_a_running_lane_notices_that_its_source_was_cut(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    lane = await fake.open()
    await fake.post(*some(fake, work, range(10), "a"))
    await fake.settled(work.source)
    lane.may_fail = True
    lose(fake, TP(work.source, 0), 4)
    await fake.post(*some(fake, work, range(10, 20), "a"))
    with pytest.raises(LogCut, match="from offset 6 to 10"):
        await lane.ended()
    assert await counts(fake) == {"a": 10}


async def test_what_was_read_and_not_committed_may_be_lost(fake: FakeWorld) -> None:
    """Nothing of it was handled: it is as if it had never been there."""
    work = await has_counted(fake)
    await fake.post(*some(fake, work, range(10, 14), "a"))
    fake.cluster.elect()
    await fake.post(*some(fake, work, range(14, 16), "a"))
    lose(fake, TP(work.source, 0), 4)
    await fake.post(*some(fake, work, range(20, 30), "a"))
    await handled(fake, work, [])
    assert await counts(fake) == {"a": 22}


@pytest.mark.parametrize("is_new", [True, False], ids=["new-owner", "same-owner"])
@pytest.mark.parametrize("table", ["counts", INBOX, LANE])
async def test_no_lane_goes_on_with_a_changelog_that_was_cut(
    fake: FakeWorld, table: str, is_new: bool
) -> None:
    work = await has_counted(fake)
    changelog = TP(fake.app.layout.changelog(table), 0)
    end = fake.cluster.log(changelog).end
    at = lose(fake, changelog, 2)
    stores = fake.stores() if is_new else fake.machine
    await fake.post(*some(fake, work, range(10, 11), "a"))
    await refused(fake, rf"{changelog.topic}\[0\] has lost the records from offset {at} to {end}", stores)
    found = await problems(fake)
    assert found[changelog] == ("records were lost", at, end)
    await accept(fake.app.layout, fake.cluster, changelog.topic, [0])
    if table == LANE:
        for source in fake.app.sources:
            await accept(fake.app.layout, fake.cluster, source, [0], At.GROUP)
    assert await problems(fake) == {}
    for each in (fake.machine, fake.stores()):  # a copy of what the log had is not believed
        lane = await fake.open(stores=each)
        await fake.until(lambda lane=lane: not lane.lane.backlog)
        await lane.stop()
        await check_store(fake, stores=each)


async def test_letters_that_were_lost_are_noticed(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    await fake.post(fake.raw(work.source, "a", b"no JSON", []))
    lane = await fake.open()
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    await fake.settled(work.source)
    await lane.stop()
    changelog = TP(fake.app.layout.changelog(DEAD_LETTERS), 0)
    lose(fake, changelog, 2)
    await refused(fake, changelog.topic)


async def test_a_changelog_is_cut_while_its_lane_runs(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    lane = await fake.open()
    await fake.post(*some(fake, work, range(3), "a"))
    await fake.settled(work.source)
    lane.may_fail = True
    changelog = TP(fake.app.layout.changelog("counts"), 0)
    lose(fake, changelog, 1)
    await fake.post(*some(fake, work, range(3, 9), "a"))
    with pytest.raises(LogCut, match=changelog.topic):
        await lane.ended()
    await refused(fake, changelog.topic)  # though the log has grown since


async def test_a_changelog_that_grew_again_is_noticed_by_its_epoch(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    lane = await fake.open()
    await fake.post(*some(fake, work, range(10), "a"))
    await fake.settled(work.source)
    await fake.passes(20, real=20)
    await lane.stop()
    changelog = TP(fake.app.layout.changelog("counts"), 0)
    lose(fake, changelog, 2)
    for _ in range(5):
        fake.cluster.produce(changelog, b"", b"")
    await refused(fake, changelog.topic, fake.stores())


async def test_another_store_is_rebuilt_once_a_cut_is_accepted(fake: FakeWorld) -> None:
    work = await has_counted(fake)
    other = fake.machine.copied()
    changelog = TP(fake.app.layout.changelog("counts"), 0)
    lose(fake, changelog, 2)
    await refused(fake, changelog.topic)
    await accept(fake.app.layout, fake.cluster, changelog.topic, [0])
    await handled(fake, work, some(fake, work, range(10, 20), "a"))  # longer than it was
    lane = await fake.open(stores=other)
    assert lane.lane.recovered
    await lane.stop()
    await check_store(fake, stores=other)


async def test_elections_that_lose_nothing_stop_nothing(fake: FakeWorld) -> None:
    work = await counter(fake, partitions=1)
    other = fake.stores()
    for number in range(6):
        fake.cluster.elect()
        stores = fake.machine if number % 2 else other
        lane = await fake.open(stores=stores)
        await fake.post(fake.event(work, "a", 3 * number))
        await fake.settled(work.source)
        fake.cluster.elect()
        await fake.post(fake.event(work, "a", 3 * number + 1))
        await fake.settled(work.source)
        await fake.clock.advance(1.5 * number)
        fake.cluster.elect()
        await fake.post(fake.event(work, "a", 3 * number + 2))
        await fake.settled(work.source)
        await lane.stop()
        assert await problems(fake) == {}
    assert await counts(fake) == {"a": 18}
    assert lane.lane.reopened == 0
    await check_store(fake, stores=fake.machine)


async def test_a_standby_waits_until_a_cut_is_accepted(fake: FakeWorld) -> None:
    await has_counted(fake)
    changelog = TP(fake.app.layout.changelog("counts"), 0)
    lose(fake, changelog, 2)
    standby = Standby(fake.app, 0, Ports(fake.cluster, fake.machine, fake.clock, NoFaults()))
    task = fake.spawn(standby.run())
    await fake.clock.advance(5)
    assert standby.records == 0
    await accept(fake.app.layout, fake.cluster, changelog.topic, [0])
    await fake.until(lambda: standby.records > 0)
    standby.stop()
    await fake.until(task.done)
