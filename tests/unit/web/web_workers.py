"""Workers as the pages see them, made of stores in memory: no Faust, no Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp.test_utils import TestClient, TestServer

from streams.dead_letters.row import encode_letter, key_of, letter_id, local_key, new_letter
from streams.lane.measures import LaneMeasures
from streams.lane.state import LaneState
from streams.model.application import Application, LaneOptions
from streams.model.choreography import choreography, on
from streams.model.codecs import encode_row, json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.message import Message, Row
from streams.model.outcome import nothing
from streams.model.table import Table, row_key
from streams.policy.assignment import Assignment
from streams.ports import TP, Outgoing, Store, Write
from streams.retry.gate import HandlerGate
from streams.saga.views import ChoreographedSaga
from streams.staging.arrival import Counters
from streams.staging.keys import store_key
from streams.staging.measures import HandlerMeasures
from streams.testing.log import FakeRecord
from streams.testing.store import MemoryStores
from streams.web.access import Access
from streams.web.routes import application
from streams.web.scans import Question, Scan

NOW = 1_800_000_000.0


class Parcel(Row, frozen=True, kw_only=True):
    """A parcel, weighed. And more that is not shown."""

    note: str = ""


class ParcelSeen(Message, frozen=True, kw_only=True):
    TOPIC = "post.parcel.seen.v1"
    id: str

    @property
    def key(self):
        return self.id


PARCELS = Table("parcels", Parcel)
post = Service("post")


@post.handler(parcel=PARCELS)
def note(seen: ParcelSeen, parcel):
    return nothing("seen")


def make_application(*, partitions: int = 8, lanes: int = 4, **lane_options: Any) -> Application:
    wiring = choreography(on(ParcelSeen, note))
    layout = Layout("post", partitions, lanes)
    return Application(layout, wiring, json_without_schema, lane_options=LaneOptions(**lane_options))


@dataclass
class FakeLane:
    number: int
    store: Store | None
    state: LaneState = LaneState.OPEN
    backlog: int = 0
    commits: int = 7
    fenced: int = 0
    reopened: int = 0
    recovered: int = 0
    counters: Counters = field(default_factory=lambda: Counters(handled=41))
    last_progress: float = NOW - 2
    error: Exception | None = None
    gates: dict[str, HandlerGate] = field(default_factory=dict)
    measures: LaneMeasures = field(default_factory=LaneMeasures)


@dataclass
class FakeStandby:
    number: int
    records: int = 5


@dataclass
class FakeWorker:
    """Owns `lanes`; the others are as `assignment` says."""

    application: Application
    lanes: dict[int, FakeLane]
    slot: int = 0
    url: str = "http://127.0.0.1:1"
    assignment: Assignment = field(default_factory=Assignment)
    standbys: dict[int, FakeStandby] = field(default_factory=dict)
    stuck_lanes: list[int] = field(default_factory=list)
    asked: list[tuple[TP, Outgoing]] = field(default_factory=list)
    patience: float = 0.0
    unreadable_announcements: int = 0
    choreographed: Sequence[ChoreographedSaga] = ()
    records: list[FakeRecord] = field(default_factory=list)
    scanned: list[Question] = field(default_factory=list)
    measured: bool = False
    handlers: dict[str, HandlerMeasures] = field(default_factory=dict)

    @classmethod
    def with_lanes(cls, *lanes: int, app: Application | None = None, **options: Any) -> FakeWorker:
        stores = MemoryStores()
        app = app or make_application()
        worker = cls(app, {number: FakeLane(number, stores.open(number)) for number in lanes}, **options)
        worker.owns(dict.fromkeys(lanes, worker.url))
        return worker

    def owns(self, owners: Mapping[int, str]) -> None:
        self.assignment = msgspec.structs.replace(self.assignment, owners=dict(owners))

    def now(self) -> float:
        return NOW

    def stuck(self) -> list[FakeLane]:
        return [self.lanes[number] for number in self.stuck_lanes]

    async def scan(self, question: Question) -> Scan:
        """What `records` has of it, as the topics would: from a time on, in some partitions."""
        self.scanned.append(question)
        there = [
            each
            for each in self.records
            if TP(each.topic, each.partition) in question.partitions and each.timestamp >= question.since_ms
        ]
        looked = there[: question.most]
        until = looked[-1].timestamp if len(looked) < len(there) else None
        found = [each for each in looked if question.means(each)]
        places = {(each.topic, each.partition) for each in looked}
        return Scan(found, len(looked), len(places), until, "" if until is None else "so many are looked at")

    async def operate(self, posts: Sequence[tuple[TP, Outgoing]]) -> None:
        self.asked.extend(posts)

    def put_letter(self, key: str, i: int = 0, *, why: str = "no", **changes: Any) -> str:
        """Write a dead letter to the lane of its key; returns its id."""
        partition = self.partition(key)
        headers = [("ce_id", f"{key}-{i}".encode())]
        record = FakeRecord(
            ParcelSeen.TOPIC, partition, i, 1, key.encode(), b'{"id":"%s"}' % key.encode(), headers
        )
        made = new_letter(
            record, ValueError(why), handler="post.note", attempts=3, now_ms=int(NOW * 1000), limit=10_000
        )
        letter = msgspec.structs.replace(made, **changes)
        self.put_raw("dead_letters", partition, key_of(letter), encode_letter(letter, 50_000))
        return letter_id(local_key(letter))

    def put(self, key: str, subkey: str = "", *, note: str = "", raw: bytes | None = None) -> None:
        """Write a parcel to the lane of its key."""
        table = self.application.tables["parcels"]
        value = raw if raw is not None else encode_row(table.codec, Parcel(note=note))
        self.put_raw("parcels", self.partition(key), row_key(key.encode(), subkey.encode()), value)

    def put_raw(self, table: str, partition: int, changelog_key: bytes, value: bytes) -> None:
        store = self.lanes[self.application.layout.lane_of(partition)].store
        store.apply([Write(table, store_key(partition, changelog_key), value)], {})

    def partition(self, key: str) -> int:
        return self.application.layout.partition_of(key.encode())

    def lane(self, key: str) -> int:
        return self.application.layout.lane_of_key(key)

    def keys_here(self, keys: Iterable[str]) -> list[str]:
        """Those of the keys that are in this worker's lanes."""
        return [key for key in keys if self.lane(key) in self.lanes]


class Browser(TestClient):
    """Asks a worker's pages."""

    @classmethod
    def of(cls, worker: FakeWorker, access: Access = Access()) -> Browser:
        return cls(TestServer(application(worker, access)))

    async def json(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.get(path, **options) as response:
            assert response.content_type == "application/json"
            return response.status, msgspec.json.decode(await response.read())

    async def ask(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        data = msgspec.json.encode(body)
        given = {"Content-Type": "application/json", **headers}
        async with self.post(path, data=data, headers=given) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def page(self, path: str, **options: Any) -> tuple[int, str]:
        async with self.get(path, **options) as response:
            assert response.content_type == "text/html"
            return response.status, await response.text()
