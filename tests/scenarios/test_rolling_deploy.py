"""A rolling deploy that adds a topic: consumed by all lanes once every worker knows it, by none before."""

import asyncio
import time
from collections import Counter

from chaos.load.notes import NOTES, NOTES_EACH, VERSION, Notes, note, note_id, schema, with_notes
from streams.model.codecs import AvroCodec, Schemas, avro, decode_row
from streams.model.row_keys import split_row_key
from streams.runtime.client import Producer
from tests.scenarios.steady import SteadyLoad, check_stalls
from tests.scenarios.world import APP, LANES, Worker, World
from tests.waiting import eventually

#: Long, so that no session ends while a worker restarts: nothing but what a member asks for makes the group
#: decide anew.
LONG_SESSION = {"STEADFAUST_SESSION_TIMEOUT": "45"}
#: On a quiet machine a restart takes its lanes 3 to 4 s; on one that many share, several times that.
LONGEST_STALL = 30.0
NOTED = 100


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
    return topics == len(with_notes.routes) + 1  # that of operators


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
