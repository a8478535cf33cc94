"""A key is looked up on any worker; its owner is asked."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from web_workers import Browser, FakeWorker, owner_of

from streams.control.base import owner as owner_module
from streams.control.base.owner import ASKED_BY
from streams.engine.life.state import LaneState

KEYS = [f"k{n}" for n in range(40)]
PARCELS = "/api/tables/parcels"
ROWS = f"{PARCELS}/rows"


@pytest.fixture
async def two(two):
    for key in KEYS:
        owner_of(key, *two[:2]).put(key, note=f"note of {key}")
    return two


@pytest.fixture
def key(first):
    """One of the second worker."""
    return first.key_elsewhere()


@pytest.fixture
async def stranger():
    """A worker with lane 0 whose other lanes are owned by whatever a test puts there."""
    worker = FakeWorker.with_lanes(0)
    async with Browser.of(worker) as browser:
        yield worker, browser


async def looked_up(stranger, url):
    """The status and the problem that the stranger answers when this is the owner."""
    worker, browser = stranger
    worker.owns({1: url, 2: url, 3: url})
    return await browser.json(f"{ROWS}?key={worker.key_elsewhere()}")


async def ask_through(stranger, handler):
    served = web.Application()
    served.router.add_get("/{rest:.*}", handler)
    async with TestServer(served) as server:
        return await looked_up(stranger, str(server.make_url("")).rstrip("/"))


async def test_every_key_is_found_on_either_worker_with_its_owner(both, first, one, other):
    for key in KEYS:
        for browser in (one, other):
            answer = await browser.found(ROWS, params={"key": key})
            assert answer["rows"][0]["value"] == {"note": f"note of {key}"}
            assert answer["owner"] == owner_of(key, *both).url
            assert (answer["partition"], answer["lane"]) == (first.partition(key), first.lane(key))


async def test_the_page_shows_the_owners_answer_and_names_it(second, one, key):
    await one.shows(
        "/tables/parcels/rows", f"note of {key}", f"<dt>Owner<dd>{second.url}", params={"key": key}
    )


async def test_subrows_are_shown_page_by_page_through_the_other_worker(second, one, key):
    for n in range(9):
        second.put(key, f"sub-{n}")
    pages = await one.pages(ROWS, key=key, limit="4")
    assert [row["subkey"] for page in pages for row in page["rows"]] == ["", *(f"sub-{n}" for n in range(9))]
    for subkey in ("sub-3", ""):
        _, answer = await one.json(ROWS, params={"key": key, "subkey": subkey})
        assert [row["subkey"] for row in answer["rows"]] == [subkey]


async def test_rows_of_a_longer_key_are_not_mixed_up(worker, browser):
    for key, subkey in [("k", "1"), ("k1", ""), ("k", "11")]:
        worker.put(key, subkey)
    _, answer = await browser.json(f"{ROWS}?key=k")
    assert [(row["key"], row["subkey"]) for row in answer["rows"]] == [("k", "1"), ("k", "11")]


async def test_that_there_is_no_row_is_the_owners_word(second, one):
    key = next(key for key in (f"none-{n}" for n in range(99)) if second.keys_here([key]))
    status, problem = await one.json(ROWS, params={"key": key})
    assert (status, problem["error"]) == (404, "no_row")
    assert second.url in problem["detail"]


@pytest.mark.parametrize("begun", [True, False])
async def test_an_owner_whose_lane_opens_is_quoted(second, one, key, begun):
    lane = second.lane(key)
    if begun:
        second.lanes[lane].state = LaneState.OPENING
    else:
        del second.lanes[lane]
    status, problem = await one.json(ROWS, params={"key": key})
    assert (status, problem["detail"]) == (503, f"lane {lane} is opening")


async def test_two_that_name_each_other_do_not_ask_without_end(first, second, one, key):
    lane = second.lane(key)
    del second.lanes[lane]
    second.owns({lane: first.url})
    status, problem = await one.json(ROWS, params={"key": key})
    assert (status, problem["error"]) == (503, "owner_moving")
    assert first.url in problem["detail"]


async def test_a_worker_that_is_asked_by_another_asks_nobody(one, key):
    headers = {ASKED_BY: "http://127.0.0.1:9"}
    assert await one.refusal(ROWS, params={"key": key}, headers=headers) == (503, "owner_moving")
    _, answer = await one.json(f"{PARCELS}?limit=500", headers=headers)
    assert {row["lane"] for row in answer["rows"]} == {0, 1}


async def test_before_it_has_joined_a_worker_knows_no_owner(stranger):
    worker, browser = stranger
    worker.owns({})
    assert await browser.refusal(f"{ROWS}?key={worker.key_elsewhere()}") == (503, "no_owner")


@pytest.mark.parametrize(
    "url", ["http://10.0.0.7:6066", "https://127.0.0.1:1", "http://shop.example", "junk", ""]
)
async def test_an_owner_elsewhere_is_named_and_not_asked(stranger, url):
    status, problem = await looked_up(stranger, url)
    assert (status, problem["error"]) == (502, "owner_elsewhere")
    assert url in problem["detail"]


async def test_an_owner_that_is_gone_is_said_to_be(stranger, unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"
    status, problem = await looked_up(stranger, url)
    assert (status, problem["error"]) == (502, "owner_unreachable")
    assert url in problem["detail"]


async def test_an_owner_that_does_not_answer_is_given_up(stranger, monkeypatch):
    monkeypatch.setattr(owner_module, "TIMEOUT", 0.05)

    async def silent(request):
        await asyncio.Event().wait()

    status, problem = await ask_through(stranger, silent)
    assert (status, problem["error"]) == (504, "owner_silent")


@pytest.mark.parametrize(
    ("status", "body"), [(200, "<html>"), (200, "{}"), (500, "oops"), (302, ""), (404, "[]")]
)
async def test_an_answer_that_cannot_be_read_is_not_passed_on(stranger, status, body):
    async def strange(request):
        return web.Response(status=status, text=body, headers={"Location": "http://shop.example/"})

    found, problem = await ask_through(stranger, strange)
    assert (found, problem["error"]) == (502, "owner_unclear")


async def test_an_answer_without_end_is_cut_off(stranger, monkeypatch):
    monkeypatch.setattr(owner_module, "MOST_BYTES", 1000)

    async def endless(request):
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" " * 1000)
        except OSError:
            return response

    status, problem = await ask_through(stranger, endless)
    assert (status, problem["error"]) == (502, "owner_unclear")


async def test_an_owner_that_wants_another_token_is_told_as_that(stranger):
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": "wrong_token", "detail": "wrong token"}, status=401)

    status, problem = await ask_through(stranger, refuse)
    assert (status, problem["error"]) == (502, "owner_refused")
    assert "STEADFAUST_WEB_TOKEN" in problem["detail"]


async def test_a_table_is_browsed_through_the_lanes_of_all_workers(one, other):
    for browser in (one, other):
        pages = await browser.pages(PARCELS, limit="7")
        assert sorted(row["key"] for page in pages for row in page["rows"]) == sorted(KEYS)
        assert [page["left_out"] for page in pages] == [{}] * 6
    _, page = await one.page("/tables/parcels")
    assert all(f">{key}</a>" in page for key in KEYS)


@pytest.mark.parametrize(("query", "lane"), [("lane=2", 2), ("partition=3", 3)])
async def test_rows_of_a_lane_or_partition_elsewhere_are_asked_for(one, query, lane):
    _, answer = await one.json(f"{PARCELS}?{query}")
    assert {row["lane"] for row in answer["rows"]} == {lane}


async def test_lanes_that_do_not_answer_are_left_out_and_named(first, one):
    first.owns({0: first.url, 1: first.url, 2: "http://127.0.0.1:1"})
    _, answer = await one.json(f"{PARCELS}?limit=500")
    assert sorted(answer["left_out"]) == ["2", "3"]
    assert "cannot be reached" in answer["left_out"]["2"]
    assert {row["lane"] for row in answer["rows"]} == {0, 1}
    assert (await one.json(f"{PARCELS}?lane=2"))[0] == 502
    await one.shows("/tables/parcels", "The rows of lane 3 are missing here")
