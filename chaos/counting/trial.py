"""One run of a contestant: load and faults together, then what the topics hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from aiokafka.admin import AIOKafkaAdminClient

from chaos.counting.checker import Findings, judge, longest_stall
from chaos.counting.contestants import Contestant
from chaos.counting.schedule import WORKERS, ScheduledFault
from chaos.counting.traffic import OutputWatch, evidence, load, members
from chaos.counting.workers import Supervised
from chaos.counting.workload import PARTITIONS, output_topic
from chaos.rig.records import Happened
from chaos.rig.waiting import ChaosFailed
from streams.positions.declared import BY_BROKER, STAMPED, TopicSpec
from streams.runtime.kafka.topics import KafkaTopics

#: A contestant of which nothing new has come for this long after the load is given up, in seconds.
GIVEN_UP_AFTER = 60.0
#: From the load's beginning, beside the load's own time: a run is given up in any case.
_DRAINED_WITHIN = 90.0
_JOINED_WITHIN = 90.0
#: For the transaction of a worker that was killed at the end to time out.
_READ_WITHIN = 100.0
_LOOK_EVERY = 0.2
#: Events that are not part of the steady load, but are counted as all others.
_WARM_UP = 200

Say = Callable[[str], None]


class TrialPlan(msgspec.Struct, frozen=True):
    """The load, and what is done to the workers meanwhile."""

    events: int
    seconds: float
    faults: Sequence[ScheduledFault]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a contestant.

    Attributes:
        error: why it could not be judged; there are no findings then.
        stall: the longest time in which a partition under load showed nothing new, in seconds.
        stall_began: when that was, in seconds after the load's beginning.
        finished: in so many seconds after the load's beginning everything had come out; None: never.
        crashes: workers that ended although nobody told them to.
        hung: workers that did not end when they were told to, and were killed.
    """

    name: str
    error: str = ""
    findings: Findings | None = None
    stall: float = 0.0
    stall_began: float = 0.0
    finished: float | None = None
    crashes: int = 0
    hung: int = 0
    faults: list[Happened] = []


async def run(contestant: Contestant, plan: TrialPlan, bootstrap: str, var: Path, say: Say) -> Result:
    """Run it. Raises ChaosFailed when its workers do not come up, or its topics cannot be read at the end."""
    app_id = f"{contestant.name.replace('_', '-')}-{time.time_ns() // 1_000_000}"
    topic = f"counting.{app_id}.v1"
    async with KafkaTopics(bootstrap) as topics:
        # As Steadfaust wants its sources; to the other contestants it makes no difference.
        stamped = {STAMPED: BY_BROKER}
        await topics.create(
            [TopicSpec(topic, PARTITIONS, 1, stamped), TopicSpec(output_topic(topic), PARTITIONS, 1)]
        )
    workers = Supervised(contestant, app_id, topic, bootstrap, var)
    watch = OutputWatch(bootstrap, topic, plan.events)
    aside: list[asyncio.Task[NoReturn]] = []
    try:
        workers.start()
        await _joined(workers, bootstrap, app_id, var)
        aside += map(asyncio.create_task, (workers.keep_running(), watch.run()))
        await _warm_up(bootstrap, topic, watch, aside)
        began = time.time()
        faults = await _under_load(plan, bootstrap, topic, workers, watch, aside, say)
        ended = time.time()
        await _cancel(aside)
        await workers.stop()
    finally:
        await _cancel(aside)
        workers.kill()
    try:
        async with asyncio.timeout(_READ_WITHIN):
            found = await evidence(bootstrap, app_id, topic, contestant.read_row)
    except TimeoutError:
        raise ChaosFailed(f"{app_id}: its topics could not be read within {_READ_WITHIN:.0f} s") from None
    stall = longest_stall(watch.arrivals, watch.unfinished, began=began, ended=ended)
    return Result(
        name=contestant.name,
        findings=judge(found),
        stall=round(stall.seconds, 1),
        stall_began=round(stall.began - began, 1),
        finished=None if watch.unfinished else round(watch.last - began, 1),
        crashes=workers.crashes,
        hung=workers.hung,
        faults=faults,
    )


async def _joined(workers: Supervised, bootstrap: str, group: str, var: Path) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        async with asyncio.timeout(_JOINED_WITHIN):
            while workers.all_alive and await members(admin, group) < WORKERS:  # noqa: ASYNC110 - asked for
                await asyncio.sleep(_LOOK_EVERY)
    except TimeoutError:
        raise ChaosFailed(f"{group}: its workers did not join within {_JOINED_WITHIN:.0f} s") from None
    finally:
        await admin.close()
    if not workers.all_alive:
        raise ChaosFailed(f"{group}: a worker did not start, see {var / 'log'}")


async def _warm_up(
    bootstrap: str, topic: str, watch: OutputWatch, aside: Sequence[asyncio.Task[NoReturn]]
) -> None:
    """Until something has come out of every partition: how long a start takes is not compared."""
    await load(bootstrap, topic, range(_WARM_UP), 1.0)
    deadline = time.monotonic() + _JOINED_WITHIN
    while len(watch.arrivals) < PARTITIONS:
        if time.monotonic() > deadline:
            raise ChaosFailed(f"{topic}: not all of it was counted within {_JOINED_WITHIN:.0f} s")
        await _look(aside)


async def _under_load(
    plan: TrialPlan,
    bootstrap: str,
    topic: str,
    workers: Supervised,
    watch: OutputWatch,
    aside: Sequence[asyncio.Task[NoReturn]],
    say: Say,
) -> list[Happened]:
    """Until everything has come out, or nothing does any more."""
    began = time.time()
    faults: list[Happened] = []
    numbers = range(_WARM_UP, plan.events)
    driving = (
        asyncio.create_task(load(bootstrap, topic, numbers, plan.seconds)),
        asyncio.create_task(_hit(plan.faults, workers, faults, say)),
    )
    try:
        while not all(task.done() for task in driving) or (
            watch.unfinished and not _hopeless(watch, began, plan)
        ):
            await _look(aside)
        await asyncio.gather(*driving)  # an error of either ends the run
        return faults
    finally:
        await _cancel(driving)


async def _look(aside: Sequence[asyncio.Task[NoReturn]]) -> None:
    """Wait a moment, or less: an error of what runs aside ends the run."""
    ended, _ = await asyncio.wait(aside, timeout=_LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _hopeless(watch: OutputWatch, began: float, plan: TrialPlan) -> bool:
    load_ended = began + plan.seconds
    now = time.time()
    return now - max(watch.last, load_ended) > GIVEN_UP_AFTER or now - load_ended > _DRAINED_WITHIN


async def _hit(
    schedule: Sequence[ScheduledFault], workers: Supervised, faults: list[Happened], say: Say
) -> None:
    began = time.monotonic()
    for due in schedule:
        await asyncio.sleep(max(0.0, began + due.at - time.monotonic()))
        happened = await workers.hit(due)
        faults.append(happened)
        says = happened.confirmed or "NOT CONFIRMED"
        say(f"  {time.monotonic() - began:5.1f} s  {due.fault} of {happened.target}: {says}")
