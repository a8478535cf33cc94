"""The chaos checker on a real run: green as it is, and red after each way of tampering with it."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from chaos.check import CheckReport, check
from chaos.controls.recorded import BREAKAGES
from chaos.controls.stage import send_poison
from chaos.driver import unended_sagas
from chaos.evidence.evidence import Evidence, gather
from chaos.judges.findings import findings
from chaos.load.shop import Shop
from chaos.rig.commits import CommitWatch
from chaos.rig.edge import Edge
from chaos.rig.records import COMMITS, REQUESTS, RUN, CommitTimes, ProcessEnd, Request, RunRecords, Way
from chaos.rig.waiting import until_answered
from demo.evidence import quiet
from demo.load import place_orders, receive_stock
from demo.purchases import Purchase, orchestrated, order, purchases
from demo.trouble import POISON_EVERY
from demo.workers import PROJECT
from streams.host.client import TopicReader
from streams.kafka.cluster import KafkaCluster
from streams.local import declared, declared_databases, local_stack
from streams.model.layout import dead_letter_topic
from streams.ports import TP, Outgoing
from tests.kafka_admin import truncate
from tests.scenarios.world import APP, LANES, PARTITIONS, SESSION_TIMEOUT, World

pytestmark = pytest.mark.promise("chaos", "each finding of the checker goes red when its fault is planted")

ORDERS = 200
CHANGELOG = f"{APP}-stock-changelog"
TABLES = "every table as its changelog has it"
STOCK = "received = on hand + shipped"
LETTERS = "every poisonous record a dead letter once, and nothing else"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Without any stock: what comes in is the demo's."""
    var = tmp_path_factory.mktemp("checked")
    project = PROJECT / "pyproject.toml"
    with local_stack(var, processes=declared(project), databases=declared_databases(project)) as stack:
        world = World(stack.bootstrap, stack.url("gateway"), var)
        world.environment["STEADFAUST_POSTGRES_URL"] = stack.url("postgres")
        with world.closing():
            yield world


@pytest.fixture(scope="module")
def run(world: World) -> RunRecords:
    """Orders through one worker that has ended, two of three of them by orders APIs, recorded as a driver
    records it.
    """
    worker = world.start_worker()
    world.until_shared([worker])
    postgres = world.environment["STEADFAUST_POSTGRES_URL"]
    settings = {
        "STEADFAUST_APP_ID": APP,
        "STEADFAUST_BOOTSTRAP": world.bootstrap,
        "STEADFAUST_PARTITIONS": str(PARTITIONS),
        "STEADFAUST_LANES": str(LANES),
    }
    with Edge(world.var, postgres, settings) as edge:
        load, commits, requests, of_edge = asyncio.run(_load(world.bootstrap, edge))
    ended = ProcessEnd(
        worker="worker-0", pid=worker.process.pid, exit_code=worker.stop(), expected=True, hung=False
    )
    run = RunRecords(
        seed=0, app_id=APP, bootstrap=world.bootstrap, gateway=world.gateway, partitions=PARTITIONS,
        lanes=LANES, session_timeout=SESSION_TIMEOUT, orders=ORDERS, load=load, faults=[], workers=[ended],
        poison_every=POISON_EVERY, orchestrated=True, postgres=postgres, edge=of_edge,
    )  # fmt: skip
    (world.var / REQUESTS).write_bytes(msgspec.json.encode(requests))
    (world.var / RUN).write_bytes(msgspec.json.encode(run))
    (world.var / COMMITS).write_bytes(msgspec.json.encode(commits))
    return run


async def _load(
    bootstrap: str, edge: Edge
) -> tuple[tuple[float, float], CommitTimes, list[Request], list[ProcessEnd]]:
    await edge.start()
    watch = CommitWatch(bootstrap, APP, PARTITIONS, LANES)
    watching = asyncio.create_task(watch.run())
    try:
        await receive_stock(bootstrap, APP)
        began = time.time()
        async with Shop(edge.urls) as shop, asyncio.TaskGroup() as tasks:
            for each in (each for each in purchases(ORDERS) if _over_http(each)):
                way: Way = "submitted" if orchestrated(each) else "placed"
                tasks.create_task(shop.place(order(each), way))
        others = [each for each in purchases(ORDERS) if not _over_http(each)]
        await place_orders(bootstrap, others, lambda _: None, submitted=orchestrated)
        await send_poison(bootstrap, purchases(ORDERS), POISON_EVERY)
        await edge.until_published(await edge.last(), within=60)
        assert await quiet(bootstrap, APP, within=60) == {}
        await until_answered(partial(_projected, edge), "all is in PostgreSQL", within=60)
        of_edge = await edge.stop("the end of the run")
        return (began, time.time()), watch.commits(), list(shop.requests.values()), of_edge
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def _over_http(purchase: Purchase) -> bool:
    return purchase.row % 3 > 0


async def _projected(edge: Edge) -> bool:
    return not await edge.unprojected()


def red(report: CheckReport) -> set[str]:
    return {finding.name for finding in report.findings if not finding.passed}


def looked_at(var: Path) -> set[str]:
    return red(asyncio.run(check(var)))


def by_command(var: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chaos.check", "--var", str(var), "--json"], capture_output=True, text=True
    )


def test_a_run_in_which_all_went_well_is_green(world: World, run: RunRecords) -> None:
    ended = by_command(world.var)
    assert ended.returncode == 0, ended
    report = msgspec.json.decode(ended.stdout, type=CheckReport)
    assert report.passed
    assert red(report) == set()
    assert [finding.name for finding in report.findings if "0 copies" in finding.says] == []


@pytest.fixture(scope="module")
def recorded(world: World, run: RunRecords) -> Evidence:
    del run
    return asyncio.run(gather(world.var))


@pytest.mark.promise("recorded-controls")
def test_each_breakage_of_the_recorded_run_is_found(recorded: Evidence, run: RunRecords) -> None:
    for breakage in BREAKAGES:
        if (breakage.files and not run.s3) or (breakage.over_http and not run.postgres):
            continue  # nothing of it was in this run
        broken = deepcopy(recorded)
        breakage.make(broken)
        reds = {each.name for each in findings(purchases(ORDERS), broken) if not each.passed}
        assert breakage.finds in reds, breakage.says


def test_where_there_was_no_run_it_cannot_look(tmp_path: Path) -> None:
    ended = by_command(tmp_path)
    assert ended.returncode == 2
    assert "cannot look" in ended.stderr
    assert "run.json" in ended.stderr


# -- topics: what is added there stays, so each test looks for what comes with it -------------------------


def records(bootstrap: str, topic: str) -> list[Any]:
    async def read() -> list[Any]:
        async with TopicReader(bootstrap, [topic]) as reader:
            return [record async for record in reader.to_end()]

    return asyncio.run(read())


def append(bootstrap: str, record: Any, **changes: Any) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            fields = {"key": record.key, "value": record.value, "headers": list(record.headers), **changes}
            await producer.send_and_wait(record.topic, partition=record.partition, **fields)

    asyncio.run(send())


def test_a_transaction_that_was_left_open_is_found(world: World, run: RunRecords) -> None:
    async def look_while_open() -> set[str]:
        cluster = KafkaCluster(run.bootstrap)
        left = cluster.transactions("left-open")
        heir = cluster.transactions("left-open")
        try:
            await left.start()
            await left.begin()
            await left.send({TP(CHANGELOG, 0): [Outgoing(b"k", b"v", [])]})
            evidence = await gather(world.var, ended_within=0.5)
            await heir.start()  # ends it, as the next owner of a lane does
        finally:
            await left.discard()
            await heir.discard()
            await cluster.close()
        return {each.name for each in findings(purchases(ORDERS), evidence) if not each.passed}

    assert asyncio.run(look_while_open()) == {"no transaction open", "all else"}
    assert looked_at(world.var) == set(), "what was aborted does not count"


def test_a_dead_letter_there_twice_or_never_is_found(world: World, run: RunRecords) -> None:
    topic = dead_letter_topic(OrderPlaced.TOPIC)

    def says() -> str:
        report = asyncio.run(check(world.var))
        return next(finding.says for finding in report.findings if finding.name == LETTERS)

    letters = records(run.bootstrap, topic)
    assert len(letters) == ORDERS // POISON_EVERY
    append(run.bootstrap, letters[0])
    assert "1 dead letters more than once" in says()
    asyncio.run(truncate(run.bootstrap, TP(topic, 0)))
    assert f"{len(letters)} poisonous records without dead letters" in says()


def test_a_record_appended_to_a_changelog_is_found(world: World, run: RunRecords) -> None:
    before = looked_at(world.var)
    append(run.bootstrap, records(run.bootstrap, CHANGELOG)[0], value=None)
    assert looked_at(world.var) - before == {TABLES, STOCK}


def test_a_saga_that_has_not_ended_is_waited_for(world: World, run: RunRecords) -> None:
    assert asyncio.run(unended_sagas(run.bootstrap)) == 0
    append(run.bootstrap, records(run.bootstrap, OrderSubmitted.TOPIC)[0], key=b"another")
    assert asyncio.run(unended_sagas(run.bootstrap)) == 1
