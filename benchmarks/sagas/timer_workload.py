"""What a worker does whose timers are measured: set one, cancel one, or neither, as a message says."""

# Annotations are evaluated here, not kept as text: they name classes that are made for each application.

from typing import ClassVar, Literal

from benchmarks.growth.workload import Workload, events_topic
from streams.model.application import Application, LaneOptions
from streams.model.choreography import Choreography, choreography, on
from streams.model.codecs import json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.message import Message
from streams.model.outcome import Outcome, Timer, nothing, outcome

NAME = "t"


def rang_topic(app_id: str) -> str:
    """The topic of timers' messages, which has no handler."""
    return f"{app_id}.timer.rang.v1"


def wiring(app_id: str) -> Choreography:
    """The workload on the topics of an application."""

    class TimerAsked(Message, frozen=True):
        """Asks for something about the timer of a key; `due` in epoch seconds."""

        TOPIC: ClassVar[str] = events_topic(app_id)
        k: str
        ask: Literal["set", "cancel", "neither"]
        due: float = 0.0

        @property
        def key(self) -> str:
            return self.k

    class TimerRang(Message, frozen=True):
        """A timer has rung."""

        TOPIC: ClassVar[str] = rang_topic(app_id)
        k: str
        due: float

        @property
        def key(self) -> str:
            return self.k

    service = Service("timing")

    @service.handler(sends=(TimerRang,))
    def take(message: TimerAsked) -> Outcome:
        """Do as it says."""
        match message.ask:
            case "set":
                return outcome(timers=[Timer(NAME, message.due, TimerRang(k=message.k, due=message.due))])
            case "cancel":
                return outcome(cancel=[NAME])
        return nothing("neither")

    return choreography(on(TimerAsked, take))


def application(layout: Layout, lane_options: LaneOptions) -> Application:
    """The workload, bound."""
    return Application(layout, wiring(layout.app_id), json_without_schema, lane_options=lane_options)


TIMERS = Workload("benchmarks.sagas.timer_workload", application, events_topic)
