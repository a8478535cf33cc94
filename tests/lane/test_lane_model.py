"""The lane on the fake broker does nothing that the model of the protocol (`chaos/model`) does not know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from lane_scenes import counter
from lane_shadow import NAMES, Walk
from lane_worlds import FakeWorld

from chaos.model.spec import Spec
from streams.testing.broker import Fault
from streams.testing.clients import FakeTransactions
from streams.testing.cluster import FakeCluster
from streams.testing.loop import SimulatedLoop
from tests.effort import examples

MESSAGES = (1, 2, 1, 3)
SPEC = Spec(messages=MESSAGES, max_batch=len(MESSAGES))
WHO = st.integers(0, 1)
SENDING = (Fault.SEND_REFUSED, Fault.SEND_TORN, Fault.SEND_UNANSWERED, Fault.OFFSETS_REFUSED)
ENDING = (Fault.COMMIT_DONE, Fault.COMMIT_LOST)


async def walk_in(world: FakeWorld) -> Walk:
    work = await counter(world, partitions=1, max_batch=2, fenced_pause=2.0)
    walk = Walk(world, work, SPEC)
    await walk.begin()
    await walk.compare()
    return walk


def about(who: int, *what: str) -> Callable[[str], bool]:
    """Labels of a worker that have one of these texts."""
    return lambda label: label.startswith(f"{NAMES[who]} ") and any(text in label for text in what)


class Walks(RuleBasedStateMachine):
    """Any moves of two workers, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=SimulatedLoop)
        self.world = FakeWorld(self.runner.get_loop())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @initialize()
    def begin(self) -> None:
        self.walk: Walk = self.run(walk_in(self.world))

    @rule(who=WHO, moves=st.integers(1, 6))
    def go_on(self, who: int, moves: int) -> None:
        for _ in range(moves):
            self.run(go_on(self.walk, who))

    @rule(who=WHO, disk=st.sampled_from(["kept", "cut short", "lost"]))
    def kill(self, who: int, disk: str) -> None:
        if self.walk.workers[who].runs:
            self.run(kill(self.walk, who, disk))

    @rule(who=WHO)
    def stop(self, who: int) -> None:
        if self.walk.workers[who].runs:
            self.run(stop(self.walk, who))

    @rule()
    def expire(self) -> None:
        self.run(expire(self.walk, self.world))

    @rule(who=WHO, fault=st.sampled_from((*SENDING, *ENDING)))
    def fail(self, who: int, fault: Fault) -> None:
        held = self.walk.workers[who].gates.held
        if ("staged" in held and fault in SENDING) or ("sent" in held and fault in ENDING):
            self.world.cluster.inject(fault)
            self.run(go_on(self.walk, who, about(who, "has an error")))
            self.world.cluster._faults.clear()  # one who was fenced has not got to it

    def teardown(self) -> None:
        for worker in self.walk.workers:
            if worker.runs:
                self.run(worker.kill())
        self.run(self.world.close())
        self.runner.close()


async def go_on(walk: Walk, who: int, made: Callable[[str], bool] = lambda _: False) -> None:
    """Let a worker go as far as its next gate; one that does not run starts."""
    worker = walk.workers[who]
    if worker.task is None or (worker.task.done() and not worker.task.exception()):
        worker.start()
    elif worker.runs:
        await worker.go_on()
    await walk.compare(made)


async def kill(walk: Walk, who: int, disk: str) -> None:
    worker = walk.workers[who]
    await worker.kill()
    if disk == "cut short":
        worker.stores.crash(0, lose_batches=1)
    elif disk == "lost":
        worker.stores.destroy(0)
    await walk.compare(about(who, "is killed", "loses power"))


async def stop(walk: Walk, who: int) -> None:
    """A worker that is told that it has lost the lane; a commit in flight goes on."""
    worker = walk.workers[who]
    assert worker.lane is not None
    worker.lane.stop()
    worker.gates.open()
    await worker.go_on()
    await walk.compare(about(who, "has lost the lane"))


async def expire(walk: Walk, world: FakeWorld) -> None:
    name = world.app.layout.transactional_id(0)
    if world.cluster.producer(name).transaction is not None:
        world.cluster.expire(name)
        await walk.compare(lambda label: "times out" in label)


Walks.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestWalks = Walks.TestCase


@pytest.fixture
async def walk(fake: FakeWorld) -> AsyncIterator[Walk]:
    walk = await walk_in(fake)
    yield walk
    for worker in walk.workers:
        if worker.runs:
            await worker.kill()


async def go_to(walk: Walk, who: int, phase: str) -> None:
    """Let a worker go on until it stands there."""
    for _ in range(20):
        await go_on(walk, who)
        if walk.workers[who].seen().phase == phase:
            return
    raise AssertionError(f"{NAMES[who]} never came to {phase}")


async def test_a_lane_goes_through_every_phase_of_the_model(walk: Walk) -> None:
    await go_to(walk, 0, "answered")
    await go_to(walk, 1, "answered")
    await go_to(walk, 0, "opening 0")
    assert walk.phases == {"idle", "opening 0", "opening 1", "opening 2", "ready", "sending", "answered"}


async def test_an_overtaken_owner_does_what_the_model_does(walk: Walk) -> None:
    await go_to(walk, 0, "opening 2")
    await go_to(walk, 1, "answered")
    await go_on(walk, 0)


class NoFencing(FakeTransactions):
    """Starts without a new epoch, and leaves the open transaction alone."""

    async def start(self) -> None:
        producer = self._broker.producer(self._id)
        producer.epoch = max(producer.epoch, 0)
        self._epoch = producer.epoch


class OffsetsAtOnce(FakeTransactions):
    """Moves the group before the transaction is committed."""

    async def send_offsets(self, offsets: Any, group: str) -> None:
        await super().send_offsets(offsets, group)
        self._broker.groups.setdefault(group, {}).update(offsets)


@pytest.mark.parametrize("kind", [NoFencing, OffsetsAtOnce])
async def test_a_broker_that_is_not_the_models_is_noticed(
    walk: Walk, kind: type[FakeTransactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCluster, "transactions", lambda cluster, name: kind(cluster, name))
    with pytest.raises(AssertionError, match="the model has no such state"):
        await two_owners(walk)


async def two_owners(walk: Walk) -> None:
    """One opens in the middle of the other's transaction, and both go on to their commits."""
    await go_to(walk, 0, "sending")
    await go_to(walk, 1, "ready")
    await go_on(walk, 0)
    await go_to(walk, 1, "answered")


async def test_two_owners_do_what_those_of_the_model_do(walk: Walk) -> None:
    await two_owners(walk)
