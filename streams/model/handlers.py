"""Services, and the handlers they are made of.

A handler is a plain function `(message, rows...) -> Outcome`, sync unless it calls the outside. It stays
callable as it was written, so a unit test just calls it.
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

#: A handler that names this parameter is given the message's envelope: ids, time, correlation.
ENVELOPE = "envelope"
#: Parameters of `outcome(...)` that are no rows.
_OF_OUTCOMES = frozenset(
    each.name
    for each in inspect.signature(outcome).parameters.values()
    if each.kind is not inspect.Parameter.VAR_KEYWORD
)
#: What may be given as a handler's name.
_NAME = re.compile(r"\w[\w-]*(\.[\w-]+)+", re.ASCII)
#: A resource that every application has: the topics that it consumes.
CONSUMED = "consumed"


class Handler(Generic[P, T]):
    """A function with what the lane must know of it: its rows, what it sends, what it needs from outside.

    Attributes:
        name: `<service>.<function>` unless another is given. Inbox keys, the ids of what it sends, and what
            waits for it are by this name: a function that is renamed keeps the former one.
        accepts: the message classes its first parameter is annotated with.
        rows: parameter name -> the row it reads and may write.
        sends: the message classes it may send; sending another one is an error.
        resources: keyword-only parameters that the composition root supplies, such as a gateway.
        retry: the policy for messages that it fails on; None: that of the application.
        breaker: when it is left alone for a while; None: what the application says.
        order_by: what it orders by within a message's key: while a message of that waits, later ones wait
            behind it. None: by the key.
        on_give_up: the reply to the sender when a message is given up, or expires as it waits, for this
            error; then there is no dead letter. It has no rows, and may only send.
        accepts_expired: whether the handler sees a message that had expired when the lane read it, also where
            other messages of the handler wait. It records such a message, and does not begin it. While an
            earlier message of the key is tried again, the handler does not see it.
        must_hear: messages that it cannot do without: each needs a line that names it.
        undone_by: messages that it sends, with those that undo them: a handler of one should handle the
            other.
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
    """A service by name; its handlers are declared with `@service.handler(...)`."""

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
            sends: the message classes that it may send.
            retry: the policy for messages that it fails on; None: that of the settings.
            breaker: when it gets no calls for a while; None: the usual policy.
            order_by: a function of the message: while one message waits, later ones with the same value wait
                behind it; None: those of its key.
            named: its former `service.function`, where either was renamed: what waits, what was handled and
                the ids of what it sends are by that name (docs/upgrading.md).
            rows: the tables of its parameters, by name: `points=POINTS`, `POINTS.by(...)` or `POINTS.any`.

        Raises WiringError where signature and tables differ. `@service.handler` without `()` is the same as
        with them, but type checkers want them: with an overload mypy takes lists of `sends` for lists of
        their first base.
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
