"""What a run leaves in its directory for the checker, which shares nothing else with it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

RUN = "run.json"
COMMITS = "commits.json"
REQUESTS = "requests.json"
#: Bytes of a file that comes with an order at most.
LARGEST = 1_000_000
#: A worker that was killed, and killed again while it recovered: two faults in a row, and judged as such.
KILLED_TWICE = "kill_in_recovery"
#: Faults that hit nothing a lane needs but a processor: they excuse nothing that is late for tens of seconds.
OUTSIDE_LANES = frozenset(
    {
        "kill_relay",
        "freeze_relay",
        "kill_api",
        "kill_postgres",
        "silent_postgres",
        "lock_outbox",
        "failover_postgres",
    }
)
#: What the orders API has orders do: be settled by choreography, or by a saga.
Way: TypeAlias = Literal["placed", "submitted"]
#: The status of a request to which no answer came, and of one that is taken.
UNANSWERED, ACCEPTED = 0, 202


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that was injected. Times in seconds since the epoch.

    Attributes:
        kind: what it was, such as `kill_worker`.
        target: what it hit, such as `worker 2` or `broker 1`.
        began: when it was injected.
        ended: when what it hit was whole again: restarted, continued, reachable; None: never.
        confirmed: how it is known to have happened; empty: it was not seen to happen.
        slowed: how many times longer than on a machine of their own the workers' event loops took meanwhile,
            1 at least.
    """

    kind: str
    target: str
    began: float
    ended: float | None
    confirmed: str
    slowed: float = 1.0


class ProcessEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker process ended: `expected` by the driver or by itself, and within the time it had or not;
    one that is `refused` ends by itself with an error, because it does not fit the others any more.
    """

    worker: str
    pid: int
    exit_code: int
    expected: bool
    hung: bool
    refused: bool = False


class RunRecords(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as its driver saw it.

    Attributes:
        lanes: of the application when the run began.
        lanes_at_end: and when it ended; 0: as many.
        orders: how many purchases of the file were placed, from its start.
        load: when the first order was placed, and the last.
        notes: how many notes the rolling deploy's new topic was given; 0 without one.
        s3: where the object store is; empty: there is none.
        attached: the share of orders that came with files.
        poison_every: after one order in so many came a poisonous record; 0: after none.
        orchestrated: whether sagas see to half of the orders.
        called_off: beside which share of the orders there was one that a client called off.
        postgres: the URL of the database that the orders API wrote to; empty: there is none.
        edge: the processes of the database edge, relays and orders APIs.
    """

    seed: int
    app_id: str
    bootstrap: str
    gateway: str
    partitions: int
    lanes: int
    session_timeout: float
    orders: int
    load: tuple[float, float]
    faults: list[Happened]
    workers: list[ProcessEnd]
    notes: int = 0
    s3: str = ""
    attached: float = 0.0
    poison_every: int = 0
    orchestrated: bool = False
    called_off: float = 0.0
    lanes_at_end: int = 0
    postgres: str = ""
    edge: list[ProcessEnd] = []


def of_lanes(run: RunRecords) -> list[Happened]:
    """The faults that hit something a lane needs."""
    return [fault for fault in run.faults if fault.kind not in OUTSIDE_LANES]


class CommitTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When each lane was seen to commit by a reader of committed records, in seconds since the epoch."""

    seen: dict[int, list[float]]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request to the orders API, and the HTTP status of the last answer, `UNANSWERED` when none
    came.

    Attributes:
        placed: the answer to the order; `called_off`, to its cancellation.
    """

    order_id: str
    way: Way
    placed: int = UNANSWERED
    called_off: int = UNANSWERED

    @property
    def accepted(self) -> bool:
        """Whether the client was answered that the order is taken."""
        return self.placed == ACCEPTED


def lanes_of(run: RunRecords) -> int:
    """How many lanes the application had when the run ended."""
    return run.lanes_at_end or run.lanes


def read_run(var: Path) -> RunRecords:
    """The run that was made in this directory."""
    return msgspec.json.decode((var / RUN).read_bytes(), type=RunRecords)


def read_commits(var: Path) -> CommitTimes:
    """What the run's watch saw."""
    return msgspec.json.decode((var / COMMITS).read_bytes(), type=CommitTimes)


def read_requests(var: Path) -> list[Request]:
    """Clients' requests to the orders API; nothing where there was none."""
    path = var / REQUESTS
    return msgspec.json.decode(path.read_bytes(), type=list[Request]) if path.exists() else []
