"""Services and their handlers.

A handler is a function `(message, rows...) -> Outcome`, async only if it calls something outside. The
decorated function is still callable as written, so that a unit test can call it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import Any, Generic, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from streams.errors import WiringError
from streams.model.message import Message
from streams.model.outcome import Outcome, outcome
from streams.model.policy.breaker import BreakerPolicy
from streams.model.policy.retry import RetryPolicy
from streams.model.table import RowOf, Table

P = ParamSpec("P")
T = TypeVar("T")

#: Name of the parameter with which a handler gets the message's envelope: ids, time, correlation.
ENVELOPE = "envelope"
#: Parameters of `outcome(...)` that are not rows.
_OF_OUTCOMES = frozenset(
    each.name
    for each in inspect.signature(outcome).parameters.values()
    if each.kind is not inspect.Parameter.VAR_KEYWORD
)
#: The form of a handler's name.
_NAME = re.compile(r"\w[\w-]*(\.[\w-]+)+", re.ASCII)
#: Resource of every application: the topics that it consumes.
CONSUMED = "consumed"


class Handler(Generic[P, T]):
    """A function, with everything that the lane needs to know about it.

    Attributes:
        name: `<service>.<function>`, unless another name is given. Inbox keys, ids of sent messages and
            waiting messages contain this name, so a renamed function keeps its former name.
        accepts: message classes in the annotation of its first parameter.
        rows: rows that it reads and may write, by parameter.
        sends: message classes that it may send. Sending another class is an error.
        resources: names of keyword-only parameters, such as a gateway, that the worker supplies.
        retry: retry policy; None means the application's.
        breaker: policy of its circuit breaker; None means the application's.
        order_by: function of the message that returns its ordering key: while a message waits, later messages
            with the same ordering key wait behind it. None means the message's key.
        on_give_up: makes a reply to the sender, instead of a dead letter, when a message is given up or
            expires while it waits. It gets the error, has no rows, and may only send.
        accepts_expired: whether the handler is called with a message that had already expired when the lane
            read it, even while other messages of the handler wait, so that it can record it without starting
            it. It is not called while an earlier message of the key is being retried.
        must_hear: message classes that it needs: the wiring must route each of them to it.
        undone_by: message classes that it sends, each with the class that undoes it. An application that
            handles the one should handle the other.
    """

    must_hear: tuple[type[Message], ...] = ()
    undone_by: Mapping[type[Message], type[Message]] = MappingProxyType({})

    def __init__(
        self,
        service: str,
        function: Callable[P, T],
        sends: Sequence[type[Message]],
        rows: dict[str, Table[Any] | RowOf[Any]],
        *,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
        order_by: Callable[[Any], str] | None = None,
        on_give_up: Callable[[Any, Exception], Outcome] | None = None,
        accepts_expired: bool = False,
        named: str = "",
    ) -> None:
        self.name = named or f"{service}.{function.__name__}"
        if named and not _NAME.fullmatch(named):
            raise WiringError(f"{function.__name__} is named {named!r}: give its former service.function")
        self.service = service
        self.function = function
        self.sends = tuple(sends)
        if taken := [name for name in rows if name in _OF_OUTCOMES]:
            raise WiringError(
                f"{self.name} has a row {taken[0]!r}, and outcome({taken[0]}=...) is something else: give the"
                " parameter another name"
            )
        self.rows = {name: row if isinstance(row, RowOf) else RowOf(row) for name, row in rows.items()}
        self.retry = retry
        self.breaker = breaker
        self.order_by = order_by
        self.on_give_up = on_give_up
        self.accepts_expired = accepts_expired
        self.is_async = inspect.iscoroutinefunction(function)
        self.accepts, self.resources, self.wants_envelope = self._read_signature(function)
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function as it was written."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.name}>"

    def _read_signature(
        self, function: Callable[..., Any]
    ) -> tuple[tuple[type[Message], ...], tuple[str, ...], bool]:
        parameters = list(inspect.signature(function).parameters.values())
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        if positional[1:] != list(self.rows):
            raise WiringError(
                f"{self.name} takes the rows {positional[1:]}, but is declared with {list(self.rows)}: "
                "name them alike and in the same order"
            )
        hints = get_type_hints(function)
        accepts = _classes(hints.get(positional[0])) if positional else ()
        if not accepts:
            raise WiringError(f"{self.name}: annotate its first parameter with the messages it accepts")
        resources = tuple(name for name in keywords if name != ENVELOPE)
        return accepts, resources, ENVELOPE in keywords


def _classes(hint: Any) -> tuple[type[Message], ...]:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(o for o in options if isinstance(o, type) and issubclass(o, Message))


class Service:
    """A named group of handlers, which are declared with `@service.handler(...)`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def handler(
        self,
        function: None = None,
        /,
        *,
        sends: Sequence[type[Message]] = (),
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
        order_by: Callable[[Any], str] | None = None,
        named: str = "",
        **rows: Table[Any] | RowOf[Any],
    ) -> Callable[[Callable[P, T]], Handler[P, T]]:
        """Declare a handler.

        Arguments:
            sends: message classes that it may send.
            retry: retry policy; None means the one from the settings.
            breaker: policy of its circuit breaker; None means the default policy.
            order_by: function of the message that returns its ordering key: while a message waits, later
                messages with the same ordering key wait behind it. None means the message's key.
            named: its former `service.function`, if either was renamed. Waiting messages, the inbox and the
                ids of sent messages use that name (docs/upgrading.md).
            rows: the tables of its parameters: `points=POINTS`, `POINTS.by(...)` or `POINTS.any`.

        Raises WiringError if signature and tables differ. `@service.handler` works without `()`, too, but not
        for type checkers, because with an overload mypy misreads lists in `sends`.
        """

        def declare(function: Callable[P, T]) -> Handler[P, T]:
            return Handler(
                self.name,
                function,
                sends,
                rows,
                retry=retry,
                breaker=breaker,
                order_by=order_by,
                named=named,
            )

        bare: Any = function
        if bare is None:
            return declare
        if not inspect.isfunction(bare):
            raise WiringError(
                f"{self.name}: @service.handler({bare!r}) names no parameter: give each row its name, and"
                " what is sent as `sends`"
            )
        declared: Any = declare(bare)
        return cast(Callable[[Callable[P, T]], Handler[P, T]], declared)
