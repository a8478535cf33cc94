"""A Worker that is not started: what it declares, and how it hangs together with Faust's own app."""

from __future__ import annotations

from typing import Any

import pytest

from streams import Message, Outcome, Service, Worker, choreography, nothing, on


class Rung(Message, frozen=True, kw_only=True):
    TOPIC = "bell.rung.v1"
    bell: str

    @property
    def key(self) -> str:
        return self.bell


service = Service("bells")


@service.handler()
def hear(rung: Rung) -> Outcome:
    return nothing("heard")


@pytest.fixture
def worker() -> Worker:
    return Worker(choreography(on(Rung, hear)), faust={"broker_commit_interval": 0.5, "web_enabled": True})


def test_fausts_own_app_is_not_wanted_for_nothing(worker: Worker) -> None:
    worker.topic("elsewhere")
    assert not worker.agents_app.wanted


@pytest.mark.parametrize("declare", ["agent", "task", "timer", "service"])
def test_it_is_wanted_for_what_it_has_to_run(worker: Worker, declare: str) -> None:
    async def run(*_: Any) -> None:
        """Do nothing."""

    match declare:
        case "agent":
            worker.agent(worker.topic("elsewhere"))(run)
        case "timer":
            worker.timer(10.0)(run)
        case "task":
            worker.task(run)
        case "service":
            worker.service(type("Beside", (), {}))
    assert worker.agents_app.wanted


def test_it_has_its_own_group_no_pages_and_options(worker: Worker) -> None:
    conf = worker.agents_app.conf
    assert (conf.id, worker.conf.id) == ("steadfaust-agents", "steadfaust")
    assert (conf.web_enabled, conf.broker_commit_interval) == (False, 0.5)


async def test_an_error_that_ends_it_ends_the_worker(worker: Worker) -> None:
    worker.add_dependency(worker.agents_app)
    await worker.agents_app.crash(RuntimeError("it is over"))
    assert worker.crashed
