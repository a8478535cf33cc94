"""Answers of the pages and their JSON: each answer is one of these, whichever way it is written."""

from __future__ import annotations

from typing import Any

import msgspec


class LaneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A lane that this worker runs. Counters are since this worker took it."""

    lane: int
    state: str
    partitions: tuple[int, ...]
    backlog: int
    commits: int
    fenced: int
    reopened: int
    recovered: int
    counters: dict[str, int]
    seconds_since_progress: float
    stuck: bool
    error: str


class StandbyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A lane that this worker follows."""

    lane: int
    records: int


class OwnerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns a lane. `link` is the address when it may be followed: on this machine."""

    lane: int
    url: str
    here: bool
    link: str


class RouteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the choreography."""

    topic: str
    message: str
    handlers: tuple[str, ...]
    inbox: bool


class PausedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A handler that does not just run in all partitions of this worker: in how many it does what."""

    handler: str
    partitions: dict[str, int]
    since: str
    who: str
    why: str


class WorkerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at a glance. It may be ready with `warnings`."""

    app_id: str
    url: str
    slot: int
    pid: int
    partitions: int
    lane_count: int
    ready: bool
    reasons: list[str]
    warnings: list[str]
    unreadable_announcements: int = 0
    lanes: list[LaneAnswer]
    standbys: list[StandbyAnswer]
    owners: list[OwnerAnswer]
    choreography: list[RouteAnswer]
    paused: list[PausedAnswer]


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """A table in one lane: about how many rows, and bytes in files and memory; who owns it, and who has a
    copy.
    """

    lane: int
    partitions: tuple[int, ...]
    owner: str
    standbys: tuple[str, ...]
    rows: int
    bytes: int


class TableAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A table that can be browsed. `parts` has its size, lane by lane, where the query says so."""

    name: str
    about: str
    changelog: str
    builtin: bool
    parts: list[TablePart] = []

    @property
    def rows(self) -> int:
        """About how many, in the lanes that have answered."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        """About what they take."""
        return sum(part.bytes for part in self.parts)


class TablesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All tables. `left_out` are lanes whose sizes are not known, with why."""

    tables: list[TableAnswer]
    left_out: dict[int, str] = {}


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A row. `schema` is the fingerprint of its writer's schema; `error` says why there is no value, and
    `hex` has the beginning of its bytes then.
    """

    key: str
    subkey: str
    partition: int
    lane: int
    value: Any = None
    schema: str = ""
    error: str = ""
    hex: str = ""

    @property
    def status(self) -> str:
        """The text of its field `status`; empty: it has none."""
        found = self.value.get("status") if isinstance(self.value, dict) else ""
        return found if isinstance(found, str) else ""


class StaleAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that rows are from a standby's copy, because their owner does not answer.

    Attributes:
        worker: whose copy it is.
        behind: offsets of changelogs that it lacks, markers counted, as far as it knows; None: not known.
        seconds: since it last had every record below the end that brokers reported; None: never so far.
        why: what is known of the owner.
    """

    lane: int
    worker: str
    behind: int | None
    seconds: float | None
    why: str


class BrowseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a table's rows in the lanes of one worker.

    Attributes:
        table: which table.
        owner: the worker's address.
        lanes: whose rows these are.
        left_out: lanes of this worker that are not open, with why: their rows are missing here.
        owners: who has the other lanes' rows.
        rows: of all pages together each row once, as far as nothing changes meanwhile.
        next: cursor of the next page; empty on the last one.
        stale: of which lanes these are the rows of a standby, which may be older.
    """

    table: TableAnswer
    owner: str
    lanes: list[int]
    left_out: dict[int, str]
    owners: list[OwnerAnswer]
    rows: list[RowAnswer]
    next: str
    stale: list[StaleAnswer] = []


class FoundAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a key, from its owner, or, with `stale`, from a standby."""

    table: str
    key: str
    partition: int
    lane: int
    owner: str
    rows: list[RowAnswer]
    next: str
    stale: StaleAnswer | None = None


class HealthAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the worker is well; `reasons` say why not, `warnings` what needs attention anyway."""

    status: str
    reasons: list[str] = []
    warnings: list[str] = []
