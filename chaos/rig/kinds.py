"""The kinds of faults: what each hits, and how long it lasts."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

import msgspec

WORKERS = 3
#: Slots that the schedule uses: a fourth worker may be added.
SLOTS = 4
BROKERS = 3
#: The application begins with `LANES`; another number of them shares no lane with that one.
PARTITIONS, LANES, LANES_AFTER = 12, 6, 4
#: How long changelogs keep deletions, in seconds. Copies that are older than half of it are rebuilt: no fault
#: but one freezes a worker for so long, and a rebuild of what half an hour has written must take less.
DELETE_RETENTION = 45.0
RECOVERING = "recovering"
POINTS = ("staged", "begun", "sent", "offsets_sent", "committed", RECOVERING)


Range = tuple[float, float]
_NEVER = (0.0, 0.0)


class FaultTarget(StrEnum):
    """What a fault hits."""

    WORKER = "worker"
    BROKER = "broker"
    EDGE = "edge"  # the network of a worker, the gateway, the object store, handlers
    DATABASE = "database"  # relays of the outbox, orders APIs, PostgreSQL


_WORKER, _BROKER, _EDGE, _DATABASE = FaultTarget


class FaultKind(StrEnum):
    """A kind of fault; `chaos.faults` has a function of its name.

    Attributes:
        target: what it hits.
        takes: about how long it takes until it has healed, in seconds: the deck is dealt by this.
        lasts: how long it lasts, where the schedule decides that, in seconds.
        delay: how much slower the network, the gateway or the object store is, in seconds.
        rate: how often a handler fails, from 0 to 1.
    """

    target: FaultTarget
    takes: float
    lasts: Range
    delay: Range
    rate: Range

    def __new__(
        cls,
        name: str,
        target: FaultTarget,
        takes: float,
        lasts: Range = _NEVER,
        delay: Range = _NEVER,
        rate: Range = _NEVER,
    ) -> Self:
        """A member: its fields stand beside its name."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.target, kind.takes, kind.lasts, kind.delay, kind.rate = target, takes, lasts, delay, rate
        return kind

    KILL_WORKER = "kill_worker", _WORKER, 9
    KILL_AT_POINT = "kill_at_point", _WORKER, 11
    FREEZE_WORKER = "freeze_worker", _WORKER, 17, (9.0, 12.0)
    FREEZE_AT_POINT = "freeze_at_point", _WORKER, 19, (9.0, 12.0)
    # Shorter than a worker keeps lanes that wait for its machine.
    CLOCK_AHEAD = "clock_ahead", _WORKER, 16, (6.0, 9.0)
    FAILING_DISK = "failing_disk", _WORKER, 28, (6.0, 30.0)
    TOO_MANY_FILES = "too_many_files", _WORKER, 12, (4.0, 7.0)
    # Longer than the session.
    UNREAD_LOGS = "unread_logs", _WORKER, 13, (8.0, 10.0)
    GROUP_DENIED = "group_denied", _WORKER, 18, (8.0, 10.0)
    KILL_BROKER = "kill_broker", _BROKER, 14
    RESTART_BROKER = "restart_broker", _BROKER, 12
    PAUSE_BROKER = "pause_broker", _BROKER, 25, (20.0, 20.0)
    KILL_COORDINATOR = "kill_coordinator", _BROKER, 14
    ROLLING_RESTART = "rolling_restart", _WORKER, 16
    ROLLING_DEPLOY = "rolling_deploy", _WORKER, 18
    ADD_WORKER = "add_worker", _WORKER, 6
    REMOVE_WORKER = "remove_worker", _WORKER, 10
    NETWORK_CUT = "network_cut", _WORKER, 16, (9.0, 12.0)
    NETWORK_BLACKHOLE = "network_blackhole", _WORKER, 16, (9.0, 12.0)
    NETWORK_DELAY = "network_delay", _EDGE, 9, (6.0, 10.0), (0.05, 0.2)
    GATEWAY_DOWN = "gateway_down", _EDGE, 9, (4.0, 8.0)
    # Longer than all attempts of a message: six of 2 s each, and 11.3 s between them.
    GATEWAY_DOWN_IN_LOW_TRAFFIC = "gateway_down_in_low_traffic", _EDGE, 32, (28.0, 32.0)
    GATEWAY_SLOW = "gateway_slow", _EDGE, 9, (5.0, 8.0), (0.2, 0.6)
    GATEWAY_LOSES_ANSWERS = "gateway_loses_answers", _EDGE, 9, (3.0, 6.0)
    HANDLERS_FAIL = "handlers_fail", _EDGE, 9, (4.0, 8.0), _NEVER, (0.05, 0.3)
    KILL_RELAY = "kill_relay", _DATABASE, 6
    # Longer than its lease of 10 s.
    FREEZE_RELAY = "freeze_relay", _DATABASE, 15, (12.0, 14.0)
    KILL_API = "kill_api", _DATABASE, 6
    KILL_POSTGRES = "kill_postgres", _DATABASE, 8, (1.0, 4.0)
    # Longer than a relay's statement may take.
    SILENT_POSTGRES = "silent_postgres", _DATABASE, 22, (13.0, 16.0)
    # Longer than two attempts of a relay to mark rows.
    LOCK_OUTBOX = "lock_outbox", _DATABASE, 12, (5.0, 9.0)
    # The copy, the promotion, two rounds of work of the edge, and the former's place taken.
    FAILOVER_POSTGRES = "failover_postgres", _DATABASE, 30
    # Its clients stop waiting for an answer after 5 s.
    S3_DOWN = "s3_down", _EDGE, 16, (6.0, 9.0)
    S3_CUT = "s3_cut", _EDGE, 9, (4.0, 8.0)
    S3_SLOW = "s3_slow", _EDGE, 9, (5.0, 8.0), (0.2, 0.6)
    # Longer than changelogs keep deletions.
    SLEEP_PAST_TOMBSTONES = (
        "sleep_past_tombstones",
        _WORKER,
        55,
        (DELETE_RETENTION + 2.0, DELETE_RETENTION + 4.0),
    )
    CHANGE_LANES = "change_lanes", _WORKER, 40
    RECREATE_TOPIC = "recreate_topic", _WORKER, 25
    # Twice as long as a saga waits for a reply.
    OUTAGE = "outage", _WORKER, 80, (60.0, 60.0)


class AfterKill(StrEnum):
    """What follows the end of a killed worker."""

    SAME = "the same directory"
    EMPTIED = "an emptied directory"
    NEVER = "never"


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A fault to come.

    Attributes:
        at: seconds after the load has begun, at the earliest: a fault that does not stand `beside` the one
            before waits until that one has healed.
        calm: how long nothing happens before it, in seconds, so that the fault before can be judged alone.
        beside: it begins while the fault before is under way.
        slot: the worker it hits or makes.
        broker: the broker it hits.
        lane: the lane whose transactions' coordinator it hits; None: the group's.
        after: what follows a kill.
        point: where in the commit protocol the worker ends or freezes, at its `nth` reach.
        seconds: how long it lasts, where that is ours to say.
        delay: by how much the network, the gateway or the object store is slower, in seconds.
        rate: how often a handler fails, from 0 to 1.
        which: the way that it takes, of those in `WAYS_OF`: the relay or the orders API that it hits, whether
            the former primary is killed, how a disk fails.
    """

    at: float
    kind: FaultKind
    calm: float = 0.0
    beside: bool = False
    slot: int | None = None
    broker: int | None = None
    lane: int | None = None
    after: AfterKill = AfterKill.SAME
    point: str = ""
    nth: int = 0
    seconds: float = 0.0
    delay: float = 0.0
    rate: float = 0.0
    which: int = 0


OF_BROKERS, OF_EDGES, OF_DATABASE, OF_WORKERS = (
    {kind for kind in FaultKind if kind.target is target} for target in (_BROKER, _EDGE, _DATABASE, _WORKER)
)
#: In how many ways these can go.
WAYS_OF = {
    FaultKind.KILL_RELAY: 2,
    FaultKind.FREEZE_RELAY: 2,
    FaultKind.KILL_API: 2,
    FaultKind.FAILOVER_POSTGRES: 2,
    FaultKind.FAILING_DISK: 4,
}
#: These let handlers fail, which costs messages attempts.
COSTS_ATTEMPTS = {
    FaultKind.GATEWAY_DOWN,
    FaultKind.GATEWAY_DOWN_IN_LOW_TRAFFIC,
    FaultKind.GATEWAY_LOSES_ANSWERS,
    FaultKind.HANDLERS_FAIL,
    FaultKind.S3_DOWN,
    FaultKind.S3_CUT,
}
#: They take long: a short run has one of them, a long one all, once.
RARE = (
    FaultKind.GATEWAY_DOWN_IN_LOW_TRAFFIC,
    FaultKind.SLEEP_PAST_TOMBSTONES,
    FaultKind.CHANGE_LANES,
    FaultKind.RECREATE_TOPIC,
)
#: Nothing else happens beside them.
ALONE = {FaultKind.OUTAGE, FaultKind.SLEEP_PAST_TOMBSTONES, FaultKind.CHANGE_LANES, FaultKind.RECREATE_TOPIC}
#: They hit all workers.
OF_ALL = {
    FaultKind.ROLLING_RESTART,
    FaultKind.ROLLING_DEPLOY,
    FaultKind.RECREATE_TOPIC,
    FaultKind.OUTAGE,
    FaultKind.GROUP_DENIED,
}
