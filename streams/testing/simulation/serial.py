"""The serial run: handles each message once, one after another, in one process without faults. The order is
the one in which calls took effect in the simulated run, whose results must be the same.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from streams.errors import TransientError
from streams.escapes import Contained
from streams.model.application import Application
from streams.model.choreography import AnyHandler
from streams.model.message import Message, Row
from streams.model.outcome import Outcome
from streams.testing.simulation.calls import Call, CallClock, Calls, Stepped

#: A row's table, key and subkey.
At = tuple[str, str, str]
#: Maximum calls of a handler that raises TransientError.
_TRIES = 10


class Difference(msgspec.Struct, frozen=True):
    """A difference between a run and its serial run.

    Attributes:
        of: description of what differs, such as the row of a key or the sent messages.
        expected, found: the value in the serial run, and in the simulated run.
        call: the call with a different result; None if all handlers had the same results.
    """

    of: str
    expected: str
    found: str
    call: Call | None = None

    def __str__(self) -> str:
        return f"{self.of}\n      expected  {self.expected}\n      found     {self.found}"


@dataclass(eq=False)
class Serial:
    """A serial run: rows by table, key and subkey, and counts of sent messages by topic, key and bytes."""

    app: Application
    calls: Calls
    clock: CallClock
    handlers: Mapping[str, AnyHandler]
    resources: Mapping[str, Any]
    rows: dict[At, bytes] = field(default_factory=dict)
    sent: Counter[tuple[str, str, bytes]] = field(default_factory=Counter)
    timers: Counter[tuple[str, str, bytes]] = field(default_factory=Counter)

    async def play(self, effective: Sequence[Call], failed: Sequence[Call]) -> Difference | None:
        """Call the handlers again. Returns the first difference, or None if all results are the same."""
        order = {id(call): number for number, call in enumerate(self.calls.ended)}
        for call in sorted((*effective, *failed), key=lambda each: order[id(each)]):
            if call.is_given_up or call.outcome is None:
                if call.is_given_up:
                    self._apply(call, call.outcome)
                elif difference := await self._fails_too(call):
                    return difference
                continue
            if difference := self._other_rows(call):
                return difference
            try:
                outcome = await self._again(call)
            except Exception as error:  # noqa: BLE001 - that is the difference
                return self._differs(call, repr(error), _told(call.outcome))
            if difference := self._compared(call, call.outcome, outcome):
                return difference
            self._apply(call, outcome)
        return None

    async def _again(self, call: Call) -> Outcome:
        for number in range(_TRIES):
            try:
                return await Contained(self._once(call))
            except TransientError:
                if number == _TRIES - 1:
                    raise
        raise AssertionError

    async def _once(self, call: Call) -> Outcome:
        handler = self.handlers[call.handler]
        rows = [self._given(handler, name, call.message) for name in handler.rows]
        named = {name: self.resources[name] for name in handler.resources}
        self.clock.repeated = iter(call.times)
        self.calls.enter(self)
        outcome = handler.function(call.message, *rows, **named, **call.named)
        if inspect.isawaitable(outcome):
            outcome = await Stepped(outcome, lambda: self.calls.enter(self))
        return outcome  # type: ignore[no-any-return]  # handlers return outcomes

    async def _fails_too(self, call: Call) -> Difference | None:
        """Check that a message that was never handled fails in the serial run, too."""
        if isinstance(call.error, TransientError):
            return None
        try:
            outcome = await self._again(call)
        except Exception:  # noqa: BLE001 - it is as it was
            return None
        return self._differs(call, _told(outcome), repr(call.error))

    def _given(self, handler: AnyHandler, name: str, message: Message) -> Any:
        of = handler.rows[name]
        if of.any:
            return lambda subkey: self._row((of.table.name, message.key, subkey))
        return self._row((of.table.name, message.key, of.subkey(message) if of.subkey else ""))

    def _row(self, at: At) -> Row | None:
        data = self.rows.get(at)
        return None if data is None else self.app.tables[at[0]].codec.decode(data, None)

    def _other_rows(self, call: Call) -> Difference | None:
        """Check that the handler received the rows that earlier calls decided."""
        handler = self.handlers[call.handler]
        for name, found in call.rows.items():
            table, expected = handler.rows[name].table.name, self._given(handler, name, call.message)
            if self._encoded(table, found) != self._encoded(table, expected):
                of = f"the row of table {table!r} that {call.handler} was given for key {call.message.key!r}"
                return Difference(of, repr(expected), repr(found), call)
        return None

    def _compared(self, call: Call, found: Outcome, expected: Outcome) -> Difference | None:
        handler = self.handlers[call.handler]
        was, is_now = (dict(_changes(handler, call.message, each)) for each in (found, expected))
        for at in sorted(was.keys() | is_now.keys()):
            old, new = was.get(at, _UNCHANGED), is_now.get(at, _UNCHANGED)
            if self._encoded(at[0], old) != self._encoded(at[0], new):
                subkey = f", subkey {at[2]!r}" if at[2] else ""
                return Difference(
                    f"the row of table {at[0]!r}, key {at[1]!r}{subkey}", _text(new), _text(old), call
                )
        for what in ("send", "timers", "cancel"):
            old, new = getattr(found, what), getattr(expected, what)
            if list(old) != list(new):
                name = {
                    "send": "the messages sent",
                    "timers": "the timers set",
                    "cancel": "the timers cancelled",
                }
                of = f"{name[what]} by {call.handler}, key {call.message.key!r}"
                return Difference(of, _text(list(new)), _text(list(old)), call)
        return None

    def _differs(self, call: Call, expected: str, found: str) -> Difference:
        return Difference(f"what {call.handler} answers, key {call.message.key!r}", expected, found, call)

    def _encoded(self, table: str, row: Any) -> bytes | None:
        return row if row is None or isinstance(row, bytes) else self.app.tables[table].codec.encode(row)

    def _apply(self, call: Call, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        for at, row in _changes(self.handlers[call.handler], call.message, outcome):
            if row is None:
                self.rows.pop(at, None)
            else:
                self.rows[at] = self.app.tables[at[0]].codec.encode(row)
        for into, messages in ((self.sent, outcome.send), (self.timers, [t.message for t in outcome.timers])):
            for message in messages:
                codec = self.app.message_codecs[message.TOPIC]
                into[message.TOPIC, message.key, codec.encode(message)] += 1


_UNCHANGED = b"unchanged"


def _changes(handler: AnyHandler, message: Message, outcome: Outcome) -> Iterator[tuple[At, Row | None]]:
    """The rows that an outcome changes, by table, key and subkey."""
    for name, row in outcome.rows.items():
        of = handler.rows[name]
        subkey = of.subkey(message) if of.subkey else ""
        for sub, one in (row if of.any else {subkey: row}).items():
            yield (of.table.name, message.key, sub), one


def _text(value: Any) -> str:
    if value == _UNCHANGED:
        return "left as it is"
    return {"None": "no row", "[]": "none"}.get(repr(value), repr(value))


def _told(outcome: Outcome) -> str:
    return f"rows {dict(outcome.rows)!r}, messages {list(outcome.send)!r}"
