"""What needs attention, and why a saga does not go on."""

import json
import operator
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from scrapes import PAGE, on_the_page
from web_workers import NOW, PARCELS, FakeWorker, handler_shown

from agents.worker import CHOREOGRAPHIES
from streams.console.stopped_handlers import stopped_handlers
from streams.control.metrics.metrics import WorkerMetrics
from streams.control.sagas.indexes import followed_tables
from streams.engine.life.state import LaneState
from streams.engine.waiting.queue import Reason
from streams.engine.way.held_up import Held, HeldUpPartitions
from streams.model.policy.breaker import Breaker, BreakerPolicy, BreakerState
from streams.ports import TP, HeldUp
from streams.saga.views import ChoreographedSaga, SagaView
from streams.units import DAY

OPS = Path(__file__).parents[3] / "ops"
EXPRESSION = re.compile(
    r"(?P<total>sum|max|min)(?: by \((?P<by>\w+)\))? ?\("
    r"(?P<increase>increase\()?(?P<name>\w+)(?:\{(?P<where>[^}]*)\})?(?:\[\w+\]\))?\)"
    r" (?P<compare>[<>]) (?P<bound>\d+)"
)
TOTALS: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min}
COMPARES = {">": operator.gt, "<": operator.lt}


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((OPS / "worker-alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def samples(scrape: str, name: str) -> list[tuple[dict[str, str], float]]:
    return [
        ({"instance": "here", **sample.labels}, sample.value)
        for family in text_string_to_metric_families(scrape)
        for sample in family.samples
        if sample.name == name
    ]


def meets(labels: dict[str, str], where: str | None) -> bool:
    conditions = re.findall(r'(\w+)(=~|=)"([^"]*)"', where or "")
    return all(
        re.fullmatch(value, labels[name]) if how == "=~" else labels[name] == value
        for name, how, value in conditions
    )


def fires(expression: str, now: str, before: str = "") -> set[str]:
    """For which values of its label a rule's expression holds; an increase is that since `before`."""
    if absent := re.fullmatch(r"absent\((\w+)\)", expression):
        return set() if samples(now, absent[1]) else {""}
    found = EXPRESSION.fullmatch(expression)
    assert found is not None, f"more PromQL than this test knows: {expression}"
    groups: dict[str, list[float]] = defaultdict(list)
    for labels, value in samples(now, found["name"]):
        if meets(labels, found["where"]):
            earlier = [then for other, then in samples(before, found["name"]) if other == labels]
            since = sum(earlier) if found["increase"] else 0.0
            groups[labels[found["by"]] if found["by"] else ""].append(value - since)
    total, holds, bound = TOTALS[found["total"]], COMPARES[found["compare"]], float(found["bound"])
    return {label for label, values in groups.items() if holds(total(values), bound)}


def put_saga(worker: FakeWorker, status: str, age: float) -> None:
    at = NOW - age

    def view(saga_id: str, _: Any) -> SagaView:
        return SagaView(
            saga_id=saga_id, way="choreographed", version=0, status=status, reason="", created_at=at,
            changed_at=at, pending=(), waits_for=(), steps=(), log=(), entries=0,
        )  # fmt: skip

    worker.choreographed = (ChoreographedSaga("trip", PARCELS, view),)
    worker.application.followed = followed_tables(worker.application, worker.choreographed)
    worker.put("a", note="one")


def not_ready(worker: FakeWorker) -> None:
    worker.lanes[2].last_progress = NOW - 31
    worker.stuck_lanes = [2]


def behind(worker: FakeWorker) -> None:
    reading: Any = SimpleNamespace(lag=5, oldest=int((NOW - 61) * 1000))
    worker.lanes[2].measures.intake = reading


def held_up(worker: FakeWorker) -> None:
    watch = worker.lanes[2].measures.held_up = HeldUpPartitions(2, dict, Any)
    watch.looked = NOW
    watch.partitions = {TP("post.note.written.v1", 2): Held(HeldUp(7, 3), NOW - 61)}


def breaker_open(worker: FakeWorker) -> None:
    gate = worker.lanes[2].gates["post.note"]
    gate.breaker = Breaker(BreakerPolicy(), lambda _: None)
    gate.breaker.start_half_open(NOW)
    assert gate.breaker.state is not BreakerState.CLOSED


CASES: dict[str, tuple[Callable[[FakeWorker], object], str]] = {
    "WorkerNotReady": (not_ready, "here"),
    "LaneQuarantined": (lambda worker: setattr(worker.lanes[2], "state", LaneState.QUARANTINED), "2"),
    "LaneStalled": (lambda worker: setattr(worker.lanes[2], "last_progress", NOW - 61), "2"),
    "LaneBehind": (behind, "2"),
    "LaneHeldUp": (held_up, "2"),
    "TopicWrong": (lambda worker: worker.lanes[2].measures.topics.gone.update(t=NOW - 61), "2"),
    "LogBeginsLate": (lambda worker: worker.lanes[2].measures.topics.late.update({TP("t", 2): 5}), "2"),
    "LaneReopens": (lambda worker: setattr(worker.lanes[2], "reopened", 6), "2"),
    "DeadLetters": (lambda worker: worker.put_letter("a"), "post.note"),
    "DeadLettersExpire": (
        lambda worker: worker.put_letter("a", failed_at_ms=int((NOW - 11 * DAY) * 1000), state="discarded"),
        "post.note",
    ),
    "MessagesWait": (lambda worker: worker.wait("a", since=NOW - 901, reason=Reason.BREAKER), "post.note"),
    "BreakerOpen": (breaker_open, "post.note"),
    "SagasFailed": (lambda worker: put_saga(worker, "failed", 1), "trip"),
    "SagasStalled": (lambda worker: put_saga(worker, "started", 3600), "trip"),
    "KafkaThrottled": (lambda worker: worker.throttled.update(fetch=25.5), "fetch"),
    "TimersOverdue": (lambda worker: worker.ring("k", NOW - 5), ""),
}


@pytest.fixture
def worker(worker, monkeypatch) -> FakeWorker:
    """One that is well, and busy: sagas are done, messages wait for a retry, a timer is set."""
    monkeypatch.setattr("streams.control.overview.samples.SHARE", 1.0)
    worker.measured = True
    for lane in worker.lanes:
        worker.gate(lane)
    put_saga(worker, "completed", 10 * DAY)
    worker.wait("b", since=NOW - 10)
    worker.ring("k", NOW + 5)
    worker.put_letter("c", state="discarded")
    return worker


async def scrape(worker: FakeWorker) -> str:
    metrics = WorkerMetrics(worker)
    await metrics.sampler.round()
    return metrics.scrape().decode()


async def test_no_alert_fires_for_a_worker_that_is_well(worker):
    told = await scrape(worker)
    assert {name for name, rule in rules().items() if fires(rule["expr"], told, told)} == set()


@pytest.mark.parametrize("alert", CASES)
async def test_an_alert_fires_for_what_it_warns_of(worker, alert):
    cause, label = CASES[alert]
    before = await scrape(worker)
    cause(worker)
    assert fires(rules()[alert]["expr"], await scrape(worker), before) == {label}


async def test_a_lane_that_recovers_for_long_is_no_stall(worker):
    worker.lanes[2].last_progress = NOW - 61
    worker.lanes[2].measures.recovering(5)
    assert fires(rules()["LaneStalled"]["expr"], await scrape(worker)) == set()


def test_an_alert_fires_when_there_is_no_worker():
    assert fires(rules()["NoWorker"]["expr"], "") == {""}


def test_each_rule_is_tested_and_says_what_to_do():
    found = rules()
    assert found.keys() == {"NoWorker", *CASES}
    page = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (warning|critical) \|", PAGE.read_text(), re.MULTILINE))
    assert page == {name: rule["labels"]["severity"] for name, rule in found.items()}
    for rule in found.values():
        assert {"summary", "description"} <= rule["annotations"].keys()
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_any_dead_letter_is_an_alert_at_once():
    rule = rules()["DeadLetters"]
    assert rule["expr"].endswith("> 0")
    assert "for" not in rule


def test_the_dashboard_asks_for_metrics_by_their_own_labels():
    explained, shown = on_the_page(), set()
    panels = json.loads((OPS / "grafana-workers.json").read_text())["panels"]
    for title, asked in [(panel["title"], each["expr"]) for panel in panels for each in panel["targets"]]:
        wanted = set(re.findall(r"(\w+)", " ".join(re.findall(r"by \(([^)]*)\)", asked))))
        for name in re.findall(r"steadfaust_\w+", asked):
            metric = re.sub(r"_(bucket|sum|count)$", "", name)
            assert metric in explained, title
            assert wanted <= {*explained[metric][1], "le"}, title
            shown.add(metric)
    assert {name for name in explained if "dead_letters" in name} & shown
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


WIRING = next(iter(CHOREOGRAPHIES.values()))
RESERVE = {"inventory.commands.reserve": 1}
EVENTS = dict.fromkeys(
    ("inventory.stock.reserved.v1", "payments.payment.captured.v1", "shipping.shipment.scheduled.v1"), 0
)


@pytest.mark.parametrize(
    ("steps", "pending", "stopped", "found"),
    [
        (RESERVE, [*RESERVE], ["inventory-steps.reserve"], ["inventory-steps.reserve"]),
        (RESERVE, [*RESERVE], ["inventory.reserve_line"], ["inventory.reserve_line"]),  # by SKU, not by order
        (RESERVE, [*RESERVE], ["payment-steps.capture"], []),  # that is the way of a later step
        (EVENTS, [*EVENTS][1:], ["payments.capture", "inventory.gather"], ["payments.capture"]),
        (EVENTS, [*EVENTS], ["inventory.reserve_line"], ["inventory.reserve_line"]),
        (EVENTS, [*EVENTS][1:], ["inventory.reserve_line"], []),  # that step is over
        (EVENTS, [], ["payments.capture"], []),
    ],
)
def test_a_saga_names_the_nearest_stopped_handler(steps, pending, stopped, found):
    shown: Any = SimpleNamespace(
        steps=[SimpleNamespace(name=name, action=name, attempts=tried) for name, tried in steps.items()],
        saga=SimpleNamespace(pending=pending, waits_for=()),
    )
    handlers = [
        handler_shown(each.name, paused=2 if each.name in stopped else 0, pause="By ann: strike")
        for each in WIRING.handlers()
    ]
    app: Any = SimpleNamespace(wiring=WIRING)
    texts = [f"It waits for {name}, which is paused, by ann: strike" for name in found]
    assert stopped_handlers(app, shown, handlers) == texts
