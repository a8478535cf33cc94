"""The wiring of an application: which message goes to which handlers. It is checked when it is made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from streams.errors import WiringError
from streams.model.handlers import CONSUMED, Handler
from streams.model.message import Message
from streams.model.sources import EARLIEST, TOPIC, Format, Source, SourceRecord, Start, json
from streams.model.table import Table

AnyHandler = Handler[Any, Any]


class WiringWarning(UserWarning):
    """The wiring works, but probably lacks a line."""


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the wiring, made by `on` or `source`."""

    message: type[Message]
    handlers: tuple[AnyHandler, ...]
    inbox: bool | None = None
    source: Source | None = None


def on(message: type[Message], *handlers: AnyHandler, inbox: bool | None = None) -> Route:
    """Route a message to handlers, which run in this order, each once.

    A message that no handler of the choreography sends comes from outside and may be repeated, so lanes check
    its id in the inbox. Messages that lanes write are never repeated, and skip the inbox (docs/adr/0006). Set
    `inbox` to override this.
    """
    return Route(message, handlers, inbox)


def source(
    topic: str,
    *,
    into: Callable[[SourceRecord], Any],
    value: Format | None = None,
    id: Callable[[SourceRecord], str] | None = None,  # noqa: A002 - the word that everybody has for it
    start: Start = EARLIEST,
    sends: Sequence[type[Message]] = (),
) -> Route:
    """Read a topic of others as it is: with any number of partitions, any keys, and without ids. It is never
    written, created, or refused for its settings (docs/existing-topics.md).

    Arguments:
        into: makes messages of a record: one, several, or None for a record that is not for this application.
        value: format of the values; None means `json()`.
        id: id of a record, such as `field("orderId")` or `header("x-request-id")`: of records with the same
            id only the first is handled. None: partition, offset and timestamp.
        start: where to begin with a topic that was never read: `earliest()`, `latest()`, `at(time)` or
            `group("old-group")`. Partitions that are added later are read from their beginning.
        sends: message classes that `into` makes, where its annotation does not say so.

    Raises WiringError.
    """
    made = Source(topic, value or json(), into, id, sends, start)
    return Route(made.message, (made.handler,), None, made)


def check_topic(message: type[Message]) -> None:
    """Raises WiringError for a message without a topic that Kafka takes."""
    topic = getattr(message, "TOPIC", "")
    if not TOPIC.fullmatch(topic):
        raise WiringError(
            f"{message.__name__} has the TOPIC {topic!r}: give 1 to 249 letters, digits, '.', '_' and '-'"
        )


def check_sent(message: type[Message]) -> None:
    """Raises WiringError for a message that cannot be sent: without a topic that Kafka takes, or a key."""
    check_topic(message)
    if message.key is Message.key:
        raise WiringError(f"{message.__name__} has no key: give it a property `key` that returns a str")


class Choreography:
    """All routes of an application. Raises WiringError for wrong ones."""

    def __init__(self, *routes: Route) -> None:
        self.routes: dict[str, Route] = {}
        for route in routes:
            self._check(route)
            other = self.routes.setdefault(route.message.TOPIC, route).message
            if other is not route.message and self.is_source(other.TOPIC):
                raise WiringError(f"{other.TOPIC} is on two lines, one of them a source: leave one out")
            if other is not route.message:
                both = f"{other.__name__} and {route.message.__name__}"
                raise WiringError(f"{both} have the topic {other.TOPIC}: give each its own")
        if len(self.routes) != len(routes):
            raise WiringError("a message appears on two lines of the choreography: put its handlers on one")
        made_by = {source.handler.name for source in self.sources().values()}
        sends = [(each.name in made_by, message) for each in self.handlers() for message in each.sends]
        #: What lanes alone write. What a source makes may come from clients as well: it keeps its inbox.
        self.sent = {message.TOPIC: message for is_made, message in sends if not is_made}
        self._made = {message.TOPIC: message for is_made, message in sends if is_made}
        for _, message in sends:
            check_sent(message)
            if self.is_source(message.TOPIC):
                raise WiringError(
                    f"{message.__name__} is sent to {message.TOPIC}, which is a source: only others write it"
                )
        for topic, each in self.sources().items():
            if kept := [message for message in each.handler.sends if message.SAME_KEY]:
                raise WiringError(
                    f"source({topic!r}) makes {kept[0].__name__}, which is SAME_KEY: a source makes messages"
                    " of any key, so the class cannot have it"
                )
        named: dict[str, AnyHandler] = {}
        for handler in (handler for route in routes for handler in route.handlers):
            if named.setdefault(handler.name, handler) is not handler:
                raise WiringError(f"two handlers are named {handler.name}: give one of them another name")
        for handler in self.handlers():
            self._check_heard(handler)
            for doubt in self._doubts(handler):
                warnings.warn(doubt, WiringWarning, stacklevel=3)

    def _check_heard(self, handler: AnyHandler) -> None:
        for message in handler.must_hear:
            route = self.routes.get(message.TOPIC)
            if route is None or handler not in route.handlers:
                name = message.__name__
                raise WiringError(
                    f"{handler.name} takes {name}, and no line gives it: replies and deadlines would be lost."
                    f" Add on({name}, ...) with this handler"
                )

    def _doubts(self, handler: AnyHandler) -> Iterator[str]:
        """Messages that a handler here carries out, and no handler here undoes."""
        for done, undone in handler.undone_by.items():
            if done.TOPIC in self.routes and undone.TOPIC not in self.routes:
                yield (
                    f"{handler.name} undoes {done.__name__} by {undone.__name__}, and no line takes that"
                    f" here: add on({undone.__name__}, ...), unless another application takes it"
                )

    def check_resources(self, supplied: Collection[str]) -> None:
        """Raises WiringError for a handler that needs a resource which is not among those `supplied`."""
        for handler in self.handlers():
            if missing := [name for name in handler.resources if name not in (*supplied, CONSUMED)]:
                raise WiringError(
                    f"{handler.name} needs {missing}, which the worker does not supply: it has"
                    f" {list(supplied)}"
                )

    @staticmethod
    def _check(route: Route) -> None:
        name = route.message.__name__
        check_topic(route.message)
        if not route.handlers:
            raise WiringError(f"on({name}) names no handler")
        for handler in route.handlers:
            if not isinstance(handler, Handler):
                raise WiringError(
                    f"on({name}, {handler!r}): no handler: declare it with @service.handler(...)"
                )
            if route.message not in handler.accepts:
                takes = " | ".join(accepted.__name__ for accepted in handler.accepts)
                raise WiringError(f"on({name}, {handler.name}): {handler.name} takes {takes}")
        if len({handler.name for handler in route.handlers}) != len(route.handlers):
            raise WiringError(f"on({name}) names a handler twice")

    def is_source(self, topic: str) -> bool:
        """Whether a topic is read as its owner has it (`source`)."""
        route = self.routes.get(topic)
        return route is not None and route.source is not None

    def sources(self) -> dict[str, Source]:
        """Every source, by topic."""
        return {topic: each.source for topic, each in self.routes.items() if each.source is not None}

    def handlers(self) -> Iterator[AnyHandler]:
        """Each handler once, in the order of the wiring."""
        seen = {handler.name: handler for route in self.routes.values() for handler in route.handlers}
        yield from seen.values()

    def messages(self) -> dict[str, type[Message]]:
        """Every message of the application, handled or sent, by topic: without what sources have."""
        handled = {topic: route.message for topic, route in self.routes.items() if route.source is None}
        return {**handled, **self._made, **self.sent}

    def tables(self) -> dict[str, Table[Any]]:
        """Every table that a handler reads, by name."""
        tables: dict[str, Table[Any]] = {}
        for handler in self.handlers():
            for source in handler.rows.values():
                if tables.setdefault(source.table.name, source.table) is not source.table:
                    raise WiringError(f"two tables are named {source.table.name}")
        return tables

    def uses_inbox(self, topic: str) -> bool:
        """Whether messages of this topic may repeat and are checked against the inbox."""
        chosen = self.routes[topic].inbox
        return topic not in self.sent if chosen is None else chosen


def choreography(*routes: Route) -> Choreography:
    """Make a wiring: `choreography(on(OrderPlaced, inventory.split_order), ...)`. Raises WiringError."""
    return Choreography(*routes)
