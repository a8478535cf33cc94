"""The overview's flow: services in columns, in the order in which messages reach them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from streams.control.overview.flow_answers import OverviewAnswer, ServiceShown, TopicShown


class FlowService(NamedTuple):
    """A service: attempts per second, the slowest p95 of its handlers, and what is wrong with it.

    `state` is stop, late or empty, in `words`.
    """

    name: str
    rate: float
    p95: float | None
    lag: int
    state: str
    words: str
    letters_link: str


class FlowColumn(NamedTuple):
    """Services, with the messages per second that come to the next column from the left, also from outside,
    and how many wait there.
    """

    services: list[FlowService]
    onward: float
    waits: int


def flow_columns(answer: OverviewAnswer) -> list[FlowColumn]:
    """The columns. They depend on the wiring alone, so nothing moves while numbers change."""
    # Others are known by what they have left: dead letters of a handler that is gone, or of none.
    services = [each for each in answer.services if any(handler.topics for handler in each.handlers)]
    place = _places([each.service for each in services], answer.topics)
    columns: list[list[ServiceShown]] = [[] for _ in range(max(place.values(), default=-1) + 1)]
    for each in services:
        columns[place[each.service]].append(each)
    found = []
    for number, column in enumerate(columns):
        following = columns[number + 1] if number + 1 < len(columns) else []
        onward = sum(
            topic.numbers.rate
            for topic in answer.topics
            if any(place.get(each) == number + 1 for each in topic.takers)
            and (not topic.senders or any(place.get(each, number) <= number for each in topic.senders))
        )
        waits = sum(handler.numbers.waits for each in following for handler in each.handlers)
        found.append(FlowColumn([_service(each, answer.topics) for each in column], onward, waits))
    return found


def _places(names: Sequence[str], topics: Sequence[TopicShown]) -> Mapping[str, int]:
    """The column of each service: behind all that send to it, of those that the wiring names earlier. An edge
    that leads back is left out, so there is no cycle.
    """
    order = {name: number for number, name in enumerate(names)}
    place: dict[str, int] = {}
    for name in names:
        senders = {each for topic in topics if name in topic.takers for each in topic.senders}
        earlier = [place[each] for each in senders if order.get(each, len(names)) < order[name]]
        place[name] = max(earlier, default=-1) + 1
    return place


def _service(service: ServiceShown, topics: Sequence[TopicShown]) -> FlowService:
    numbers = [each.numbers for each in service.handlers]
    waits, letters = sum(each.waits for each in numbers), sum(each.letters for each in numbers)
    paused, open_breakers = sum(each.paused for each in numbers), sum(each.breakers for each in numbers)
    parts = [f"{waits:,} waiting"] if waits else []
    parts += [f"{letters:,} dead letter{'' if letters == 1 else 's'}"] if letters else []
    parts += ["paused"] if paused else []
    parts += ["breaker open"] if open_breakers else []
    worst = max(service.handlers, key=lambda each: each.numbers.letters)
    taken = [topic for topic in topics if service.service in topic.takers]
    return FlowService(
        name=service.service,
        rate=sum(each.rate for each in numbers),
        p95=max((each.p95 for each in service.handlers if each.p95 is not None), default=None),
        lag=sum(topic.numbers.lag for topic in taken),
        state="stop" if paused or letters else "late" if parts else "",
        words=", ".join(parts),
        letters_link=worst.letters_link if letters else "",
    )
