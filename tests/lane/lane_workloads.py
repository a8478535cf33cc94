"""Small applications that lanes run in tests: each event counted by key, remembered and passed on once.

Topics are made for each test, so that tests keep apart on a shared broker; hence classes inside functions,
whose annotations must be real, not text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from operator import or_
from typing import Any, ClassVar

from streams.model.choreography import Choreography, choreography, on
from streams.model.codecs import Schemas, avro
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, Timer, outcome
from streams.model.table import Table
from tests.keyed import Keyed


class Count(Row, frozen=True):
    """How many events a key has had, and what was left with it."""

    n: int
    text: str = ""


class Tally(Row, frozen=True):
    """What the second handler of an event counts."""

    n: int


@dataclass
class Hooks:
    """What a test lets happen inside the handlers. `before` may raise; `text` goes into the row, `passed`
    into the output, and what `returned` makes of the outcome goes back.
    """

    before: Callable[[Any], None] = lambda _: None
    before_tally: Callable[[Any], None] = lambda _: None
    before_settle: Callable[[Any], None] = lambda _: None
    text: Callable[[Any], str] = lambda _: ""
    passed: Callable[[Any], str] = lambda _: ""
    returned: Callable[[Any, Outcome], Any] = lambda _, outcome: outcome
    calls: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Workload:
    wiring: Choreography
    made: type[Message]
    counted: type[Message]
    hooks: Hooks = field(default_factory=Hooks)
    resources: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.made.TOPIC

    @property
    def output(self) -> str:
        return self.counted.TOPIC


def messages_of(prefix: str) -> tuple[type[Message], type[Message]]:
    class Made(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.event.made.v1"
        i: int = 0

    class Counted(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.event.counted.v1"
        SAME_KEY = True
        i: int
        n: int
        text: str = ""

    return Made, Counted


Ask = Callable[[str, int], Any]


def counting(
    prefix: str,
    *,
    tallied: bool = False,
    settled: bool = False,
    ask: Ask | None = None,
    order_by: Callable[[Any], str] | None = None,
) -> Workload:
    """Count events. `tallied` adds a second handler of the same event; `settled` a handler of the output, so
    that the lane also reads what lanes have written. With `ask`, the first handler is async and asks the
    outside before it counts: `await ask(key, i)`. `order_by` is what it orders by within a key.
    """
    Made, Counted = messages_of(prefix)  # noqa: N806 - classes
    hooks = Hooks()
    service = Service("bench")
    counts, tallies, settlements = Table("counts", Count), Table("tallies", Tally), Table("settled", Tally)
    counter = service.handler(sends=(Counted,), order_by=order_by, count=counts)

    def decide(event: Made, count: Count | None) -> Outcome:
        hooks.before(event)
        n = 1 if count is None else count.n + 1
        row = Count(n=n, text=hooks.text(event))
        sent = Counted(k=event.k, i=event.i, n=n, text=hooks.passed(event))
        returned: Outcome = hooks.returned(event, outcome(count=row, send=[sent]))
        return returned

    if ask is None:

        @counter
        def count(event: Made, count: Count | None) -> Outcome:
            hooks.calls.append((event.k, event.i))
            return decide(event, count)

    else:

        @counter
        async def count(event: Made, count: Count | None, *, ask: Ask) -> Outcome:
            hooks.calls.append((event.k, event.i))
            await ask(event.k, event.i)
            return decide(event, count)

    @service.handler(tally=tallies)
    def tally(event: Made, tally: Tally | None) -> Outcome:
        hooks.before_tally(event)
        return outcome(tally=Tally(n=1 if tally is None else tally.n + 1))

    @service.handler(row=settlements)
    def settle(event: Counted, row: Tally | None) -> Outcome:
        hooks.before_settle(event)
        return outcome(row=Tally(n=1 if row is None else row.n + 1))

    routes = [on(Made, count, tally) if tallied else on(Made, count)]
    if settled:
        routes.append(on(Counted, settle))
    return Workload(choreography(*routes), Made, Counted, hooks, {} if ask is None else {"ask": ask})


def asking(prefix: str, ask: Ask, *, order_by: Callable[[Any], str] | None = None) -> Workload:
    """Count events with an async handler that first asks the outside: `await ask(key, i)`."""
    return counting(prefix, ask=ask, order_by=order_by)


def deployed(
    prefix: str,
    *versions: int,
    wants_colour: bool = False,
    tallied: tuple[int, ...] = (),
    order_by: Callable[[Any], str] | None = None,
    ask: Ask | None = None,
) -> Workload:
    """A version of a service whose first handler counts the events of some topics, by their version, and
    whose second one, if there is any, those of the topics `tallied`; without topics it has only the second.
    With `wants_colour`, an event without one cannot be decoded. With `ask`, the second handler is async and
    waits for it.
    """
    hooks = Hooks()
    service = Service("bench")
    made = {version: _made(prefix, version, wants_colour) for version in (*versions, *tallied)}
    counted = [made[version] for version in versions]
    by_topic: dict[int, list[Any]] = {version: [] for version in versions}
    if counted:
        accepted = reduce(or_, counted)

        @service.handler(order_by=order_by, count=Table("counts", Count))
        def count(event: accepted, count: Count | None) -> Outcome:
            hooks.calls.append((event.k, event.i))
            hooks.before(event)
            return outcome(count=Count(n=1 if count is None else count.n + 1))

        for version in versions:
            by_topic[version].append(count)
    if tallied:
        also_accepted = reduce(or_, [made[version] for version in tallied])
        tallies = Table("tallies", Tally)

        @service.handler(tally=tallies)
        def tally(event: also_accepted, tally: Tally | None) -> Outcome:
            return outcome(tally=Tally(n=1 if tally is None else tally.n + 1))

        @service.handler(tally=tallies)
        async def tally_later(event: also_accepted, tally: Tally | None, *, ask: Ask) -> Outcome:
            await ask(event.k, event.i)
            return outcome(tally=Tally(n=1 if tally is None else tally.n + 1))

        for version in tallied:
            by_topic.setdefault(version, []).append(tally if ask is None else tally_later)
    routes = [on(made[version], *handlers) for version, handlers in by_topic.items()]
    known = list(made.values())
    resources = {} if ask is None else {"ask": ask}
    return Workload(choreography(*routes), known[0], counted[-1] if counted else known[-1], hooks, resources)


def _made(prefix: str, version: int, wants_colour: bool) -> type[Message]:
    class Made(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.event.made.v{version}"
        i: int = 0

    class Coloured(Made, frozen=True, kw_only=True):
        colour: str

    return Coloured if wants_colour else Made


def carrying(
    prefix: str, *, ask: Ask | None = None, order_by: Callable[[Any], str] | None = None
) -> Workload:
    """Count parcels by key and pass their text on; a second handler reads what was passed on, and counts it
    beside a digest of all texts. With `ask` the first handler is async and waits for it.
    """

    class Sent(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.parcel.sent.v1"
        i: int
        text: str = ""

    class Kept(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.parcel.kept.v1"
        i: int
        n: int
        text: str = ""

    hooks = Hooks(passed=lambda event: str(event.text))
    service = Service("bench")
    counts, read = Table("counts", Count), Table("read", Count)
    keeper = service.handler(sends=(Kept,), order_by=order_by, count=counts)

    def decide(event: Sent, count: Count | None) -> Outcome:
        n = 1 if count is None else count.n + 1
        return outcome(count=Count(n=n), send=[Kept(k=event.k, i=event.i, n=n, text=hooks.passed(event))])

    if ask is None:

        @keeper
        def keep(event: Sent, count: Count | None) -> Outcome:
            hooks.calls.append((event.k, event.i))
            hooks.before(event)
            return decide(event, count)

    else:

        @keeper
        async def keep(event: Sent, count: Count | None, *, ask: Ask) -> Outcome:
            hooks.calls.append((event.k, event.i))
            await ask(event.k, event.i)
            return decide(event, count)

    @service.handler(row=read)
    def note(event: Kept, row: Count | None) -> Outcome:
        row = row or Count(n=0)
        return outcome(row=Count(n=row.n + 1, text=chained(row.text, event.text)))

    wiring = choreography(on(Sent, keep), on(Kept, note))
    return Workload(wiring, Sent, Kept, hooks, {} if ask is None else {"ask": ask})


def chained(digest: str, text: str) -> str:
    return sha256((digest + text).encode()).hexdigest()


@dataclass(frozen=True)
class Reminding:
    """Timers: what asks for one, and what is sent when it is due."""

    wiring: Choreography
    asked: type[Message]
    rang: type[Message]
    resources: dict[str, Any] = field(default_factory=dict)


def reminding(prefix: str, ask: Callable[[str], Any] | None = None) -> Reminding:
    """An event sets, moves or cancels a timer of its key, which rings there or at the key `to`, and `at_once`
    too where that is said. With `anew`, the outcome cancels it and sets it; `after` sets it so many seconds
    from now. A handler counts what has rung.
    With `ask`, the one that sets timers first waits.
    """

    class Rang(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.timer.rang.v1"
        name: str

    class Asked(Keyed, frozen=True):
        TOPIC: ClassVar[str] = f"{prefix}.timer.asked.v1"
        name: str = "alarm"
        due: float | None = None
        after: float = 0.0
        at_once: bool = False
        anew: bool = False
        to: str = ""

    service = Service("timers")
    rings, asks = Table("rings", Count), Table("asks", Tally)

    def decide(event: Asked, row: Tally | None) -> Outcome:
        asked = Tally(n=1 if row is None else row.n + 1)
        message = Rang(k=event.to or event.k, name=event.name)
        if event.after:
            return outcome(row=asked, timers=[Timer(event.name, after=event.after, message=message)])
        if event.due is None:
            return outcome(row=asked, cancel=[event.name])
        now = [message] if event.at_once else []
        timers, cancel = [Timer(event.name, event.due, message)], [event.name] if event.anew else []
        return outcome(row=asked, send=now, timers=timers, cancel=cancel)

    if ask is None:

        @service.handler(sends=(Rang,), row=asks)
        def remind(event: Asked, row: Tally | None) -> Outcome:
            return decide(event, row)

        handler = remind
    else:

        @service.handler(sends=(Rang,), row=asks)
        async def remind_later(event: Asked, row: Tally | None, *, ask: Callable[[str], Any]) -> Outcome:
            await ask(event.k)
            return decide(event, row)

        handler = remind_later

    @service.handler(rings=rings)
    def ring(event: Rang, rings: Count | None) -> Outcome:
        return outcome(rings=Count(n=1 if rings is None else rings.n + 1, text=event.name))

    wiring = choreography(on(Asked, handler), on(Rang, ring))
    return Reminding(wiring, Asked, Rang, {} if ask is None else {"ask": ask})


MADE = """{"type": "record", "name": "Made", "fields": [
    {"name": "k", "type": "string"}, {"name": "i", "type": "int", "default": 0}]}"""
#: What a newer writer sends: one more field, and another order.
MADE_NEWER = """{"type": "record", "name": "Made", "fields": [
    {"name": "colour", "type": "string"}, {"name": "i", "type": "int"}, {"name": "k", "type": "string"}]}"""
#: What an older writer sends: a field is missing, its default stands in.
MADE_OLDER = """{"type": "record", "name": "Made", "fields": [{"name": "k", "type": "string"}]}"""
COUNTED = """{"type": "record", "name": "Counted", "fields": [
    {"name": "k", "type": "string"}, {"name": "i", "type": "int"}, {"name": "n", "type": "int"},
    {"name": "text", "type": "string"}]}"""
COUNT = """{"type": "record", "name": "Count", "fields": [
    {"name": "n", "type": "int"}, {"name": "text", "type": "string", "default": ""}]}"""


def avro_codecs(schemas: Schemas) -> Any:
    """Codecs for `counting` in Avro."""

    def schema_of(subject: str) -> str:
        if subject == "counts":
            return COUNT
        return MADE if ".made.v" in subject else COUNTED

    return avro(schema_of, schemas)
