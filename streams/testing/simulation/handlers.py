"""Runs a user's application as a part of a simulation, and compares it with a serial run."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streams.engine.staging.keys import QUEUE, TIMER, WAITING, split_lane_key, time_in
from streams.engine.waiting.dead_letters.row import Letter
from streams.errors import Unencodable, WiringError
from streams.model.choreography import Choreography, Route
from streams.model.envelope import FINGERPRINT
from streams.model.handlers import CONSUMED
from streams.model.message import Message
from streams.ports import Record
from streams.testing.pump import World
from streams.testing.simulation.calls import Call, CallClock, Calls
from streams.testing.simulation.judge import letters_in, rows
from streams.testing.simulation.machines import Process
from streams.testing.simulation.plan import Finding
from streams.testing.simulation.run import Part, Run
from streams.testing.simulation.serial import Difference, Serial

#: Timers that are due within this many seconds after the last fault fire before the run is judged.
HORIZON = 600.0

Resources = Callable[[], Mapping[str, Any]]
#: Names of errors that are always mistakes in the application, even if `dead` lists them.
_MISTAKES = {Unencodable.__name__, WiringError.__name__}
_MISTAKEN = "      What to do: mend the handler. With every message it would be so."
_DECLARE = """\
      What to do: mend the handler, or, if the workload is to have such messages, say so: `dead=({0},)`,
      or --dead {0}. `world.dead` has them, for `check`."""

WHAT_TO_DO = """\
      What to do: a handler's answer may depend on its message, its rows and its resources alone.
      Keep what must last in rows, take time from the resource `clock`, and make ids from `envelope.id`.
      A handler may be called again: what is outside has to do each named operation once, and has to
      give the same answer then."""


@dataclass(slots=True)
class SimulatedWorld(World):
    """Result of a simulated run: rows, messages, dead letters and resources.

    Attributes:
        resources: the resources of handlers, by name.
        dead: the dead-lettered messages, each with the name of its handler.
    """

    resources: Mapping[str, Any] = field(default_factory=dict)
    dead: list[tuple[str, Message]] = field(default_factory=list)


class Logged(NamedTuple):
    """A message in its topic, with its identity and encoded bytes."""

    identity: bytes
    message: Message
    data: bytes


@dataclass(frozen=True)
class Handlers:
    """A user's application.

    Arguments:
        wiring: its wiring.
        resources: function that creates the resources of handlers for each run.
        check: function with further assertions about the settled world.
        dead: errors for which messages may be dead-lettered; None means any error.
    """

    wiring: Choreography
    resources: Resources
    check: Callable[[SimulatedWorld], object] | None = None
    dead: tuple[type[Exception], ...] | None = None

    def part(self, run: Run) -> HandlersPart:
        """The part of a run."""
        return HandlersPart(run, self)

    def __repr__(self) -> str:
        return f"Handlers({', '.join(each.name for each in self.wiring.handlers())})"


class HandlersPart(Part):
    """The handlers of a run, and the resulting world.

    Attributes:
        fails_alike: whether messages that were dead-lettered must fail in the serial run as well. That holds
            if nothing outside is repaired during a run.
    """

    fails_alike = True

    def __init__(self, run: Run, shape: Handlers) -> None:
        super().__init__(run)
        self._shape = shape
        self._calls = Calls(run.seconds, self._is_current)
        self._clock = CallClock(run.here)
        self._resources = shape.resources()
        self._until = 0.0
        self._difference: Difference | None = None
        self._serial: Serial
        self.world = SimulatedWorld()

    def routes(self) -> Sequence[Route]:
        """The application's routes, with handlers that record their calls."""
        return self._calls.watched(self._shape.wiring)

    def resources(self) -> Mapping[str, Any]:
        """The application's resources, and a clock."""
        return {"clock": self._clock, **self._resources}

    def do_send(self, message: Message, message_id: str, away: int) -> None:
        """Send a message from a client; unless `away` is 0, to the wrong partition for its key."""
        self.run.post(message, message_id, away=away)

    def end_faults(self) -> None:
        """Set the time until which due timers must fire."""
        self._until = self.run.clock.now() + HORIZON

    def _is_current(self, process: Process, key: bytes) -> bool:
        layout = process.layout
        producer = process.producers.get(layout.transactional_id(layout.lane_of(layout.partition_of(key))))
        return process.is_alive and producer is not None and producer.is_current

    # -- judgement ------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """Descriptions of waiting messages, timers that are due soon, and messages not handled yet."""
        waiting: dict[tuple[int, bytes], str] = {}
        for record in self.run.cluster.visible(self.run.app.layout.changelog("lane")):
            kind, name = split_lane_key(record.key or b"")
            place, value = (record.partition, record.key or b""), record.value
            waiting.pop(place, None)
            if value is not None and kind in (QUEUE, WAITING):
                waiting[place] = "a message waits for its handler"
            elif value is not None and kind == TIMER and time_in(value) <= self._until * 1000:
                waiting[place] = f"the timer {name!r} is to ring"
        return sorted(set(waiting.values())) or list(self._unhandled())

    def _logged(self) -> Iterator[Logged]:
        """The messages, by partition. In topics that use the inbox, repeated messages are skipped."""
        wiring, seen = self._shape.wiring, set[tuple[str, bytes]]()
        for topic, codec in self.run.app.message_codecs.items():
            repeats = topic in wiring.routes and wiring.uses_inbox(topic)
            for record in self.run.cluster.visible(topic):
                place, value = (topic, identity_of(record)), self._payload(record)
                if value is not None and not (repeats and place in seen):
                    seen.add(place)
                    written_by = dict(record.headers).get(FINGERPRINT)
                    yield Logged(place[1], codec.decode(value, written_by), value)

    def _payload(self, record: Record) -> bytes | None:
        """The bytes of a record's message; None if they are gone, so that the message cannot be checked."""
        return record.value or b""

    def _unhandled(self) -> Iterator[str]:
        answered = {call.place for call in self._calls.ended if call.outcome is not None}
        dead = self._dead()
        for identity, message, _ in self._logged():
            route = self._shape.wiring.routes.get(message.TOPIC)
            for handler in route.handlers if route is not None else ():
                place = handler.name, identity
                if place not in answered and place not in dead and ("", identity) not in dead:
                    yield f"{handler.name} has not had {message!r}"

    def _dead(self) -> dict[tuple[str, bytes], Message | None]:
        """Dead-lettered messages, by handler and identity."""
        found: dict[tuple[str, bytes], Message | None] = {}
        logged = {(message.TOPIC, identity): message for identity, message, _ in self._logged()}
        for letter in letters_in(self.run).values():
            identity = identity_of(letter)
            found[letter.handler, identity] = logged.get((letter.topic, identity))
        return found

    def effective(self, dead: Collection[tuple[str, bytes]]) -> list[Call]:
        """The calls that took effect, in order."""
        return self._calls.effective({each.identity for each in self._logged()}, dead)

    async def finish(self) -> None:
        """Play the serial run, and collect the resulting world."""
        dead = self._dead()
        handlers = {each.name: each for each in self._shape.wiring.handlers()}
        resources = {
            CONSUMED: frozenset(self.run.app.routes),
            "clock": self._clock,
            **self._shape.resources(),
        }
        self._serial = Serial(self.run.app, self._calls, self._clock, handlers, resources)
        effective = self.effective(dead)
        gone = dead.keys() - {call.place for call in effective} if self.fails_alike else ()
        failed = {call.place: call for call in self._calls.ended if call.place in gone and call.error}
        self._difference = await self._serial.play(effective, list(failed.values()))
        self._calls.leave()
        for table, of in self._shape.wiring.tables().items():
            codec = self.run.app.tables[table].codec
            for (key, subkey), data in rows(self.run, of.name).items():
                self.world.rows[table, key, subkey] = codec.decode(data, None)
        self.world.messages = [each.message for each in self._logged()]
        self.world.resources = self._resources
        self.world.dead = [(name, message) for (name, _), message in dead.items() if message is not None]

    def judge(self) -> list[Finding]:
        """Findings where rows or messages differ from the serial run, for undeclared dead letters, or from
        `check`.
        """
        if self._difference is not None:
            return [Finding("not as in a run without faults", self._explained(self._difference))]
        found = [*self._letters(), *self._rows(), *self._messages()]
        if not found and self._shape.check is not None:
            try:
                self._shape.check(self.world)
            except AssertionError as error:
                found.append(Finding("check", str(error) or f"{_name(self._shape.check)} does not hold"))
        return found

    def _letters(self) -> Iterator[Finding]:
        """Undeclared dead letters, grouped by handler and error, with the text of the first one."""
        if self._shape.dead is None:
            return
        allowed = _names_of(self._shape.dead) - _MISTAKES
        groups: dict[tuple[str, str], list[Letter]] = {}
        for _, letter in sorted(letters_in(self.run).items()):
            if letter.error_type not in allowed:
                groups.setdefault((letter.handler, letter.error_type), []).append(letter)
        for (handler, error), letters in groups.items():
            why = _MISTAKEN if error in _MISTAKES else _DECLARE.format(error)
            yield Finding(
                "a dead letter",
                f"{len(letters)} of {handler or 'no handler'}, such as key {_text(letters[0].key)!r}:"
                f" {error}: {letters[0].error_message}\n{why}",
            )

    def _rows(self) -> Iterator[Finding]:
        for table in self._shape.wiring.tables():
            expected = {at[1:]: data for at, data in self._serial.rows.items() if at[0] == table}
            found = rows(self.run, table)

            def both(at: Any, expected: Any = expected, found: Any = found) -> tuple[str, str]:
                return _text(expected.get(at)), _text(found.get(at))

            for at in sorted(expected.keys() | found.keys()):
                if expected.get(at) != found.get(at):
                    differs = Difference(f"the row of table {table!r}, key and subkey {at!r}", *both(at))
                    yield Finding("rows are what handlers decided", str(differs))

    def _messages(self) -> Iterator[Finding]:
        sent = self.run.app.wiring.sent
        found = Counter(
            (each.message.TOPIC, each.message.key, each.data)
            for each in self._logged()
            if each.message.TOPIC in sent
        )
        found.subtract(Counter(self._sent_by_clients(sent)))
        lacking, more = self._serial.sent - found, found - self._serial.sent - self._serial.timers
        for what, some in (("was decided, and is not there", lacking), ("nobody has decided", more)):
            for (topic, key, data), _ in sorted(some.items()):
                yield Finding(
                    "what is sent is what was decided", f"{topic}, key {key!r}: {_text(data)} {what}"
                )

    def _sent_by_clients(self, sent: Mapping[str, Any]) -> Iterator[tuple[str, str, bytes]]:
        posted = {step.what[1]: step.what[0] for step in self.run.plan.steps if step.kind == "send"}
        for message in posted.values():
            if message.TOPIC in sent:
                yield message.TOPIC, message.key, self.run.app.message_codecs[message.TOPIC].encode(message)

    def _explained(self, difference: Difference) -> str:
        call = difference.call
        if call is None:
            return str(difference)
        same = [each for each in self._calls.ended if each.place == call.place]
        times = ", then ".join(f"at {each.at:.2f} s on {each.machine}" for each in same)
        faults = [step for step in self.run.plan.steps if step.kind != "send" and step.at <= call.at]
        after = "; ".join(" ".join(str(step).split()) for step in faults[-3:]) or "no fault"
        return (
            f"{difference}\n      where     {call.handler} handles {call.message!r}, {times}\n"
            f"      after     {after}\n{WHAT_TO_DO}"
        )


def identity_of(record: Any) -> bytes:
    """The source and id of a record's message, as one value."""
    headers = dict(record.headers)
    source = headers.get("ce_source") or b""
    return b"%d:%b%b" % (len(source), source, headers.get("ce_id") or b"")


def _names_of(errors: Iterable[type[Exception]]) -> set[str]:
    """The names of error classes and of all their subclasses."""
    found, left = set[str](), list(errors)
    while left:
        found.add((error := left.pop()).__name__)
        left += error.__subclasses__()
    return found


def _text(data: bytes | None) -> str:
    return "no row" if data is None else data.decode(errors="replace")


def _name(check: Callable[..., Any]) -> str:
    return inspect.unwrap(check).__name__ if inspect.isfunction(check) else repr(check)
