"""Faust's web server with our pages in place of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from streams.brokers import READ, Peers
from streams.control.api.routes import site
from streams.control.api.site import Console
from streams.control.base.access import Access
from streams.control.base.database_answers import DatabaseAnswer, OutboxRows
from streams.control.base.scans import Question, Scan
from streams.control.base.windows import LogRange, ReadPage, TopicFacts, Window
from streams.engine.life.lane import Lane
from streams.engine.life.standby import Standby
from streams.engine.staging.measures import Measures
from streams.errors import ClusterUnavailable, MissingExtra, SettingsError
from streams.host.app import LaneApp
from streams.host.ended_sessions import EndedSessions
from streams.host.no_web import NoWeb
from streams.http import HttpServer
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.kafka.connections import silent_brokers
from streams.kafka.throttles import throttles
from streams.kafka.topics import Description, KafkaTopics
from streams.model.application import Application
from streams.model.policy.assignment import Assignment
from streams.ports import TP, Outgoing
from streams.saga.views import ChoreographedSaga
from streams.worker import has_room
from streams.worker.browsing import browse, logs
from streams.worker.timeline import scan

T = TypeVar("T")

#: Seconds that a page under way may take when the worker stops.
SHUTDOWN_TIMEOUT = 2
#: Seconds in which the next owner of a dead worker's lane has opened it, mostly.
_LANE_OPENS_WITHIN = 5.0
#: Seconds for which it is remembered what a topic is like: its settings change seldom, and pages ask often.
_FACTS_LAST = 30.0
#: Seconds between requests to Kafka after it had no answer.
_AWAY_LASTS = 1.0
_PATIENT = KafkaOptions(metadata_timeout=READ)
#: Looks through topics at the same time; further ones wait for these.
_SCANS_AT_ONCE = 2


def access_of(peers: Peers, ended: EndedSessions) -> Access:
    """Who may ask, but in sessions that were ended. A token that is set for commands alone opens nothing."""
    shown = bool(peers.host or peers.login)
    return Access(
        token=peers.token if shown else "",
        viewer_token=peers.viewer_token if shown else "",
        login=peers.login,
        user_header=peers.user_header,
        proxies=peers.proxies,
        operators=peers.operators,
        ended=ended,
    )


def console_here() -> Console | None:
    """The pages; None where their room or their packages are not installed: the first page then says so."""
    if not has_room("console"):
        return None
    try:
        from streams.console.console import Pages
    except MissingExtra:
        return None
    return Pages()


class LaneWeb(NoWeb):
    """Our pages in place of Faust's: they start and end with the worker."""

    def __init__(self, app: LaneApp, choreographed: Sequence[ChoreographedSaga] = (), **options: Any) -> None:
        super().__init__(app, **options)
        access = access_of(app.steadfaust.peers(), app.ended_sessions)
        self._site = site(_View(app, choreographed), access, console_here())
        self._served = AsyncExitStack()

    async def start_server(self) -> None:
        """Listen on loopback, and where other machines reach this worker, if they do."""
        await self._served.enter_async_context(self._site)
        for bound in self.app.web_sockets:
            server = HttpServer(self._site, bound=bound, grace=SHUTDOWN_TIMEOUT, proxied=False)
            await self._served.enter_async_context(server)

    async def stop_server(self) -> None:
        """Answer what is under way, then end."""
        self._site.end_live()
        await self._served.aclose()


class _View:
    """The application as its pages see it."""

    def __init__(self, app: LaneApp, choreographed: Sequence[ChoreographedSaga] = ()) -> None:
        self._app = app
        self._choreographed = choreographed
        self._scans = asyncio.Semaphore(_SCANS_AT_ONCE)
        self._facts: dict[str, tuple[float, TopicFacts]] = {}
        #: Why Kafka had no answer last, and when to try again.
        self._away, self._away_until = "", 0.0

    @property
    def application(self) -> Application:
        return self._app.lane_application

    @property
    def choreographed(self) -> Sequence[ChoreographedSaga]:
        return self._choreographed

    @property
    def assignment(self) -> Assignment:
        # Faust makes the assignor at its first use; it needs the application.
        given: Assignment = self._app.assignor.assigned
        return given

    @property
    def slot(self) -> int:
        return self._app.slot.number if self._app.slot is not None else -1

    @property
    def stopping(self) -> bool:
        return self._app.process is not None and self._app.process.ending

    @property
    def url(self) -> str:
        return str(self._app.conf.canonical_url)

    @property
    def lanes(self) -> Mapping[int, Lane]:
        return self._app.host.lanes if self._app.host is not None else {}

    @property
    def standbys(self) -> Mapping[int, Standby]:
        return self._app.host.standbys if self._app.host is not None else {}

    @property
    def patience(self) -> float:
        return self._app.steadfaust.session_timeout + _LANE_OPENS_WITHIN

    @property
    def unreadable_announcements(self) -> int:
        return self._app.announcements.unreadable if self._app.announcements is not None else 0

    @property
    def own_warnings(self) -> list[str]:
        shortage = [self._app.file_shortage] if self._app.file_shortage else []
        trouble = [self._app.membership_trouble] if self._app.membership_trouble else []
        return [*silent_brokers(), *throttles.warnings(), *trouble, *shortage]

    @property
    def throttled(self) -> Mapping[str, float]:
        return throttles.seconds

    @property
    def measured(self) -> bool:
        return self._app.steadfaust.metrics

    @property
    def handlers(self) -> Measures:
        return self._app.host.measures if self._app.host is not None else {}

    @property
    def trace_url(self) -> str:
        return self._app.steadfaust.trace_url

    def now(self) -> float:
        return time.time()

    async def operate(self, posts: Sequence[tuple[TP, Outgoing]]) -> None:
        if self._app.operators is None:
            raise ClusterUnavailable("the worker is starting: ask again")
        await self._app.operators.send(posts)

    async def end_session(self, ident: str, until: float) -> None:
        if self._app.announcements is None:
            raise ClusterUnavailable("the worker is starting: log out again")
        await self._app.announcements.end_session(ident, until)

    async def scan(self, question: Question) -> Scan:
        return await self._ask(lambda: scan(self._cluster(), question))

    async def topic_facts(self, names: Iterable[str], *, anew: bool = False) -> dict[str, TopicFacts]:
        wanted, now = list(names), time.monotonic()
        unknown = [name for name in wanted if anew or name not in self._facts or self._facts[name][0] < now]
        if unknown:
            found = await self._ask(lambda: self._describe(unknown))
            for name in unknown:
                self._facts.pop(name, None)
            for name, each in found.items():
                facts = TopicFacts(each.partitions, each.replication, each.config)
                self._facts[name] = now + _FACTS_LAST, facts
        return {name: self._facts[name][1] for name in wanted if name in self._facts}

    async def _describe(self, names: Iterable[str]) -> dict[str, Description]:
        async with KafkaTopics(self._app.steadfaust.brokers(), _PATIENT) as topics:
            return await topics.describe(names)

    async def logs(self, tps: Iterable[TP]) -> dict[TP, LogRange]:
        return await self._ask(lambda: logs(self._cluster(), tps))

    async def browse(self, window: Window) -> ReadPage:
        return await self._ask(lambda: browse(self._cluster(), window))

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Ask Kafka, a few at a time. Who has waited for others that had no answer gets none either: with
        each one's patience after the other's, no caller would have an answer for long.
        """
        clock = asyncio.get_running_loop().time
        async with self._scans:
            if clock() < self._away_until:
                raise ClusterUnavailable(self._away)
            try:
                return await question()
            except ClusterUnavailable as error:
                self._away, self._away_until = str(error), clock() + _AWAY_LASTS
                raise

    def _cluster(self) -> KafkaCluster:
        if self._app.cluster is None:
            raise ClusterUnavailable("the worker is starting: ask again")
        return self._app.cluster

    async def database(self) -> DatabaseAnswer:
        try:
            url = self._app.steadfaust.postgres()
            from streams.postgres.database_status import database_answer
        except (SettingsError, MissingExtra) as error:
            return DatabaseAnswer(missing=str(error))
        try:
            async with asyncio.timeout(READ):
                return await database_answer(url)
        except TimeoutError:
            return DatabaseAnswer(missing=f"PostgreSQL did not answer within {READ:g} s")

    async def outbox_rows(self, published: Mapping[str, float]) -> OutboxRows:
        try:
            url = self._app.steadfaust.postgres()
            from streams.postgres.database_status import outbox_rows
        except SettingsError:
            return OutboxRows()
        except MissingExtra as error:
            return OutboxRows(missing=str(error))
        try:
            async with asyncio.timeout(READ):
                return await outbox_rows(url, published)
        except TimeoutError:
            return OutboxRows(missing=f"PostgreSQL did not answer within {READ:g} s")

    def stuck(self) -> Sequence[Lane]:
        return self._app.host.stuck() if self._app.host is not None else []
