"""The overview's picture: services, the topics between them, and what goes along the edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import log10

from streams.web.base.formatting import rate_text, seconds_text
from streams.web.overview.flow_answers import HandlerShown, OverviewAnswer, ServiceShown, TopicShown
from streams.web.overview.layers import Box, Edge, Picture, draw

#: Sizes of nodes, and of the lines in them.
SERVICE_WIDTH, SERVICE_HEIGHT = 136.0, 58.0
EDGE_ROOM = 7.0
TOPIC_WIDTH, TOPIC_LINE, TOPIC_PADDING = 152.0, 29.0, 10.0
#: Topics that are named in a node, and letters of a name; the table below the picture has all.
MOST_NAMED, MOST_LETTERS = 4, 22
#: How thick the edges are: of no messages, and of a great many.
THIN, THICK = 1.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLine:
    """A topic in its node."""

    name: str
    figures: str
    title: str
    link: str
    lags: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    """The box of a service, or of topics that lead from the same services to the same."""

    ident: str
    box: Box
    title: str
    #: Of topics.
    lines: list[TopicLine] = field(default_factory=list)
    more: int = 0
    #: Of a service.
    name: str = ""
    figures: str = ""
    waits: int = 0
    letters: int = 0
    letters_link: str = ""
    paused: bool = False
    broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """The line of an edge. `label` names what waits at its end, or was given up there."""

    path: str
    width: float
    busy: bool
    bad: bool
    back: bool
    title: str
    label: str
    link: str
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPicture:
    """All of it. Sizes in the units of the picture."""

    width: float
    height: float
    services: list[FlowNode]
    topics: list[FlowNode]
    arrows: list[Arrow]


def flow_picture(answer: OverviewAnswer) -> FlowPicture:
    """A picture of the flow. Where things stand depends on the wiring alone."""
    groups = _groups(answer.topics)
    edges = _edges(groups)
    # Others are known by what they have left: dead letters of a handler that is gone, or of none.
    services = [each for each in answer.services if any(handler.topics for handler in each.handlers)]
    sizes = _sizes(services, groups, Counter(end for edge in edges for end in edge))
    picture = _draw(tuple(sizes.items()), tuple(edges))
    return FlowPicture(
        width=picture.width,
        height=picture.height,
        services=[_service(each, picture.boxes[each.service], answer) for each in services],
        topics=[_topics(name, found, picture.boxes[name]) for name, found in groups.items()],
        arrows=[_arrow(edge, picture, groups, answer) for edge in edges],
    )


@lru_cache(maxsize=8)
def _draw(sizes: tuple[tuple[str, tuple[float, float]], ...], edges: tuple[Edge, ...]) -> Picture:
    return draw(dict(sizes), edges)


def is_inner(topic: TopicShown) -> bool:
    """Whether only one service has to do with it: it is drawn as part of that."""
    return topic.senders == topic.takers and len(topic.takers) == 1


def _groups(topics: Sequence[TopicShown]) -> dict[str, list[TopicShown]]:
    """Topics that lead from the same services to the same are one node, named like the first of them."""
    by_ends: dict[tuple[tuple[str, ...], tuple[str, ...]], list[TopicShown]] = {}
    for topic in topics:
        if not is_inner(topic):
            ends = tuple(sorted(topic.senders)), tuple(sorted(topic.takers))
            by_ends.setdefault(ends, []).append(topic)
    return {f"topic {found[0].topic}": found for found in by_ends.values()}


def _edges(groups: dict[str, list[TopicShown]]) -> list[Edge]:
    edges = []
    for name, found in groups.items():
        edges += [(service, name) for service in found[0].senders]
        edges += [(name, service) for service in found[0].takers]
    return edges


def _sizes(
    services: Sequence[ServiceShown], groups: dict[str, list[TopicShown]], ends: Mapping[str, int]
) -> dict[str, tuple[float, float]]:
    """Of all nodes, in the order of the story that the wiring tells: topics that a service takes from outside
    stand before it, those that it sends behind it. A service is as high as its edges need.
    """
    sizes: dict[str, tuple[float, float]] = {}

    def place(name: str) -> None:
        shown = min(len(groups[name]), MOST_NAMED)
        more = TOPIC_LINE / 2 if len(groups[name]) > MOST_NAMED else 0.0
        sizes.setdefault(name, (TOPIC_WIDTH, shown * TOPIC_LINE + more + TOPIC_PADDING))

    for service in services:
        for name, found in groups.items():
            if not found[0].senders and service.service in found[0].takers:
                place(name)
        height = max(SERVICE_HEIGHT, EDGE_ROOM * ends[service.service])
        sizes[service.service] = (SERVICE_WIDTH, height)
        for name, found in groups.items():
            if service.service in found[0].senders:
                place(name)
    for name in groups:
        place(name)
    return sizes


# -- what is drawn ----------------------------------------------------------------------------------------


def _service(service: ServiceShown, box: Box, answer: OverviewAnswer) -> FlowNode:
    numbers = [each.numbers for each in service.handlers]
    waits, letters = sum(each.waits for each in numbers), sum(each.letters for each in numbers)
    slowest = max((each.p95 for each in service.handlers if each.p95 is not None), default=None)
    rate = sum(each.rate for each in numbers)
    inner = [
        topic.message for topic in answer.topics if is_inner(topic) and topic.takers == [service.service]
    ]
    title = [f"{service.service}: {rate_text(rate)}, {waits} waiting, {letters} dead letters"]
    title += [_handler_text(each) for each in service.handlers]
    title += [f"for itself: {', '.join(inner)}"] if inner else []
    worst = max(service.handlers, key=lambda each: each.numbers.letters, default=None)
    return FlowNode(
        ident=service.service,
        box=box,
        title="\n".join(title),
        name=service.service,
        figures=f"{rate_text(rate)}, 95 % in {seconds_text(slowest)}"
        if slowest is not None
        else rate_text(rate),
        waits=waits,
        letters=letters,
        letters_link=worst.letters_link if worst is not None else "",
        paused=any(each.paused for each in numbers),
        broken=any(each.breakers for each in numbers),
    )


def _handler_text(handler: HandlerShown) -> str:
    parts = [rate_text(handler.numbers.rate)]
    parts += [f"{handler.numbers.waits} waiting"] if handler.numbers.waits else []
    parts += [f"{handler.numbers.letters} dead letters"] if handler.numbers.letters else []
    parts += ["paused"] if handler.numbers.paused else []
    parts += ["circuit breaker open"] if handler.numbers.breakers else []
    return f"{handler.handler}: {', '.join(parts)}"


def _topics(name: str, topics: Sequence[TopicShown], box: Box) -> FlowNode:
    lines = [
        TopicLine(
            name=_short(topic.message),
            figures=_topic_figures(topic),
            title=f"{topic.message}, topic {topic.topic}: {_topic_figures(topic)}",
            link=topic.link,
            lags=bool(topic.takers) and topic.numbers.lag > 0,
        )
        for topic in topics[:MOST_NAMED]
    ]
    more = topics[MOST_NAMED:]
    title = ", ".join(topic.message for topic in topics)
    return FlowNode(ident=name, box=box, title=title, lines=lines, more=len(more))


def _topic_figures(topic: TopicShown) -> str:
    if not topic.takers:
        return "goes out"
    lag = f", {topic.numbers.lag:,} behind" if topic.numbers.lag else ""
    return f"{rate_text(topic.numbers.rate)}{lag}"


def _short(name: str) -> str:
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


def _arrow(
    edge: Edge, picture: Picture, groups: dict[str, list[TopicShown]], answer: OverviewAnswer
) -> Arrow:
    a, b = edge
    topics = groups[a] if a in groups else groups[b]
    rate = sum(topic.numbers.rate for topic in topics)
    lag = sum(topic.numbers.lag for topic in topics)
    handlers = _only_of(answer, b, {topic.topic for topic in topics}) if a in groups else []
    waits, letters = (
        sum(each.numbers.waits for each in handlers),
        sum(each.numbers.letters for each in handlers),
    )
    parts = [f"{waits} waiting"] if waits else []
    parts += [f"{letters} dead"] if letters else []
    ends = (a if a not in groups else topics[0].message), (b if b not in groups else topics[0].message)
    title = f"{ends[0]} to {ends[1]}: {rate_text(rate)}" + (f", {lag} behind" if lag and a in groups else "")
    x, y = picture.edges[edge][-1]
    return Arrow(
        path=_path(picture.edges[edge]),
        width=round(min(THICK, THIN + log10(1 + rate)), 2),
        busy=rate > 0,
        bad=bool(parts),
        back=edge in picture.back,
        title=", ".join([title, *parts]),
        label=", ".join(parts),
        link=next((each.letters_link for each in handlers if each.numbers.letters), ""),
        x=x,
        y=y,
    )


def _only_of(answer: OverviewAnswer, service: str, topics: set[str]) -> list[HandlerShown]:
    """The handlers of a service that take messages of these topics and of no others: what waits for them has
    come this way.
    """
    of_service = next((each.handlers for each in answer.services if each.service == service), [])
    return [each for each in of_service if each.topics and topics.issuperset(each.topics)]


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A line through points that are far apart by curves that leave and arrive level."""
    (x, y), *_ = points
    drawn = [f"M{x:.1f} {y:.1f}"]
    for (ax, ay), (bx, by) in pairwise(points):
        half = (ax + bx) / 2
        drawn.append(f"C{half:.1f} {ay:.1f} {half:.1f} {by:.1f} {bx:.1f} {by:.1f}")
    return " ".join(drawn)
