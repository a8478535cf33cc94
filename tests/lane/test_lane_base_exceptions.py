"""Whatever a handler or what it calls raises that is no Exception fails its message, and nothing else."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest
from lane_checker import counts
from lane_failing import LATER, finish, letters_of, nothing_waits, started
from lane_scenes import died_of, opened, post, some, stopped_empty
from lane_workloads import Count, Workload, asking, counting
from lane_worlds import FakeWorld, World

from streams.engine.way.intake import Intake
from streams.model.choreography import choreography, on
from streams.model.handlers import Service
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table
from tests.keyed import Keyed

pytestmark = pytest.mark.promise("whatever-is-raised", "one on Kafka")


class PanicException(BaseException):
    """As a module in Rust raises it."""


RAISED: list[Callable[[], BaseException]] = [
    lambda: SystemExit("a library ends the process"),
    lambda: KeyboardInterrupt("a library was interrupted"),
    lambda: BaseExceptionGroup("several", [SystemExit(3), ValueError("one")]),
    lambda: GeneratorExit("a generator was closed"),
    lambda: PanicException("index out of bounds"),
    lambda: asyncio.CancelledError("not by the lane"),
]


def raising(make: Callable[[], BaseException], key: str = "a") -> Callable[[Any], None]:
    def before(event: Any) -> None:
        if event.k == key:
            raise make()

    return before


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("is_async", [False, True])
async def test_what_is_no_exception_fails_its_message_alone(
    fake: FakeWorld, make: Callable[[], BaseException], *, is_async: bool
) -> None:
    async def ask(_key: str, _i: int) -> None:
        await asyncio.sleep(0)

    work = asking(fake.name, ask) if is_async else counting(fake.name)
    work.hooks.before = raising(make)
    await started(fake, work, retry=LATER)
    lane = await opened(fake, *some(fake, work, range(2)))
    await fake.until(lambda: lane.lane.counters.dead_letters == 2 and not lane.lane.backlog)
    await lane.stop()
    assert await counts(fake) == {"b": 2, "c": 2, "d": 2}
    assert await died_of(fake, work) == [type(make()).__name__] * 2
    letters = await letters_of(fake, work)
    assert [letter["dlq-retry-count"] for letter in letters] == [b"1", b"1"], "each was tried once more"
    assert lane.lane.reopened == 0
    await nothing_waits(fake)


@pytest.mark.landing
async def test_a_system_exit_on_kafka_is_a_dead_letter(world: World) -> None:
    work = counting(world.name)
    work.hooks.before = raising(lambda: SystemExit("the license has ended"))
    await started(world, work, retry=LATER)
    lane = await opened(world, *some(world, work, range(1)))
    await world.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await lane.stop()
    (letter,) = await letters_of(world, work)
    assert (letter["dlq-error-type"], letter["dlq-error-message"]) == (
        b"SystemExit",
        b"the license has ended",
    )
    assert await counts(world) == dict.fromkeys("bcd", 1)


async def in_a_task(raises: Callable[[], Any]) -> None:
    async def work() -> None:
        raises()

    await asyncio.create_task(work())


async def in_a_group(raises: Callable[[], Any]) -> None:
    async def work() -> None:
        raises()

    async with asyncio.TaskGroup() as group:
        group.create_task(work())


async def gathered(raises: Callable[[], Any]) -> None:
    async def work() -> None:
        raises()

    await asyncio.gather(work(), asyncio.sleep(0))


async def in_a_thread(raises: Callable[[], Any]) -> None:
    await asyncio.to_thread(raises)


async def in_an_abandoned_task(raises: Callable[[], Any]) -> None:
    async def work() -> None:
        raises()

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    raise ValueError(str(task.exception()))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, PanicException])
@pytest.mark.parametrize("how", [in_a_task, in_a_group, gathered, in_a_thread, in_an_abandoned_task])
async def test_tasks_and_threads_of_a_handler_end_no_worker(
    fake: FakeWorld, how: Any, kind: type[BaseException]
) -> None:
    def raises() -> None:
        raise kind("no license")

    async def ask(key: str, _i: int) -> None:
        if key == "a":
            await how(raises)

    work = asking(fake.name, ask)
    await started(fake, work, retry=LATER)
    lane = await opened(fake, *some(fake, work, range(1)))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await lane.stop()
    assert await counts(fake) == dict.fromkeys("bcd", 1)
    (died,) = await letters_of(fake, work)
    groups = {in_a_group: (b"ExceptionGroup", b"BaseExceptionGroup"), in_an_abandoned_task: (b"ValueError",)}
    assert died["dlq-error-type"] in groups.get(how, (kind.__name__.encode(),))
    assert b"no license" in died["dlq-stack-trace"]
    assert lane.lane.reopened == 0


@pytest.mark.parametrize("awaits", [True, False])
async def test_a_handler_that_cancels_its_own_task_fails_alone(fake: FakeWorld, *, awaits: bool) -> None:
    """As a library does whose cancel scope is broken. Its key stood still for good, without a word."""

    async def ask(key: str, _i: int) -> None:
        if key == "a":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if awaits:
                await asyncio.sleep(0)
            raise ValueError("the scope is broken")

    work = asking(fake.name, ask)
    await started(fake, work, retry=LATER)
    lane = await opened(fake, *some(fake, work, range(2)))
    await fake.until(lambda: lane.lane.counters.dead_letters == 2 and not lane.lane.backlog)
    await lane.stop()
    assert await died_of(fake, work) == ["CancelledError" if awaits else "ValueError"] * 2
    assert await counts(fake) == dict.fromkeys("bcd", 2)


async def test_a_handler_that_succeeds_though_it_cancelled_itself_counts(fake: FakeWorld) -> None:
    async def ask(_key: str, _i: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    work = asking(fake.name, ask)
    await started(fake, work, retry=LATER)
    events = some(fake, work, range(2))
    lane = await opened(fake, *events)
    await finish(fake, work, lane, events)


async def test_a_lane_that_stops_still_cancels_its_handlers(fake: FakeWorld) -> None:
    begun = asyncio.Event()

    async def ask(_key: str, _i: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    work = asking(fake.name, ask)
    await started(fake, work, retry=LATER)
    lane = await opened(fake, *some(fake, work, range(1)))
    await fake.until(begun.is_set)
    await lane.stop()
    assert (lane.lane.counters.handled, lane.lane.counters.dead_letters) == (0, 0)
    assert await died_of(fake, work) == []


async def test_an_exit_while_a_lane_stops_ends_no_loop(fake: FakeWorld) -> None:
    begun = asyncio.Event()

    async def ask(_key: str, _i: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            sys.exit("cleaned up")

    work = asking(fake.name, ask)
    await started(fake, work, retry=LATER)
    lane = await opened(fake, *some(fake, work, range(1)))
    await fake.until(begun.is_set)
    await lane.stop()
    assert await died_of(fake, work) == []


# -- codecs, keys, orders, replies --------------------------------------------------------------------------


def fragile(prefix: str, on_give_up: Any = None) -> Workload:
    """Takes messages whose class, key and order raise, each for a text of its own."""

    class Made(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.fragile.made.v1"
        text: str = ""

        @property
        def key(self) -> str:
            if self.text == "key":
                raise SystemExit("no key")
            return self.k

        def __post_init__(self) -> None:
            if self.text == "decoded":
                raise PanicException("cannot be made")
            if self.text == "looked up":
                raise LookupError("cannot be made")

    service = Service("fragile")

    def order(made: Any) -> str:
        if made.text == "order":
            raise SystemExit("no order")
        return str(made.text)

    @service.handler(order_by=order, count=Table("counts", Count))
    def take(made: Made, count: Count | None) -> Outcome:
        if made.text.startswith("fails"):
            raise SystemExit(made.text)
        return outcome(count=Count(n=1 if count is None else count.n + 1))

    take.on_give_up = on_give_up
    return Workload(choreography(on(Made, take)), Made, Made)


@pytest.mark.parametrize("text", ["decoded", "looked up", "key"])
async def test_a_class_that_raises_makes_its_message_a_dead_letter(fake: FakeWorld, text: str) -> None:
    work = fragile(fake.name)
    await started(fake, work, retry=LATER)
    good = [post(fake, work.made(k="a")), post(fake, work.made(k="b"))]
    as_json = [
        (name, b"0" * 16 if name == "schema-fingerprint" else b"bad" if name == "ce_id" else value)
        for name, value in good[0].headers
    ]
    bad = good[0]._replace(value=msgspec.json.encode({"k": "a", "text": text}), headers=as_json)
    lane = await opened(fake, good[0], bad, good[1])
    await stopped_empty(fake, work, lane)
    assert await counts(fake) == {"a": 1, "b": 1}
    (died,) = await died_of(fake, work)
    assert died == ("KeyMismatch" if text == "key" else "Undecodable")
    assert lane.lane.reopened == 0


async def test_where_an_order_cannot_be_told_the_key_orders(fake: FakeWorld) -> None:
    work = fragile(fake.name)
    await started(fake, work, retry=LATER)
    events = [post(fake, work.made(k="a", text=text), n) for n, text in enumerate(["fails", "order"])]
    lane = await opened(fake, *events)
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await stopped_empty(fake, work, lane)
    assert await counts(fake) == {"a": 1}
    assert lane.lane.reopened == 0


async def test_a_reply_that_cannot_be_made_leaves_a_dead_letter(fake: FakeWorld) -> None:
    seen: list[Exception] = []

    def reply(_made: Any, error: Exception) -> Outcome:
        seen.append(error)
        raise SystemExit("no reply")

    work = fragile(fake.name, reply)
    await started(fake, work, retry=LATER)
    lane = await opened(fake, post(fake, work.made(k="a", text="fails")))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1 and not lane.lane.backlog)
    await lane.stop()
    (error,) = seen
    assert isinstance(error, Exception)
    assert str(error) == "SystemExit: fails"
    assert await died_of(fake, work) == ["SystemExit"]


async def test_an_unforeseen_exit_within_a_lane_opens_it_again(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = counting(fake.name)
    await started(fake, work, retry=LATER)
    left = [SystemExit("where nobody looks"), PanicException("nor here")]
    accept = Intake._accept

    def torn(self: Intake, batch: Any) -> int:
        if left and batch.records:
            raise left.pop()
        return accept(self, batch)

    monkeypatch.setattr(Intake, "_accept", torn)
    events = some(fake, work, range(1))
    lane = await opened(fake, *events)
    await finish(fake, work, lane, events)
    assert lane.lane.reopened == 2
