"""Live parts of a page: made once for all who look on, and only while somebody does."""

import asyncio

import pytest
from aiohttp import ClientSession, ClientTimeout

from streams.console import live as live_module
from streams.console.live import Live, event
from streams.console.overview import LIVE_PARTS
from streams.control.base.view import Problem
from tests.waiting import BOUND


class Parts:
    """Parts that a test sets, and how often they were made."""

    def __init__(self, **parts: str) -> None:
        self.parts = parts
        self.made = 0

    async def __call__(self):
        self.made += 1
        return dict(self.parts)


async def some(events, number: int) -> list[bytes]:
    async with asyncio.timeout(BOUND):
        return [await anext(events) for _ in range(number)]


async def test_a_listener_has_all_parts_then_those_that_change():
    parts = Parts(state="1", picture="same")
    live = Live(parts, interval=0.001)
    events = live.listen()
    assert await some(events, 2) == [event("state", "1"), event("picture", "same")]
    parts.parts["state"] = "2"
    assert await some(events, 1) == [event("state", "2")]
    await events.aclose()


async def test_nothing_is_made_while_nobody_looks_on():
    parts = Parts(state="1")
    live = Live(parts, interval=0.001)
    assert parts.made == 0
    events = live.listen()
    await some(events, 1)
    assert live.runs
    await events.aclose()
    assert (live.listeners, live.runs) == (0, False)
    made = parts.made
    for _ in range(20):
        await asyncio.sleep(0)
    assert parts.made == made


async def test_the_parts_are_made_once_for_all():
    parts = Parts(state="1")
    live = Live(parts, interval=30)
    both = [live.listen(), live.listen()]
    for events in both:
        assert await some(events, 1) == [event("state", "1")]
    assert parts.made == 1
    for events in both:
        await events.aclose()


async def test_there_is_room_for_so_many_at_a_time(monkeypatch):
    monkeypatch.setattr(live_module, "MOST_LISTENERS", 1)
    live = Live(Parts(state="1"), interval=30)
    events = live.listen()
    await some(events, 1)
    with pytest.raises(Problem, match="browsers watch this worker already"):
        live.listen()
    await events.aclose()
    other = live.listen()
    await some(other, 1)
    await other.aclose()


async def test_all_are_let_go_when_the_worker_ends():
    live = Live(Parts(state="1"), interval=30)
    events = live.listen()
    await some(events, 1)
    waiting = asyncio.create_task(anext(events))
    await asyncio.sleep(0)
    live.end()
    with pytest.raises(StopAsyncIteration):
        await waiting
    with pytest.raises(Problem, match="is stopping"):
        live.listen()


async def test_a_failure_lets_all_go_who_then_begin_anew(caplog):
    async def fail():
        raise ZeroDivisionError

    live = Live(fail, interval=0.001)
    events = live.listen()
    with pytest.raises(StopAsyncIteration):
        await some(events, 1)
    assert (live.listeners, live.runs) == (0, False)


def test_an_event_keeps_its_lines():
    assert event("a", "<p>\nx</p>") == b"event: a\ndata: <p>\ndata: x</p>\n\n"


async def test_the_overview_is_sent_to_who_looks_on(browser):
    async with (
        ClientSession(timeout=ClientTimeout(total=BOUND)) as session,
        session.get(f"{browser.url}/live/overview") as response,
    ):
        assert response.content_type == "text/event-stream"
        names = set()
        while names != set(LIVE_PARTS):
            line = await response.content.readline()
            if line.startswith(b"event: "):
                names.add(line.decode().split()[1])
        browser._site.end_live()
        while not response.content.at_eof():
            await response.content.readline()
