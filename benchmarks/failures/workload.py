"""What a failing worker does: count events by key and pass each on, beside a handler that calls outside.

An event says how often its handler fails on it before it succeeds, so no chance is in it.
"""

# Annotations are evaluated here, not kept as text: they name classes that are made for each application.

from typing import ClassVar

from benchmarks.growth.workload import COUNTS, Count, Workload, events_topic
from streams.errors import TransientError
from streams.model.application import Application, LaneOptions
from streams.model.choreography import Choreography, choreography, on
from streams.model.codecs import json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.message import Message
from streams.model.outcome import Outcome, outcome

#: For `fails`: whenever it is tried.
ALWAYS = -1


def counted_topic(app_id: str) -> str:
    """Where they go when they are counted."""
    return f"{app_id}.event.counted.v1"


def calls_topic(app_id: str) -> str:
    """Where messages come from that a handler calls the outside for."""
    return f"{app_id}.call.made.v1"


class FailingHandler(Message, frozen=True):
    """What a handler fails on `fails` times before it succeeds."""

    k: str
    i: int
    fails: int = 0

    @property
    def key(self) -> str:
        """Its key."""
        return self.k


class Outside:
    """What handlers call; it fails as often as a message says."""

    def __init__(self) -> None:
        self._tried: dict[int, int] = {}

    def call(self, number: int, fails: int) -> None:
        """Raises TransientError as long as the message with this number is to fail."""
        tried = self._tried.get(number, 0)
        if fails == ALWAYS or tried < fails:
            self._tried[number] = tried + 1
            raise TransientError("the outside does not answer")
        self._tried.pop(number, None)


def wiring(app_id: str) -> Choreography:
    """The workload on the topics of an application."""

    class EventMade(FailingHandler, frozen=True):
        """An event, on which its handler fails `fails` times."""

        TOPIC: ClassVar[str] = events_topic(app_id)

    class EventCounted(Message, frozen=True):
        """The event passed on."""

        TOPIC: ClassVar[str] = counted_topic(app_id)
        k: str
        i: int
        n: int

        @property
        def key(self) -> str:
            return self.k

    class CallAsked(FailingHandler, frozen=True):
        """Something for which the outside is called; `fails` calls fail."""

        TOPIC: ClassVar[str] = calls_topic(app_id)

    counting, calling = Service("counting"), Service("calling")
    outside = Outside()

    @counting.handler(sends=(EventCounted,), count=COUNTS)
    def count(event: EventMade, count: Count | None) -> Outcome:
        """Count and pass on."""
        if event.fails:
            outside.call(event.i, event.fails)
        n = 1 if count is None else count.n + 1
        return outcome(count=Count(n=n), send=[EventCounted(k=event.k, i=event.i, n=n)])

    @calling.handler()
    def call(message: CallAsked) -> Outcome:
        """Call the outside, and that is all."""
        outside.call(message.i, message.fails)
        return outcome()

    return choreography(on(EventMade, count), on(CallAsked, call))


def application(layout: Layout, lane_options: LaneOptions) -> Application:
    """The workload, bound."""
    return Application(layout, wiring(layout.app_id), json_without_schema, lane_options=lane_options)


FAILURES = Workload("benchmarks.failures.workload", application, events_topic)
