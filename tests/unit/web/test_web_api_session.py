"""A session of requests to /api has the answers that were recorded: programs of users read them."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_web_handlers import paused
from test_web_row_changes import version
from test_web_sagas import VISITS, VisitRepair, VisitReply, VisitWanted, greet, put_saga, visit
from test_web_timeline import record
from web_workers import NOW, Browser, FakeStandby, FakeWorker, ParcelSeen, Two, note, owned_by, owner_of

from streams.control.api.routes import ROUTES
from streams.control.base.database_answers import DatabaseAnswer, OutboxAnswer, WaitingRow
from streams.control.base.owner import ASKED_BY
from streams.control.overview import last_known, rates
from streams.control.overview.pace import Pace
from streams.control.overview.samples import Sampler
from streams.engine.waiting.queue import Reason
from streams.model.application import Application, LaneOptions
from streams.model.choreography import choreography, on
from streams.model.codecs import json_without_schema
from streams.model.layout import Layout
from streams.testing.clock import ManualClock
from streams.testing.sagas import error, success

#: Delete it to have the next run record the answers anew.
RECORDED = Path(__file__).with_name("api_session.json")
WHY = {"who": "ann", "why": "mended"}
OTHER_WORKER = {ASKED_BY: "http://127.0.0.1:9"}
#: The headers that a program may go by.
HEADERS = (
    "Allow", "Cache-Control", "Content-Disposition", "Content-Security-Policy", "Content-Type",
    "Referrer-Policy", "Retry-After", "WWW-Authenticate", "X-Content-Type-Options",
)  # fmt: skip
#: What is of this process or of chance.
CHANCE = (
    (re.compile(r'"pid":\d+'), '"pid":0'),
    (re.compile(r'"pace":{[^}]*}'), '"pace":{}'),
    (re.compile(r'"id":"[0-9a-f]{8}-[0-9a-f-]{27}"'), '"id":"by chance"'),
    (re.compile(r'"version":"[0-9][^"]*"'), '"version":"this"'),
)
LETTER = "/api/dead-letters/{letter}"
#: Addresses, with a place for the id of a letter; and the headers that a request has.
READS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/api/overview", {}),
    ("/api/overview/part", {}),
    ("/api/over-time", {}),
    ("/api/over-time", OTHER_WORKER),
    ("/api/worker", {}),
    ("/api/workers/0", {}),
    ("/api/workers/77", {}),
    ("/api/tables", {}),
    ("/api/tables", OTHER_WORKER),
    ("/api/tables?only=parcels", {}),
    ("/api/tables/parcels", {}),
    ("/api/tables/parcels?limit=3", {}),
    ("/api/tables/parcels?limit=x", {}),
    ("/api/tables/parcels?lane=3", {}),
    ("/api/tables/parcels?partition=2", {}),
    ("/api/tables/parcels?prefix=k1&limit=2", {}),
    ("/api/tables/parcels?stale=1&limit=2", {}),
    ("/api/tables/parcels", OTHER_WORKER),
    ("/api/tables/parcels?lane=3", OTHER_WORKER),
    ("/api/tables/lane", {}),
    ("/api/tables/nothing", {}),
    ("/api/tables/parcels/rows?key=k0", {}),
    ("/api/tables/parcels/rows?key=k1", {}),
    ("/api/tables/parcels/rows?key=k2", {}),
    ("/api/tables/parcels/rows?key=k3&stale=1", {}),
    ("/api/tables/parcels/rows?key=none", {}),
    ("/api/tables/parcels/rows?key=k0", OTHER_WORKER),
    ("/api/tables/parcels/rows?key=k1", OTHER_WORKER),
    ("/api/tables/parcels/rows", {}),
    ("/api/tables/parcels/history?key=k1", {}),
    ("/api/tables/nothing/history?key=k1", {}),
    ("/api/sagas", {}),
    ("/api/sagas?limit=2", {}),
    ("/api/sagas?status=failed", {}),
    ("/api/sagas?stalled=1", {}),
    ("/api/sagas?status=odd", {}),
    ("/api/sagas", OTHER_WORKER),
    *((f"/api/sagas/visit:k{n}", {}) for n in range(4)),
    ("/api/sagas/visit:k1", OTHER_WORKER),
    ("/api/sagas/visit:none", {}),
    ("/api/sagas/junk", {}),
    ("/api/dead-letters", {}),
    ("/api/dead-letters?limit=2", {}),
    ("/api/dead-letters?error_type=ValueError", {}),
    ("/api/dead-letters?older=x", {}),
    ("/api/dead-letters", OTHER_WORKER),
    ("/api/dead-letters/groups", {}),
    ("/api/dead-letters/groups", OTHER_WORKER),
    (LETTER, {}),
    (LETTER, OTHER_WORKER),
    (f"{LETTER}/answer?operation=replay&job=again", {}),
    (f"{LETTER}/answer?operation=odd&job=again", {}),
    ("/api/dead-letters/outcomes?operation=replay&job=again&letters={letter}", {}),
    ("/api/dead-letters/junk", {}),
    ("/api/dead-letters/audit", {}),
    ("/api/handlers", {}),
    ("/api/handlers", OTHER_WORKER),
    ("/api/handlers/post.note", {}),
    ("/api/handlers/post.odd", {}),
    ("/api/waiting", {}),
    ("/api/waiting?limit=1", {}),
    ("/api/waiting?handler=post.note", {}),
    ("/api/waiting?reason=odd", {}),
    ("/api/waiting", OTHER_WORKER),
    ("/api/search?q=k1", {}),
    ("/api/search?q=m1", {}),
    ("/api/search?q=", {}),
    ("/api/search?q=k", {}),
    ("/api/search?q=k1&download=1", {}),
    ("/api/key?key=k1", {}),
    ("/api/key?key=k2", OTHER_WORKER),
    ("/api/key", {}),
    ("/api/keys?prefix=k1", {}),
    ("/api/keys?prefix=k", OTHER_WORKER),
    ("/api/outbox", {}),
    ("/api/topics", {}),
    (f"/api/topics/{ParcelSeen.TOPIC}", {}),
    (f"/api/topics/{ParcelSeen.TOPIC}?limit=1", {}),
    ("/api/topics/nothing", {}),
    (f"/api/topics/{ParcelSeen.TOPIC}/0/999", {}),
    (f"/api/topics/{ParcelSeen.TOPIC}/{{partition}}/1", {}),
    ("/api/nothing", {}),
    ("/api/worker", {"Authorization": "Bearer wrong", "Host": "shop.example"}),
    ("/health/live", {}),
    ("/health/ready", {}),
)
#: What is asked of a worker, in this order.
OPERATIONS: tuple[tuple[str, Any], ...] = (
    ("/api/dead-letters/operations", {"operation": "replay", "letters": ["{letter}"], "job": "again", **WHY}),
    ("/api/dead-letters/operations", {"operation": "replay", "letters": ["junk"], "job": "odd", **WHY}),
    ("/api/dead-letters/operations", {"operation": "replay", "letters": ["{letter}"], "job": "mute"}),
    ("/api/dead-letters/operations", {"operation": "odd"}),
    ("/api/dead-letters/jobs/again/stop", {}),
    ("/api/dead-letters/jobs/none/stop", {}),
    ("/api/handlers/post.note/operations", {"operation": "pause", **WHY}),
    ("/api/handlers/post.note/operations", {"operation": "odd", **WHY}),
    ("/api/handlers/post.odd/operations", {"operation": "pause", **WHY}),
    ("/api/sagas/visit:k3/operations", {"operation": "retry", "id": "r1", **WHY}),
    ("/api/sagas/visit:k1/operations", {"operation": "odd", **WHY}),
    ("/api/sagas/visit:none/operations", {"operation": "retry", "id": "r1", **WHY}),
    ("/api/tables/parcels/rows/operations", {"operation": "delete", "key": "k1", "id": "r2", **WHY}),
    ("/api/tables/parcels/rows/operations", {"operation": "odd", "key": "k1", **WHY}),
    ("/api/tables/nothing/rows/operations", {"operation": "delete", "key": "k1", "id": "r2", **WHY}),
    ("/api/worker", {}),
)
#: After those.
JOBS = ("/api/dead-letters/jobs", "/api/dead-letters/jobs/again", "/api/dead-letters/jobs/none")


@pytest.fixture
def app() -> Application:
    wiring = choreography(
        on(ParcelSeen, note), on(VisitWanted, greet, visit), on(VisitReply, visit), on(VisitRepair, visit)
    )
    return Application(
        Layout("post", 8, 4),
        wiring,
        json_without_schema,
        resources={"clock": ManualClock(NOW)},
        lane_options=LaneOptions(saga_limit=30.0),
    )


@pytest.fixture
def sagas():
    return (VISITS,)


@pytest.fixture(autouse=True)
def _counted_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers do every few seconds is not done meanwhile, and nobody is given up for taking a second: no
    answer depends on how long others took.
    """

    async def nothing(_: Sampler | Pace) -> None:
        pass

    monkeypatch.setattr(Sampler, "_run", nothing)
    monkeypatch.setattr(Pace, "run", nothing)
    for module in (rates, last_known):
        monkeypatch.setattr(module, "INTERVAL", float("inf"))


@pytest.fixture
async def two(two: Two) -> Two:
    """The first one has the first address, too: some answers are in order of these."""
    first, second, one, other = two
    if first.url > second.url:
        first, second, one, other = second, first, other, one
        first.lanes, second.lanes = second.lanes, first.lanes
        for worker in (first, second):
            worker.owns(owned_by(first, second))
    return first, second, one, other


def fill(first: FakeWorker, second: FakeWorker, put: Any) -> str:
    """Give two workers something of each kind; the letter returned is on the second one."""
    workers = first, second
    for number, worker in enumerate(workers):
        worker.slot = number
        worker.assignment = msgspec.structs.replace(
            worker.assignment, followers={0: [second.url], 2: [first.url]}
        )
        for lane in worker.lanes:
            worker.gate(lane)
    first.standbys[2], second.standbys[0] = FakeStandby(2, store=second.lanes[2].store), FakeStandby(0)
    for n in range(12):
        owner_of(f"k{n}", *workers).put(f"k{n}", note=f"note {n}")
        owner_of(f"k{n}", *workers).put(f"k{n}", "sub", note="a part")
    put_saga(workers, "k0")
    put_saga(workers, "k1", age=100.0)
    put_saga(workers, "k2", age=20.0, outcome=success)
    put_saga(workers, "k3", age=20.0, outcome=error)
    there = second.key_in(2, 3)
    letter = put(there)
    put(first.key_in(0, 1), 1, why="other")
    put("k5", 2)
    put("k6", 3)
    for n in range(5):
        owner_of(f"k{n}", *workers).wait(f"k{n}", since=NOW - 10 * n, due=NOW + 10)
    owner_of("k7", *workers).wait("k7", reason=Reason.PAUSED, since=NOW - 5)
    owner_of("k8", *workers).ring("k8", NOW + 60)
    paused(first, 0, 4)
    paused(second, 2)
    edge = OutboxAnswer(
        relay="poll", unpublished=1, failed=0, oldest_seconds=3.0, table_bytes=8192, slot="", slot_warning="",
        waiting=[
            WaitingRow(
                id="o1", topic=ParcelSeen.TOPIC, aggregate="k1", created_at="2027-01-15T08:00:00Z",
                attempts=0, error="", retry_at="",
            )
        ],
    )  # fmt: skip
    for worker in workers:
        partition = worker.partition("k1")
        worker.records += [
            record("m1", offset=1, partition=partition),
            record("m2", offset=2, at=5, cause="m1", partition=partition),
            version(worker.application, "a", at=6),
            version(worker.application, "b", at=9),
        ]
        worker.edge = DatabaseAnswer(outbox=edge)
    return letter


async def test_answers_of_the_api_are_as_recorded(
    first: FakeWorker, second: FakeWorker, one: Browser, other: Browser, put: Any
) -> None:
    letter = fill(first, second, put)
    for each in (first, second):
        await each.index()
    for browser in (one, other):
        await browser.sampler.round()
    named = {first.url: "http://first", second.url: "http://second"}
    named |= {url.removeprefix("http://"): name.removeprefix("http://") for url, name in [*named.items()]}

    async def answered(browser: Browser, method: str, path: str, **options: Any) -> dict[str, Any]:
        path = path.replace("{letter}", letter).replace("{partition}", str(first.partition("k1")))
        async with browser.request(method, path, **options) as response:
            text = await response.text()
        for word, name in named.items():
            text = text.replace(word, name)
        for pattern, instead in CHANCE:
            text = pattern.sub(instead, text)
        headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
        body = msgspec.json.decode(text) if response.content_type == "application/json" else text
        return {"status": response.status, "headers": headers, "body": body}

    session: dict[str, Any] = {}
    for name, browser in (("first", one), ("second", other)):
        for path, headers in READS:
            asked = f"{name} GET {path} {' '.join(headers)}".strip()
            answer = session[asked] = await answered(browser, "GET", path, headers=headers)
            page = 1
            while answer["status"] == 200 and (cursor := answer["body"].get("next")):
                page += 1
                there = f"{path}{'&' if '?' in path else '?'}cursor={cursor}"
                answer = session[f"{asked}, page {page}"] = await answered(
                    browser, "GET", there, headers=headers
                )
    for path, body in OPERATIONS:
        data = msgspec.json.encode(body).replace(b"{letter}", letter.encode())
        headers = {"Content-Type": "application/json"}
        session[f"POST {path} {body}"] = await answered(one, "POST", path, data=data, headers=headers)
    for path in JOBS:
        session[f"GET {path}"] = await answered(one, "GET", path)
    session["DELETE /api/worker"] = await answered(one, "DELETE", "/api/worker")
    session["POST without a type"] = await answered(one, "POST", OPERATIONS[0][0], data=b"{}")
    if not RECORDED.exists():
        RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(session)) + b"\n")
        pytest.fail(f"{RECORDED.name} was not there: it has this session now, to be read and committed")
    recorded = msgspec.json.decode(RECORDED.read_bytes())
    assert session.keys() == recorded.keys()
    different = {
        asked: (recorded[asked], answer) for asked, answer in session.items() if answer != recorded[asked]
    }
    assert not different


def test_the_session_asks_every_address_of_the_api() -> None:
    addresses = {route.path for route in ROUTES}
    asked = {
        path.partition("?")[0]
        for path in (*(path for path, _ in READS), *(path for path, _ in OPERATIONS), *JOBS)
    }
    unasked = {each for each in addresses if not any(_is_of(each, path) for path in asked)}
    assert not unasked


def _is_of(address: str, path: str) -> bool:
    parts, given = address.split("/"), path.split("/")
    return len(parts) == len(given) and all(
        part == it or part.startswith("{") for part, it in zip(parts, given, strict=True)
    )
