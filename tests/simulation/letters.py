"""A small application, different for each seed, whose rows say what took effect, and in which order."""

from collections import Counter
from typing import Any, ClassVar

from streams.errors import PermanentError, TransientError
from streams.model.choreography import Route, on
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, Timer, outcome
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy
from streams.model.table import Table
from streams.testing.simulation.machines import Outside
from tests.keyed import Keyed


class Seen(Row, frozen=True):
    """The ids that have taken effect on a key, in order."""

    ids: tuple[str, ...] = ()
    number: float = 0.0

    def and_now(self, letter: str, number: float = 0.0) -> "Seen":
        """The same with one more, and a number."""
        return Seen((*self.ids, letter), number)


class WideSeen(Seen, frozen=True):
    """The same in a version with another field."""

    latest: str = ""

    def and_now(self, letter: str, number: float = 0.0) -> "WideSeen":
        """The same with one more, and a number."""
        return WideSeen((*self.ids, letter), number, letter)


class Written(Keyed, frozen=True, kw_only=True):
    """What comes from outside. `fails` times its first handler fails; `poison` fails until it is healed, or
    for ever; `to` is another key that it is passed on to; `rings` seconds after it a timer rings;
    an async handler asks for `slow` seconds; `number` is kept in the row of its first handler.
    """

    TOPIC: ClassVar[str] = "letters.written.v1"
    id: str
    fails: int = 0
    poison: str = ""
    to: str = ""
    rings: float = 0.0
    text: str = ""
    slow: float = 0.0
    number: str = ""


class Counted(Keyed, frozen=True):
    """Sent to itself: it may be handled in the transaction that writes it."""

    TOPIC: ClassVar[str] = "letters.counted.v1"
    SAME_KEY = True
    id: str


class WideCounted(Counted, frozen=True):
    """The same in a version with another field."""

    number: float = 0.0


class Passed(Keyed, frozen=True):
    """Sent to another key."""

    TOPIC: ClassVar[str] = "letters.passed.v1"
    id: str


class Rang(Keyed, frozen=True):
    """Sent by a timer."""

    TOPIC: ClassVar[str] = "letters.rang.v1"
    id: str


RETRY = RetryPolicy(immediate=1, delays=(1.0, 4.0, 9.0))
BREAKER = BreakerPolicy(window=10.0, minimum=6, open_for=2.0, max_open_for=8.0)

NAMES = ("counts", "audits", "settled", "received", "rings")
#: Tables of versions without and with another field.
TABLES = [[Table(name, kind) for name in NAMES] for kind in (Seen, WideSeen)]


def letters(shape: Any, outside: Outside, attempts: Counter[str]) -> list[Route]:
    """The lines of a version. `attempts` has how often each letter was tried, by workers of any version."""
    service = Service("letters")
    seen = WideSeen if shape.wide else Seen
    counts, audits, settled, received, rings = TABLES[shape.wide]
    counted = WideCounted if shape.wide else Counted
    sends = [counted] + [Passed] * shape.passed + [Rang] * shape.timed
    retry = RetryPolicy(RETRY.immediate, RETRY.delays, hold_while_dead=shape.holds)
    routes: list[Route] = []

    @service.handler(sends=tuple(sends), retry=retry, breaker=BREAKER, row=counts)
    def count(event: Written, row: Seen | None) -> Outcome:
        attempts[event.id] += 1
        if event.poison and not (outside.is_healed and event.poison == "curable"):
            raise PermanentError(f"{event.id} is poison")
        if attempts[event.id] <= event.fails:
            raise TransientError(f"attempt {attempts[event.id]} of {event.id}")
        send: list[Message] = [counted(k=event.k, id=event.id)]
        if event.to and shape.passed:
            send.append(Passed(k=event.to, id=event.id))
        timers = []
        if event.rings and shape.timed:
            timers.append(Timer(event.id, after=event.rings, message=Rang(k=event.k, id=event.id)))
        return outcome(
            row=(row or seen()).and_now(event.id, float(event.number or 0)), send=send, timers=timers
        )

    first = [count]
    order_by = (lambda event: event.to) if shape.ordered else None
    if shape.audited == "sync":

        def audit(event: Written, row: Seen | None) -> Outcome:
            outside.check()
            return outcome(row=(row or seen()).and_now(event.id))

        audit.__name__ = shape.auditor
        first.append(service.handler(retry=retry, breaker=BREAKER, row=audits)(audit))
    elif shape.audited == "async":

        async def audit(event: Written, row: Seen | None) -> Outcome:
            await outside.ask(event.slow or len(event.id) * 0.07)
            return outcome(row=(row or seen()).and_now(event.id))

        audit.__name__ = shape.auditor
        first.append(service.handler(retry=retry, breaker=BREAKER, order_by=order_by, row=audits)(audit))
    routes.append(on(Written, *first))
    if shape.settled:

        @service.handler(row=settled)
        def settle(event: counted, row: Seen | None) -> Outcome:  # type: ignore[valid-type]
            return outcome(row=(row or seen()).and_now(event.id))

        routes.append(on(counted, settle))
    if shape.passed:

        @service.handler(row=received)
        def receive(event: Passed, row: Seen | None) -> Outcome:
            return outcome(row=(row or seen()).and_now(event.id))

        routes.append(on(Passed, receive))
    if shape.timed:

        @service.handler(row=rings)
        def ring(event: Rang, row: Seen | None) -> Outcome:
            return outcome(row=(row or seen()).and_now(event.id))

        routes.append(on(Rang, ring))
    return routes
