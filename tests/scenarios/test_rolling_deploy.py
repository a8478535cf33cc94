"""Rolling deploys: one that adds a topic, which lanes consume once every worker knows it, and one whose newer
messages and rows the older workers cannot read.
"""

import asyncio
import time
from collections import Counter

import pytest

from chaos.load.notes import NOTES, NOTES_EACH, VERSION, Notes, note, note_id, schema, with_notes
from streams.host.client import Producer
from streams.model.codecs import AvroCodec, Schemas, avro, decode_row
from streams.model.layout import DEAD_LETTERS, Layout
from streams.model.row_keys import split_row_key
from tests.scenarios import two_versions
from tests.scenarios.steady import SteadyLoad, check_stalls
from tests.scenarios.world import APP, LANES, PARTITIONS, Worker, World
from tests.waiting import eventually

pytestmark = [
    pytest.mark.promise("moving-lanes", "each worker restarted in its slot"),
    pytest.mark.promise("added-topic"),
]

#: Long, so that no session ends while a worker restarts: nothing but what a member asks for makes the group
#: decide anew.
LONG_SESSION = {"STEADFAUST_SESSION_TIMEOUT": "45"}
#: On a quiet machine a restart takes its lanes 3 to 4 s; on one that many share, several times that.
LONGEST_STALL = 30.0
NOTED = 100
#: Customers, in every partition.
PAYING = 40


def make_notes(world: World, numbers: range, orders: list[str]) -> None:
    async def produce() -> None:
        async with Producer(world.bootstrap, avro(schema, Schemas()), source="shop") as shop:
            for number in numbers:
                await shop.send(note(number, orders), message_id=note_id(number))

    asyncio.run(produce())


def counted(world: World) -> Counter[str]:
    codec = AvroCodec(Notes, schema(NOTES.name), Schemas())
    counts: Counter[str] = Counter()
    for record in world.read(f"{APP}-{NOTES.name}-changelog"):
        counts[split_row_key(record.key)[0].decode()] = decode_row(codec, record.value).count
    return counts


def replace(world: World, worker: Worker, others: list[Worker]) -> Worker:
    """Stop a worker and start version 2 in its slot."""
    lanes = worker.lanes()
    assert worker.stop() == 0
    new = world.start_worker("chaos.rig.worker", **LONG_SESSION, **{VERSION: "2"})
    world.until_shared([*others, new])
    assert new.lanes() == lanes, "a session has ended: the group has decided by itself"
    # Whoever is stopped while the group decides comes back as one that owned nothing.
    eventually(
        lambda: consumes_notes(new) or len(new.events("lanes_assigned")) > 1,
        "the group has decided, as the new worker has asked it to",
    )
    return new


def consumes_notes(worker: Worker) -> bool:
    topics: int = worker.events("lanes_assigned")[-1]["topics"]
    outside = sum(topic not in with_notes.sent for topic in with_notes.routes)
    return topics == len(with_notes.routes) + outside + 1  # those sent on, and that of operators


def send_payments(world: World, codecs: str, version: str, run: str) -> None:
    """One payment of each of PAYING customers, as a client of this version sends them."""
    _, paid, _ = two_versions.wiring_of(version, two_versions.topic_of(codecs))
    given = dict.fromkeys(two_versions.FIELDS[version], run)

    async def produce() -> None:
        make = two_versions.codecs_of(codecs, Schemas())
        async with Producer(world.bootstrap, make, source="shop") as shop:
            for number in range(PAYING):
                await shop.send(paid(customer=f"c{number}", **given), message_id=f"{run}-{number}")

    asyncio.run(produce())


def payments(world: World, codecs: str) -> Counter[str]:
    """What the rows of the newest version say, which reads all of them."""
    _, _, accounts = two_versions.wiring_of("2", two_versions.topic_of(codecs))
    schemas = Schemas()
    codec = two_versions.codecs_of(codecs, schemas)(accounts.row, accounts.name)
    for version in two_versions.FIELDS:
        kinds = two_versions.wiring_of(version, two_versions.topic_of(codecs))
        if text := two_versions.codecs_of(codecs, schemas)(kinds[2].row, accounts.name).schema:
            schemas.add(text)
    found: Counter[str] = Counter()
    for record in world.read(f"two-versions-{codecs}-accounts-changelog"):
        found[split_row_key(record.key)[0].decode()] = decode_row(codec, record.value).payments
    return found


@pytest.mark.promise("newer-version", "real workers")
@pytest.mark.parametrize(
    "codecs", ["avro", pytest.param("json", marks=pytest.mark.verify("Avro, beside it, goes the same way"))]
)
def test_what_only_newer_workers_read_waits_for_them(world: World, codecs: str) -> None:
    def started(version: str) -> Worker:
        own = {two_versions.VERSION: version, two_versions.CODECS: codecs}
        settings = {"STEADFAUST_APP_ID": f"two-versions-{codecs}", **LONG_SESSION}
        unset = {"STEADFAUST_CHOREOGRAPHY": None, "STEADFAUST_GATEWAY_URL": None}
        return world.start_worker("tests.scenarios.two_versions", **settings, **unset, **own)

    workers = [started("1"), started("1")]
    world.until_shared(workers)
    send_payments(world, codecs, "1", "before")
    eventually(lambda: payments(world, codecs).total() == PAYING, "all of version 1 is handled")
    first, second = workers
    assert first.stop() == 0
    newer = started("2")
    world.until_shared([second, newer])
    for version in ("2", "1", "2"):
        send_payments(world, codecs, version, f"beside-{version}-{time.time()}")
    eventually(lambda: bool(second.events("schema_newer")), "a message waits at the older worker")
    assert second.stop() == 0
    world.until_shared([newer, started("2")])
    eventually(lambda: payments(world, codecs).total() == 4 * PAYING, "all is handled")
    assert payments(world, codecs) == dict.fromkeys((f"c{number}" for number in range(PAYING)), 4)
    layout = Layout(f"two-versions-{codecs}", PARTITIONS, LANES)
    assert world.read(layout.changelog(DEAD_LETTERS)) == []
    assert [each["this_is"] for each in newer.events("class_changed")] == ["newer"] * 2


def test_a_topic_added_by_a_deploy_waits_for_all_workers(world: World) -> None:
    workers = [world.start_worker(**LONG_SESSION) for _ in range(3)]
    world.until_shared(workers)
    noted = [f"noted-{number}" for number in range(NOTED)]
    half = NOTED * NOTES_EACH // 2
    with SteadyLoad(world, "deploy") as load:
        eventually(lambda: len(load.ids) > 20, "the load flows")
        began = time.time()
        workers = [*workers[1:], replace(world, workers[0], workers[1:])]
        make_notes(world, range(half), noted)
        workers = [*workers[1:], replace(world, workers[0], workers[1:])]
        assert not any(consumes_notes(worker) for worker in workers), "one worker does not know the topic"
        assert counted(world) == {}
        workers = [*workers[1:], replace(world, workers[0], workers[1:])]
        eventually(lambda: all(consumes_notes(worker) for worker in workers), "all lanes have the topic")
        world.until_shared(workers)
        make_notes(world, range(half, NOTED * NOTES_EACH), noted)
        eventually(lambda: counted(world).total() >= NOTED * NOTES_EACH, "every note counted")
        check_stalls(world, began, time.time(), LONGEST_STALL)
    assert counted(world) == dict.fromkeys(noted, NOTES_EACH)
    world.until_settled(load.ids)
    world.check()
    assert sorted(n for worker in workers for n in worker.lanes()) == list(range(LANES))
    assert [worker for worker in workers if worker.events("lane_error")] == []
