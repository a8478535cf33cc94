"""Sagas over HTTP and as pages: any worker lists and shows those of all lanes, and asks for operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, get_args

import msgspec
import pytest
from web_workers import NOW, Browser, FakeWorker

from streams.errors import WiringError
from streams.model.application import Application, LaneOptions
from streams.model.choreography import choreography, on
from streams.model.codecs import encode_row, json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.message import Message, Row
from streams.model.outcome import nothing
from streams.model.personal import MASK
from streams.model.row_keys import row_key
from streams.model.table import Table
from streams.saga.definition import NEVER, saga
from streams.saga.engine import orchestrate
from streams.saga.messages import Command, Repair, Reply, SagaTransition
from streams.saga.state import SagaRow, SagaStatus
from streams.saga.views import ChoreographedSaga, Course, SagaView, Seen, check_tables, choreographed
from streams.testing.clock import ManualClock
from streams.testing.sagas import error, given_saga, success
from streams.web import indexes as indexes_module
from streams.web import row_index as row_index_module
from streams.web import sagas as sagas_module
from streams.web import writing as writing_module
from streams.web.access import Access

KEYS = [f"k{n}" for n in range(20)]
SAGAS = "/api/sagas"
WHY = {"who": "ann", "why": "mended"}


class VisitReply(Reply, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "visits.saga.replies"


class VisitTransition(SagaTransition, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "visits.saga.transitions.v1"


class VisitRepair(Repair, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "visits.saga.repairs"


class VisitWanted(Message, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "visits.visit.wanted.v1"
    id: str

    @property
    def key(self) -> str:
        return self.id


class Ring(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "visits.commands.ring"
    REPLY = VisitReply


class Guest(Row, frozen=True, kw_only=True):
    """Who came, without a saga."""

    seen_at: float = 0.0
    gone: bool = False


Visit = saga("visit", started_by=VisitWanted).pivot("ring", Ring, retry=NEVER)
SAGA_ROWS, GUESTS = Table("visit-sagas", SagaRow), Table("guests", Guest)
service = Service("visits")
visit = orchestrate(Visit, service=service, table=SAGA_ROWS, log=VisitTransition, repairs=VisitRepair)
COURSE = Course(steps=(VisitWanted, Ring), failures={})


@service.handler(guest=GUESTS)
def greet(message: VisitWanted, guest: Guest | None):
    return nothing("hello")


def guest_view(saga_id: str, guest: Guest) -> SagaView | None:
    if not guest.seen_at:
        return None
    gone = [Seen(Ring.TOPIC, guest.seen_at + 2)] if guest.gone else []
    return choreographed(saga_id, COURSE, [Seen(VisitWanted.TOPIC, guest.seen_at, "at the door"), *gone])


VISITS = ChoreographedSaga("visit", GUESTS, guest_view)


def make_application() -> Application:
    wiring = choreography(on(VisitWanted, greet, visit), on(VisitReply, visit), on(VisitRepair, visit))
    return Application(
        Layout("post", 8, 4),
        wiring,
        json_without_schema,
        resources={"clock": ManualClock(NOW)},
        lane_options=LaneOptions(saga_limit=30.0),
    )


@pytest.fixture
async def two():
    """Two workers that share the lanes, and a browser of the first."""
    app = make_application()
    first, second = (
        FakeWorker.with_lanes(*lanes, app=app, choreographed=[VISITS]) for lanes in ((0, 1), (2, 3))
    )
    async with Browser.of(first) as one, Browser.of(second) as other:
        first.url, second.url = (str(browser.make_url("")).rstrip("/") for browser in (one, other))
        for worker in (first, second):
            worker.owns({0: first.url, 1: first.url, 2: second.url, 3: second.url})
        yield first, second, one


def put(
    workers: tuple[FakeWorker, FakeWorker], table: Table[Any], key: str, row: Row, subkey: str = ""
) -> None:
    owner = next(worker for worker in workers if worker.lane(key) in worker.lanes)
    data = encode_row(owner.application.tables[table.name].codec, row)
    owner.put_raw(table.name, owner.partition(key), row_key(key.encode(), subkey.encode()), data)


def saga_row(key: str, *, age: float = 10.0, outcome: Any = None) -> SagaRow:
    told = given_saga(Visit, now=NOW - age).start(VisitWanted(id=key)).expect_command(Ring)
    if outcome is not None:
        told.reply(outcome)
    return told.row


async def listed(browser: Browser, **query: str) -> list[Any]:
    found, cursor = [], ""
    while True:
        status, page = await browser.json(SAGAS, params={**query, "cursor": cursor} if cursor else query)
        assert status == 200, page
        assert page["left_out"] == {}
        assert page["looked"] <= 2 * sagas_module.MOST_LOOKED_AT
        found += page["sagas"]
        cursor = page["next"]
        if not cursor:
            return found


@pytest.mark.parametrize("limit", ["1", "3", "500"])
@pytest.mark.parametrize("looked_at", [1, 2_000])
async def test_every_saga_of_all_workers_is_listed_once_whoever_conducts_it(
    two, monkeypatch, limit, looked_at
):
    monkeypatch.setattr(sagas_module, "MOST_LOOKED_AT", looked_at)
    *workers, one = two
    for number, key in enumerate(KEYS):
        if number % 2:
            put(workers, GUESTS, key, Guest(seen_at=NOW - 1))
        if number % 3 == 0:  # the row of a guest may belong to a saga that is conducted
            put(workers, SAGA_ROWS, key, saga_row(key))
    put(workers, GUESTS, "nobody", Guest())
    put(workers, GUESTS, "k1", Guest(seen_at=NOW), subkey="more")
    found = await listed(one, limit=limit)
    assert {saga["id"]: saga["way"] for saga in found} == {
        f"visit:{key}": "choreographed" if number % 3 else "orchestrated"
        for number, key in enumerate(KEYS)
        if number % 2 or number % 3 == 0
    }
    assert len({saga["id"] for saga in found}) == len(found)


@pytest.mark.parametrize("limit", ["1", "500"])
@pytest.mark.parametrize("indexed", [True, False])
async def test_sagas_are_chosen_by_status_by_age_and_by_whether_they_take_too_long(
    two, monkeypatch, indexed, limit
):
    *workers, one = two
    put(workers, SAGA_ROWS, "new", saga_row("new"))
    put(workers, SAGA_ROWS, "old", saga_row("old", age=40))
    put(workers, SAGA_ROWS, "failed", saga_row("failed", age=20, outcome=error))
    put(workers, SAGA_ROWS, "done", saga_row("done", age=90, outcome=success))
    put(workers, GUESTS, "slow", Guest(seen_at=NOW - 31))
    put(workers, GUESTS, "gone", Guest(seen_at=NOW - 50, gone=True))

    await indexed_or_not(workers, monkeypatch, indexed=indexed)

    async def ids(**query: str) -> set[str]:
        found = [saga["id"].removeprefix("visit:") for saga in await listed(one, limit=limit, **query)]
        assert len(set(found)) == len(found)
        return set(found)

    assert await ids(status="failed") == {"failed"}
    assert await ids(status="started") == {"new", "old", "slow"}
    assert await ids(status="completed") == {"done", "gone"}
    assert await ids(stalled="1") == {"old", "slow"}
    assert await ids(older="35") == {"old", "done", "gone"}
    assert await ids(older="35", stalled="1", status="started") == {"old"}
    (failed,) = await listed(one, status="failed")
    assert (failed["waits_for"], failed["reason"], failed["elapsed"]) == (["ring"], "error", 20.0)
    (gone,) = [saga for saga in await listed(one, status="completed") if saga["id"] == "visit:gone"]
    assert (gone["elapsed"], gone["stalled"]) == (2.0, False)


async def indexed_or_not(workers: list[FakeWorker], monkeypatch, *, indexed: bool) -> None:
    """From now on lists come from the index, or from the rows, and from nothing else."""

    async def never(*_: Any) -> Any:
        raise AssertionError("not the way that is meant")
        yield

    for worker in workers:
        if indexed:
            await worker.index()
        else:
            worker.application.followed = frozenset()
    monkeypatch.setattr(sagas_module, "sagas_of_lane" if indexed else "sagas_by_index", never)


async def test_few_failed_sagas_among_many_are_found_without_a_look_at_the_others(two):
    *workers, one = two
    for number in range(300):
        put(workers, GUESTS, f"g{number}", Guest(seen_at=NOW - 50, gone=True))
    put(workers, SAGA_ROWS, "failed", saga_row("failed", age=20, outcome=error))
    for worker in workers:
        await worker.index()
    _, page = await one.json(SAGAS, params={"status": "failed"})
    assert [saga["id"] for saga in page["sagas"]] == ["visit:failed"]
    assert (page["looked"], page["next"]) == (1, "")


async def test_a_change_is_in_the_list_that_is_asked_for_right_after_it(two):
    *workers, one = two
    put(workers, SAGA_ROWS, "k", saga_row("k"))
    for worker in workers:
        await worker.index()
    put(workers, SAGA_ROWS, "k", saga_row("k", outcome=error))
    assert await listed(one, status="started") == []
    assert [saga["id"] for saga in await listed(one, status="failed")] == ["visit:k"]


async def test_while_too_much_has_changed_a_list_comes_from_the_rows_themselves(two, monkeypatch):
    monkeypatch.setattr(indexes_module, "MOST_CAUGHT_UP", 1)
    monkeypatch.setattr(row_index_module, "AT_ONCE", 1)
    *workers, one = two
    for worker in workers:
        await worker.index()
    for key in KEYS:
        put(workers, SAGA_ROWS, key, saga_row(key, outcome=error))
    page = (await one.json(SAGAS, params={"status": "failed", "limit": "500"}))[1]
    assert {saga["id"] for saga in page["sagas"]} == {f"visit:{key}" for key in KEYS}


async def test_of_each_status_the_oldest_come_first(two):
    *workers, one = two
    here = workers[0].keys_here(KEYS)
    lanes = {workers[0].lane(key) for key in here}
    for age, key in enumerate(here):
        put(workers, SAGA_ROWS, key, saga_row(key, age=float(age)))
    await workers[0].index()
    found = [saga["id"].removeprefix("visit:") for saga in await listed(one, status="started")]
    for lane in lanes:
        mine = [key for key in found if workers[0].lane(key) == lane]
        assert mine == [key for key in reversed(here) if workers[0].lane(key) == lane]


async def test_a_place_in_another_list_is_refused(two):
    *workers, one = two
    for key in KEYS:
        put(workers, SAGA_ROWS, key, saga_row(key))
    for worker in workers:
        await worker.index()
    _, page = await one.json(SAGAS, params={"status": "started", "limit": "1"})
    status, answer = await one.json(SAGAS, params={"status": "failed", "cursor": page["next"]})
    assert (status, answer["error"]) == (400, "bad_cursor")
    assert (await one.json(SAGAS, params={"status": "failed", "cursor": "AAD_"}))[0] == 400


async def test_lanes_that_cannot_be_asked_are_named_and_the_others_listed(two):
    first, second, one = two
    for key in KEYS:
        put((first, second), SAGA_ROWS, key, saga_row(key))
    second.lanes[2].store = None
    first.owns({0: first.url, 1: first.url, 2: second.url})
    _, page = await one.json(SAGAS)
    assert {saga["id"] for saga in page["sagas"]} == {f"visit:{key}" for key in first.keys_here(KEYS)}
    assert sorted(page["left_out"]) == ["2", "3"]
    _, html = await one.page("/sagas")
    assert "The sagas of lane 2 are missing here" in html


@pytest.mark.parametrize("path", [SAGAS + "?status=faild", SAGAS + "?older=soon", SAGAS + "?limit=0"])
async def test_a_question_that_makes_no_sense_is_refused(two, path):
    assert (await two[2].json(path))[0] == 400


async def test_a_saga_is_shown_with_its_timeline_by_whoever_is_asked(two):
    first, second, one = two
    for key in KEYS:
        put((first, second), SAGA_ROWS, key, saga_row(key, outcome=error))
        status, shown = await one.json(f"{SAGAS}/visit:{key}")
        assert status == 200
        assert shown["owner"] == (first if first.lane(key) in first.lanes else second).url
        assert [(step["name"], step["status"]) for step in shown["steps"]] == [("ring", "failed")]
        assert [entry["after"] for entry in shown["log"]] == ["started", "in_progress", "failed", "failed"]
        assert shown["operations"] is True


async def test_what_began_a_saga_is_legible_in_its_row_and_masked_for_who_may_only_look(two, monkeypatch):
    """The row has it as bytes: whoever may not see a field must not read it out of them."""
    *workers, one = two
    put(workers, SAGA_ROWS, KEYS[0], saga_row(KEYS[0]))
    path = f"/api/tables/{SAGA_ROWS.name}/rows?key={KEYS[0]}"
    _, found = await one.json(path)
    assert found["rows"][0]["value"]["start"] == {"id": KEYS[0]}
    monkeypatch.setattr(writing_module, "personal_fields", lambda _: frozenset({"id"}))
    worker = FakeWorker.with_lanes(0, 1, 2, 3, app=make_application())
    put((worker,), SAGA_ROWS, KEYS[0], saga_row(KEYS[0]))
    access = Access(token="t" * 20, viewer_token="v" * 20, login=True)
    async with Browser.of(worker, access) as browser:
        _, found = await browser.json(path, headers={"Authorization": f"Bearer {'v' * 20}"})
    assert found["rows"][0]["value"]["start"] == {"id": MASK}


async def test_a_choreographed_saga_is_shown_in_the_same_shape(two):
    *workers, one = two
    put(workers, GUESTS, "ann", Guest(seen_at=NOW - 5))
    _, shown = await one.json(f"{SAGAS}/visit:ann")
    assert (shown["saga"]["way"], shown["saga"]["pending"]) == ("choreographed", [Ring.TOPIC])
    assert [(step["name"], step["status"]) for step in shown["steps"]] == [
        (VisitWanted.TOPIC, "completed"),
        (Ring.TOPIC, "pending"),
    ]
    assert shown["operations"] is False
    status, problem = await one.ask(f"{SAGAS}/visit:ann/operations", {"operation": "cancel", **WHY})
    assert (status, problem["error"]) == (409, "nobody_conducts")


async def test_a_row_that_cannot_be_read_is_listed_as_such(two):
    *workers, one = two
    owner = next(worker for worker in workers if worker.lane("odd") in worker.lanes)
    owner.put_raw(SAGA_ROWS.name, owner.partition("odd"), row_key(b"odd"), b"x" * 12)
    (found,) = await listed(one, status="unreadable")
    assert (found["id"], "SagaRow" in found["reason"]) == ("visit:odd", True)
    status, problem = await ask(one, "odd", operation="cancel")
    assert (status, problem["error"]) == (409, "nobody_conducts")
    status, page = await one.page("/sagas/visit:odd")
    assert (status, "unreadable" in page) == (200, True)


@pytest.mark.parametrize("ident", ["visit:nobody", "visti:k1", "visit"])
async def test_one_that_there_is_not_is_not_found(two, ident):
    status, problem = await two[2].json(f"{SAGAS}/{ident}")
    assert (status, problem["error"]) == (404, "no_saga")


async def test_the_pages_show_the_same_and_lead_from_one_to_the_other(two):
    *workers, one = two
    hostile = "a/b <script>"
    put(workers, SAGA_ROWS, hostile, saga_row(hostile, age=40, outcome=error))
    _, overview = await one.page("/worker")
    assert 'href="/sagas?status=failed"' in overview
    status, page = await one.page("/sagas?status=failed&older=&stalled=")
    assert status == 200
    assert "<script>" not in page
    link = "/sagas/visit%3Aa%2Fb%20%3Cscript%3E"
    assert f'href="{link}"' in page
    assert "stalled" in page
    status, timeline = await one.page(link)
    assert status == 200
    for expected in ("ring waits for an operator", "in_progress → failed", "What has happened", "version 1"):
        assert expected in timeline
    assert "<script>" not in timeline


async def test_the_page_says_what_each_status_means(two):
    _, _, one = two
    _, page = await one.page("/sagas")
    assert [status for status in get_args(SagaStatus) if f"<dt>{status}</dt>" not in page] == []


async def test_the_page_counts_sagas_and_has_those_first_that_need_somebody(two, monkeypatch):
    monkeypatch.setattr("streams.web.samples.SHARE", 1.0)
    first, second, one = two
    here = [key for key in KEYS if first.lane(key) in first.lanes]
    put((first, second), SAGA_ROWS, here[0], saga_row(here[0], outcome=error))
    for key in here[1:4]:
        put((first, second), SAGA_ROWS, key, saga_row(key))
    _, page = await one.page("/sagas")
    assert "as counted" not in page
    await one.sampler.round()
    _, page = await one.page("/sagas")
    assert '<a href="/sagas?status=failed">failed</a> 1,' in page
    assert '<a href="/sagas?status=started">started</a> 3,' in page
    needing, _, others = page.partition("<h2>All</h2>")
    assert f"visit:{here[0]}</a>" in needing
    assert f"visit:{here[1]}</a>" not in needing
    assert all(f"visit:{key}</a>" in others for key in here[:4])
    _, page = await one.page("/sagas?status=started")
    assert "These need somebody" not in page
    assert f"visit:{here[0]}</a>" not in page


# -- operations -------------------------------------------------------------------------------------------


async def ask(browser: Browser, key: str, **body: Any) -> tuple[int, Any]:
    return await browser.ask(f"{SAGAS}/visit:{key}/operations", {**WHY, **body})


async def test_an_operation_is_a_message_to_the_sagas_partition(two):
    first, second, one = two
    for key in KEYS:
        put((first, second), SAGA_ROWS, key, saga_row(key, outcome=error))
        status, asked = await ask(one, key, operation="skip", id=f"command-{key}")
        assert status == 200, asked
        assert (asked["step"], asked["said"], asked["entries"]) == ("ring", "mended (ann)", 4)
        to, sent = first.asked[-1]
        assert (to.topic, to.partition, sent.key) == (VisitRepair.TOPIC, first.partition(key), key.encode())
        headers = dict(sent.headers)
        assert (headers["ce_id"], headers["ce_type"]) == (
            f"command-{key}".encode(),
            VisitRepair.TOPIC.encode(),
        )
        repair = msgspec.json.decode(sent.value, type=VisitRepair)
        assert repair == VisitRepair(
            saga_id=f"visit:{key}", operation="skip", step="ring", who="ann", why="mended"
        )
    assert second.asked == []


async def test_a_step_that_is_named_is_asked_for_whatever_waits_and_the_lane_decides(two):
    first, second, one = two
    put((first, second), SAGA_ROWS, "k", saga_row("k"))
    assert (await ask(one, "k", operation="retry", step="ring"))[0] == 200
    assert len(first.asked) == 1


@pytest.mark.parametrize(
    ("body", "error_word"),
    [
        ({"operation": "retry"}, "does_not_wait"),
        ({"operation": "cancel", "why": " "}, "no_reason"),
        ({"operation": "cancel", "who": ""}, "no_reason"),
        ({"operation": "cancel", "id": "x" * 201}, "bad_id"),
        ({"operation": "explode"}, "bad_request"),
        ({"operation": "cancel", "colour": "red"}, "bad_request"),
    ],
)
async def test_what_cannot_be_asked_is_refused_and_nothing_is_sent(two, body, error_word):
    first, second, one = two
    put((first, second), SAGA_ROWS, "k", saga_row("k"))
    status, problem = await ask(one, "k", **body)
    assert (400 <= status < 500, problem["error"]) == (True, error_word)
    assert first.asked == []


async def test_a_saga_whose_topic_of_repairs_nobody_reads_takes_none(two):
    first, second, one = two
    put((first, second), SAGA_ROWS, "k", saga_row("k"))
    first.application.routes.pop(VisitRepair.TOPIC)
    assert (await ask(one, "k", operation="cancel"))[1]["error"] == "nobody_conducts"
    assert first.asked == []


async def test_operations_are_taken_from_this_machine_as_json_only(two):
    first, second, one = two
    put((first, second), SAGA_ROWS, "k", saga_row("k"))
    path = f"{SAGAS}/visit:k/operations"
    assert (await one.ask(path, {"operation": "cancel", **WHY}, **{"Content-Type": "text/plain"}))[0] == 403
    assert (await one.ask(path, {"operation": "cancel", **WHY}, Origin="http://elsewhere.example"))[0] == 403
    assert first.asked == []


def test_choreographed_sagas_are_read_from_a_table_that_there_is():
    with pytest.raises(WiringError, match="read from \\['lost'\\], which no handler has"):
        check_tables([VISITS, replace(VISITS, table=Table("lost", Guest))], make_application().tables)
