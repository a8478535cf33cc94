"""Rows that name objects stay while anything may follow a reference, and go when nothing does; the sweeper
deletes what no row names. (No annotations from the future: handlers inside functions need real ones.)
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from lane_checker import dead_letters, latest
from lane_desk import Broken, letter_ids, operated, operation
from lane_failing import LATER, Failing
from lane_parcels import BUCKET, THRESHOLD, Parcels
from lane_scenes import Outage, opened, operated_on, stopped
from lane_workloads import carrying, messages_of
from lane_worlds import FakeWorld, Running, World

from streams.engine.way.references import PAUSE
from streams.errors import TransientError, UnknownSchema
from streams.model.choreography import choreography, on
from streams.model.claim import AVRO, PREFIX, claim_in
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import JsonCodec
from streams.model.handlers import Service
from streams.model.layout import CLAIMS
from streams.model.operations import LetterCommand
from streams.model.outcome import Outcome, Timer, outcome
from streams.model.policy.retry import RetryPolicy
from streams.s3.sweep import Sweepable, sweep
from streams.testing.blobs import MemoryBlobs

DAY = 86400.0
LARGE = 50_000
#: One retention for all, so that a test counts on nothing but it.
KEPT = {"inbox_retention": 2 * DAY, "dead_letter_retention": DAY, "message_retention": DAY}


async def passes(world: FakeWorld, seconds: float) -> None:
    world.clock.set(world.clock.now() + seconds)
    for _ in range(3):
        world.clock.set(world.clock.now() + PAUSE)
        await world.clock.advance(2.0)


async def begun(world: FakeWorld, **options: Any) -> Parcels:
    parcels = Parcels(world, carrying(world.name))
    await parcels.start(**{**KEPT, "delete_retention": 100 * DAY, **options})
    return parcels


async def waits(parcels: Parcels, before: Any, numbers: range = range(1)) -> Running:
    """A lane that has tried large parcels of one key, in which something goes wrong."""
    parcels.work.hooks.before = before
    for number in numbers:
        await parcels.post("a", number, LARGE)
    lane = await parcels.world.open()
    await parcels.world.settled(parcels.work.source)
    return lane


async def check_kept(parcels: Parcels, objects: int) -> None:
    assert len(await parcels.named()) == objects
    assert (await swept(parcels)).deleted.objects == 0


def stored(world: FakeWorld) -> list[bytes]:
    store = world.machine.open(0)
    try:
        return [key for key, _ in store.scan(CLAIMS)]
    finally:
        store.close()


async def swept(parcels: Parcels, grace: float = DAY) -> Any:
    async def names() -> AsyncIterator[str]:
        for record in await parcels.world.records(parcels.world.app.layout.changelog(CLAIMS)):
            if record.value is not None:
                yield (record.key or b"").decode()

    return await sweep(parcels.blobs, names(), now=parcels.world.clock.now, grace=grace, delete=True)


@pytest.mark.promise("object-cleanup")
async def test_a_row_goes_after_its_retention_and_then_its_object(fake: FakeWorld) -> None:
    parcels = await begun(fake)
    await parcels.post("a", 0, LARGE)
    lane = await fake.open()
    await parcels.settled()
    await passes(fake, 1.9 * DAY)
    await check_kept(parcels, 2)
    await passes(fake, 0.2 * DAY)
    assert await parcels.named() == set()
    assert lane.lane.counters.references_removed == 2
    await lane.stop()
    assert stored(fake) == []
    fake.cluster.compact(fake.app.layout.changelog(CLAIMS))
    report = await swept(parcels)
    assert report.found[Sweepable.ORPHAN].objects == report.deleted.objects == 2
    assert parcels.blobs.names == []


@pytest.mark.promise("object-cleanup")
async def test_the_sweeper_takes_orphans_only_after_a_crash(world: World) -> None:
    parcels = Parcels(world, carrying(world.name))
    await parcels.start(retry=LATER)
    parcels.work.hooks.before = Failing(world, {("b", 0): 1}, TransientError("busy"))
    world.faults.kill_at("sent", 2)
    for i in range(2):
        for key in "abc":
            await parcels.post(key, i, LARGE)
    await world.lane().killed()
    await parcels.blobs.put(f"{PREFIX}nobodys/orphan-{'0' * 64}", b"of a try", AVRO)
    lane = await world.open(stores=world.stores())
    await stopped(parcels, lane)
    await parcels.check()
    report = await swept(parcels, grace=0.0)
    assert report.found[Sweepable.REFERENCED].objects == len(await parcels.named()) == 12
    assert report.deleted.objects == report.found[Sweepable.ORPHAN].objects == 1
    await parcels.check_references()


@pytest.mark.promise("object-cleanup")
async def test_many_rows_go_in_bounded_steps(fake: FakeWorld) -> None:
    parcels = await begun(fake)
    for i in range(300):
        await parcels.post("abc"[i % 3], i, THRESHOLD)
    lane = await fake.open()
    await parcels.settled()
    assert len(await parcels.named()) == 600
    await passes(fake, 3 * DAY)
    assert await parcels.named() == set()
    await lane.stop()
    assert stored(fake) == []


@pytest.mark.promise("object-cleanup")
async def test_while_a_message_waits_its_object_is_named(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=RetryPolicy(delays=(18 * DAY,)))
    lane = await waits(parcels, outage := Outage(), range(2))
    for _ in range(10):
        await passes(fake, 0.8 * DAY)
        await check_kept(parcels, 2)
    await lane.stop()
    fake.clock.set(fake.clock.now() + 9 * DAY)
    lane = await fake.open()
    await passes(fake, 0.0)
    assert len(await parcels.named()) == 2, "a lane closed for long forgets nothing that waits"
    outage.down = False
    await passes(fake, DAY)
    await stopped(parcels, lane)
    await parcels.check()


@pytest.mark.promise("object-cleanup")
async def test_the_row_of_a_dead_letter_counts_from_its_death(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=RetryPolicy(immediate=0, delays=(1.5 * DAY,)))
    lane = await waits(parcels, Outage())
    await passes(fake, 1.6 * DAY)
    (letter,) = await dead_letters(fake, parcels.work.source)
    claim = claim_in(dict(letter.headers))
    assert claim is not None
    await passes(fake, 1.5 * DAY)
    assert claim.name in await parcels.named()
    await passes(fake, DAY)
    assert await parcels.named() == set()
    await lane.stop()


@pytest.mark.promise("replayed-payloads")
async def test_what_a_dead_letter_refers_to_stays_named_while_held(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=RetryPolicy(delays=(), hold_while_dead=True))
    lane = await waits(parcels, Broken(("a", 0)))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    (ident,) = await letter_ids(fake)
    for _ in range(6):
        await passes(fake, 0.9 * DAY)
        await check_kept(parcels, 1)
    await operated(fake, lane, operation(fake, LetterCommand.DISCARD, ident))
    for _ in range(4):
        await passes(fake, DAY)
    assert await letter_ids(fake) == []
    assert await parcels.named() == set()
    await lane.stop()


@pytest.mark.promise("object-cleanup")
async def test_what_was_given_up_without_an_object_store_is_named(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=LATER, dead_letter_retention=10 * DAY, inbox_retention=11 * DAY)
    await parcels.post("a", 0, LARGE)
    without = await fake.open(app=fake.cut_into(parcels.work, lanes=1))
    await fake.until(lambda: without.lane.counters.dead_letters == 1 and not without.lane.backlog)
    await without.stop()
    assert await parcels.named() == set()
    lane = await fake.open()
    await passes(fake, 2 * DAY)
    await check_kept(parcels, 1)
    await operated_on(fake, lane, LetterCommand.REPLAY)
    await fake.until(lambda: lane.lane.counters.replayed == 1 and not lane.lane.backlog)
    await stopped(parcels, lane)
    await parcels.check()


class Ringing:
    def __init__(self, world: FakeWorld, after: float) -> None:
        Made, Counted = messages_of(world.name)  # noqa: N806 - classes
        self.rung: list[str] = []
        self.resources: dict[str, Any] = {}
        self.made, self.source = Made, Made.TOPIC
        self.blobs = MemoryBlobs(BUCKET, now=world.clock.now, sleep=world.clock.sleep)
        service = Service("bench")

        @service.handler(sends=(Counted,))
        def remind(event: Made) -> Outcome:
            message = Counted(k=event.k, i=event.i, n=0, text="wake up".ljust(LARGE))
            return outcome(timers=[Timer("alarm", world.clock.now() + after, message)])

        @service.handler()
        def ring(event: Counted) -> Outcome:
            self.rung.append(event.text.strip())
            return outcome()

        self.wiring = choreography(on(Made, remind), on(Counted, ring))

    async def late(self, world: FakeWorld) -> None:
        """It is set, and its lane is closed until long after it is due."""
        lane = await self.begin(world)
        await lane.stop()
        world.clock.set(world.clock.now() + 5 * DAY)

    async def begin(self, world: FakeWorld) -> Running:
        checks = ClaimChecks(self.blobs, bucket=BUCKET, threshold=THRESHOLD, cache_bytes=0)
        await world.start(self, claims=checks, **KEPT, delete_retention=100 * DAY)
        lane = await opened(world, world.event(self, "a", 0))
        await world.settled(self.source)
        return lane


@pytest.mark.promise("object-cleanup")
async def test_the_row_of_a_timer_outlives_its_ringing(fake: FakeWorld) -> None:
    work = Ringing(fake, after=7 * DAY)
    lane = await work.begin(fake)
    await passes(fake, 6 * DAY)
    assert len(await latest(fake, CLAIMS)) == 1
    assert work.rung == []
    await passes(fake, DAY)
    assert work.rung == ["wake up"]
    await passes(fake, DAY)
    assert len(await latest(fake, CLAIMS)) == 1, "it lies in its topic now"
    await passes(fake, 2 * DAY)
    assert await latest(fake, CLAIMS) == {}
    await lane.stop()


@pytest.mark.promise("object-cleanup")
async def test_a_timer_that_rings_late_names_its_object_at_once(fake: FakeWorld) -> None:
    """The row of the object may be gone by then, and it may take long until the message is read."""
    work = Ringing(fake, after=DAY)
    await work.late(fake)
    late = fake.clock.now()
    fake.faults.kill_at("committed", fake.faults.reached["committed"] + 1)
    await fake.lane().killed()
    assert work.rung == []
    assert len(await fake.records(fake.app.layout.changelog(CLAIMS))) == 2
    again = await fake.open()
    await passes(fake, 0.0)
    assert work.rung == ["wake up"]
    _, *anew = await fake.records(fake.app.layout.changelog(CLAIMS))
    assert all(int.from_bytes(record.value or b"", "big") >= late * 1000 for record in anew)
    await again.stop()


class Unannounced(JsonCodec[Any]):
    def require(self, fingerprint: bytes | None) -> None:
        if fingerprint == b"f" * 16:
            raise UnknownSchema("f" * 16)


@pytest.mark.promise("object-cleanup")
async def test_what_is_sent_on_or_awaits_its_schema_is_named(fake: FakeWorld) -> None:
    """In the transaction that takes it, so that a crash after that loses no name."""
    parcels = await begun(fake, codecs=lambda kind, _: Unannounced(kind))
    astray, post = [await parcels.made("a", number, "x" * LARGE) for number in range(2)]
    waits = post._replace(headers=[*post.headers, ("schema-fingerprint", b"f" * 16)])
    await fake.post(astray._replace(partition=1 - astray.partition), waits)
    fake.faults.kill_at("committed")
    await fake.lane().killed()
    assert len(await fake.records(fake.app.layout.repartition(parcels.work.source))) == 1
    assert len(await latest(fake, "lane")) >= 2, "one waits"
    assert len(await parcels.named()) == 2
