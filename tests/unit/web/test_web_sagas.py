"""Sagas over HTTP and as pages: any worker lists and shows those of all lanes, and asks for operations."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import msgspec
import pytest
from web_workers import NOW, Browser, FakeStandby, FakeWorker, bearer, owner_of

from streams.control.api import web_request as web_request_module
from streams.control.api import writing as writing_module
from streams.control.base.access import Access
from streams.control.base.view import Problem
from streams.control.sagas import indexes as indexes_module
from streams.control.sagas import row_index as row_index_module
from streams.control.sagas import sagas as sagas_module
from streams.engine.waiting.queue import Reason, begin, message_of, queue_name, set_message, set_queue
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
from streams.testing.log import FakeRecord
from streams.testing.sagas import error, given_saga, success

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
def app() -> Application:
    return make_application()


@pytest.fixture
def sagas() -> list[ChoreographedSaga]:
    return [VISITS]


def put(workers: Sequence[FakeWorker], table: Table[Any], key: str, row: Row, subkey: str = "") -> None:
    owner = owner_of(key, *workers)
    data = encode_row(owner.application.tables[table.name].codec, row)
    owner.put_raw(table.name, owner.partition(key), row_key(key.encode(), subkey.encode()), data)


def put_saga(workers: Sequence[FakeWorker], key: str, *, age: float = 10.0, outcome: Any = None) -> None:
    told = given_saga(Visit, now=NOW - age).start(VisitWanted(id=key)).expect_command(Ring)
    if outcome is not None:
        told.reply(outcome)
    put(workers, SAGA_ROWS, key, told.row)


async def listed(browser: Browser, **query: str) -> list[Any]:
    pages = await browser.pages(SAGAS, **query)
    for page in pages:
        assert page["left_out"] == {}
        assert page["looked"] <= 2 * sagas_module.MOST_LOOKED_AT
    return [saga for page in pages for saga in page["sagas"]]


async def index(workers: Sequence[FakeWorker]) -> None:
    for worker in workers:
        await worker.index()


@pytest.mark.promise("saga-list")
@pytest.mark.parametrize("limit", ["1", "3", "500"])
@pytest.mark.parametrize("looked_at", [1, 2_000])
async def test_every_saga_is_listed_once_whoever_conducts_it(both, one, monkeypatch, limit, looked_at):
    monkeypatch.setattr(sagas_module, "MOST_LOOKED_AT", looked_at)
    for number, key in enumerate(KEYS):
        if number % 2:
            put(both, GUESTS, key, Guest(seen_at=NOW - 1))
        if number % 3 == 0:  # the row of a guest may belong to a saga that is conducted
            put_saga(both, key)
    put(both, GUESTS, "nobody", Guest())
    put(both, GUESTS, "k1", Guest(seen_at=NOW), subkey="more")
    found = await listed(one, limit=limit)
    assert {saga["id"]: saga["way"] for saga in found} == {
        f"visit:{key}": "choreographed" if number % 3 else "orchestrated"
        for number, key in enumerate(KEYS)
        if number % 2 or number % 3 == 0
    }
    assert len({saga["id"] for saga in found}) == len(found)


@pytest.mark.parametrize("limit", ["1", "500"])
@pytest.mark.parametrize("indexed", [True, False])
async def test_sagas_are_chosen_by_status_age_and_stalling(both, one, monkeypatch, indexed, limit):
    put_saga(both, "new")
    put_saga(both, "old", age=40)
    put_saga(both, "failed", age=20, outcome=error)
    put_saga(both, "done", age=90, outcome=success)
    put(both, GUESTS, "slow", Guest(seen_at=NOW - 31))
    put(both, GUESTS, "gone", Guest(seen_at=NOW - 50, gone=True))
    await indexed_or_not(both, monkeypatch, indexed=indexed)

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


async def indexed_or_not(workers: Sequence[FakeWorker], monkeypatch, *, indexed: bool) -> None:
    """From now on lists come from the index, or from the rows, and from nothing else."""

    async def never(*_: Any) -> Any:
        raise AssertionError("not the way that is meant")
        yield

    if indexed:
        await index(workers)
    else:
        workers[0].application.followed = frozenset()  # they share it
    monkeypatch.setattr(sagas_module, "sagas_of_lane" if indexed else "sagas_by_index", never)


async def test_few_failed_sagas_are_found_without_the_others(both, one):
    for number in range(300):
        put(both, GUESTS, f"g{number}", Guest(seen_at=NOW - 50, gone=True))
    put_saga(both, "failed", age=20, outcome=error)
    await index(both)
    _, page = await one.json(SAGAS, params={"status": "failed"})
    assert [saga["id"] for saga in page["sagas"]] == ["visit:failed"]
    assert (page["looked"], page["next"]) == (1, "")


async def test_a_change_is_in_the_list_right_after_it(both, one):
    put_saga(both, "k")
    await index(both)
    put_saga(both, "k", outcome=error)
    assert await listed(one, status="started") == []
    assert [saga["id"] for saga in await listed(one, status="failed")] == ["visit:k"]


async def test_while_too_much_has_changed_rows_are_listed(both, one, monkeypatch):
    monkeypatch.setattr(indexes_module, "MOST_CAUGHT_UP", 1)
    monkeypatch.setattr(row_index_module, "AT_ONCE", 1)
    await index(both)
    for key in KEYS:
        put_saga(both, key, outcome=error)
    page = (await one.json(SAGAS, params={"status": "failed", "limit": "500"}))[1]
    assert {saga["id"] for saga in page["sagas"]} == {f"visit:{key}" for key in KEYS}


async def test_of_each_status_the_oldest_come_first(both, first, one):
    here = first.keys_here(KEYS)
    for age, key in enumerate(here):
        put_saga(both, key, age=float(age))
    await first.index()
    found = [saga["id"].removeprefix("visit:") for saga in await listed(one, status="started")]
    for lane in {first.lane(key) for key in here}:
        mine = [key for key in found if first.lane(key) == lane]
        assert mine == [key for key in reversed(here) if first.lane(key) == lane]


async def test_a_place_in_another_list_is_refused(both, one):
    for key in KEYS:
        put_saga(both, key)
    await index(both)
    _, page = await one.json(SAGAS, params={"status": "started", "limit": "1"})
    for cursor in (page["next"], "AAD_"):
        refused = await one.refusal(SAGAS, params={"status": "failed", "cursor": cursor})
        assert refused == (400, "bad_cursor")


async def test_lanes_that_cannot_be_asked_are_named(both, first, second, one):
    for key in KEYS:
        put_saga(both, key)
    second.lanes[2].store = None
    first.owns({0: first.url, 1: first.url, 2: second.url})
    _, page = await one.json(SAGAS)
    assert {saga["id"] for saga in page["sagas"]} == {f"visit:{key}" for key in first.keys_here(KEYS)}
    assert sorted(page["left_out"]) == ["2", "3"]
    await one.shows("/sagas", "The sagas of lane 2 are missing here")


async def test_a_lane_whose_owner_refuses_the_cursor_is_left_out(both, second, one, monkeypatch):
    """Its worker may run with another lane count."""

    async def refused(*_, **__):
        raise Problem(400, "bad_cursor", "there is no lane 2")

    monkeypatch.setattr(web_request_module, "ask_json", refused)
    _, page = await one.json(SAGAS)
    assert page["left_out"] == {str(lane): "there is no lane 2" for lane in second.lanes}


async def test_a_silent_worker_is_waited_for_once_by_a_page(both, second, one, monkeypatch):
    requests = []

    async def silent(_session, owner, *_, **__):
        requests.append(owner)
        raise Problem(504, "owner_silent", "no answer")

    monkeypatch.setattr(web_request_module, "ask_json", silent)
    assert len(second.lanes) > 1
    _, page = await one.json(SAGAS)
    assert sorted(page["left_out"]) == sorted(map(str, second.lanes))
    assert requests == [second.url]


GONE = "http://127.0.0.1:9"


@pytest.mark.parametrize("has_copy", [True, False], ids=["with a standby", "without"])
async def test_a_page_says_what_is_known_without_the_owner(app: Application, has_copy: bool) -> None:
    worker = FakeWorker.with_lanes(0, app=app)
    owner = FakeWorker.with_lanes(1, 2, 3, app=app)
    key = worker.key_in(2)
    put_saga([owner], key, outcome=error)
    if has_copy:
        worker.standbys[2] = FakeStandby(2, behind=7, store=owner.lanes[2].store, fresh_at=NOW - 12)
    worker.owns({0: worker.url, 1: GONE, 2: GONE, 3: GONE})
    async with Browser.of(worker) as browser:
        assert await browser.refusal(f"{SAGAS}/visit:{key}") == (502, "owner_unreachable")
        status, page = await browser.page(f"/sagas/visit:{key}")
        if not has_copy:
            assert (status, f"the owner, {GONE}, cannot be reached" in page) == (502, True)
            assert "Try again in a few seconds" in page
            return
        found = await browser.found(f"{SAGAS}/visit:{key}?stale=1")
        assert (found["stale"]["behind"], found["operations"]) == (7, False)
    assert (status, f"{GONE}, cannot be reached" in page) == (200, True)
    for text in (
        "is shown from the standby",
        "it is about 7 changelog records behind",
        f"visit:{key} needs a decision",
    ):
        assert text in page


async def test_no_problem_that_lasts_is_told_to_pass(one: Browser) -> None:
    status, page = await one.page("/sagas/visit:nobody")
    assert (status, "Try again in a few seconds" in page) == (404, False)


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("?status=faild", (400, "bad_status")),
        ("?older=soon", (400, "bad_older")),
        ("?limit=0", (400, "bad_limit")),
        ("/visit:nobody", (404, "no_saga")),
        ("/visti:k1", (404, "no_saga")),
        ("/visit", (404, "no_saga")),
    ],
)
async def test_what_cannot_be_answered_is_refused(one, path, refused):
    assert await one.refusal(SAGAS + path) == refused


async def test_a_saga_is_shown_by_whoever_is_asked(both, one):
    for key in KEYS:
        put_saga(both, key, outcome=error)
        shown = await one.found(f"{SAGAS}/visit:{key}")
        assert shown["owner"] == owner_of(key, *both).url
        assert [(step["name"], step["status"]) for step in shown["steps"]] == [("ring", "failed")]
        assert [entry["after"] for entry in shown["log"]] == ["started", "in_progress", "failed", "failed"]
        assert shown["operations"] is True


async def test_what_began_a_saga_is_legible_and_masked_for_viewers(app, monkeypatch):
    """The row has it as bytes: whoever may not see a field must not read it out of them."""
    monkeypatch.setattr(writing_module, "personal_fields", lambda _: frozenset({"id"}))
    worker = FakeWorker.with_lanes(0, 1, 2, 3, app=app)
    put_saga([worker], "k1")
    async with Browser.of(worker, Access("t" * 20, "v" * 20, login=True)) as browser:
        for token, seen in (("t", "k1"), ("v", MASK)):
            path = f"/api/tables/{SAGA_ROWS.name}/rows?key=k1"
            _, found = await browser.json(path, headers=bearer(token * 20))
            assert found["rows"][0]["value"]["start"] == {"id": seen}


async def test_a_choreographed_saga_is_shown_in_the_same_shape(both, one):
    put(both, GUESTS, "ann", Guest(seen_at=NOW - 5))
    _, shown = await one.json(f"{SAGAS}/visit:ann")
    assert (shown["saga"]["way"], shown["saga"]["pending"]) == ("choreographed", [Ring.TOPIC])
    found = [(step["name"], step["status"]) for step in shown["steps"]]
    assert found == [(VisitWanted.TOPIC, "completed"), (Ring.TOPIC, "pending")]
    assert shown["operations"] is False
    assert await refused(one, "ann", operation="cancel") == (409, "nobody_conducts")


async def test_a_row_that_cannot_be_read_is_listed_as_such(both, one):
    owner = owner_of("odd", *both)
    owner.put_raw(SAGA_ROWS.name, owner.partition("odd"), row_key(b"odd"), b"x" * 12)
    (found,) = await listed(one, status="unreadable")
    assert (found["id"], "SagaRow" in found["reason"]) == ("visit:odd", True)
    assert await refused(one, "odd", operation="cancel") == (409, "nobody_conducts")
    status, page = await one.page("/sagas/visit:odd")
    assert (status, "unreadable" in page) == (200, True)


async def test_the_pages_show_the_same_and_are_linked(both, one):
    put_saga(both, "a/b <script>", age=40, outcome=error)
    await one.shows("/worker", 'href="/sagas?status=failed"')
    page = await one.shows("/sagas?status=failed&older=&stalled=")
    link = "/sagas/-?saga=visit%3Aa%2Fb+%3Cscript%3E"
    assert f'href="{link}"' in page
    assert "stalled" in page
    timeline = await one.shows(
        link, "<b>error.</b> <b>Fix that, then try again</b>", "ask once more: ", " ring --why ...",
        "in_progress → failed", 'id="log">Log</h2>', "version 1",
    )  # fmt: skip
    assert "<script>" not in page + timeline


async def test_what_to_decide_stands_under_the_heading(both, one):
    told = given_saga(Visit, now=NOW - 10.0).start(VisitWanted(id="k1")).expect_command(Ring).reply(error)
    undone = tuple(msgspec.structs.replace(step, undoing=True) for step in told.row.steps)
    put(both, SAGA_ROWS, "k1", msgspec.structs.replace(told.row, steps=undone))
    put_saga(both, "k2", outcome=error)
    for key, heading, decide in (
        ("k1", "ring could not be undone", "Try the compensation again"),
        ("k2", "ring could not be done", "Try again"),
    ):
        page = await one.shows(f"/sagas/visit:{key}", f"visit:{key} needs a decision: {heading}")
        assert page.index("</h1>") < page.index(decide) < page.index('id="facts"') < page.index('id="list"')
    await one.shows(
        "/sagas/visit:k1", "then try the compensation again", "It was undone by hand", "compensation failed",
        "ring counts as undone. Then the saga ends as cancelled.",
    )  # fmt: skip


async def test_the_overview_names_the_oldest_saga_that_stands(both, one, monkeypatch):
    monkeypatch.setattr("streams.control.overview.samples.SHARE", 1.0)
    failed, late = both[0].keys_here(KEYS)[:2]
    put_saga(both, failed, outcome=error)
    put_saga(both, late, age=40.0)
    await one.sampler.round()
    _, overview = await one.json("/api/overview")
    assert [(each["text"], each["why"]) for each in overview["warnings"]] == [
        (f"visit:{failed} needs a decision", "ring could not be done: error"),
        (f"visit:{late} should have ended by now", "It waits for ring"),
    ]


async def test_a_saga_takes_no_second_operation_before_the_first(both, one):
    put_saga(both, "k1", outcome=error)
    status, there, _ = await one.send("/sagas/visit:k1", operation="retry", step="ring", **WHY)
    assert status == 303
    page = await one.shows(there, "retry ring requested", 'value="retry" disabled', "#decide")
    assert page.count(" disabled>") == 3
    before = there.replace("entries=", "entries=9")  # its log has another length
    await one.shows(before, "Try again", hides=(" disabled>", "requested", "#decide&"))


@pytest.mark.parametrize("discarded", [False, True])
async def test_an_overdue_saga_with_a_dead_letter_is_one_problem(both, one, monkeypatch, discarded):
    monkeypatch.setattr("streams.control.overview.samples.SHARE", 1.0)
    held, late = both[0].keys_here(KEYS)[:2]
    for key in (held, late):
        put_saga(both, key, age=40.0)
    changes = {"state": "discarded"} if discarded else {}
    both[0].put_letter(held, why="the till is closed", **changes)
    await one.sampler.round()
    _, overview = await one.json("/api/overview")
    texts = [each["text"] for each in overview["warnings"]]
    if discarded:
        assert texts[-1] == "2 sagas should have ended by now"
    else:
        letters = "1 message failed for good in post.note; 1 saga is overdue because of it"
        assert texts == [letters, f"visit:{late} should have ended by now"]
    assert overview["stalled"] == 2


async def test_a_saga_is_found_by_its_id_and_its_key(both, first, one):
    """Its timeline begins before it did."""
    for key in KEYS[:8]:  # of both workers
        put_saga(both, key, age=7200.0, outcome=error)
    for asked in ("visit:k1", "k1", "k2", "k3", "k4"):
        _, found = await one.json("/api/search", params={"q": asked})
        (saga,) = found["held"]["sagas"]
        assert (saga["id"], saga["status"]) == (f"visit:{asked[-2:]}", "failed")
        assert first.scanned[-1].since_ms <= (NOW - 7260) * 1000
    async with one.get("/search?q=k1", allow_redirects=False) as response:
        assert response.status == 200  # its row is a thing, too
    await one.shows("/sagas/visit:k1", 'href="/timeline?q=visit%3Ak1"')


async def test_the_page_says_what_each_status_means(one):
    _, page = await one.page("/sagas")
    assert [status for status in get_args(SagaStatus) if f"<dt>{status}<dd>" not in page] == []


async def test_the_page_has_those_first_that_need_somebody(both, first, one, monkeypatch):
    monkeypatch.setattr("streams.control.overview.samples.SHARE", 1.0)
    failed, *others = first.keys_here(KEYS)[:4]
    put_saga(both, failed, outcome=error)
    for key in others:
        put_saga(both, key)
    await one.shows("/sagas", hides="as counted")
    await one.sampler.round()
    _, page = await one.page("/sagas")
    assert "<h1>1 saga needs a decision</h1>" in page
    assert '<a href="/sagas?status=started">started <span>3</span></a>' in page
    needing, _, all_of_them = page.partition('<h2 id="all">All</h2>')
    assert f"visit:{failed}</a>" in needing
    assert f"visit:{others[0]}</a>" not in needing
    assert all(f"visit:{key}</a>" in all_of_them for key in (failed, *others))
    await one.shows("/sagas?status=started", hides=("Needs attention", f"visit:{failed}</a>"))


# -- operations -------------------------------------------------------------------------------------------


async def ask(browser: Browser, key: str, *, headers: Any = None, **body: Any) -> tuple[int, Any]:
    return await browser.ask(f"{SAGAS}/visit:{key}/operations", {**WHY, **body}, **(headers or {}))


async def refused(browser: Browser, key: str, **body: Any) -> tuple[int, str]:
    status, problem = await ask(browser, key, **body)
    return status, problem["error"]


async def test_an_operation_is_a_message_to_the_sagas_partition(both, first, second, one):
    for key in KEYS:
        put_saga(both, key, outcome=error)
        status, asked = await ask(one, key, operation="skip", id=f"command-{key}")
        assert status == 200, asked
        assert (asked["step"], asked["said"], asked["entries"]) == ("ring", "mended (ann)", 4)
        to, sent = first.asked[-1]
        assert (to.topic, to.partition, sent.key) == (VisitRepair.TOPIC, first.partition(key), key.encode())
        ids = dict(sent.headers)
        assert (ids["ce_id"], ids["ce_type"]) == (f"command-{key}".encode(), VisitRepair.TOPIC.encode())
        assert msgspec.json.decode(sent.value, type=VisitRepair) == VisitRepair(
            saga_id=f"visit:{key}", operation="skip", step="ring", who="ann", why="mended"
        )
    assert second.asked == []


async def test_a_named_step_is_asked_for_whatever_waits(both, first, one):
    put_saga(both, "k")
    assert (await ask(one, "k", operation="retry", step="ring"))[0] == 200
    assert len(first.asked) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"operation": "retry"}, (409, "does_not_wait")),
        ({"why": " "}, (400, "no_reason")),
        ({"who": ""}, (400, "no_reason")),
        ({"id": "x" * 201}, (400, "bad_id")),
        ({"operation": "explode"}, (400, "bad_request")),
        ({"colour": "red"}, (400, "bad_request")),
        ({"headers": {"Content-Type": "text/plain"}}, (403, "not_json")),
        ({"headers": {"Origin": "http://elsewhere.example"}}, (403, "not_json")),
    ],
)
async def test_what_cannot_be_asked_sends_nothing(both, first, one, body, expected):
    put_saga(both, "k")
    assert await refused(one, "k", **{"operation": "cancel", **body}) == expected
    assert first.asked == []


async def test_a_saga_whose_repairs_nobody_reads_takes_none(both, first, one):
    put_saga(both, "k")
    first.application.routes.pop(VisitRepair.TOPIC)
    assert await refused(one, "k", operation="cancel") == (409, "nobody_conducts")
    assert first.asked == []


def test_choreographed_sagas_are_read_from_a_table_that_there_is():
    with pytest.raises(WiringError, match="read from \\['lost'\\], which no handler has"):
        check_tables([VISITS, replace(VISITS, table=Table("lost", Guest))], make_application().tables)


async def test_a_saga_says_what_of_its_key_waits_and_why(both, one):
    put_saga(both, "k1")
    owner = owner_of("k1", *both)
    owner.put_letter("k1", why="unknown card")
    name = queue_name(b"visits.greet", b"k1")
    queue = begin(Reason.RETRY, due_ms=1, attempts=1, size=1, error="OSError: refused")
    record = FakeRecord(VisitWanted.TOPIC, owner.partition("k1"), 0, 1, b"k1", b"{}", [])
    owner.change("k1", set_queue(name, queue), set_message(name, 0, message_of(record, int(NOW * 1000))))
    wants = (
        "VisitWanted waits for visits.greet: attempt 1 of 6 failed: OSError: refused; until it is tried again"
    )
    found = (await one.found(f"{SAGAS}/visit:k1"))["causes"]
    assert found == [wants, "post.parcel.seen.v1 is a dead letter of post.note: ValueError: unknown card"]
    await one.shows("/sagas/visit:k1", wants)
