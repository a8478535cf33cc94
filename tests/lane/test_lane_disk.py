"""A full or failing disk stops a lane for as long as that lasts, and costs nothing."""

from pathlib import Path

import pytest
from lane_checker import check, check_store
from lane_hosts import host_of, of_lane, opened
from lane_scenes import counter, handled, some, stopped
from lane_worlds import FakeWorld
from structlog.testing import capture_logs

from streams.engine.life.recovery import let_go
from streams.errors import StoreBroken
from streams.host.rocksdb.store import RocksStores
from streams.model.policy.fitness import GIVE_AWAY_AFTER
from streams.testing.store import FAILING

pytestmark = pytest.mark.promise("failing-disk", "on the fake store")

FULL = "the disk is full"
Fatal = list[BaseException]


async def test_a_full_disk_costs_no_rebuild(fake: FakeWorld, fatal: Fatal) -> None:
    work = await counter(fake)
    await handled(fake, work, events := some(fake, work, range(3)))
    host = host_of(fake, fatal)
    with capture_logs() as logs:
        host.assign({0}, set(), fake.app.sources)
        await opened(fake, host)
        lane = host.lanes[0]
        fake.machine.trouble = FULL
        await fake.post(*(more := some(fake, work, range(3, 6))))
        await fake.until(lambda: lane.trouble.startswith(FULL))
        await fake.clock.advance(300)
        assert lane.state == "backing_off"
        assert host.stuck() == [lane]
        tried = fake.machine.refused
        assert 5 < tried < 40  # with growing pauses
        fake.machine.trouble = ""
        await fake.until(lambda: not lane.trouble)
        await fake.settled(work.source)
    assert (host.stuck(), fatal) == ([], [])
    assert lane.recovered < 30  # what was committed and not applied
    events_of = [each["event"] for each in logs]
    assert "store_broken" not in events_of
    assert [each["cause"][: len(FULL)] for each in logs if each["event"] == "lane_waits"][:1] == [FULL]
    assert "lane_goes_on" in events_of
    await host.stop()
    await check(fake, work, events + more)
    await check_store(fake)


async def test_lane_and_standby_wait_where_the_disk_is_full(fake: FakeWorld, fatal: Fatal) -> None:
    work = await counter(fake, lanes=2)
    fake.machine.trouble = FULL
    host = host_of(fake, fatal)
    host.assign({0}, {1}, fake.app.sources)
    standby = host.standbys[1]
    await fake.post(*(events := of_lane(fake, some(fake, work, range(2)), 0)))
    await fake.until(lambda: fake.machine.refused > 6 and standby.trouble.startswith(FULL))
    assert fatal == []
    fake.machine.trouble = ""
    await fake.until(lambda: standby.store is not None)
    assert standby.trouble == ""
    await fake.settled(work.source)
    await host.stop()
    assert fatal == []
    await check(fake, work, events)


async def test_a_damaged_store_on_a_full_disk_is_wiped_later(fake: FakeWorld) -> None:
    work = await counter(fake)
    await handled(fake, work, events := some(fake, work, range(2)))
    fake.machine.damage(0)
    with pytest.raises(StoreBroken):
        fake.machine.open(0)
    lane = fake.lane()
    fake.machine.trouble = FULL
    await fake.until(lambda: fake.machine.refused > 3)
    fake.machine.trouble = ""
    await fake.post(*(more := some(fake, work, range(2, 4))))
    await stopped(fake, lane, work.source)
    assert lane.lane.recovered > 0
    await check(fake, work, events + more)
    await check_store(fake)


@pytest.mark.promise("failing-disk")
@pytest.mark.parametrize("call", sorted(FAILING))
async def test_lane_and_standby_work_again_after_a_failing_disk(
    fake: FakeWorld, fatal: Fatal, call: str
) -> None:
    work = await counter(fake, lanes=2)
    host = host_of(fake, fatal)
    host.assign({0}, {1}, fake.app.sources)
    await opened(fake, host)
    events = of_lane(fake, some(fake, work, range(4)), 0)
    await fake.post(*events[:2])
    await fake.until(lambda: host.standbys[1].store is not None)
    fake.machine.trouble, fake.machine.hits = "the disk fails", frozenset({call})
    await fake.post(*events[2:])
    await fake.clock.advance(30)
    fake.machine.trouble = ""
    await fake.until(lambda: host.standbys[1].store is not None and host.lanes[0].state == "open")
    await fake.settled(work.source)
    assert (host.stuck(), fatal, host.standbys[1].trouble) == ([], [], "")
    await host.stop()
    await check(fake, work, events)


async def test_a_store_open_elsewhere_is_named_and_given_away(fake: FakeWorld, fatal: Fatal) -> None:
    await counter(fake)
    held = fake.machine.open(0)
    host = host_of(fake, fatal)
    host.assign({0}, set(), fake.app.sources)
    await fake.clock.advance(GIVE_AWAY_AFTER + 1)
    assert host.waited_for_machine() > GIVE_AWAY_AFTER
    assert "open elsewhere" in host.lanes[0].trouble
    held.close()
    await opened(fake, host)
    assert host.waited_for_machine() == 0
    await host.stop()
    assert fatal == []


async def test_a_standby_removes_a_store_found_broken_and_follows_again(
    fake: FakeWorld, fatal: Fatal
) -> None:
    work = await counter(fake, lanes=2)
    host = host_of(fake, fatal)
    host.assign(set(), {1}, fake.app.sources)
    standby = host.standbys[1]
    await fake.until(lambda: standby.store is not None)
    first = standby.store

    def broken(*_: object, **__: object) -> None:
        raise StoreBroken("injected: a block has a wrong checksum")

    first.apply = broken
    with capture_logs() as logs:
        await handled(
            fake, work, of_lane(fake, some(fake, work, range(6)), 1), number=1, stores=fake.stores()
        )
        await fake.until(lambda: standby.store not in (None, first) and standby.records)
    assert "store_broken" in [each["event"] for each in logs]
    await host.stop()
    assert fatal == []


def test_a_store_whose_wipe_failed_is_opened_anew(tmp_path: Path) -> None:
    stores = RocksStores(tmp_path, cache_bytes=4 << 20)
    store = stores.open(0)
    store.apply([("t", b"k", b"v")], {})
    store.close()  # as a wipe leaves it that could not open the new one
    let_go(stores, store, StoreBroken("injected: a block has a wrong checksum"), 0)
    again = stores.open(0)
    assert again.tables() == []
    again.close()
