"""The kinds of faults, what is to be said of each, and about how long each takes."""

from __future__ import annotations

from enum import StrEnum

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


class FaultKind(StrEnum):
    """What is done."""

    KILL_WORKER = "kill_worker"
    KILL_AT_POINT = "kill_at_point"
    FREEZE_WORKER = "freeze_worker"
    FREEZE_AT_POINT = "freeze_at_point"
    CLOCK_AHEAD = "clock_ahead"
    DISK_FULL = "disk_full"
    TOO_MANY_FILES = "too_many_files"
    KILL_BROKER = "kill_broker"
    RESTART_BROKER = "restart_broker"
    PAUSE_BROKER = "pause_broker"
    KILL_COORDINATOR = "kill_coordinator"
    ROLLING_RESTART = "rolling_restart"
    ROLLING_DEPLOY = "rolling_deploy"
    ADD_WORKER = "add_worker"
    REMOVE_WORKER = "remove_worker"
    NETWORK_CUT = "network_cut"
    NETWORK_BLACKHOLE = "network_blackhole"
    NETWORK_DELAY = "network_delay"
    GATEWAY_DOWN = "gateway_down"
    GATEWAY_DOWN_IN_LOW_TRAFFIC = "gateway_down_in_low_traffic"
    GATEWAY_SLOW = "gateway_slow"
    GATEWAY_LOSES_ANSWERS = "gateway_loses_answers"
    HANDLERS_FAIL = "handlers_fail"
    KILL_RELAY = "kill_relay"
    FREEZE_RELAY = "freeze_relay"
    KILL_API = "kill_api"
    KILL_POSTGRES = "kill_postgres"
    SILENT_POSTGRES = "silent_postgres"
    LOCK_OUTBOX = "lock_outbox"
    S3_DOWN = "s3_down"
    S3_CUT = "s3_cut"
    S3_SLOW = "s3_slow"
    SLEEP_PAST_TOMBSTONES = "sleep_past_tombstones"
    CHANGE_LANES = "change_lanes"
    RECREATE_TOPIC = "recreate_topic"
    OUTAGE = "outage"


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
        which: the relay or the orders API that it hits, of the two that there are.
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


OF_BROKERS = {
    FaultKind.KILL_BROKER,
    FaultKind.RESTART_BROKER,
    FaultKind.PAUSE_BROKER,
    FaultKind.KILL_COORDINATOR,
}
OF_EDGES = {
    FaultKind.NETWORK_DELAY,
    FaultKind.GATEWAY_DOWN,
    FaultKind.GATEWAY_DOWN_IN_LOW_TRAFFIC,
    FaultKind.GATEWAY_SLOW,
    FaultKind.GATEWAY_LOSES_ANSWERS,
    FaultKind.HANDLERS_FAIL,
    FaultKind.S3_DOWN,
    FaultKind.S3_CUT,
    FaultKind.S3_SLOW,
}
#: The database edge: relays of the outbox, orders APIs, PostgreSQL.
OF_DATABASE = {
    FaultKind.KILL_RELAY,
    FaultKind.FREEZE_RELAY,
    FaultKind.KILL_API,
    FaultKind.KILL_POSTGRES,
    FaultKind.SILENT_POSTGRES,
    FaultKind.LOCK_OUTBOX,
}
#: Of those, the ones that hit one of two.
OF_ONE_OF_TWO = {FaultKind.KILL_RELAY, FaultKind.FREEZE_RELAY, FaultKind.KILL_API}
#: These let handlers fail, which costs messages attempts.
COSTS_ATTEMPTS = {
    FaultKind.GATEWAY_DOWN,
    FaultKind.GATEWAY_DOWN_IN_LOW_TRAFFIC,
    FaultKind.GATEWAY_LOSES_ANSWERS,
    FaultKind.HANDLERS_FAIL,
    FaultKind.S3_DOWN,
    FaultKind.S3_CUT,
}
OF_WORKERS = set(FaultKind) - OF_BROKERS - OF_EDGES - OF_DATABASE
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
OF_ALL = {FaultKind.ROLLING_RESTART, FaultKind.ROLLING_DEPLOY, FaultKind.RECREATE_TOPIC, FaultKind.OUTAGE}

#: About how long each takes until it has healed, in seconds: what the deck is dealt by.
TAKES = {
    FaultKind.KILL_WORKER: 9,
    FaultKind.KILL_AT_POINT: 11,
    FaultKind.FREEZE_WORKER: 17,
    FaultKind.FREEZE_AT_POINT: 19,
    FaultKind.CLOCK_AHEAD: 16,
    FaultKind.DISK_FULL: 16,
    FaultKind.TOO_MANY_FILES: 12,
    FaultKind.KILL_BROKER: 14,
    FaultKind.RESTART_BROKER: 12,
    FaultKind.PAUSE_BROKER: 25,
    FaultKind.KILL_COORDINATOR: 14,
    FaultKind.ROLLING_RESTART: 16,
    FaultKind.ROLLING_DEPLOY: 18,
    FaultKind.ADD_WORKER: 6,
    FaultKind.REMOVE_WORKER: 10,
    FaultKind.NETWORK_CUT: 16,
    FaultKind.NETWORK_BLACKHOLE: 16,
    FaultKind.NETWORK_DELAY: 9,
    FaultKind.GATEWAY_DOWN: 9,
    FaultKind.GATEWAY_DOWN_IN_LOW_TRAFFIC: 32,
    FaultKind.GATEWAY_SLOW: 9,
    FaultKind.GATEWAY_LOSES_ANSWERS: 9,
    FaultKind.HANDLERS_FAIL: 9,
    FaultKind.KILL_RELAY: 6,
    FaultKind.FREEZE_RELAY: 15,
    FaultKind.KILL_API: 6,
    FaultKind.KILL_POSTGRES: 8,
    FaultKind.SILENT_POSTGRES: 22,
    FaultKind.LOCK_OUTBOX: 12,
    FaultKind.S3_DOWN: 16,
    FaultKind.S3_CUT: 9,
    FaultKind.S3_SLOW: 9,
    FaultKind.SLEEP_PAST_TOMBSTONES: 55,
    FaultKind.CHANGE_LANES: 40,
    FaultKind.RECREATE_TOPIC: 25,
    FaultKind.OUTAGE: 80,
}
LASTS: dict[FaultKind, tuple[float, float]] = {
    FaultKind.FREEZE_WORKER: (9.0, 12.0),
    FaultKind.FREEZE_AT_POINT: (9.0, 12.0),
    # Shorter than a worker keeps lanes that wait for its machine.
    FaultKind.CLOCK_AHEAD: (6.0, 9.0),
    FaultKind.DISK_FULL: (6.0, 9.0),
    FaultKind.TOO_MANY_FILES: (4.0, 7.0),
    FaultKind.SLEEP_PAST_TOMBSTONES: (DELETE_RETENTION + 2.0, DELETE_RETENTION + 4.0),
    FaultKind.PAUSE_BROKER: (20.0, 20.0),
    FaultKind.NETWORK_CUT: (9.0, 12.0),
    FaultKind.NETWORK_BLACKHOLE: (9.0, 12.0),
    FaultKind.NETWORK_DELAY: (6.0, 10.0),
    FaultKind.GATEWAY_DOWN: (4.0, 8.0),
    # Longer than all attempts of a message take: six, of which each asks for 2 s, and 11.3 s between them.
    FaultKind.GATEWAY_DOWN_IN_LOW_TRAFFIC: (28.0, 32.0),
    FaultKind.GATEWAY_SLOW: (5.0, 8.0),
    FaultKind.GATEWAY_LOSES_ANSWERS: (3.0, 6.0),
    FaultKind.HANDLERS_FAIL: (4.0, 8.0),
    FaultKind.FREEZE_RELAY: (12.0, 14.0),  # longer than its lease of 10 s
    FaultKind.KILL_POSTGRES: (1.0, 4.0),
    FaultKind.SILENT_POSTGRES: (13.0, 16.0),  # longer than a relay's statement may take
    FaultKind.LOCK_OUTBOX: (5.0, 9.0),  # longer than two attempts of a relay to mark
    FaultKind.S3_DOWN: (6.0, 9.0),  # its clients give an answer up after 5 s
    FaultKind.S3_CUT: (4.0, 8.0),
    FaultKind.S3_SLOW: (5.0, 8.0),
    FaultKind.OUTAGE: (60.0, 60.0),  # twice as long as a saga waits for a reply
}
#: How often handlers fail while they do.
RATES = {FaultKind.HANDLERS_FAIL: (0.05, 0.3)}
DELAYS = {
    FaultKind.NETWORK_DELAY: (0.05, 0.2),
    FaultKind.GATEWAY_SLOW: (0.2, 0.6),
    FaultKind.S3_SLOW: (0.2, 0.6),
}
