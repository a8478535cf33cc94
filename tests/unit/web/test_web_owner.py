"""A key is looked up on any worker; its owner is asked."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from web_workers import Browser, FakeWorker

from streams.lane.state import LaneState
from streams.web import owner as owner_module
from streams.web.owner import ASKED_BY

KEYS = [f"k{n}" for n in range(40)]


@pytest.fixture
async def two():
    """Two workers that share the lanes, and a browser of each."""
    first, second = FakeWorker.with_lanes(0, 1), FakeWorker.with_lanes(2, 3)
    async with Browser.of(first) as one, Browser.of(second) as other:
        first.url, second.url = (str(browser.make_url("")).rstrip("/") for browser in (one, other))
        owners = {0: first.url, 1: first.url, 2: second.url, 3: second.url}
        first.owns(owners)
        second.owns(owners)
        for key in KEYS:
            (first if first.lane(key) in first.lanes else second).put(key, note=f"note of {key}")
        yield first, second, one, other


@pytest.fixture
async def stranger():
    """A worker with lane 0 whose other lanes are owned by whatever a test puts there."""
    worker = FakeWorker.with_lanes(0)
    async with Browser.of(worker) as browser:
        yield worker, browser


def elsewhere(worker):
    return next(key for key in KEYS if worker.lane(key) not in worker.lanes)


async def test_every_key_is_found_on_either_worker_with_its_owner(two):
    first, second, one, other = two
    for key in KEYS:
        for browser in (one, other):
            status, answer = await browser.json("/api/tables/parcels/rows", params={"key": key})
            assert status == 200
            assert answer["rows"][0]["value"] == {"note": f"note of {key}"}
            assert answer["owner"] == (first if first.lane(key) in first.lanes else second).url
            assert (answer["partition"], answer["lane"]) == (first.partition(key), first.lane(key))


async def test_the_page_shows_the_owners_answer_and_names_it(two):
    first, second, one, _ = two
    key = elsewhere(first)
    status, page = await one.page("/tables/parcels/rows", params={"key": key})
    assert status == 200
    assert f"note of {key}" in page
    assert f"owned by {second.url}" in page


async def test_all_subrows_of_a_key_are_shown_page_by_page_through_the_other_worker(two):
    first, second, one, _ = two
    key = elsewhere(first)
    for n in range(9):
        second.put(key, f"sub-{n}")
    seen, cursor = [], ""
    while True:
        params = {"key": key, "limit": "4", "cursor": cursor}
        _, answer = await one.json("/api/tables/parcels/rows", params=params)
        seen += [row["subkey"] for row in answer["rows"]]
        if not (cursor := answer["next"]):
            break
    assert seen == ["", *(f"sub-{n}" for n in range(9))]


async def test_one_subrow_can_be_asked_for(two):
    first, second, one, _ = two
    key = elsewhere(first)
    second.put(key, "a", note="of a")
    _, answer = await one.json("/api/tables/parcels/rows", params={"key": key, "subkey": "a"})
    assert [row["value"]["note"] for row in answer["rows"]] == ["of a"]
    _, answer = await one.json("/api/tables/parcels/rows", params={"key": key, "subkey": ""})
    assert [row["subkey"] for row in answer["rows"]] == [""]


async def test_rows_of_a_key_that_another_begins_with_are_not_mixed_up():
    worker = FakeWorker.with_lanes(0, 1, 2, 3)
    for key, subkey in [("k", "1"), ("k1", ""), ("k", "11")]:
        worker.put(key, subkey)
    async with Browser.of(worker) as browser:
        _, answer = await browser.json("/api/tables/parcels/rows?key=k")
    assert [(row["key"], row["subkey"]) for row in answer["rows"]] == [("k", "1"), ("k", "11")]


async def test_that_there_is_no_row_is_the_owners_word(two):
    first, second, one, _ = two
    key = next(key for key in (f"none-{n}" for n in range(99)) if first.lane(key) in second.lanes)
    status, problem = await one.json("/api/tables/parcels/rows", params={"key": key})
    assert (status, problem["error"]) == (404, "no_row")
    assert second.url in problem["detail"]


async def test_an_owner_whose_lane_is_opening_says_so_through_the_other_worker(two):
    first, second, one, _ = two
    key = elsewhere(first)
    second.lanes[second.lane(key)].state = LaneState.OPENING
    status, problem = await one.json("/api/tables/parcels/rows", params={"key": key})
    assert (status, problem["detail"]) == (503, f"lane {second.lane(key)} is opening")


async def test_an_owner_that_has_not_begun_with_its_lane_is_opening_it(two):
    first, second, one, _ = two
    key = elsewhere(first)
    lane = second.lane(key)
    del second.lanes[lane]
    status, problem = await one.json("/api/tables/parcels/rows", params={"key": key})
    assert (status, problem["detail"]) == (503, f"lane {lane} is opening")


async def test_two_workers_that_take_each_other_for_the_owner_do_not_ask_without_end(two):
    first, second, one, _ = two
    key = elsewhere(first)
    lane = second.lane(key)
    del second.lanes[lane]
    second.owns({lane: first.url})
    status, problem = await one.json("/api/tables/parcels/rows", params={"key": key})
    assert (status, problem["error"]) == (503, "owner_moving")
    assert first.url in problem["detail"]


async def test_a_worker_that_is_asked_by_another_asks_nobody(two):
    first, _, one, _ = two
    status, problem = await one.json(
        "/api/tables/parcels/rows", params={"key": elsewhere(first)}, headers={ASKED_BY: "http://127.0.0.1:9"}
    )
    assert (status, problem["error"]) == (503, "owner_moving")


async def test_before_it_has_joined_a_worker_knows_no_owner(stranger):
    worker, browser = stranger
    worker.owns({})
    status, problem = await browser.json(f"/api/tables/parcels/rows?key={elsewhere(worker)}")
    assert (status, problem["error"]) == (503, "no_owner")


@pytest.mark.parametrize(
    "url", ["http://10.0.0.7:6066", "https://127.0.0.1:1", "http://shop.example", "junk", ""]
)
async def test_an_owner_that_is_not_on_this_machine_is_named_and_not_asked(stranger, url):
    worker, browser = stranger
    worker.owns({1: url, 2: url, 3: url})
    status, problem = await browser.json(f"/api/tables/parcels/rows?key={elsewhere(worker)}")
    assert (status, problem["error"]) == (502, "owner_elsewhere")
    assert url in problem["detail"]


async def test_an_owner_that_is_gone_is_said_to_be(stranger, unused_tcp_port):
    worker, browser = stranger
    url = f"http://127.0.0.1:{unused_tcp_port}"
    worker.owns({1: url, 2: url, 3: url})
    status, problem = await browser.json(f"/api/tables/parcels/rows?key={elsewhere(worker)}")
    assert (status, problem["error"]) == (502, "owner_unreachable")
    assert url in problem["detail"]


async def ask_through(stranger, handler):
    """What the stranger answers when the owner is this handler."""
    worker, browser = stranger
    served = web.Application()
    served.router.add_get("/{rest:.*}", handler)
    async with TestServer(served) as server:
        url = str(server.make_url("")).rstrip("/")
        worker.owns({1: url, 2: url, 3: url})
        return await browser.json(f"/api/tables/parcels/rows?key={elsewhere(worker)}")


async def test_an_owner_that_does_not_answer_in_time_is_given_up(stranger, monkeypatch):
    monkeypatch.setattr(owner_module, "TIMEOUT", 0.05)
    asked = asyncio.Event()

    async def silent(request):
        asked.set()
        await asyncio.Event().wait()

    status, problem = await ask_through(stranger, silent)
    assert asked.is_set()
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


async def test_a_table_is_browsed_through_the_lanes_of_all_workers_page_by_page(two):
    _, _, one, other = two
    for browser in (one, other):
        found, cursor, pages = [], "", 0
        while pages == 0 or cursor:
            _, answer = await browser.json("/api/tables/parcels", params={"limit": "7", "cursor": cursor})
            found += [row["key"] for row in answer["rows"]]
            cursor, pages = answer["next"], pages + 1
            assert answer["left_out"] == {}
        assert sorted(found) == sorted(KEYS)
        assert pages == 6
    _, page = await one.page("/tables/parcels")
    assert all(f">{key}</a>" in page for key in KEYS)


async def test_the_rows_of_one_lane_or_partition_elsewhere_are_asked_of_its_owner(two):
    _, _, one, _ = two
    for query, lane in (("lane=2", 2), ("partition=3", 3)):
        _, answer = await one.json(f"/api/tables/parcels?{query}")
        assert {row["lane"] for row in answer["rows"]} == {lane}
        assert len(answer["rows"]) > 0


async def test_the_rows_of_lanes_that_do_not_answer_are_left_out_and_that_is_said(two):
    first, _, one, _ = two
    first.owns({0: first.url, 1: first.url, 2: "http://127.0.0.1:1"})
    _, answer = await one.json("/api/tables/parcels?limit=500")
    assert sorted(answer["left_out"]) == ["2", "3"]
    assert "cannot be asked" in answer["left_out"]["2"]
    assert {row["lane"] for row in answer["rows"]} == {0, 1}
    assert (await one.json("/api/tables/parcels?lane=2"))[0] == 502
    _, page = await one.page("/tables/parcels")
    assert "The rows of lane 3 are missing here" in page


async def test_a_worker_that_is_asked_by_another_one_answers_for_its_own_lanes(two):
    _, second, one, _ = two
    _, answer = await one.json("/api/tables/parcels?limit=500", headers={ASKED_BY: second.url})
    assert {row["lane"] for row in answer["rows"]} == {0, 1}


async def test_an_owner_that_wants_another_token_is_told_as_that(stranger):
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": "wrong_token", "detail": "the token is another one"}, status=401)

    worker, browser = stranger
    app = web.Application()
    app.router.add_get("/{path:.*}", refuse)
    async with TestServer(app) as server:
        worker.owns(dict.fromkeys((1, 2, 3), str(server.make_url("")).rstrip("/")))
        status, problem = await browser.json(f"/api/tables/parcels/rows?key={elsewhere(worker)}")
    assert (status, problem["error"]) == (502, "owner_refused")
    assert "STEADFAUST_WEB_TOKEN" in problem["detail"]
