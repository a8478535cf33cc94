"""The clients of a chaos run: what they ask again, give up and remember, and how careless they are."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from chaos.load.arrivals import LATEST, REPEATED, WINDOW, arrivals
from chaos.load.shop import Shop, patience
from chaos.rig.records import UNANSWERED, Request
from chaos.rig.waiting import ChaosFailed
from demo.purchases import order, purchases
from tests.waiting import BOUND, eventually_async

ORDER = order(purchases(1)[0])
ID = ORDER.order_id


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.load.shop._AGAIN_AFTER", 0.0)


SILENT = -1


@asynccontextmanager
async def shop(*answers: int, says: str = "") -> AsyncIterator[tuple[Shop, list[Any]]]:
    """A shop whose API gives these answers, one after the other; 0: it hangs up without one,
    SILENT: it says no more.
    """
    seen: list[Any] = []
    left: Iterator[int] = iter(answers)

    async def answer(request: web.Request) -> web.Response:
        key = request.headers.get("Idempotency-Key")
        seen.append((request.method, request.path, key, await request.text()))
        status = next(left, SILENT)
        if status == SILENT:
            await asyncio.Event().wait()
        if status == UNANSWERED:
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=status or 500, text=says)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, handler_cancellation=True) as server:
        url = str(server.make_url("")).rstrip("/")
        async with Shop({"placed": url, "submitted": url}) as client:
            yield client, seen


async def test_an_order_is_asked_for_until_accepted_under_one_key() -> None:
    async with shop(UNANSWERED, 503, 429, 202) as (client, seen):
        await client.place(ORDER, "submitted")
    assert len(seen) == 4
    assert len(set(seen)) == 1
    assert client.requests[ID] == Request(order_id=ID, way="submitted", placed=202)
    assert client.accepted == {"submitted": 1}
    assert client.again == 3


async def test_a_request_already_under_way_is_sent_again() -> None:
    async with shop(409, 409, says='{"type": "/problems/key-in-flight"}') as (client, _):
        await client.place(ORDER, "placed", once=True)
        assert not client.requests[ID].accepted


@pytest.mark.parametrize("status", [UNANSWERED, 503, 202])
async def test_who_asks_once_remembers_the_answer_whatever_it_is(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.load.shop.patience", lambda _: BOUND)
    async with shop(status) as (client, seen):
        await client.place(ORDER, "placed", once=True)
    assert len(seen) == 1
    assert client.requests[ID] == Request(order_id=ID, way="placed", placed=status)
    assert client.accepted["placed"] == (status == 202)


def test_half_who_ask_once_wait_as_long_as_orders_take() -> None:
    waits = [patience(f"off-{number}") for number in range(1000)]
    hasty = [seconds for seconds in waits if seconds < 1]
    assert 400 < len(hasty) < 600
    assert min(hasty) < 0.01 < 0.05 < max(hasty) < 0.1
    assert {*waits} - {*hasty} == {10.0}


async def test_who_does_not_wait_may_have_ordered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.load.shop.patience", lambda _: 0.05)
    async with shop(SILENT) as (client, seen):

        async def has_come() -> bool:
            await client.place(ORDER, "placed", once=True)
            return bool(seen)

        await eventually_async(has_come, "an order arrives")
        assert client.requests[ID] == Request(order_id=ID, way="placed", placed=UNANSWERED)


async def test_what_was_accepted_stays_so_whatever_a_repetition_is_answered() -> None:
    async with shop(202, UNANSWERED) as (client, _):
        await client.place(ORDER, "placed")
        await client.place(ORDER, "placed", once=True)
    assert client.requests[ID].accepted
    async with shop(202, 409) as (client, _):
        await client.call_off(ID, "placed")
        await client.call_off(ID, "placed")
    assert client.requests[ID].called_off == 202


@pytest.mark.parametrize("status", [202, 404, 409])
async def test_a_cancellation_is_asked_for_until_it_has_an_answer(status: int) -> None:
    async with shop(UNANSWERED, 503, status) as (client, seen):
        await client.call_off(ID, "placed")
    assert [each[:2] for each in seen] == [("DELETE", f"/orders/{ID}")] * 3
    assert client.requests[ID] == Request(order_id=ID, way="placed", called_off=status)


@pytest.mark.parametrize("status", [422, 409, 500])
async def test_a_request_that_is_refused_ends_the_run(status: int) -> None:
    async with shop(status, 500) as (client, _):
        with pytest.raises(ChaosFailed, match=f"answered {status} to order {ID}"):
            await client.place(ORDER, "placed")
        with pytest.raises(ChaosFailed, match="answered 500 to a cancellation"):
            await client.call_off(ID, "placed")


MANY = 20_000


@given(st.integers(0, 3000), st.integers())
def test_everything_arrives_and_nothing_more_than_three_times(count: int, seed: int) -> None:
    times = Counter(arrivals(range(count), random.Random(seed)))
    assert set(times) == set(range(count))
    assert all(1 <= each <= 3 for each in times.values())


def test_about_every_tenth_comes_again_at_once_and_later() -> None:
    seen = list(arrivals(range(MANY), random.Random(1)))
    places: dict[int, list[int]] = {}
    for place, item in enumerate(seen):
        places.setdefault(item, []).append(place)
    apart = [found[-1] - found[0] for found in places.values() if len(found) > 1]
    assert 0.8 < len(apart) / (MANY / REPEATED) < 1.2
    assert min(apart) < WINDOW
    assert max(apart) > LATEST / 2
