"""Workers as the pages see them, made of stores in memory: no Faust, no Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import msgspec
import uvicorn
from aiohttp import ClientSession, CookieJar
from uvicorn.server import ServerState
from yarl import URL

from streams.control.api.routes import site
from streams.control.api.site import Site
from streams.control.base.access import Access
from streams.control.base.database_answers import DatabaseAnswer, OutboxRows
from streams.control.base.scans import Question, Scan
from streams.control.base.windows import LogRange, ReadPage, ReadPart, TopicFacts, Window, page_of
from streams.control.letters.jobs import operation_id, source_of
from streams.control.metrics.metrics import WorkerMetrics
from streams.control.overview.flow_answers import HandlerPart, HandlerShown
from streams.control.overview.samples import Sampler
from streams.control.sagas.indexes import followed_tables, index_of
from streams.control.sagas.row_index import catch_up
from streams.engine.life.positions.declared import declare
from streams.engine.life.state import LaneState
from streams.engine.staging.arrival import Counters
from streams.engine.staging.changes import CHANGED, Writes, mark_of
from streams.engine.staging.inbox import source_prefix
from streams.engine.staging.keys import store_key
from streams.engine.staging.measures import HandlerMeasures
from streams.engine.staging.timers import set_timer, timer_name
from streams.engine.staging.unreadable import UnreadableRows
from streams.engine.waiting.dead_letters.row import (
    encode_letter,
    key_of,
    letter_id,
    local_key,
    new_letter,
    parse_id,
)
from streams.engine.waiting.gate import HandlerGate
from streams.engine.waiting.operations.admission import OPERATIONS
from streams.engine.waiting.queue import Reason, begin, message_of, queue_name, set_message, set_queue
from streams.engine.way.measures import LaneMeasures
from streams.errors import ClusterUnavailable, TopicMismatch
from streams.model.application import Application, LaneOptions
from streams.model.choreography import choreography, on
from streams.model.codecs import encode_row, json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.message import Message, Row
from streams.model.operations import Operation, decode_operation
from streams.model.outcome import nothing
from streams.model.policy.assignment import Assignment
from streams.model.policy.breaker import BreakerPolicy
from streams.model.row_keys import row_key
from streams.model.table import Table
from streams.ports import TP, Outgoing, Store
from streams.saga.views import ChoreographedSaga
from streams.testing.log import FakeRecord
from streams.testing.store import MemoryStores
from tests.waiting import eventually_async

NOW = 1_800_000_000.0
MANY_KEYS = [f"k{n}" for n in range(100)]


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
    foreign: tuple[TP, ...] = ()
    reopened: int = 0
    recovered: int = 0
    counters: Counters = field(default_factory=lambda: Counters(handled=41))
    last_progress: float = NOW - 2
    error: Exception | None = None
    trouble: str = ""
    gates: dict[str, HandlerGate] = field(default_factory=dict)
    measures: LaneMeasures = field(default_factory=LaneMeasures)
    unreadable: UnreadableRows = field(default_factory=UnreadableRows)


@dataclass
class FakeStandby:
    number: int
    records: int = 5
    to_copy: tuple[int, float] = (0, 0.0)
    behind: int | None = 0
    store: Store | None = None
    fresh_at: float = NOW - 3
    trouble: str = ""


@dataclass
class FakeWorker:
    """Owns `lanes`; the others are as `assignment` says."""

    application: Application
    lanes: dict[int, FakeLane]
    slot: int = 0
    stopping: bool = False
    url: str = "http://127.0.0.1:1"
    assignment: Assignment = field(default_factory=Assignment)
    standbys: dict[int, FakeStandby] = field(default_factory=dict)
    stuck_lanes: list[int] = field(default_factory=list)
    own_warnings: list[str] = field(default_factory=list)
    throttled: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[TP, Outgoing]] = field(default_factory=list)
    ended_sessions: list[tuple[str, float]] = field(default_factory=list)
    patience: float = 0.0
    unreadable_announcements: int = 0
    trace_url: str = ""
    choreographed: Sequence[ChoreographedSaga] = ()
    records: list[FakeRecord] = field(default_factory=list)
    scanned: list[Question] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    open_from: dict[TP, int] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    #: Topics that are gone since they were looked at.
    deleted: set[str] = field(default_factory=set)
    #: Why Kafka does not answer; empty: it does.
    away: str = ""
    measured: bool = False
    edge: DatabaseAnswer = field(
        default_factory=lambda: DatabaseAnswer(missing="set STEADFAUST_POSTGRES_URL")
    )
    outbox: OutboxRows = field(default_factory=OutboxRows)
    handlers: dict[str, HandlerMeasures] = field(default_factory=dict)

    @classmethod
    def with_lanes(cls, *lanes: int, app: Application | None = None, **options: Any) -> FakeWorker:
        stores = MemoryStores()
        app = app or make_application()
        app.followed = followed_tables(app, options.get("choreographed", ()))
        worker = cls(app, {number: FakeLane(number, stores.open(number)) for number in lanes}, **options)
        worker.owns(dict.fromkeys(lanes, worker.url))
        return worker

    def owns(self, owners: Mapping[int, str]) -> None:
        topics = tuple(self.application.sources)
        self.assignment = msgspec.structs.replace(self.assignment, owners=dict(owners), topics=topics)

    def now(self) -> float:
        return NOW

    def stuck(self) -> list[FakeLane]:
        return [self.lanes[number] for number in self.stuck_lanes]

    async def scan(self, question: Question) -> Scan:
        """What `records` has of it, as the topics would: from a time on, in some partitions."""
        self._reach()
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

    async def topic_facts(self, names: Iterable[str], *, anew: bool = False) -> dict[str, TopicFacts]:
        """Those with a number of partitions: 8 or 1, as declared."""
        self._reach()
        if anew:
            self.missing |= self.deleted
        declared = {spec.name: spec for spec in declare(self.application, replication=1)}
        return {
            name: TopicFacts(declared[name].partitions, 1, declared[name].config)
            for name in names
            if name not in self.missing
        }

    async def logs(self, tps: Iterable[TP]) -> dict[TP, LogRange]:
        """Of what `records` has; all are of the last minute, and what `open_from` says is not decided."""
        self._reach()
        tps = list(tps)
        if gone := self.deleted.intersection(tp.topic for tp in tps):
            raise TopicMismatch(f"the cluster has no {gone}")
        return {tp: self._log(tp) for tp in tps}

    def _reach(self) -> None:
        if self.away:
            raise ClusterUnavailable(self.away)

    def _log(self, tp: TP) -> LogRange:
        there = [each.offset for each in self.records if (each.topic, each.partition) == tp]
        begin, end = (min(there), max(there) + 1) if there else (0, 0)
        return LogRange(begin, min(self.open_from.get(tp, end), end), end, begin)

    async def browse(self, window: Window) -> ReadPage:
        """As the topics would, without bounds."""
        self.windows.append(window)
        logs, parts = await self.logs(window.partitions), {}
        for tp, log in logs.items():
            place = window.places.get(tp, log.stable if window.backwards else log.begin)
            place = min(max(place, log.begin), log.stable)
            first, behind = (log.begin, place) if window.backwards else (place, log.stable)
            meant = [
                each
                for each in sorted(self.records, key=lambda each: each.offset)
                if (each.topic, each.partition) == tp
                and first <= each.offset < behind
                and window.means(each)
                and each.timestamp >= (window.since_ms or 0)
            ]
            parts[tp] = ReadPart(meant, first, behind)
        records, spans = page_of(parts, limit=window.limit, backwards=window.backwards)
        return ReadPage(records, spans, logs, len(records))

    async def database(self) -> DatabaseAnswer:
        return self.edge

    async def outbox_rows(self, published: Mapping[str, float]) -> OutboxRows:
        rows = [each for each in self.outbox.rows if each.id in published]
        return msgspec.structs.replace(self.outbox, rows=rows)

    async def end_session(self, ident: str, until: float) -> None:
        self.ended_sessions.append((ident, until))

    async def operate(self, posts: Sequence[tuple[TP, Outgoing]]) -> None:
        self.asked.extend(posts)

    @property
    def operations(self) -> list[Operation]:
        """The operations on dead letters that were requested of this worker."""
        return [decode_operation(post.value) for _, post in self.asked]

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
        table = self.application.tables["parcels"]
        value = raw if raw is not None else encode_row(table.codec, Parcel(note=note))
        self.put_raw("parcels", self.partition(key), row_key(key.encode(), subkey.encode()), value)

    async def index(self) -> None:
        """Let the index of every lane catch up, as a worker does all the time."""
        for lane in self.lanes.values():
            assert await catch_up(lane.store, index_of(self), partial(asyncio.sleep, 0))

    def put_raw(self, table: str, partition: int, changelog_key: bytes, value: bytes) -> None:
        store = self.lanes[self.application.layout.lane_of(partition)].store
        local = store_key(partition, changelog_key)
        marks = [(CHANGED, mark_of(table, local), b"")] if table in self.application.followed else []
        store.apply([(table, local, value), *marks], {})

    def change(self, key: str, *changes: Any) -> None:
        partition = self.partition(key)
        rows = [(store_key(partition, each.key), each.value) for each in changes]
        self.lanes[self.lane(key)].store.apply(Writes(1, self.application.followed).local("lane", rows), {})

    def wait(
        self,
        key: str,
        *,
        reason: Reason = Reason.RETRY,
        since: float = NOW,
        due: float = NOW,
        attempts: int = 1,
    ) -> None:
        headers = [("ce_id", f"w-{key}".encode())]
        record = FakeRecord(ParcelSeen.TOPIC, self.partition(key), 0, 1, key.encode(), b"{}", headers)
        name, message = queue_name(b"post.note", key.encode()), message_of(record, int(since * 1000))
        queue = begin(reason, due_ms=int(due * 1000), attempts=attempts, size=message.size)
        self.change(key, set_queue(name, queue), set_message(name, queue.head, message))

    def gate(self, lane: int, **policy: Any) -> HandlerGate:
        """Give the lane a gate for the handler."""
        gate = self.lanes[lane].gates["post.note"] = HandlerGate("post.note", BreakerPolicy(**policy))
        return gate

    def settle(self, operation: Operation, result: bytes) -> None:
        partition, _ = parse_id(operation.letter)
        made = operation_id(operation.job, operation.kind, operation.letter)
        prefix = source_prefix(OPERATIONS, source_of(self.application).encode())
        self.put_raw("_inbox-0000", partition, prefix + made, result)

    def ring(self, key: str, *dues: float) -> None:
        """Timers of the key are set."""
        for number, due in enumerate(dues):
            name = timer_name(b"post.note", key.encode(), f"late-{number}")
            self.change(key, set_timer(name, due, "post.late.v1", Outgoing(key.encode(), b"", ())))

    def partition(self, key: str) -> int:
        return self.application.layout.partition_of(key.encode())

    def lane(self, key: str) -> int:
        return self.application.layout.lane_of_key(key)

    def keys_here(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if self.lane(key) in self.lanes]

    def key_in(self, *lanes: int, other_than: str = "") -> str:
        return next(key for key in MANY_KEYS if key != other_than and self.lane(key) in lanes)

    def key_elsewhere(self) -> str:
        return next(key for key in MANY_KEYS if self.lane(key) not in self.lanes)


def owner_of(key: str, *workers: FakeWorker) -> FakeWorker:
    return next(worker for worker in workers if worker.keys_here([key]))


def in_vain(error: Exception) -> Any:
    """Stands for a question to another worker that fails with this error."""

    async def ask(*_: object) -> Any:
        raise error

    return ask


def handler_shown(handler: str, *topics: str, **numbers: Any) -> HandlerShown:
    part = HandlerPart(handler=handler, **numbers)
    return HandlerShown(handler=handler, topics=[*topics], numbers=part, p50=None, p95=None)


def owned_by(*workers: FakeWorker) -> dict[int, str]:
    return {lane: worker.url for worker in workers for lane in worker.lanes}


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The address of an ASGI application. Unlike `HttpServer` it ends at once, with all connections."""
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None)
    config.load()
    state = ServerState()
    protocol = partial(config.http_protocol_class, config=config, server_state=state, app_state={})
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        for task in state.tasks:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)


#: Sites that no browser has any more. To make the routes of one takes longer than most tests.
_unused: list[Site] = []


def site_of(worker: FakeWorker, access: Access) -> Site:
    """The pages of the worker: those of one that is gone, if there is one, with nothing that it knew."""
    if not _unused:
        from streams.console.console import Pages  # a test is without its packages

        return site(worker, access, Pages())
    again = _unused.pop()
    again._view, again._access, again.metrics = worker, access, WorkerMetrics(worker)
    return again


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Browser:
    """Asks a worker's pages, as the worker serves them. It keeps cookies."""

    def __init__(self, worker: FakeWorker, access: Access) -> None:
        self._site = site_of(worker, access)
        self._opened = AsyncExitStack()
        self.url = ""

    @classmethod
    def of(cls, worker: FakeWorker, access: Access = Access()) -> Browser:
        return cls(worker, access)

    async def __aenter__(self) -> Self:
        self._opened.callback(_unused.append, self._site)
        await self._opened.enter_async_context(self._site)
        self.url = await self._opened.enter_async_context(served(self._site))
        session = ClientSession(cookie_jar=CookieJar(unsafe=True))  # cookies of an address, too
        self._session = await self._opened.enter_async_context(session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    @property
    def sampler(self) -> Sampler:
        """Counts the worker's rows."""
        return self._site.metrics.sampler

    @property
    def csrf(self) -> str:
        jar: Any = self._session.cookie_jar
        return next(each.value for each in jar if each.key == "csrf")

    def forget(self) -> None:
        """Clear the cookies."""
        self._session.cookie_jar.clear()

    def make_url(self, path: str) -> URL:
        return URL(self.url + path)

    def request(self, method: str, path: str, **options: Any) -> Any:
        return self._session.request(method, self.make_url(path), **options)

    def get(self, path: str, **options: Any) -> Any:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> Any:
        return self.request("POST", path, **options)

    async def json(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.get(path, **options) as response:
            assert response.content_type == "application/json"
            return response.status, msgspec.json.decode(await response.read())

    async def refusal(self, path: str, **options: Any) -> tuple[int, str]:
        status, problem = await self.json(path, **options)
        assert problem["detail"]
        return status, problem["error"]

    async def pages(self, path: str, **query: str) -> list[Any]:
        found: list[Any] = []
        cursor = ""
        while cursor or not found:
            status, answer = await self.json(path, params={**query, "cursor": cursor} if cursor else query)
            assert status == 200, answer
            found.append(answer)
            cursor = answer["next"]
        return found

    async def shows(self, path: str, *texts: str, hides: str | Sequence[str] = (), **options: Any) -> str:
        """The page at `path`, which has these texts, and not those."""
        status, page = await self.page(path, **options)
        assert status == 200
        for text in texts:
            assert text in page
        for text in [hides] if isinstance(hides, str) else hides:
            assert text not in page
        return page

    async def found(self, path: str, **options: Any) -> Any:
        status, answer = await self.json(path, **options)
        assert status == 200, answer
        return answer

    async def ended(self, path: str) -> Any:
        """The state of the job there when it has ended."""

        async def ends() -> bool:
            return (await self.found(path))["state"] != "running"

        await eventually_async(ends, "the job ends", every=0)
        return await self.found(path)

    async def send(self, path: str, **fields: str) -> tuple[int, str, str]:
        """Send a form as the page at `path` would: status, where it leads, what it shows."""
        await self.page("/login")
        return await self.send_raw(path, csrf=self.csrf, **fields)

    async def send_raw(self, path: str, headers: Any = None, **fields: str) -> tuple[int, str, str]:
        async with self.post(path, data=fields, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers.get("Location", ""), await response.text()

    async def ask(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        data = msgspec.json.encode(body)
        given = {"Content-Type": "application/json", **headers}
        async with self.post(path, data=data, headers=given) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def page(self, path: str, **options: Any) -> tuple[int, str]:
        async with self.get(path, **options) as response:
            assert response.content_type == "text/html"
            return response.status, await response.text()


#: Two workers, and a browser of each.
Two = tuple[FakeWorker, FakeWorker, Browser, Browser]
