"""The worker at a glance: its lanes, who owns the others, the choreography, and whether it is ready."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import asdict

from streams.control.base.answers import (
    HealthAnswer,
    LaneAnswer,
    OwnerAnswer,
    PausedAnswer,
    RouteAnswer,
    StandbyAnswer,
    WorkerAnswer,
)
from streams.control.base.view import LaneView, Problem, WorkerView
from streams.control.handlers.awaited_schemas import awaited, warning
from streams.control.handlers.handlers import paused_here
from streams.control.overview.health import (
    behind,
    breakers,
    fenced_often,
    foreign_writers,
    held_up,
    long_queues,
    not_consumed,
    not_yet,
    recovers,
    refused_timers,
    reopened_often,
    topics,
    unavailable_payloads,
    unreadable,
    waits,
    why_recovering,
    why_stuck,
)
from streams.logs import detached
from streams.model.application import Application
from streams.model.envelope import rfc3339
from streams.model.operations import HandlerPause
from streams.system.loopback import loopback_origin


def overview(view: WorkerView) -> WorkerAnswer:
    """All that the first page shows."""
    app = view.application
    reasons = why_not_ready(view)
    stuck = {lane.number for lane in view.stuck()}
    return WorkerAnswer(
        app_id=app.layout.app_id,
        url=view.url,
        slot=view.slot,
        pid=os.getpid(),
        partitions=app.layout.partitions,
        lane_count=app.layout.lanes,
        ready=not reasons,
        reasons=reasons,
        warnings=warnings(view),
        unreadable_announcements=view.unreadable_announcements,
        lanes=[_lane(view, lane, stuck=number in stuck) for number, lane in sorted(view.lanes.items())],
        standbys=[
            StandbyAnswer(lane=number, records=standby.records)
            for number, standby in sorted(view.standbys.items())
        ],
        owners=owners(view),
        choreography=_choreography(app),
        paused=_paused(view),
    )


def owners(view: WorkerView) -> list[OwnerAnswer]:
    """The owner of each lane, as far as the group has decided."""
    return [
        OwnerAnswer(lane=lane, url=url, here=url == view.url, link=loopback_origin(url) or "")
        for lane, url in sorted(view.assignment.owners.items())
    ]


def readiness(view: WorkerView) -> HealthAnswer:
    """Ready: in the group, every lane recovered, and every one with work makes progress. Degraded: ready, and
    an operator should look at it.
    """
    reasons, found = why_not_ready(view), warnings(view)
    status = "not ready" if reasons else "degraded" if found else "ready"
    return HealthAnswer(status=status, reasons=reasons, warnings=found)


def warnings(view: WorkerView) -> list[str]:
    """Warnings that need attention: another worker would not mend them."""
    gates = [gate for lane in view.lanes.values() for gate in lane.gates.values()]
    found = [*waits(view.lanes, view.standbys), *view.own_warnings, *detached.standing()]
    found += [warning(each) for each in awaited(gates)]
    found += breakers(gates)
    found += long_queues(gates, view.now())
    if view.assignment.owners:
        found += not_consumed(view.application.sources, view.assignment)
    found += not_yet(gates)
    found += unavailable_payloads(gates)
    found += [
        text for _, each in sorted(view.lanes.items()) for text in each.measures.bursts.texts(view.now())
    ]
    found += unreadable(lane for _, lane in sorted(view.lanes.items()))
    found += [text for _, lane in sorted(view.lanes.items()) if (text := behind(lane, view.now()))]
    for _, lane in sorted(view.lanes.items()):
        found += reopened_often(lane, view.now())
        found += [*held_up(lane), *fenced_often(lane, view.now()), *foreign_writers(lane)]
    found += topics(view.lanes.values(), view.now())
    found += refused_timers(view.lanes.values())
    if count := view.unreadable_announcements:
        announcements, its = ("1 announcement", "its") if count == 1 else (f"{count} announcements", "their")
        found.append(
            f"{announcements} on {view.application.layout.announcements} cannot be read, so {its} content"
            " stays unknown. announcement_unreadable in the log says which; write a correct record under the"
            " same key"
        )
    return found


def why_not_ready(view: WorkerView) -> list[str]:
    """Nothing when the worker is ready."""
    if view.stopping:
        return ["the worker is stopping: it finishes its commits and hands its lanes over"]
    if not view.assignment.owners:
        return ["the worker has not joined its group yet"]
    stuck = view.stuck()
    opening = [lane for _, lane in sorted(view.lanes.items()) if lane not in stuck and recovers(lane)]
    return [*map(why_recovering, opening), *(why_stuck(lane, view.now()) for lane in stuck)]


def _lane(view: WorkerView, lane: LaneView, *, stuck: bool) -> LaneAnswer:
    return LaneAnswer(
        lane=lane.number,
        state=lane.state.value,
        partitions=tuple(view.application.layout.partitions_of(lane.number)),
        backlog=lane.backlog,
        commits=lane.commits,
        fenced=lane.fenced,
        reopened=lane.reopened,
        recovered=lane.recovered,
        counters=asdict(lane.counters),
        seconds_since_progress=round(max(0.0, view.now() - lane.last_progress), 1),
        stuck=stuck,
        error="" if lane.error is None else f"{type(lane.error).__name__}: {lane.error}",
    )


def _paused(view: WorkerView) -> list[PausedAnswer]:
    found: dict[str, list[HandlerPause]] = {}
    for lane in view.lanes:
        with suppress(Problem):  # one that is not open shows so
            for (handler, _), pause in paused_here(view, lane).items():
                found.setdefault(handler, []).append(pause)
    answers = []
    for handler, pauses in sorted(found.items()):
        newest = max(pauses, key=lambda pause: pause.since_ms)
        answers.append(
            PausedAnswer(
                handler=handler,
                partitions=dict(Counter(str(pause.state) for pause in pauses)),
                since=rfc3339(newest.since_ms / 1000),
                who=newest.who,
                why=newest.why,
            )
        )
    return answers


def _choreography(app: Application) -> list[RouteAnswer]:
    return [
        RouteAnswer(
            topic=topic,
            message=app.wiring.routes[topic].message.__name__,
            handlers=tuple(handler.name for handler in route.handlers),
            inbox=route.inbox,
        )
        for topic, route in app.routes.items()
    ]
