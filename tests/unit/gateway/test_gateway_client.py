"""How the client asks, and when it stops asking."""

import asyncio
import random
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from agents.gateway import client
from agents.gateway.cards import ACCEPTED
from agents.gateway.client import GatewayRetries, HttpGateway
from agents.gateway.errors import GatewayRefused, GatewayUnavailable
from streams.errors import PermanentError, SteadfaustError
from streams.logs import HANDLED
from streams.tracing.tracer import Tracer
from tests.waiting import BOUND, eventually_async


def patient(**changes):
    """Hardly any time between attempts, and as much as is needed for them."""
    return GatewayRetries(**{"attempt": BOUND, "total": BOUND, "base": 0.01, "cap": 0.02} | changes)


CHARGED = (
    b'{"kind":"charge","charge_id":"ch_1","operation":"a","status":"captured","reason":"","cents":5,'
    b'"card":"tok_accepted","done_at":"2026-01-01T00:00:00.000Z"}'
)


@asynccontextmanager
async def answering(*answers, note=lambda _, body: body, connections=64, **patience):
    """A client whose server gives `answers` in order, the last one for ever; None never comes."""
    seen = []

    async def answer(request):
        seen.append(note(request, await request.read()))
        kind = answers[min(len(seen), len(answers)) - 1]
        if kind is None:
            await asyncio.Event().wait()
        status, body = kind
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, handler_cancellation=True) as server:
        url = str(server.make_url("/"))
        async with HttpGateway(url, retries=patient(**patience), connections=connections) as gateway:
            yield gateway, seen


def charge(gateway):
    return gateway.charge(operation="a", cents=5, card=ACCEPTED)


async def test_a_call_goes_on_in_its_handlers_trace():
    def trace_of(request, _):
        return request.headers.get("traceparent")

    span = Tracer(lambda _: None, ratio=1.0).request(None, None, "capture", "payments")
    async with answering((201, CHARGED), note=trace_of) as (gateway, traces):
        for handled in (None, SimpleNamespace(span=None), SimpleNamespace(span=span)):
            token = HANDLED.set(handled)
            await charge(gateway)
            HANDLED.reset(token)
    assert traces == [None, None, span.header.decode()]


def drawn(waits, failures):
    return waits(SimpleNamespace(attempt_number=failures))


@given(
    failures=st.integers(1, 5000),
    base=st.floats(0.001, 10),
    factor=st.floats(1, 10),
    cap=st.floats(0.001, 100),
)
def test_a_wait_is_drawn_from_nothing_to_the_capped_exponential(failures, base, factor, cap):
    waits = GatewayRetries(base=base, factor=factor, cap=cap).waits
    assert 0 <= drawn(waits, failures) <= cap


@pytest.mark.parametrize(
    ("retries", "longest"),
    [
        (GatewayRetries(), [1, 2, 4, 8, 16, 32, 60, 60]),
        (GatewayRetries(base=0.5, factor=3.0, cap=20.0), [0.5, 1.5, 4.5, 13.5, 20, 20]),
    ],
)
def test_the_longest_wait_grows_up_to_the_cap(monkeypatch, retries, longest):
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    assert [drawn(retries.waits, failures) for failures in range(1, len(longest) + 1)] == longest


def test_waits_fill_the_whole_window():
    strategy = GatewayRetries(base=8.0).waits
    waits = [drawn(strategy, 1) for _ in range(2000)]
    assert min(waits) < 0.5
    assert max(waits) > 7.5
    assert 3.5 < sum(waits) / len(waits) < 4.5


@pytest.mark.parametrize("most", [1, 3])
async def test_no_more_attempts_than_are_allowed(most):
    async with answering(*[(503, b"later")] * most, (201, CHARGED), most=most) as (gateway, seen):
        with pytest.raises(GatewayUnavailable, match="503"):
            await charge(gateway)
        assert len(seen) == most
        assert (await charge(gateway)).charge_id == "ch_1"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_troubled_gateway_is_asked_again_the_same(status):
    async with answering((status, b"later"), (201, CHARGED)) as (gateway, seen):
        assert (await charge(gateway)).charge_id == "ch_1"
    assert seen == [b'{"operation":"a","cents":5,"card":"tok_accepted"}'] * 2


@pytest.mark.parametrize("status", [301, 400, 401, 404, 409, 422])
async def test_a_refusal_is_permanent_and_says_why(status):
    async with answering((status, b"because"), (201, CHARGED)) as (gateway, seen):
        with pytest.raises(GatewayRefused) as refused:
            await charge(gateway)
    assert len(seen) == 1
    assert (refused.value.operation, refused.value.status, refused.value.body) == ("a", status, "because")
    assert isinstance(refused.value, PermanentError)


async def test_an_answer_of_somebody_else_is_no_charge():
    async with answering((200, b"<html>welcome</html>"), (200, CHARGED)) as (gateway, seen):
        assert (await charge(gateway)).charge_id == "ch_1"
    assert len(seen) == 2


async def test_a_404_of_somebody_else_does_not_mean_nothing():
    async with answering((404, b"no such page")) as (gateway, _):
        with pytest.raises(GatewayRefused):
            await gateway.find("a")


@pytest.mark.parametrize(
    ("patience", "attempts", "last"),
    [({"attempt": 0.05, "most": 3}, 3, "Timeout"), ({"total": 0.2}, 1, "None")],
    ids=["each attempt has its time", "all have theirs"],
)
async def test_a_silent_gateway_is_given_up(patience, attempts, last):
    async with answering(None, **patience) as (gateway, _):
        with pytest.raises(GatewayUnavailable) as gave_up:
            await charge(gateway)
    error = gave_up.value
    assert isinstance(error, SteadfaustError)
    assert not isinstance(error, PermanentError)
    assert (error.operation, error.attempts) == ("a", attempts)
    assert last in str(error.last)
    assert error.last in (error.__cause__, None)


async def test_waiting_for_a_connection_is_no_attempt():
    async with answering(None, attempt=0.2, total=0.2, connections=1) as (gateway, seen):
        answers = await asyncio.gather(*(charge(gateway) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(answer, GatewayUnavailable) for answer in answers)
    assert len(seen) < 5


async def test_it_gives_up_when_no_time_is_left():
    forever = {"total": 1e6, "base": 1e15, "cap": 1e15}  # a wait under 1e6 s is one in a billion
    async with answering((503, b"later"), **forever) as (gateway, seen):
        with pytest.raises(GatewayUnavailable):
            await charge(gateway)
    assert len(seen) == 1


async def test_the_first_attempt_takes_of_the_time_of_all(monkeypatch):
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=iter([0.0, BOUND, BOUND]).__next__))
    async with answering((503, b"later")) as (gateway, seen):
        with pytest.raises(GatewayUnavailable):
            await charge(gateway)
    assert len(seen) == 1


async def test_a_cancelled_charge_is_cancelled_at_once():
    async with answering(None) as (gateway, seen):
        waiting = asyncio.create_task(charge(gateway))
        await eventually_async(lambda: seen, "the server has a request", every=0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
