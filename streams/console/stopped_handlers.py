"""The handlers that a saga waits for, where these are stopped, also those of other keys than the saga's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streams.control.overview.flow_answers import HandlerShown
from streams.control.sagas.saga_answers import SagaShown
from streams.model.application import Application

#: Handlers between a step and the stopped one, at most.
FARTHEST = 6


def stopped_handlers(app: Application, shown: SagaShown, handlers: Iterable[HandlerShown]) -> list[str]:
    """Sentences on the nearest handlers that are paused or fail, on the ways of the steps that are not over.

    The way of a command leads from its handlers on to those of what they send. An event that a choreography
    still expects is looked for from its senders back.
    """
    stopped = {each.handler: each.numbers.stopped for each in handlers if each.numbers.stopped}
    if not stopped or not shown.saga.pending or shown.saga.waits_for:
        return []
    actions = {each.action for each in shown.steps}
    backwards = not any(each.attempts for each in shown.steps)
    ways = _ways(app, backwards=backwards)
    found = dict.fromkeys(
        name
        for step in shown.steps
        if step.name in shown.saga.pending
        for name in _nearest(ways, step.action, stopped, actions)
    )
    return [f"It waits for {name}, which is {stopped[name]}" for name in found]


def _ways(app: Application, *, backwards: bool) -> Mapping[str, list[tuple[str, list[str]]]]:
    """By topic, the handlers at its next end, each with the topics beyond it."""
    ways: dict[str, list[tuple[str, list[str]]]] = {}
    for handler in app.wiring.handlers():
        takes = [topic for topic, route in app.wiring.routes.items() if handler in route.handlers]
        sends = [message.TOPIC for message in handler.sends]
        near, far = (sends, takes) if backwards else (takes, sends)
        for topic in near:
            ways.setdefault(topic, []).append((handler.name, far))
    return ways


def _nearest(
    ways: Mapping[str, list[tuple[str, list[str]]]], topic: str, stopped: Mapping[str, str], steps: set[str]
) -> list[str]:
    """The nearest stopped handlers on the way of a step. What leads on to another step is not on it."""
    seen, at = {topic}, [topic]
    for _ in range(FARTHEST):
        passed = [way for each in at for way in ways.get(each, ())]
        if found := [name for name, _ in passed if name in stopped]:
            return found
        beyond = [each for _, far in passed if not steps.intersection(far) for each in far]
        at = [each for each in dict.fromkeys(beyond) if each not in seen]
        seen |= set(at)
    return []
