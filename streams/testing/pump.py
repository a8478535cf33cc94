"""Runs a whole choreography in memory, without lanes or Kafka, to test properties that must hold in any
order of messages.

Only the order within one key of one topic is kept, as in Kafka. Messages may be repeated: if the wiring uses
the inbox for a topic, they are dropped by id; otherwise their handlers run a second time. Handlers may fall
behind, or be retried.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple, TypeVar

from streams.errors import WiringError
from streams.model.choreography import AnyHandler, Choreography
from streams.model.envelope import ID, SOURCE, TIME, Envelope, derived_id, new_headers, rfc3339
from streams.model.handlers import CONSUMED
from streams.model.message import Message, Row
from streams.model.outcome import Outcome
from streams.model.table import RowOf, Table
from streams.ports import Headers
from streams.testing.clock import ManualClock
from streams.testing.outcome_checks import OutcomeChecks

R = TypeVar("R", bound=Row)
M = TypeVar("M", bound=Message)

#: Time of a run's first message, in epoch seconds; each further message is one second later.
START = 1_000_000_000


@dataclass(slots=True)
class World:
    """Result of a run.

    Attributes:
        rows: the rows by table name, key and subkey.
        messages: all messages from outside and from handlers, in the order in which they were sent.
    """

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    def row(self, table: Table[R], key: str, subkey: str = "") -> R | None:
        """One row of a table, or None."""
        found = self.rows.get((table.name, key, subkey))
        assert found is None or isinstance(found, table.row)
        return found

    def all_rows(self, table: Table[R]) -> dict[tuple[str, str], R]:
        """A table's rows by key and subkey."""
        return {
            (key, subkey): row
            for (name, key, subkey), row in self.rows.items()
            if name == table.name and isinstance(row, table.row)
        }

    def sent(self, kind: type[M]) -> list[M]:
        """The messages of one class, in the order in which they were sent."""
        return [message for message in self.messages if isinstance(message, kind)]


async def run_choreography(
    choreography: Choreography,
    messages: Iterable[Message],
    *,
    resources: Mapping[str, Any] | None = None,
    order: Random | None = None,
    repeat: float = 0.0,
    pace: float = 1.0,
    behind: float = 0.0,
    retried: tuple[type[Exception], ...] = (),
    timers: Literal["refused", "ignored"] = "refused",
    world: World | None = None,
) -> World:
    """Deliver `messages` and everything that handlers send because of them, until nothing is left.

    Args:
        choreography: the wiring to run.
        messages: the messages from outside.
        resources: resources of handlers, by name. A `clock` that stands still is included.
        order: source of randomness, which picks the next delivery; the default is `Random(0)`.
        repeat: probability that a message is delivered again, at least 0 and below 1.
        pace: probability that the next message from outside arrives before another one is delivered; with 1,
            all of them arrive first.
        behind: probability that a message waits for one of its handlers while the others continue, as if that
            handler were paused; later messages of its key wait behind it. At least 0 and below 1.
        retried: errors after which a handler is retried later; other errors are raised.
        timers: timers never fire. If a handler sets one, NotImplementedError is raised, or with "ignored" the
            timer is dropped.
        world: result of an earlier run to continue from; it is modified.

    Raises the errors of handlers, Unencodable for an outcome that a lane would refuse, with the same text,
    and WiringError for a missing resource.
    """
    chance = order or Random(0)
    pump = _Pump(choreography, resources or {}, chance, repeat, behind, retried, timers, world or World())
    outside = deque(messages)
    while outside or pump.queues or pump.waiting:
        idle = not (pump.queues or pump.waiting)
        if outside and (idle or pace >= 1 or chance.random() < pace):
            pump.place(outside.popleft())
        else:
            await pump.step()
    return pump.world


class _Post(NamedTuple):
    """A message that is not delivered yet."""

    message: Message
    envelope: Envelope


class _Record(NamedTuple):
    """The parts of a record that an envelope needs."""

    topic: str
    key: bytes
    headers: Headers
    value: bytes = b""
    timestamp: int = START * 1000
    partition: int = 0
    offset: int = 0


class _Pump:
    def __init__(
        self,
        choreography: Choreography,
        resources: Mapping[str, Any],
        order: Random,
        repeat: float,
        behind: float,
        retried: tuple[type[Exception], ...],
        timers: Literal["refused", "ignored"],
        world: World,
    ) -> None:
        self.world = world
        self.queues: dict[tuple[str, str], deque[_Post]] = {}
        self.waiting: dict[tuple[str, str], deque[tuple[AnyHandler, _Post]]] = {}
        self._choreography = choreography
        here = {"clock": ManualClock(START), CONSUMED: frozenset(choreography.routes)}
        self._resources: dict[str, Any] = {**here, **resources}
        self._order = order
        self._repeat = repeat
        self._behind = behind
        self._retried = retried
        self._timers = timers
        self._seen: set[tuple[str, str]] = set()
        self._checks = OutcomeChecks(choreography)

    def place(self, message: Message) -> None:
        """Send a message from outside."""
        topic, now = message.TOPIC, self._now()
        self._post(
            message, new_headers(topic, message.key, source="outside", time=now, message_id=f"at-{now}")
        )

    async def step(self) -> None:
        """Deliver one message, or let a handler that is behind handle one."""
        number = self._order.randrange(len(self.queues) + len(self.waiting))
        if number >= len(self.queues):
            await self._catch_up(list(self.waiting)[number - len(self.queues)])
            return
        queue = list(self.queues)[number]
        post = self.queues[queue].popleft()
        if self._order.random() < self._repeat:
            self.queues[queue].append(post)
        if not self.queues[queue]:
            del self.queues[queue]
        await self._deliver(post)

    async def _deliver(self, post: _Post) -> None:
        """Run the handlers one after another. Each sees the rows that the previous one has changed."""
        topic = post.message.TOPIC
        for handler in self._choreography.routes[topic].handlers:
            seen = (handler.name, post.envelope.id)
            if self._choreography.uses_inbox(topic) and seen in self._seen:
                continue
            self._seen.add(seen)
            line = (handler.name, post.message.key)
            if line in self.waiting or self._order.random() < self._behind:
                self.waiting.setdefault(line, deque()).append((handler, post))
            elif not await self._attempt(handler, post):
                self.waiting[line] = deque([(handler, post)])

    async def _catch_up(self, line: tuple[str, str]) -> None:
        """Attempt the first message that waits for a handler."""
        handler, post = self.waiting[line][0]
        if await self._attempt(handler, post):
            self.waiting[line].popleft()
            if not self.waiting[line]:
                del self.waiting[line]

    async def _attempt(self, handler: AnyHandler, post: _Post) -> bool:
        try:
            outcome = await self._run(handler, post)
        except self._retried:
            return False
        self._checks.check(outcome, handler, post.message, post.envelope)
        self._apply(outcome, handler, post)
        return True

    async def _run(self, handler: AnyHandler, post: _Post) -> Outcome:
        rows = [self._read(row, post.message) for row in handler.rows.values()]
        if missing := [name for name in handler.resources if name not in self._resources]:
            raise WiringError(
                f"{handler.name} needs {missing}, and this run is given {list(self._resources)}: give"
                " run_choreography(resources=...) a stand-in for each"
            )
        named = {name: self._resources[name] for name in handler.resources}
        if handler.wants_envelope:
            named["envelope"] = post.envelope
        result = handler(post.message, *rows, **named)
        outcome: Outcome = await result if inspect.isawaitable(result) else result
        return outcome

    def _apply(self, outcome: Outcome, handler: AnyHandler, post: _Post) -> None:
        if outcome.timers and self._timers == "refused":
            raise NotImplementedError(
                f"{handler.name} set a timer, and no time passes in this run: give"
                " run_choreography(timers='ignored'), or use simulate, which lets timers ring"
            )
        for name, row in outcome.rows.items():
            of = handler.rows[name]
            changes = row if of.any else {_subkey(of, post.message): row}
            for subkey, one in changes.items():
                self._write((of.table.name, post.message.key, subkey), one)
        for index, message in enumerate(outcome.send):
            self._post(message, self._answer_headers(handler, post.envelope, index))

    def _read(self, row: RowOf[Any], message: Message) -> Any:
        if row.any:
            return lambda subkey: self.world.rows.get((row.table.name, message.key, subkey))
        return self.world.rows.get((row.table.name, message.key, _subkey(row, message)))

    def _write(self, at: tuple[str, str, str], row: Row | None) -> None:
        if row is None:
            self.world.rows.pop(at, None)
        else:
            self.world.rows[at] = row

    def _answer_headers(self, handler: AnyHandler, envelope: Envelope, index: int) -> Headers:
        own_id = derived_id(envelope.identity, handler.name.encode(), index)
        time = rfc3339(self._now()).encode()
        return [(ID, own_id), (SOURCE, handler.service.encode()), (TIME, time), *envelope.caused().pairs()]

    def _post(self, message: Message, headers: Headers) -> None:
        self.world.messages.append(message)
        topic, key = message.TOPIC, message.key
        if topic in self._choreography.routes:
            post = _Post(message, Envelope(_Record(topic, key.encode(), headers)))
            self.queues.setdefault((topic, key), deque()).append(post)

    def _now(self) -> int:
        return START + len(self.world.messages)


def _subkey(row: RowOf[Any], message: Message) -> str:
    return row.subkey(message) if row.subkey else ""
