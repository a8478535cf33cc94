"""A Worker that is not started: what it declares, and how it hangs together with Faust's own app."""

from pathlib import Path
from typing import Any

import pytest
from faust.joins import RightJoin

from streams import Message, Outcome, Row, Service, Table, Worker, choreography, nothing, on
from streams.errors import WiringError
from streams.model.codecs import json_without_schema


class Rung(Message, frozen=True, kw_only=True):
    TOPIC = "bell.rung.v1"
    bell: str

    @property
    def key(self) -> str:
        return self.bell


service = Service("bells")


@service.handler()
def hear(rung: Rung) -> Outcome:
    return nothing("heard")


@pytest.fixture
def worker() -> Worker:
    return Worker(choreography(on(Rung, hear)), faust={"broker_commit_interval": 0.5, "web_enabled": True})


def test_fausts_own_app_is_not_wanted_for_nothing(worker: Worker) -> None:
    worker.topic("elsewhere")
    assert not worker.agents_app.wanted


@pytest.mark.parametrize("declare", ["agent", "task", "timer", "service"])
def test_it_is_wanted_for_what_it_has_to_run(worker: Worker, declare: str) -> None:
    async def run(*_: Any) -> None:
        """Do nothing."""

    match declare:
        case "agent":
            worker.agent(worker.topic("elsewhere"))(run)
        case "timer":
            worker.timer(10.0)(run)
        case "task":
            worker.task(run)
        case "service":
            worker.service(type("Beside", (), {}))
    assert worker.agents_app.wanted


def test_it_has_its_own_group_no_pages_and_options(worker: Worker) -> None:
    conf = worker.agents_app.conf
    assert (conf.id, worker.conf.id) == ("steadfaust-agents", "steadfaust")
    assert (conf.web_enabled, conf.broker_commit_interval) == (False, 0.5)


async def test_an_error_that_ends_it_ends_the_worker(worker: Worker) -> None:
    worker.add_dependency(worker.agents_app)
    await worker.agents_app.crash(RuntimeError("it is over"))
    assert worker.crashed


@service.handler()
def ring_at(rung: Rung, *, tower: Any) -> Outcome:
    return nothing(f"{tower}")


def test_a_resource_that_nobody_supplies_is_missed_at_import() -> None:
    wiring = choreography(on(Rung, ring_at))
    with pytest.raises(WiringError, match=r"bells.ring_at needs \['tower'\]"):
        Worker(wiring)
    Worker(wiring, resources={"tower": 1})


class Cast(Message, frozen=True, kw_only=True):
    """It has what no codec can write."""

    TOPIC = "bell.cast.v1"
    bell: str
    tone: list[complex]

    @property
    def key(self) -> str:
        return self.bell


class Tone(Row, frozen=True, kw_only=True):
    tone: complex = 1j


@service.handler()
def take(cast: Cast) -> Outcome:
    return nothing("heavy")


@service.handler(tone=Table("tones", Tone))
def tune(rung: Rung, tone: Tone | None) -> Outcome:
    return nothing("")


@service.handler(sends=[Cast])
def melt(rung: Rung) -> Outcome:
    return nothing("")


@pytest.mark.parametrize("codecs", [None, lambda _: json_without_schema], ids=["Avro", "JSON"])
@pytest.mark.parametrize(
    "route", [on(Cast, take), on(Rung, tune), on(Rung, melt)], ids=["taken", "row", "sent"]
)
def test_a_field_that_cannot_be_written_is_refused(codecs: Any, route: Any) -> None:
    with pytest.raises(WiringError, match=r"(Cast|Tone)\b.*complex"):
        Worker(choreography(route), codecs=codecs)


@pytest.mark.parametrize("name", ["page", "table_route"])
def test_pages_of_ones_own_are_refused_with_advice(name: str) -> None:
    app = Worker(choreography(on(Rung, hear)), codecs=lambda _: json_without_schema)
    with pytest.raises(WiringError, match=rf"@app\.{name}: a worker serves its own pages and no others"):
        getattr(app, name)("/bells/")


@pytest.mark.parametrize("on_leader", [True, False])
@pytest.mark.parametrize("kind", ["timer", "crontab", "task"])
def test_what_only_a_leader_runs_has_one(worker: Worker, kind: str, on_leader: bool) -> None:
    """A topic more, and only where it is needed."""

    async def run() -> None:
        """Do nothing."""

    of = {"timer": (10.0,), "crontab": ("* * * * *",), "task": ()}[kind]
    getattr(worker, kind)(*of, on_leader=on_leader)(run)
    worker.agents_app.allow_leader()
    assert worker.agents_app.conf.topic_disable_leader is not on_leader


@pytest.mark.parametrize("of", ["worker", "agents_app"])
def test_an_agent_takes_one_event_at_a_time(worker: Worker, of: str) -> None:
    app: Any = worker if of == "worker" else worker.agents_app

    async def take(_: Any) -> None:
        """Do nothing."""

    with pytest.raises(WiringError, match=r"@app.agent\(concurrency=4\): Faust commits past events"):
        app.agent(concurrency=4)(take)
    app.agent(concurrency=1)(take)
    assert len(worker.agents) == 1


def test_without_a_leader_what_only_it_runs_is_refused() -> None:
    worker = Worker(choreography(on(Rung, hear)), faust={"topic_disable_leader": True})
    with pytest.raises(WiringError, match="on_leader=True never runs with topic_disable_leader"):
        worker.timer(10.0, on_leader=True)


SIGNALS = ["on_rebalance_complete", "on_partitions_assigned", "on_partitions_revoked"]


@pytest.mark.parametrize("signal", SIGNALS)
async def test_signals_are_those_of_the_agents_group(worker: Worker, signal: str) -> None:
    heard = []

    async def hear(*_: Any, **__: Any) -> None:
        heard.append(True)

    getattr(worker, signal).connect(hear)
    arguments = () if signal == "on_rebalance_complete" else ({},)
    await getattr(worker.agents_app, signal).send(*arguments)
    assert heard


async def test_streams_are_joined_by_nobody_in_faust(worker: Worker) -> None:
    stream = worker.stream(worker.topic("elsewhere"))
    with pytest.raises(NotImplementedError):
        await RightJoin(stream=stream, fields=()).process(None)


def test_the_page_on_faust_tells_what_works() -> None:
    page = (Path(__file__).parents[3] / "docs" / "faust.md").read_text()
    table = page.partition("## What works, beside lanes")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    assert {name.strip(): says.strip() for name, says in rows} == {
        "`agent`, `task`, `timer`, `crontab`, tables": "works",
        "`on_leader=True`": "works",
        "`on_leader=True` with `topic_disable_leader`": "refused",
        "`concurrency` above 1 of an agent": "refused",
        ", ".join(f"`{name}`" for name in SIGNALS): "works",
        "`agent.ask()` in a worker": "as in stock Faust",
        "`Stream.join` and its kind": "as in stock Faust",
    }
