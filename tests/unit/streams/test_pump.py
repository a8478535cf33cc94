from random import Random
from typing import Any

import pytest

from streams.errors import WiringError
from streams.model.choreography import choreography, on
from streams.model.envelope import Envelope
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, Timer, nothing, outcome
from streams.model.table import Table
from streams.testing.pump import run_choreography


class Asked(Message, frozen=True, kw_only=True):
    TOPIC = "tests.counter.asked.v1"
    name: str
    number: int

    @property
    def key(self) -> str:
        return self.name


class Answered(Asked, frozen=True, kw_only=True):
    TOPIC = "tests.counter.answered.v1"


class Seen(Row, frozen=True, kw_only=True):
    numbers: tuple[int, ...] = ()


ASKED, ANSWERED = Table("asked", Seen), Table("answered", Seen)
service = Service("counter")


@service.handler(sends=[Answered], seen=ASKED)
def answer(message: Asked, seen: Seen | None) -> Outcome:
    numbers = (*(seen or Seen()).numbers, message.number)
    return outcome(seen=Seen(numbers=numbers), send=[Answered(name=message.name, number=message.number)])


@service.handler(seen=ANSWERED.by(lambda message: str(message.number)))
async def collect(message: Answered, seen: Seen | None) -> Outcome:
    return outcome(seen=Seen(numbers=(*(seen or Seen()).numbers, message.number)))


COUNTER = choreography(on(Asked, answer), on(Answered, collect))
TEN = [Asked(name=name, number=number) for number in range(5) for name in ("a", "b")]


async def test_messages_of_one_key_keep_their_order_and_keys_mix() -> None:
    world = await run_choreography(COUNTER, TEN, order=Random(1))
    assert world.row(ASKED, "a") == world.row(ASKED, "b") == Seen(numbers=(0, 1, 2, 3, 4))
    assert [message.key for message in world.sent(Answered)] != ["a"] * 5 + ["b"] * 5


async def test_the_same_random_order_gives_the_same_run() -> None:
    runs = [await run_choreography(COUNTER, TEN, order=Random(7), repeat=0.5) for _ in range(2)]
    assert runs[0] == runs[1]


async def test_the_inbox_stops_repeats_from_outside_only() -> None:
    world = await run_choreography(COUNTER, TEN, order=Random(1), repeat=0.5)
    assert world.row(ASKED, "a") == Seen(numbers=(0, 1, 2, 3, 4))
    assert len(world.sent(Answered)) == 10
    assert any(len(row.numbers) > 1 for row in world.all_rows(ANSWERED).values())


async def test_a_run_goes_on_where_another_ended() -> None:
    world = await run_choreography(COUNTER, TEN[:4])
    await run_choreography(COUNTER, TEN[4:], world=world)
    assert world.row(ASKED, "a") == Seen(numbers=(0, 1, 2, 3, 4))


async def test_handlers_get_their_envelope_and_resources() -> None:
    met: list[Any] = []

    @service.handler(sends=[Answered])
    def begin(message: Asked, *, envelope: Envelope, tool: str) -> Outcome:
        met.append((envelope, tool))
        return outcome(send=[Answered(name=message.name, number=1)])

    @service.handler()
    def end(message: Answered, *, envelope: Envelope) -> Outcome:
        met.append((envelope, ""))
        return nothing("the end")

    await run_choreography(
        choreography(on(Asked, begin), on(Answered, end)), TEN[:1], resources={"tool": "hammer"}
    )
    (first, tool), (second, _) = met
    assert tool == "hammer"
    assert second.causation_id == first.id
    assert second.correlation_id == first.correlation_id
    assert second.type == Answered.TOPIC
    assert first.time < second.time


async def test_sending_what_was_not_declared_is_an_error() -> None:
    @service.handler()
    def careless(message: Asked) -> Outcome:
        return outcome(send=[Answered(name=message.name, number=1)])

    with pytest.raises(WiringError, match="careless sent Answered"):
        await run_choreography(choreography(on(Asked, careless)), TEN[:1])


async def test_a_timer_is_an_error_and_is_not_forgotten() -> None:
    @service.handler(sends=[Answered])
    def patient(message: Asked) -> Outcome:
        return outcome(timers=[Timer("later", 1.0, Answered(name=message.name, number=1))])

    with pytest.raises(NotImplementedError, match="patient set a timer"):
        await run_choreography(choreography(on(Asked, patient)), TEN[:1])
