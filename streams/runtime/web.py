"""Faust's web server with our pages in place of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aiohttp.web import AppRunner, TCPSite
from faust.web.drivers.aiohttp import Web

from streams.errors import ClusterUnavailable
from streams.lane.host import LaneHost
from streams.lane.lane import Lane
from streams.lane.standby import Standby
from streams.model.application import Application
from streams.policy.assignment import Assignment
from streams.ports import TP, Outgoing
from streams.runtime.announcements import Announcements
from streams.runtime.cluster import KafkaCluster
from streams.runtime.operations import OperationsProducer
from streams.runtime.slots import Slot
from streams.runtime.timeline import scan
from streams.saga.views import ChoreographedSaga
from streams.settings import Settings
from streams.staging.measures import Measures
from streams.web.access import Access
from streams.web.routes import application
from streams.web.scans import Question, Scan

#: Seconds that a page under way may take when the worker stops.
SHUTDOWN_TIMEOUT = 2.0
#: Seconds in which the next owner of a dead worker's lane has opened it, mostly.
_LANE_OPENS_WITHIN = 5.0
#: Looks through topics at the same time; further ones wait for these.
_SCANS_AT_ONCE = 2


class ShownApp(Protocol):
    """What the pages are made from. All of it but the settings comes as the worker starts."""

    conf: Any
    steadfaust: Settings
    slot: Slot | None
    host: LaneHost | None
    operators: OperationsProducer | None
    cluster: KafkaCluster | None
    announcements: Announcements | None

    @property
    def lane_application(self) -> Application:
        """The bound application. Raises SteadfaustError while the worker is starting."""

    @property
    def choreographed(self) -> Sequence[ChoreographedSaga]:
        """Sagas without an orchestrator."""

    @property
    def assignor(self) -> Any:
        """Knows what the group has decided last."""


class LaneWeb(Web):
    """Faust starts and stops it with the worker; of Faust's own pages none is mounted."""

    def __init__(self, app: ShownApp, **options: Any) -> None:
        super().__init__(app, **options)
        peers = app.steadfaust.peers()
        self.web_app = application(_View(app), Access(peers.token if peers.host else ""))
        self._runner = AppRunner(self.web_app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT)

    async def start_server(self) -> None:
        """Listen on loopback, and where other machines reach this worker, if they do."""
        await super().start_server()
        conf = self.app.conf
        if conf.web_host != conf.web_bind:
            await TCPSite(self._runner, conf.web_host, conf.web_port).start()

    def init_server(self) -> None:
        """Mount nothing: the pages are complete, and Faust's index stands at / whatever its settings say."""


class _View:
    """The application as its pages see it."""

    def __init__(self, app: ShownApp) -> None:
        self._app = app
        self._scans = asyncio.Semaphore(_SCANS_AT_ONCE)

    @property
    def application(self) -> Application:
        return self._app.lane_application

    @property
    def choreographed(self) -> Sequence[ChoreographedSaga]:
        return self._app.choreographed

    @property
    def assignment(self) -> Assignment:
        # Faust makes the assignor when it is first asked for; it needs the application.
        given: Assignment = self._app.assignor.assigned
        return given

    @property
    def slot(self) -> int:
        return self._app.slot.number if self._app.slot is not None else -1

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
    def measured(self) -> bool:
        return self._app.steadfaust.metrics

    @property
    def handlers(self) -> Measures:
        return self._app.host.measures if self._app.host is not None else {}

    def now(self) -> float:
        return time.time()

    async def operate(self, posts: Sequence[tuple[TP, Outgoing]]) -> None:
        if self._app.operators is None:
            raise ClusterUnavailable("the worker is starting: ask again")
        await self._app.operators.send(posts)

    async def scan(self, question: Question) -> Scan:
        if self._app.cluster is None:
            raise ClusterUnavailable("the worker is starting: ask again")
        async with self._scans:
            return await scan(self._app.cluster, question)

    def stuck(self) -> Sequence[Lane]:
        return self._app.host.stuck() if self._app.host is not None else []
