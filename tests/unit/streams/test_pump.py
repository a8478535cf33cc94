from random import Random
from typing import Any

import pytest

from streams.errors import Unencodable, WiringError
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

    with pytest.raises(NotImplementedError, match=r"patient set a timer.*timers='ignored'.*use simulate"):
        await run_choreography(choreography(on(Asked, patient)), TEN[:1])


@pytest.mark.parametrize(
    ("returned", "error", "said"),
    [
        (None, Unencodable, r"counter.wrong returned NoneType: return outcome\(...\) or nothing\(...\)"),
        (outcome(rwo=None), WiringError, "counter.wrong returned a row named 'rwo', but is declared with"),
        (outcome(seen=TEN[0]), Unencodable, "a row of table asked: "),
        (outcome(seen=Seen(numbers=("a",))), Unencodable, "a row of table asked: "),  # type: ignore[arg-type]
        (outcome(send="a"), WiringError, "counter.wrong sent str, which it is not declared to send"),
        (outcome(send=7), Unencodable, "object is not iterable"),  # type: ignore[arg-type]
        (outcome(cancel="alarm"), Unencodable, "give the names of timers in a list"),
    ],
)
async def test_a_wrong_outcome_is_refused_in_a_lane_s_words(
    returned: Any, error: type[Exception], said: str
) -> None:
    @service.handler(seen=ASKED)
    def wrong(message: Asked, seen: Seen | None) -> Outcome:
        outcome_: Outcome = returned
        return outcome_

    with pytest.raises(error, match=said):
        await run_choreography(choreography(on(Asked, wrong)), TEN[:1])


@pytest.mark.promise("impossible-timers")
@pytest.mark.parametrize(
    ("due", "said"),
    [
        (float("nan"), "due of the timer 'later' is nan: give seconds since the epoch"),
        (float("inf"), "due of the timer 'later' is inf"),
        (1.7e12, "due of the timer 'later' is 1700000000000.0, after the year 9999: milliseconds are to be"),
        (-1.0, "due of the timer 'later' is -1.0"),
        ("soon", "due of the timer 'later' is 'soon'"),
    ],
)
async def test_a_timer_at_no_time_is_refused_by_name(due: Any, said: str) -> None:
    @service.handler(sends=[Answered])
    def patient(message: Asked) -> Outcome:
        return outcome(timers=[Timer("later", due, Answered(name=message.name, number=1))])

    with pytest.raises(Unencodable, match=said):
        await run_choreography(choreography(on(Asked, patient)), TEN[:1], timers="ignored")


async def test_a_missing_resource_is_named() -> None:
    @service.handler()
    def needy(message: Asked, *, bank: Any) -> Outcome:
        return nothing("")

    with pytest.raises(WiringError, match=r"counter.needy needs \['bank'\], and this run is given"):
        await run_choreography(choreography(on(Asked, needy)), TEN[:1])
