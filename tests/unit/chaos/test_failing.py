"""Handlers of a chaos run fail while the run says so, before their work or after it, and never otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.choreographies import stock_first
from chaos.rig.worker_faults import FAILING, Failing, HandlerFault, failing_file, with_failures, wrapped
from streams.model.choreography import choreography, on
from streams.model.handlers import Service
from streams.model.message import Message
from streams.model.outcome import Outcome, nothing

service = Service("svc")
done: list[str] = []


class Checked(Message, frozen=True):
    TOPIC = "svc.checked.v1"

    @property
    def key(self) -> str:
        return "k"


@service.handler()
def plain(event: Checked) -> Outcome:
    done.append("plain")
    return nothing("done")


@service.handler()
async def waits(event: Checked) -> Outcome:
    done.append("waits")
    return nothing("done")


async def called(handler) -> None:
    result = handler(Checked())
    if handler.is_async:
        await result


def failing_at(*calls: int):
    left = list(range(10))

    def fail() -> None:
        if left.pop(0) in calls:
            raise HandlerFault("on purpose")

    return fail


@pytest.mark.parametrize(("fails_at", "ran"), [(0, []), (1, ["plain", "waits"])])
async def test_a_handler_fails_before_its_work_or_after_it(fails_at: int, ran: list[str]) -> None:
    done.clear()
    for number in (0, 1):
        wiring = wrapped(choreography(on(Checked, plain, waits)), failing_at(fails_at))
        handler = wiring.routes[Checked.TOPIC].handlers[number]
        with pytest.raises(HandlerFault):
            await called(handler)
    assert done == ran
    assert await waits(Checked()) == nothing("done")


def test_the_wiring_stays_what_it_is_but_for_the_functions() -> None:
    made = wrapped(stock_first, failing_at())
    assert made.sent == stock_first.sent
    for topic, route in stock_first.routes.items():
        other = made.routes[topic]
        assert (other.message, other.inbox) == (route.message, route.inbox)
        for before, after in zip(route.handlers, other.handlers, strict=True):
            assert (after.name, after.rows, after.sends) == (before.name, before.rows, before.sends)
            assert after.function is not before.function


def test_handlers_fail_as_often_as_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.rig.worker_faults._LOOK_EVERY", -1.0)
    file = failing_file(tmp_path)
    fail = Failing(file)
    fail()
    file.write_text("0.25")
    failures = 0
    for _ in range(1000):
        try:
            fail()
        except HandlerFault:
            failures += 1
    assert 150 < failures < 350
    file.unlink()
    fail()


def test_an_untold_worker_has_the_wiring_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FAILING, raising=False)
    assert with_failures(stock_first) is stock_first
    monkeypatch.setenv(FAILING, str(failing_file(tmp_path)))
    assert with_failures(stock_first) is not stock_first
