"""The participant of a saga: handlers that do a step once, compensate it once, and reply.

    steps = Participant(service, INVENTORY_STEPS)

    @steps.command(stock=STOCK)
    def reserve(command: ReserveStock, stock: StockLevel | None) -> Answer:
        if stock is None or stock.on_hand < command.units:
            return refused("out_of_stock")
        return done(Reserved(shelf=stock.shelf), stock=stock.reserve(command.units))

    @steps.compensation(stock=STOCK)
    def release(command: ReleaseStock, stock: StockLevel) -> Answer:
        return done(stock=stock.release(command.units))

Command and compensation of a step share one row, under their common key (docs/adr/0013). A repeated command
is answered again. If the compensation comes first, the row records that, and the later command is cancelled.
A failing command is retried like any message, but not beyond its expiry. A command that is given up does not
become a dead letter: the saga gets a reply, and decides.

When a step times out, the saga sends a question behind its command in the same topic. A finished command has
been answered by then, and a running one will be. A command that is still blocked by a pause or a breaker is
not started any more, and the saga gets a reply that says so.

A compensation that is a plain function runs only if the step was started. An async one runs in every case
except right after a refusal, because an attempt with an unknown outcome may have reached the outside: it
looks up there what was done, by the command's `operation`, and undoes it. It never runs beside an attempt,
because both have the same key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from streams.errors import MessageExpired, PermanentError, Unencodable, WiringError, text_of
from streams.model.codecs import encode_json
from streams.model.handlers import ENVELOPE, Handler, Service
from streams.model.message import Message
from streams.model.outcome import Outcome, Timer, nothing, outcome
from streams.model.policy.retry import RetryPolicy
from streams.model.table import RowOf, Table
from streams.ports import Clock
from streams.saga.messages import TEXT_BOUND, Command, ReplyOutcome, saga_id
from streams.saga.participation import Participation, Work

#: Reason of a command that is cancelled because its saga asked for its state.
NOT_BEGUN = "it was not begun in time"


class Answer(NamedTuple):
    """The result of a command or compensation; made by `done`, `refused` and `later`."""

    status: Literal["done", "refused", "later"]
    outcome: Outcome
    reason: str = ""
    data: bytes = b""


def done(
    data: msgspec.Struct | None = None,
    *,
    send: Sequence[Message] = (),
    timers: Sequence[Timer] = (),
    cancel: Sequence[str] = (),
    **rows: Any,
) -> Answer:
    """Answer that the step, or its compensation, is done. `data` has facts for later steps, in the class that
    the step names as `reply`. `send`, `timers`, `cancel` and rows are as in `outcome`, and commit with the
    reply.
    """
    reply = b"" if data is None else encode_json(data)
    return Answer("done", outcome(send=send, timers=timers, cancel=cancel, **rows), data=reply)


def refused(reason: str, *, send: Sequence[Message] = (), **rows: Any) -> Answer:
    """Answer that the step is refused for a business reason, a word for programs such as `out_of_stock`.

    The saga compensates its earlier steps, without a retry. A compensation must not refuse: that raises
    PermanentError. `send` and rows are as in `outcome`, and commit with the reply.
    """
    return Answer("refused", outcome(send=send, **rows), reason)


def later(*, send: Sequence[Message] = (), timers: Sequence[Timer] = (), **rows: Any) -> Answer:
    """Answer that the step takes longer. Another handler sends the reply later, with `Participation.answered`
    of the row from `Participant.row_of`. `send`, `timers` and rows are as in `outcome`.
    """
    return Answer("later", outcome(send=send, timers=timers, **rows))


class Participant:
    """A service's part in sagas. It makes handlers for commands, and keeps a row in `table` for each step.

    The handlers need the resource `clock`, which workers have. Command and compensation of a step must have
    the same key.
    """

    def __init__(self, service: Service, table: Table[Participation]) -> None:
        self.steps = table.by(lambda command: f"{command.saga_id}:{command.step}")
        self._service = service
        self._table = table

    def row_of(self, saga: str, step: str) -> RowOf[Participation]:
        """The row of a step, for a handler of a message with the same key that sends its reply later."""
        return RowOf(self._table, lambda message: f"{saga_id(saga, message.key)}:{step}")

    def command(self, **options: Any) -> Callable[[Callable[..., Any]], Handler[Any, Any]]:
        """Declare the function that carries out a command. It gets the command and its rows, and returns an
        Answer. The options are those of `Service.handler`.
        """
        return lambda function: self._handler(function, _Taking(undoing=False), **options)

    def compensation(self, **options: Any) -> Callable[[Callable[..., Any]], Handler[Any, Any]]:
        """Declare the compensation of a step, which must not refuse. An async function also runs if no row
        shows that the step was started.
        """
        return lambda function: self._handler(function, _Taking(undoing=True), **options)

    def _handler(
        self,
        function: Callable[..., Any],
        taking: _Taking,
        *,
        sends: Sequence[type[Message]] = (),
        retry: RetryPolicy | None = None,
        **rows: Table[Any] | RowOf[Any],
    ) -> Handler[Any, Any]:
        inner: Handler[Any, Any] = Handler(self._service.name, function, sends, rows)
        if not all(issubclass(kind, Command) for kind in inner.accepts):
            raise WiringError(f"{inner.name}: annotate its first parameter with a command of a saga")
        wrapped = taking.wrap(inner)
        replies = dict.fromkeys(kind.REPLY for kind in inner.accepts if issubclass(kind, Command))
        return Handler(
            self._service.name,
            wrapped,
            [*sends, *replies],
            {"participation": self.steps, **rows},
            retry=retry,
            on_give_up=_given_up,
            accepts_expired=True,
        )


class _Taking(NamedTuple):
    """Runs a function as a command or as a compensation."""

    undoing: bool

    def wrap(self, inner: Handler[Any, Any]) -> Any:
        """Wrap the service's function, with the signature that the lane reads."""
        passes_clock = "clock" in inner.resources

        def early(command: Command, row: Participation | None, clock: Clock, named: dict[str, Any]) -> Any:
            if passes_clock:
                named["clock"] = clock
            if self.undoing:
                return _before_undoing(command, row, asks_outside=inner.is_async)
            return _before(command, row, clock.now(), asks_outside=inner.is_async)

        def take(command: Command, row: Participation | None, *rows: Any, clock: Clock, **named: Any) -> Any:
            if (answered := early(command, row, clock, named)) is not None:
                return answered
            return self.after(command, inner(command, *rows, **named))

        async def take_async(
            command: Command, row: Participation | None, *rows: Any, clock: Clock, **named: Any
        ) -> Any:
            if (answered := early(command, row, clock, named)) is not None:
                return answered
            return self.after(command, await inner(command, *rows, **named))

        function: Any = take_async if inner.is_async else take
        function.__name__ = inner.function.__name__
        function.__doc__ = inner.__doc__
        function.__signature__ = _signature(inner)
        function.__annotations__ = {"command": _union(inner.accepts)}
        return function

    def after(self, command: Command, answer: object) -> Outcome:
        """The outcome of an answer, with the participant's row and the reply. Raises Unencodable if `answer`
        is not an Answer, and PermanentError if a compensation refuses.
        """
        if not isinstance(answer, Answer):
            returned = f"the handler of {type(command).__name__} returned {type(answer).__name__}"
            raise Unencodable(f"{returned}: return done(...), refused(...) or later(...)")
        if self.undoing and answer.status == "refused":
            raise PermanentError(f"a compensation cannot be refused: {answer.reason}")
        statuses: dict[str, tuple[Work, Work]] = {
            "done": ("done", "undone"),
            "refused": ("refused", "refused"),
            "later": ("working", "undoing"),
        }
        status = statuses[answer.status][self.undoing]
        row = Participation.of(command, status, answer.reason, answer.data)
        reply = [] if answer.status == "later" else [row.reply(command.REPLY)]
        had = answer.outcome
        return msgspec.structs.replace(
            had, rows={"participation": row, **had.rows}, send=[*had.send, *reply], note=answer.reason
        )


def _before(command: Command, row: Participation | None, now: float, *, asks_outside: bool) -> Outcome | None:
    """The stored reply to a repeated command, or None if the command must run."""
    if row is not None and (known := _known(command, row)) is not None:
        return known
    if command.asks:
        return _not_begun(command, asks_outside=asks_outside)
    if 0 < command.expires < now:
        return _told(command, "expired", "it came too late")
    return None


def _known(command: Command, row: Participation) -> Outcome | None:
    """The outcome for a command that the row already decides, or None if the command must run."""
    same = row.command_id == command.command_id
    if row.status in ("undoing", "undone"):
        return _told(command, "cancelled", "its compensation came first")
    if row.status == "working":
        newer = command.attempt > row.attempt
        return outcome(participation=row.asked_by(command)) if newer else nothing("it is under way")
    if row.status == "cancelled" and same:
        return _told(command, "cancelled", NOT_BEGUN)
    if row.status == "done" or same:
        if command.asks and same:
            return nothing("it is answered")  # the reply precedes the timeout that led to this question
        row = row.asked_by(command)
        return outcome(participation=row, send=[row.reply(command.REPLY)], note="asked again")
    if command.attempt < row.attempt:
        return _told(command, "cancelled", "a later attempt came first")
    return None


def _not_begun(command: Command, *, asks_outside: bool) -> Outcome:
    """Answer a question about a command that was not completed, and record that it must not start any more.
    An async function may have had effects outside without a row, so the reply then leaves that open.
    """
    answer = _told(command, "expired" if asks_outside else "cancelled", NOT_BEGUN)
    mark = Participation.of(command, "cancelled")
    return msgspec.structs.replace(answer, rows={"participation": mark})


def _before_undoing(command: Command, row: Participation | None, *, asks_outside: bool) -> Outcome | None:
    """The stored reply to a repeated compensation, or None if it must run."""
    if command.asks:
        if row is not None and row.command_id == command.command_id:
            return nothing("it is answered, or will be")
        return _told(command, "expired", "it waits for its turn")
    if row is None or row.status == "cancelled":
        known = False
    elif row.status == "refused":
        # An attempt after the refusal may have had effects outside without a row here.
        known = command.attempt == row.attempt + 1
    elif row.status in ("working", "done"):
        return None
    else:
        known = True
    if asks_outside and not known:
        return None
    if row is not None and row.status == "undoing":
        return outcome(participation=row.asked_by(command), note="it is being undone")
    mark = Participation.of(command, "undone")
    return outcome(participation=mark, send=[mark.reply(command.REPLY)], note="there is nothing to undo")


def _given_up(command: Command, error: Exception) -> Outcome:
    """Reply to the saga at once for a command that is given up (docs/adr/0013). A question that fails is not
    answered, because the saga asks again.
    """
    if command.asks:
        return nothing("it will be asked again")
    if isinstance(error, MessageExpired):
        return _told(command, "expired", text_of(error))
    return _told(command, "error", f"{type(error).__name__}: {text_of(error)}")


def _told(command: Command, how: ReplyOutcome, reason: str) -> Outcome:
    reply = command.REPLY(
        saga_id=command.saga_id,
        step=command.step,
        command_id=command.command_id,
        outcome=how,
        reason=reason[:TEXT_BOUND],
    )
    return outcome(send=[reply], note=f"{how}: {reason}")


def _union(kinds: Sequence[type[Message]]) -> Any:
    first, *others = kinds
    union: Any = first
    for kind in others:
        union |= kind
    return union


def _signature(inner: Handler[Any, Any]) -> inspect.Signature:
    positional = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in ("command", "participation", *inner.rows)
    ]
    named = dict.fromkeys([*inner.resources, "clock", *([ENVELOPE] if inner.wants_envelope else [])])
    return inspect.Signature(
        [*positional, *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in named)]
    )
