"""Orders that a saga sees to: their ends, workers killed in the middle, an outage, a paused participant."""

import asyncio
import signal
import time
from collections import Counter, defaultdict

import pytest

from agents.commands import OrderSagaReply, OrderSagaTransition
from agents.order_saga import OrderSaga
from streams.kafka.cluster import KafkaCluster
from streams.ports import TP
from tests.scenarios.world import APP, PARTITIONS, Worker, World
from tests.waiting import BOUND, eventually

#: Kills come at this reach of their point, when the first orders are between two steps.
NTH = 12
#: Seconds that a hasty worker's sagas wait for a reply, and that the outage lasts.
HASTE, OUTAGE = 5.0, 6.0


def hasty_worker(world: World, timeout: float, **environment: str) -> Worker:
    """A worker whose sagas wait so many seconds for a reply; with its lanes open."""
    worker = world.start_worker("tests.scenarios.hasty_worker", SAGA_TIMEOUT=f"{timeout}", **environment)
    world.until_shared([worker])
    return worker


def told(world: World) -> dict[str, list[OrderSagaTransition]]:
    found = defaultdict(list)
    codec = world.codec(OrderSagaTransition)
    for record in world.read(OrderSagaTransition.TOPIC):
        found[record.key.decode()].append(codec.decode(record.value, None))
    return found


def check_told(world: World, ids: list[str]) -> None:
    """Each saga has told every transition once, in order, and ended once, as its order did."""
    sagas = told(world)
    for order_id in ids:
        entries = sagas[order_id]
        assert [entry.number for entry in entries] == list(range(1, len(entries) + 1)), order_id
        ends = [entry.after for entry in entries if not entry.step and entry.before != entry.after]
        confirmed = world.expected[order_id][0] == "confirmed"
        wanted = ["completing", "completed"] if confirmed else ["compensating", "compensated"]
        assert ends == ["started", *wanted], order_id


@pytest.mark.promise("saga-crashes")
def test_every_orchestrated_order_is_settled_once_and_rightly(world: World) -> None:
    world.until_shared([world.start_worker(), world.start_worker()])
    ids = world.place("orchestrated", 100, copies=2, orchestrated=True)
    beside = world.place("placed", 40)
    world.until_settled([*ids, *beside])
    world.check()
    check_told(world, ids)
    outcomes = Counter(world.expected[order_id][0] for order_id in ids)
    assert set(outcomes) == {"confirmed", "card_declined", "out_of_stock", "unsupported_destination"}


@pytest.mark.promise("saga-crashes", "real workers on real Kafka")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("sent", marks=pytest.mark.verify("a killed worker: test_faults.py covers it")),
        "committed",
    ],
)
def test_a_worker_killed_in_the_commit_protocol_changes_no_saga(world: World, point: str) -> None:
    faults = world.var / f"sagas-{point}.log"
    worker = world.start_worker(STEADFAUST_FAULTS=f"{point}:{NTH}:kill", STEADFAUST_FAULTS_LOG=str(faults))
    world.until_shared([worker])
    ids = world.place(f"killed-{point}", 100, orchestrated=True)
    assert worker.process.wait(BOUND) == -signal.SIGKILL
    assert point in faults.read_text()
    killed = time.time()
    world.start_worker()
    world.until_settled(ids)
    world.check()
    check_told(world, ids)
    sagas = [each for key, each in told(world).items() if key in ids]
    assert any(entries[0].time < killed < entries[-1].time for entries in sagas), "no saga was under way"


#: What sagas say and hear.
TALK = [kind.TOPIC for step in OrderSaga.steps() for kind in step.commands] + [OrderSagaReply.TOPIC]


def positions(world: World) -> dict[TP, int]:
    async def committed() -> dict[TP, int]:
        cluster = KafkaCluster(world.bootstrap)
        try:
            return await cluster.committed(APP, [TP(topic, n) for topic in TALK for n in range(PARTITIONS)])
        finally:
            await cluster.close()

    return asyncio.run(committed())


def unread(world: World, read: dict[TP, int], topics: list[str]) -> int:
    records = [each for topic in topics for each in world.read(topic)]
    return sum(each.offset >= read.get(TP(each.topic, each.partition), 0) for each in records)


@pytest.mark.promise("saga-backlog", "real workers; one of 60 s is in a chaos run of 10 minutes or more")
def test_after_an_outage_past_every_deadline_no_order_is_cancelled(world: World) -> None:
    worker = hasty_worker(world, HASTE)
    before = positions(world)
    ids = [order_id for n in range(5) for order_id in world.place(f"outage-{n}", 20, orchestrated=True)]
    eventually(lambda: positions(world) != before, "the first of them are read")
    worker.signal(signal.SIGKILL)
    killed = time.time()
    read = positions(world)
    assert unread(world, read, TALK), "all was read before the outage"
    eventually(lambda: time.time() > killed + OUTAGE, "every deadline is past")
    hasty_worker(world, HASTE)
    world.until_settled(ids)
    world.check()  # each as its data calls for
    check_told(world, ids)
