"""The whole application at a glance: every worker sends its part, and the one with the page merges them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from streams.control.base.merging import merged_by
from streams.control.base.others import Others, beside_address
from streams.control.base.view import Problem, WorkerView
from streams.control.overview.flow_answers import (
    Flow,
    HandlerPart,
    HandlerShown,
    LaneCounts,
    OverviewAnswer,
    ServiceShown,
    TopicPart,
    TopicShown,
    Warned,
    WorkerPart,
)
from streams.control.overview.flow_part import worker_part
from streams.control.overview.last_known import LastKnown
from streams.control.overview.problems import (
    AWAY,
    BROKERS,
    of_gone_handlers,
    of_handlers,
    of_kafka,
    of_sagas,
    of_silent,
    of_slow,
    of_topics,
)
from streams.control.overview.rates import RatePoller, percentile
from streams.control.overview.samples import LaneSample
from streams.engine.staging.measures import DURATIONS
from streams.model.application import Application
from streams.model.envelope import rfc3339

PART_PATH = "/api/overview/part"
#: Seconds after which counts of a lane are called old: a lane with many rows is counted more seldom.
OLD = 30.0


async def overview_of(
    view: WorkerView,
    looks: RatePoller,
    samples: Mapping[int, LaneSample],
    others: Others[WorkerPart],
    last_known: LastKnown,
) -> OverviewAnswer:
    """The overview of all workers, also those without a lane. One that does not answer in time is there as
    silent, and its lanes count as `last_known` has them.
    """
    own = worker_part(view, looks, samples)
    parts = [own, *await _ask_parts(view, others)]
    ordered = sorted(last_known.take(parts), key=lambda part: (part.slot < 0, part.slot, part.url))
    return shown(view, merge(ordered, last_known.counts, view.now(), last_known.warnings(), view.patience))


async def _ask_parts(view: WorkerView, others: Others[WorkerPart]) -> list[WorkerPart]:
    """The parts of the other workers; of one without an answer only why, and the lanes that it owns."""
    answers = await others.each(view, PART_PATH)
    return [
        _silent(view, url, answer) if isinstance(answer, Problem) else answer
        for url, answer in answers.items()
    ]


def _silent(view: WorkerView, url: str, problem: Problem) -> WorkerPart:
    owns = sorted(lane for lane, owner in view.assignment.owners.items() if owner == url)
    return WorkerPart(url=url, silent=beside_address(problem), owns=owns)


# -- together ---------------------------------------------------------------------------------------------


def merge(
    parts: Iterable[WorkerPart],
    counts: Mapping[int, LaneCounts] = {},
    now: float = 0.0,
    lost: Sequence[Warned] = (),
    moved_within: float = 0.0,
) -> Flow:
    """The parts of all workers as one. Rates, lags and counts add up; of ages the oldest counts. `counts` are
    those of each lane at `now`, in epoch seconds; `lost` are warnings of what is not there any more. Lanes of
    a worker that has died move within `moved_within` seconds.
    """
    workers = list(parts)
    topics = merged_by((topic for worker in workers for topic in worker.topics), "topic")
    handlers = [handler for worker in workers for handler in worker.handlers]
    for lane in counts.values():
        handlers += [_counted(name, lane, now) for name in dict.fromkeys([*lane.waiting, *lane.letters])]
    handlers = merged_by(handlers, "handler")
    own = [each for worker in workers for each in worker.warnings]
    away = [*of_kafka(workers), *(replace(each, do=BROKERS) for each in own if each.text.startswith(AWAY))]
    warned = [*away[:1], *of_silent(workers, moved_within), *lost]
    warned += [*of_slow(workers), *(each for each in own if not each.text.startswith(AWAY))]
    warned += [*of_handlers(handlers), *of_topics(topics)]
    flow = Flow(
        topics={each.topic: each for each in topics},
        handlers={each.handler: each for each in handlers},
        workers=workers,
        warnings=[],
        counts=dict(counts),
    )
    warned += of_sagas(flow)
    severe = sorted(warned, key=_severity)  # it is stable
    return replace(flow, warnings=severe)


def _severity(warned: Warned) -> tuple[bool, bool, bool, int]:
    """What is stopped comes first, then what does not answer, then decisions: sagas, and by their numbers."""
    decision = warned.word == "Needs a decision"
    return not warned.grave, warned.word != "Stopped", decision, -warned.weight


def _counted(handler: str, lane: LaneCounts, now: float) -> HandlerPart:
    """The rows of a handler in a lane."""
    return HandlerPart(
        handler=handler,
        waiting=lane.waiting.get(handler, {}),
        oldest_waiting=round(max(0.0, now - lane.oldest.get(handler, now)), 1),
        letters=lane.letters.get(handler, 0),
        letter_errors=lane.letter_errors.get(handler, []),
        held_sagas=lane.held_sagas.get(handler, 0),
        letters_since=rfc3339(lane.letters_since[handler]) if handler in lane.letters_since else "",
    )


# -- as it is shown ---------------------------------------------------------------------------------------


def shown(view: WorkerView, flow: Flow) -> OverviewAnswer:
    """A flow, with what the wiring knows of it."""
    app = view.application
    owned = {lane for part in flow.workers for lane in part.owns}
    ages = {lane: max(0.0, view.now() - counts.at) for lane, counts in sorted(flow.counts.items())}
    return OverviewAnswer(
        counted=max(ages.values(), default=None),
        old_counts={lane: age for lane, age in ages.items() if age > OLD},
        uncounted=[lane for lane in range(app.layout.lanes) if lane not in ages] if ages else [],
        silent_lanes=sorted(lane for part in flow.workers if part.silent for lane in part.owns),
        sagas=flow.sagas,
        stalled=flow.stalled,
        app_id=app.layout.app_id,
        asked=view.url,
        at=rfc3339(view.now()),
        warnings=[*of_gone_handlers(app, flow.handlers.values()), *flow.warnings],
        rate=sum(each.rate for each in flow.handlers.values()),
        lag=sum(each.lag for each in flow.topics.values()),
        waiting=sum(each.waits for each in flow.handlers.values()),
        letters=sum(each.letters for each in flow.handlers.values()),
        lanes=app.layout.lanes,
        homeless=[lane for lane in range(app.layout.lanes) if lane not in owned],
        workers=flow.workers,
        services=_services(app, flow),
        topics=_topics(app, flow),
    )


def _services(app: Application, flow: Flow) -> list[ServiceShown]:
    takes: dict[str, list[str]] = {}
    for topic, route in app.routes.items():
        for handler in route.handlers:
            takes.setdefault(handler.name, []).append(topic)
    by_service: dict[str, list[HandlerShown]] = {}
    for name in dict.fromkeys([*app.handlers, *flow.handlers]):
        numbers = flow.handlers.get(name) or HandlerPart(handler=name)
        made = HandlerShown(
            handler=name,
            topics=takes.get(name, []),
            numbers=numbers,
            p50=percentile(numbers.durations, DURATIONS, 0.5),
            p95=percentile(numbers.durations, DURATIONS, 0.95),
        )
        by_service.setdefault(service_of(name), []).append(made)
    return [ServiceShown(service=service, handlers=found) for service, found in by_service.items()]


def service_of(handler: str) -> str:
    """Whose handler it is: its name begins with that of its service."""
    return handler.partition(".")[0]


def _topics(app: Application, flow: Flow) -> list[TopicShown]:
    senders: dict[str, list[str]] = {}
    for handler in app.wiring.handlers():
        for message in handler.sends:
            services = senders.setdefault(message.TOPIC, [])
            if handler.service not in services:
                services.append(handler.service)
    found = []
    names = {topic: message.__name__ for topic, message in app.wiring.messages().items()}
    for topic, name in (names | dict.fromkeys(app.wiring.sources(), "a source")).items():
        route = app.routes.get(topic)
        takers = dict.fromkeys(service_of(each.name) for each in route.handlers) if route else {}
        found.append(
            TopicShown(
                topic=topic,
                message=name,
                senders=senders.get(topic, []),
                takers=list(takers),
                numbers=flow.topics.get(topic) or TopicPart(topic=topic),
            )
        )
    return found
