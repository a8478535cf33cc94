"""Why a worker is not ready, or degraded, in words for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from streams.control.base.view import LaneView, StandbyView
from streams.engine.life.state import LaneState
from streams.engine.life.watchdog import stands_at
from streams.engine.waiting.gate import HandlerGate, LongQueue
from streams.engine.waiting.long_queues import longest
from streams.engine.way.held_up import Held
from streams.engine.way.measures import OFTEN, OFTEN_WITHIN
from streams.model.policy.assignment import Assignment
from streams.model.policy.breaker import BreakerState
from streams.ports import TP

#: A lane whose oldest message is older is behind, in seconds. `ops/worker-alerts.yml` has the same bound.
BEHIND_AFTER = 60.0
#: Rows that cannot be read which are named.
MOST_ROWS = 5
#: Partitions that a warning names.
MOST_SHOWN = 3


def recovers(lane: LaneView) -> bool:
    """Whether the lane opens for the first time here: no worker handles its messages yet."""
    return lane.state is LaneState.OPENING and not lane.reopened


def why_recovering(lane: LaneView) -> str:
    """The remaining work."""
    left = lane.measures.to_recover
    return f"lane {lane.number} is opening" + (f": {left} changelog records are left to read" if left else "")


def why_stuck(lane: LaneView, now: float) -> str:
    """Warning that the lane makes no progress: since when, and at what; the cause first where it is known."""
    if lane.trouble:
        return (
            f"{lane.trouble}; lane {lane.number} waits, without progress for {now - lane.last_progress:.0f} s"
        )
    at = f"; it waits for {found}" if (found := stands_at(lane.measures, lane.gates.values())) else ""
    last = f"; its last error: {lane.error}" if lane.error is not None else ""
    idle = now - lane.last_progress
    return f"lane {lane.number} is {lane.state}, without progress for {idle:.0f} s{at}{last}"


def waits(lanes: Mapping[int, LaneView], standbys: Mapping[int, StandbyView]) -> list[str]:
    """A warning for each cause that lanes or standbys wait out: the cause, then who waits."""
    found: dict[str, list[str]] = {}
    for number, lane in sorted(lanes.items()):
        found.setdefault(lane.trouble, []).append(f"lane {number}")
    for number, standby in sorted(standbys.items()):
        found.setdefault(standby.trouble, []).append(f"standby {number}")
    return [f"{trouble}; waiting: {', '.join(who)}" for trouble, who in found.items() if trouble]


def breakers(gates: Iterable[HandlerGate]) -> list[str]:
    """A warning for each handler that is left alone because what it calls has failed."""
    found = Counter(gate.handler for gate in gates if gate.breaker.state is not BreakerState.CLOSED)
    return [
        f"the circuit breaker of {handler} is open in {number} lane{'s' if number > 1 else ''}: what it calls"
        " fails, and its messages wait; handler_failed in the log says why"
        for handler, number in sorted(found.items())
    ]


def long_queues(gates: Iterable[HandlerGate], now: float) -> list[str]:
    """A warning for each handler behind which one key has a long queue, with its longest one."""
    found: dict[str, LongQueue] = {}
    for long in longest(gates):
        found.setdefault(long.handler, long)
    return [_long_queue(each, now) for each in found.values()]


def _long_queue(long: LongQueue, now: float) -> str:
    queue, key = long.queue, long.key.decode("utf-8", "backslashreplace")[:100]
    held = f" The key's partition has not been read for {now - long.since:.0f} s." if long.since else ""
    return (
        f"{queue.length:,} messages of key {key!r} wait for {long.handler} behind one that fails or waits:"
        f" {queue.bytes:,} of {long.most:,} bytes (STEADFAUST_MAX_WAITING_BYTES). Beyond this bound,"
        f" further messages of the key become dead letters.{held} handler_failed in the log says why the"
        " first one fails"
    )


def foreign_writers(lane: LaneView) -> list[str]:
    """A warning for each topic of the lane alone to which another producer writes, too."""
    return [
        f"{topic} has records of another writer: to keep the order of the log, lane {lane.number} now reads"
        " back what it sends there instead of handling it at once. Do not set SAME_KEY for a topic"
        " that others write to"
        for topic in sorted({tp.topic for tp in lane.foreign})
    ]


def fenced_often(lane: LaneView, now: float) -> list[str]:
    """A warning, if another worker opens the lane again and again."""
    if not lane.measures.fenced_often(now):
        return []
    why = (
        f"lane {lane.number} was fenced {OFTEN} times in {OFTEN_WITHIN:.0f} s: another worker opens"
        " it, too. Do two machines share a STEADFAUST_VAR directory, or a copy of it, or is a transaction"
        " longer than its timeout? lane_reopens in the log says how it was fenced"
    )
    return [why]


def reopened_often(lane: LaneView, now: float) -> list[str]:
    """A warning, if the lane had to open again and again, unless another one says why."""
    measures = lane.measures
    if lane.trouble or measures.fenced_often(now) or not measures.reopened_often(now):
        return []
    why = (
        f"lane {lane.number} had to reopen {OFTEN} times in {OFTEN_WITHIN:.0f} s, and its messages wait"
        f" in the meantime; its last error: {lane.error}. lane_reopens in the log says why each time"
    )
    return [why]


def held_up(lane: LaneView) -> list[str]:
    """A warning for each partition of the lane that waits for another client's open transaction."""
    watch = lane.measures.held_up
    if watch is None:
        return []
    return [
        f"{tp.topic}[{tp.partition}] has been blocked at offset {held.at.first} for"
        f" {watch.looked - held.since:.0f} s, and {held.at.behind} offsets wait behind: {_whose(held)} has a"
        " transaction open there. It ends when its client commits, or after its transaction.timeout.ms;"
        " docs/operating.md says how to end it"
        for tp, held in watch.long().items()
    ]


def topics(lanes: Iterable[LaneView], now: float) -> list[str]:
    """A warning for each topic that is gone, has another number of partitions, or lost records unread."""
    gone: dict[str, float] = {}
    differ: dict[str, int] = {}
    late: dict[TP, int] = {}
    for lane in lanes:
        standing = lane.measures.topics
        differ |= standing.partitions
        late |= standing.late
        for topic, since in standing.gone.items():
            gone[topic] = min(since, gone.get(topic, since))
    found = [
        f"topic {topic} has been gone for {now - since:.0f} s: it is neither read nor written. If it is"
        ' created again, it is a different topic; see docs/operating.md, "A topic is gone"'
        for topic, since in sorted(gone.items())
    ]
    found += [
        f"topic {topic} has {number} partitions, which is not the application's number: no worker can start"
        " like this. Stop the workers, and create it again with the right number"
        for topic, number in sorted(differ.items())
    ]
    by_topic: dict[str, list[tuple[TP, int]]] = {}
    for tp, offset in sorted(late.items()):
        by_topic.setdefault(tp.topic, []).append((tp, offset))
    for topic, begins in by_topic.items():
        shown = ", ".join(f"{tp.topic}[{tp.partition}] at {offset}" for tp, offset in begins[:MOST_SHOWN])
        more = f" and {len(begins) - MOST_SHOWN} more" if len(begins) > MOST_SHOWN else ""
        found.append(
            f"up to {sum(offset for _, offset in begins)} records of {topic} were deleted before they were"
            f" read: its log does not begin at 0 ({shown}{more}). This warning stays until the worker is"
            " restarted; see"
            ' docs/operating.md, "A log begins late"'
        )
    return found


def refused_timers(lanes: Iterable[LaneView]) -> list[str]:
    """A warning for each timer that waits since the broker refuses its message, up to a few."""
    texts = [text for lane in lanes for text in lane.measures.refused_timers.values()]
    more = len(texts) - MOST_SHOWN
    also = [f"{more} more timers wait: timer_refused in the log says which"] if more > 0 else []
    return texts[:MOST_SHOWN] + also


def _whose(held: Held) -> str:
    if held.by is None:
        return "a producer that the cluster has not named"
    called = f"{held.by.transactional_id!r} " if held.by.transactional_id else ""
    return f"producer {called}(id {held.by.producer}, epoch {held.by.epoch})"


def not_consumed(sources: Iterable[str], assignment: Assignment) -> list[str]:
    """A warning for each topic of this worker that waits until every member of the group consumes it."""
    return [
        f"{topic} is not consumed yet: {_lacking(assignment, topic)} does not know it. Finish the deploy,"
        " or stop the workers that lack it; then all lanes consume it"
        for topic in sorted(set(sources) - set(assignment.topics))
    ]


def _lacking(assignment: Assignment, topic: str) -> str:
    return " and ".join(assignment.waiting.get(topic, ())) or "another worker"


def not_yet(gates: Iterable[HandlerGate]) -> list[str]:
    """A warning for each handler that has messages which only another version of the application can take."""
    found: dict[str, list[str]] = {}
    for gate in gates:
        found.setdefault(gate.handler, []).extend(gate.not_yet.values())
    return [
        f"{f'{len(why)} keys' if len(why) > 1 else '1 key'} of {handler} wait for another version of the"
        f" application: {why[0]}"
        for handler, why in sorted(found.items())
        if why
    ]


def unavailable_payloads(gates: Iterable[HandlerGate]) -> list[str]:
    """A warning for each handler and cause for which the object store does not give or take payloads."""
    found: dict[tuple[str, str], list[str]] = {}
    for gate in gates:
        for each in gate.unavailable.values():
            found.setdefault((gate.handler, each.cause), []).append(each.error)
    return [
        f"{f'{len(errors)} messages wait' if len(errors) > 1 else '1 message waits'} for the object store"
        f" ({handler}): {errors[-1]}"
        for (handler, _), errors in sorted(found.items())
    ]


def unreadable(lanes: Iterable[LaneView]) -> list[str]:
    """A warning for each row that cannot be read, up to a few, and how many more there are."""
    texts = [text for lane in lanes for text in lane.unreadable.texts()]
    more = len(texts) - MOST_ROWS
    also = [f"{more} more rows cannot be read: row_unreadable in the log says which"] if more > 0 else []
    return texts[:MOST_ROWS] + also


def behind(lane: LaneView, now: float) -> str:
    """A warning, if it handles messages long after they were written; else empty."""
    age = lane.measures.oldest_age(now) if lane.state is LaneState.OPEN else None
    if age is None or age <= BEHIND_AFTER:
        return ""
    return (
        f"lane {lane.number} is behind: its oldest message was written {age:.0f} s ago,"
        f" and {lane.measures.lag} wait"
    )
