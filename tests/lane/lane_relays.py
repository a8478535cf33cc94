"""An application whose lanes send to themselves: what comes by is noted, in order.

Annotations must be real, not text: see `lane_workloads`.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from streams.model.choreography import Choreography, choreography, on
from streams.model.handlers import Service
from streams.model.message import Row
from streams.model.outcome import Outcome, Timer, nothing, outcome
from streams.model.table import Table
from tests.keyed import Keyed


class Seen(Row, frozen=True):
    """What a handler has seen of a key, in order."""

    numbers: tuple[int, ...] = ()


@dataclass
class Relay:
    """An event of the outside goes through a middle to an end; each is noted where it comes by."""

    wiring: Choreography
    made: type[Any]
    middle: str
    end: str
    #: By handler, what it does before it notes.
    before: dict[str, Callable[[int], None]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    resources: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return str(self.made.TOPIC)


def relay(prefix: str, *, later: float = 0.0, astray: bool = False, same_key: bool = True) -> Relay:
    """With `later`, number 0 goes on by a timer so many seconds later. `astray`: under another key, though
    declared to be of the same one.
    """

    class Numbered(Keyed, frozen=True):
        i: int = 0

    class Made(Numbered, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.event.made.v1"

    class Middle(Numbered, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.event.middle.v1"
        SAME_KEY = same_key

    class End(Numbered, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.event.end.v1"
        SAME_KEY = same_key

    service = Service("relay")
    begun, halves, audits, ended = (Table(name, Seen) for name in ("begun", "halves", "audits", "ended"))

    def noted(name: str, seen: Seen | None, number: int) -> Seen:
        work.calls[name] += 1
        if (before := work.before.get(name)) is not None:
            before(number)
        return Seen(numbers=(*(seen.numbers if seen else ()), number))

    @service.handler(sends=(Middle,), seen=begun)
    def begin(event: Made, seen: Seen | None) -> Outcome:
        row = noted("begin", seen, event.i)
        middle = Middle(k="elsewhere" if astray else event.k, i=event.i)
        if later and event.i == 0:
            return outcome(seen=row, timers=[Timer("on", later, middle)])
        return outcome(seen=row, send=[middle])

    @service.handler(sends=(End, Middle), seen=halves)
    def go_on(event: Middle, seen: Seen | None) -> Outcome:
        # A negative number counts up to 0 by itself.
        following = Middle(k=event.k, i=event.i + 1) if event.i < 0 else End(k=event.k, i=event.i)
        return outcome(seen=noted("go_on", seen, event.i), send=[following])

    @service.handler(seen=audits)
    def audit(event: Middle, seen: Seen | None) -> Outcome:
        return outcome(seen=noted("audit", seen, event.i))

    @service.handler(seen=ended)
    def finish(event: End, seen: Seen | None) -> Outcome:
        return outcome(seen=noted("finish", seen, event.i)) if event.i != 404 else nothing()

    wiring = choreography(on(Made, begin), on(Middle, go_on, audit), on(End, finish))
    work = Relay(wiring, Made, Middle.TOPIC, End.TOPIC)
    return work
