"""Sizes of tables, what a row was before, and the rows of a standby when the owner is gone."""

import asyncio
from typing import Any

import msgspec
import pytest
from test_web_row_changes import CHANGELOG, version
from test_web_timeline import HOSTILE
from web_workers import NOW, Browser, FakeStandby, FakeWorker, in_vain, owner_of

from streams.control.base import standby_rows
from streams.control.base.answers import BrowseAnswer, TablesAnswer
from streams.control.base.others import Others
from streams.control.base.standby_rows import or_standby
from streams.control.base.view import Problem
from streams.control.tables.lookup import browse
from streams.control.tables.table_pages import browse_all
from streams.control.tables.table_sizes import list_tables
from streams.engine.life.state import LaneState
from streams.errors import StoreBroken
from streams.model.policy.assignment import Assignment

GONE = "http://127.0.0.1:2"


def two_workers() -> tuple[FakeWorker, FakeWorker]:
    """The second one follows the lanes 0 and 1 of the first one, and has a copy of lane 0."""
    first = FakeWorker.with_lanes(0, 1)
    second = FakeWorker.with_lanes(2, 3, app=first.application, url=GONE)
    owners = {0: first.url, 1: first.url, 2: GONE, 3: GONE}
    followers = {2: (first.url,), 3: (first.url,)}
    for each in (first, second):
        each.assignment = Assignment(owners=owners, followers=followers)
    return first, second


@pytest.fixture
def short_patience(monkeypatch):
    monkeypatch.setattr(standby_rows, "PATIENCE", 0.01)


silent = in_vain(Problem(502, "owner_unreachable", "it cannot be reached: refused"))


# -- sizes ------------------------------------------------------------------------------------------------


async def test_tables_are_listed_with_what_all_workers_have_of_them():
    first, second = two_workers()
    for n in range(40):
        owner_of(f"k{n}", first, second).put(f"k{n}", note="x" * 100)

    async def ask(url: str, path: str, query: Any) -> TablesAnswer:
        assert (url, path, query) == (GONE, "/api/tables", {"lanes": "2,3"})
        return await list_tables(second, Others(silent, first.url))

    found = await list_tables(first, Others(ask))
    (parcels,) = (table for table in found.tables if table.name == "parcels")
    assert parcels.rows == 40
    assert parcels.bytes > 40 * 100
    assert [part.lane for part in parcels.parts] == [0, 1, 2, 3]
    assert [part.owner for part in parcels.parts] == [first.url, first.url, GONE, GONE]
    assert [part.standbys for part in parcels.parts] == [(), (), (first.url,), (first.url,)]
    assert found.left_out == {}


async def test_lanes_of_a_worker_that_does_not_answer_are_named():
    first, _ = two_workers()
    found = await list_tables(first, Others(silent))
    assert sorted(found.left_out) == [2, 3]
    assert "refused" in found.left_out[2]


async def test_a_lane_that_two_workers_have_at_once_counts_once():
    """The one that has just given it away, and the one that has it now."""
    first, _ = two_workers()
    both = FakeWorker.with_lanes(0, 1, 2, 3, app=first.application, url=GONE)
    key = first.key_in(0)
    for worker in (first, both):
        worker.put(key, note="there")

    async def ask(*_: Any) -> TablesAnswer:
        return await list_tables(both, Others(silent, first.url))

    (parcels,) = (await list_tables(first, Others(ask), only="parcels")).tables
    assert [part.lane for part in parcels.parts] == [0, 1, 2, 3]
    assert parcels.rows == 1


async def test_lanes_whose_worker_tells_no_sizes_are_named():
    """It may be of a version that has none: what it tells has no `parts`."""
    first, _ = two_workers()
    first.owns({0: first.url, 1: first.url, 2: GONE})

    async def ask(*_: Any) -> TablesAnswer:
        told = await list_tables(first, Others(silent, first.url))
        return TablesAnswer(tables=[msgspec.structs.replace(each, parts=[]) for each in told.tables])

    found = await list_tables(first, Others(ask))
    assert sorted(found.left_out) == [2, 3]
    assert "earlier version" in found.left_out[2]
    assert "no owner" in found.left_out[3]


async def test_only_a_tables_first_page_asks_for_its_size(browser, worker):
    worker.owns({0: GONE, 1: worker.url, 2: worker.url, 3: worker.url})
    del worker.lanes[0]
    for key in worker.keys_here(f"k{n}" for n in range(40)):
        worker.put(key)
    first, then, *_ = await browser.pages("/api/tables/parcels", limit="5")
    assert first["table"]["parts"]
    assert then["table"]["parts"] == []


async def test_the_page_of_a_table_has_owners_and_standbys(browser, worker):
    worker.put("k1", note="weighed")
    worker.assignment = msgspec.structs.replace(worker.assignment, followers={worker.lane("k1"): (GONE,)})
    await browser.shows("/tables/parcels", " in 4 lanes", GONE)
    await browser.shows("/tables", "Approximate size", hides="Rows, about")
    _, found = await browser.json("/api/tables/parcels")
    assert sum(part["rows"] for part in found["table"]["parts"]) == 1


# -- what a row was ---------------------------------------------------------------------------------------


async def history(browser: Browser, query: str = "key=k1") -> Any:
    return (await browser.json(f"/api/tables/parcels/history?{query}"))[1]


async def test_a_row_has_its_versions_the_newest_first(browser, worker):
    app = worker.application
    worker.put("k1", note="c")
    worker.records += [
        version(app, "a", at=1), version(app, "other", at=2, key="k2"), version(app, HOSTILE, at=3),
        version(app, None, at=4), version(app, "c", at=5), version(app, "sub", at=6, subkey="s"),
    ]  # fmt: skip
    found = await history(browser, "key=k1&subkey=")
    versions = found["versions"]
    assert [each["offset"] for each in versions] == [5, 4, 3, 1]
    assert [each["after"] for each in versions] == [{"note": "c"}, None, {"note": HOSTILE}, {"note": "a"}]
    assert (versions[2]["before"], versions[0]["was_removed"]) == ({"note": "a"}, True)
    assert found["whole"]
    assert (found["topic"], found["partition"]) == (CHANGELOG, worker.partition("k1"))
    said = ("older versions were compacted away", "The row was removed")
    await browser.shows("/tables/parcels/history?key=k1", *said, hides="<script>")
    await browser.shows("/tables/parcels/rows?key=k1", 'href="/tables/parcels/history?key=k1"')


async def test_older_versions_than_a_page_has_are_led_to(browser, worker):
    worker.records += [version(worker.application, f"n{n}", at=n + 1) for n in range(25)]
    found = await history(browser)
    assert len(found["versions"]) == 20
    assert not found["whole"]
    await browser.shows("/tables/parcels/history?key=k1", "Look for older versions")


async def test_the_versions_of_one_row_are_found_among_others(browser, worker):
    app = worker.application
    worker.records += [version(app, "mine", at=1, subkey="s")]
    worker.records += [version(app, f"n{n}", at=n + 2, subkey="other") for n in range(50)]
    found = await history(browser, "key=k1&subkey=s")
    assert [each["after"] for each in found["versions"]] == [{"note": "mine"}]
    assert found["whole"]


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("parcels/history", (400, "no_key")),
        ("_timers/history?key=a", (400, "no_history")),
        ("none/history?key=a", (404, "unknown_table")),
    ],
)
async def test_a_history_that_means_nothing_is_refused(browser, path, refused):
    assert await browser.refusal(f"/api/tables/{path}") == refused


# -- standbys ---------------------------------------------------------------------------------------------


def with_a_copy(note: str = "copied") -> tuple[FakeWorker, str]:
    """A worker whose standby has the row of a key, and that key; the owner is gone."""
    worker = FakeWorker.with_lanes(0)
    owner = FakeWorker.with_lanes(1, 2, 3, app=worker.application)
    key = worker.key_in(2)
    owner.put(key, note=note)
    worker.standbys[2] = FakeStandby(2, behind=7, store=owner.lanes[2].store, fresh_at=NOW - 12)
    worker.owns({0: worker.url, 1: GONE, 2: GONE, 3: GONE})
    return worker, key


async def test_a_page_shows_a_standbys_row_without_the_owner():
    worker, key = with_a_copy(HOSTILE)
    async with Browser.of(worker) as browser:
        said = ("it is about 7 changelog records behind", "It was up to date 12 s ago")
        await browser.shows(f"/tables/parcels/rows?key={key}", *said, hides="<script>")
        found = await browser.found(f"/api/tables/parcels/rows?key={key}&stale=1")
        assert (found["stale"]["behind"], found["stale"]["seconds"]) == (7, 12.0)
        assert found["rows"][0]["value"] == {"note": HOSTILE}
        assert "cannot be reached" in found["stale"]["why"]


async def test_programs_are_given_no_copy_unasked():
    worker, key = with_a_copy()
    missing = worker.key_in(2, other_than=key)  # that the copy lacks a row does not say that there is none
    async with Browser.of(worker) as browser:
        for query in (f"key={key}", f"key={missing}&stale=1"):
            refused = await browser.refusal(f"/api/tables/parcels/rows?{query}")
            assert refused == (502, "owner_unreachable")


async def test_a_table_is_browsed_with_standbys_where_owners_are_gone():
    worker, key = with_a_copy()
    found = await browse_all(worker, "parcels", {}, Others(silent), copies=True)
    assert [row.key for row in found.rows] == [key]
    assert [(each.lane, each.worker) for each in found.stale] == [(2, worker.url)]
    assert sorted(found.left_out) == [1, 3]
    plain = await browse_all(worker, "parcels", {}, Others(silent))
    assert (plain.rows, sorted(plain.left_out)) == ([], [1, 2, 3])
    async with Browser.of(worker) as browser:
        await browser.shows("/tables/parcels", "is shown from the standby")


async def test_the_standby_of_another_worker_is_asked_for_its_copy():
    first, second = two_workers()
    key = first.key_in(2)
    second.put(key, note="there")
    third = "http://127.0.0.1:3"
    first.assignment = msgspec.structs.replace(first.assignment, followers={2: (third,)})
    follower = FakeWorker.with_lanes(0, app=first.application, url=third)
    follower.standbys[2] = FakeStandby(2, store=second.lanes[2].store)

    async def ask(url: str, _: str, query: Any) -> BrowseAnswer:
        if url != third:
            raise Problem(504, "owner_silent", "no answer")
        return browse(follower, "parcels", query)

    found = await browse_all(first, "parcels", {"lane": "2"}, Others(ask), copies=True)
    assert [row.key for row in found.rows] == [key]
    assert (found.stale[0].worker, found.stale[0].why) == (third, "no answer")


async def test_a_silent_owner_is_waited_for_once_on_a_page():
    worker, key = with_a_copy()
    asked: list[str] = []

    async def ask(url: str, _: str, query: Any) -> Any:
        asked.append(query["lane"])
        raise Problem(504, "owner_silent", "no answer in 5 s")

    for copies in (True, False):
        asked.clear()
        found = await browse_all(worker, "parcels", {}, Others(ask), copies=copies)
        assert asked == ["1"]
        assert sorted(found.left_out) == ([1, 3] if copies else [1, 2, 3])
        assert [row.key for row in found.rows] == ([key] if copies else [])


async def test_a_slow_owner_is_waited_for_once(short_patience):
    worker, _ = with_a_copy()
    asked = list[str]()

    async def ask(_: str, __: str, query: Any) -> Any:
        asked.append(query["lane"])
        await asyncio.Event().wait()

    worker.standbys[1] = worker.standbys[3] = worker.standbys[2]
    found = await browse_all(worker, "parcels", {}, Others(ask), copies=True)
    assert asked == ["1"]
    assert found.lanes == [0, 1, 2, 3]


async def test_while_one_lane_opens_the_owner_answers_for_others(worker):
    for n in range(40):
        worker.put(f"k{n}")
    worker.standbys[0] = FakeStandby(0, store=worker.lanes[0].store)
    worker.lanes[0].state = LaneState.OPENING
    found = await browse_all(worker, "parcels", {}, Others(silent), copies=True)
    assert [each.lane for each in found.stale] == [0]
    assert len(found.rows) == 40


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def a_copy(*_: Any) -> str:
    return "a copy"


async def test_a_slow_owner_is_not_waited_for_beside_a_copy(short_patience):
    worker, _ = with_a_copy()
    assert await or_standby(worker, 2, never, a_copy, a_copy) == ("a copy", "no answer in 0.01 s")


async def test_a_slow_owner_is_waited_for_without_a_copy(short_patience):
    worker, _ = with_a_copy()
    asked = asyncio.Event()

    async def owner() -> str:
        await asked.wait()
        return "the owner's"

    async def none(*_: Any) -> str:
        asked.set()
        raise Problem(503, "no_standby", "there is none")

    assert await or_standby(worker, 2, owner, none, none) == ("the owner's", "")


async def test_a_copy_that_cannot_be_read_is_none():
    worker, _ = with_a_copy()
    broken = in_vain(StoreBroken("a file is damaged"))
    with pytest.raises(Problem, match="cannot be reached"):
        await or_standby(worker, 2, silent, broken, broken)


@pytest.mark.parametrize("path", ["/tables/parcels", "/tables/parcels/rows"])
async def test_people_cannot_ask_for_a_copy_as_workers_do(browser, worker, path):
    worker.put("k1", note="the owner's")
    await browser.shows(f"{path}?key=k1&standby=1&lane={worker.lane('k1')}", "the owner")


async def test_standbys_are_not_asked_what_has_no_answer_anywhere():
    worker, _ = with_a_copy()
    refused = in_vain(Problem(404, "no_row", "there is no such row"))
    with pytest.raises(Problem, match="no such row"):
        await or_standby(worker, 2, refused, a_copy, a_copy)
