"""What a chaos run does inside a worker, told by files while it runs; when a control has shown its point."""

import time
from pathlib import Path
from typing import Any

import pytest

from agents.choreographies import stock_first
from chaos.controls.scenarios import SCENARIOS
from chaos.controls.trial import Trial, judge
from chaos.rig.records import Happened
from chaos.rig.worker_faults import (
    CLOCK,
    FAILING,
    ArmedFaults,
    Failing,
    HandlerFault,
    arm,
    clock_of,
    failing_file,
    install_clock,
    log_of,
    script_of,
    with_failures,
    wrapped,
)
from demo.findings import Finding
from streams.errors import OutcomeUnknown
from streams.kafka.transactions import producer
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


@pytest.mark.parametrize(("fails_at", "ran"), [(0, []), (1, ["plain", "waits"])])
async def test_a_handler_fails_before_its_work_or_after_it(fails_at: int, ran: list[str]) -> None:
    done.clear()
    for number in (0, 1):
        left = [False] * fails_at + [True]

        def fail(left: list[bool] = left) -> None:
            if left.pop(0):
                raise HandlerFault("on purpose")

        made: Any = wrapped(choreography(on(Checked, plain, waits)), fail)
        handler = made.routes[Checked.TOPIC].handlers[number]
        with pytest.raises(HandlerFault):  # noqa: PT012 - one of the two is awaited
            result = handler(Checked())
            await result
    assert done == ran


def test_the_wiring_stays_what_it_is_but_for_the_functions() -> None:
    made = wrapped(stock_first, lambda: None)
    assert made.sent == stock_first.sent
    for topic, route in stock_first.routes.items():
        other = made.routes[topic]
        assert (other.message, other.inbox) == (route.message, route.inbox)
        for before, after in zip(route.handlers, other.handlers, strict=True):
            assert (after.name, after.rows, after.sends) == (before.name, before.rows, before.sends)
            assert after.function is not before.function


def test_handlers_fail_as_often_as_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.rig.worker_faults._LOOK_EVERY", -1.0)
    fail = Failing(file := failing_file(tmp_path))
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
    monkeypatch.delenv(FAILING, raising=False)
    assert with_failures(stock_first) is stock_first
    monkeypatch.setenv(FAILING, str(file))
    assert with_failures(stock_first) is not stock_first


async def test_an_armed_worker_fails_at_the_reach_of_its_script(tmp_path: Path) -> None:
    faults = ArmedFaults(script := script_of(tmp_path, "worker-1"))
    for _ in range(5):
        await faults.reach("sent")
    for _ in range(2):  # it can be armed again, and counts from then on
        arm(script, "sent:2:raise")
        await faults.reach("begun")
        await faults.reach("sent")
        with pytest.raises(OutcomeUnknown):
            await faults.reach("sent")
        assert log_of(script).read_text().startswith("sent:2:raise ")
        await ArmedFaults(script).reach("sent")  # the next worker is not


def test_a_clock_is_wrong_while_its_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "time", producer.time)  # as it is again afterwards
    file = clock_of(tmp_path, "worker-0")
    monkeypatch.setenv(CLOCK, str(file))
    install_clock()
    for ahead in (0, 7200, 0):
        file.unlink(missing_ok=True)
        if ahead:
            arm(file, str(ahead))
        assert producer.time.time() == pytest.approx(time.time() + ahead, abs=60)


SCENARIO = SCENARIOS[0]
RED = Finding(SCENARIO.finds, passed=False, says="wrong")
OTHER = Finding("something else", passed=False, says="wrong too")


def trial(*red: Finding, confirmed: str = "seen") -> Trial:
    happened = Happened(kind="fault", target="worker-1", began=1.0, ended=2.0, confirmed=confirmed)
    return Trial(happened, list(red))


@pytest.mark.parametrize(
    ("as_it_is", "with_control", "passed"),
    [
        pytest.param(trial(), trial(RED), True, id="green, and red with the control"),
        pytest.param(trial(), trial(OTHER, RED), True, id="red for another reason too"),
        pytest.param(trial(), trial(), False, id="the control stays green"),
        pytest.param(trial(), trial(OTHER), False, id="red for another reason alone"),
        pytest.param(trial(RED), trial(RED), False, id="red without the control"),
        pytest.param(trial(OTHER), trial(RED), False, id="otherwise red without the control"),
        pytest.param(trial(confirmed=""), trial(RED), False, id="no fault as it is"),
        pytest.param(trial(), trial(RED, confirmed=""), False, id="no fault with the control"),
    ],
)
def test_what_a_control_has_shown(as_it_is: Trial, with_control: Trial, *, passed: bool) -> None:
    assert judge(SCENARIO, as_it_is, with_control).passed is passed
