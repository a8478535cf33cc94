"""The Faust application in which lanes run. It uses Faust's membership, worker command and web server.

Faust's own pipeline (agents, conductor, tables, transactions) is not started: lanes read, commit and recover
by themselves. docs/adr/0001-lanes.md lists what is overridden, and why.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import faust
import structlog

from streams.engine.life.host import LaneHost
from streams.engine.life.positions.cuts import Cuts, recorded_cut
from streams.engine.life.positions.declared import DEAD_LETTER_ROOM
from streams.engine.life.session import shared_by
from streams.engine.staging.measures import HandlerMeasures
from streams.errors import (
    LayoutMismatch,
    MembershipLost,
    SettingsError,
    SteadfaustError,
    text_of,
)
from streams.host.access import broker_urls, until_brokers_answer
from streams.host.announcements import Announcements
from streams.host.assignor import LaneAssignor
from streams.host.ended_sessions import EndedSessions
from streams.host.handover import hand_over
from streams.host.loop import shortage, tune_process
from streams.host.membership import Membership, MembershipTransport, static_member_id
from streams.host.no_web import NoWeb
from streams.host.process import EXIT_FAILED, WorkerProcess
from streams.host.rocksdb.store import RocksStores
from streams.host.slots import LOOPBACK, Slot, reached_at, take_port, take_slot, url_of
from streams.host.topics import ensure_topics
from streams.kafka.clients import KafkaOptions
from streams.kafka.cluster import KafkaCluster
from streams.kafka.operations import OperationsProducer
from streams.logs import configure_logs
from streams.model.application import Application
from streams.model.codecs import Schemas
from streams.ports import Faults, Ports
from streams.settings import Settings
from streams.system import NoFaults, SystemClock
from streams.system.shares import Share, share_of

log = structlog.get_logger(__name__)


def _faust_options(settings: Settings) -> dict[str, Any]:
    return {
        "store": "rocksdb://?driver=rocksdict",  # named in the banner; lanes open their stores themselves
        "broker": broker_urls(settings),
        "datadir": str(settings.var / "faust"),
        "broker_session_timeout": settings.session_timeout,
        "broker_heartbeat_interval": settings.heartbeat,
        "broker_rebalance_timeout": settings.session_timeout,
        "broker_request_timeout": settings.session_timeout + 5,  # a join may wait for a whole session
        "topic_disable_leader": True,
        "stream_wait_empty": False,
        "web_host": LOOPBACK,  # until the worker has a slot
        "web_bind": LOOPBACK,
        "web_tables_enabled": False,
        "web_router_enabled": False,
        "web_graph_enabled": False,
        "web_stats_enabled": False,
        "web_metrics_enabled": False,
    }


def _kafka_options(settings: Settings, share: Share) -> KafkaOptions:
    """Options for the lanes' Kafka clients."""
    largest = settings.max_message_bytes
    return KafkaOptions(
        max_batch=largest,
        max_record=largest + DEAD_LETTER_ROOM,
        max_fetch=share.fetch,
        max_partition_fetch=share.partition_fetch,
        producer=settings.producer,
    )


class LaneApp(faust.App):
    """A worker of the application.

    `resources` that are async context managers are entered in the worker's event loop when it starts and
    exited when it stops. `application` makes the bound application from the resources.
    """

    class BootStrategy(faust.App.BootStrategy):
        """Starts only Faust's web server and the membership."""

        def server(self) -> Iterable[Any]:
            """Services of a worker."""
            return [*self.web_server(), self.app.consumer]

    def __init__(
        self,
        settings: Settings,
        application: Callable[[dict[str, Any], Schemas], Application],
        *,
        resources: Mapping[str, Any] | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.steadfaust = settings
        self.standbys = settings.standbys
        self.schemas = Schemas()
        self.slot: Slot | None = None
        self.web_sockets: list[socket.socket] = []
        self.process: WorkerProcess | None = None
        self.fatal: BaseException | None = None
        self.host: LaneHost | None = None
        #: Why this worker cannot be a member of its group for now, see `membership.waited_out`; empty if it
        #: can.
        self.membership_trouble = ""
        #: A warning if lanes and standbys may need more open files than the process may have; else empty.
        self.file_shortage = ""
        self.cluster: KafkaCluster | None = None
        self.operators: OperationsProducer | None = None
        self.announcements: Announcements | None = None
        self.ended_sessions = EndedSessions(is_complete=False)
        self._lane_application: Application | None = None
        self._make_application = application
        self._resources = dict(resources or {})
        self._opened = AsyncExitStack()
        self._faults = faults or NoFaults()
        self._background: set[asyncio.Task[None]] = set()
        super().__init__(
            settings.app_id,
            **_faust_options(settings),
            PartitionAssignor=LaneAssignor,
            Worker=WorkerProcess,
        )

    # -- what the host asks ----------------------------------------------------------------------------

    @property
    def lane_application(self) -> Application:
        """The bound application, once the worker has started."""
        if self._lane_application is None:
            raise SteadfaustError("the worker has not started yet: there is no application to ask")
        return self._lane_application

    def request_rebalance(self) -> None:
        """Request a new assignment from the group. Called in the consumer's thread."""
        consumer: Membership = self.consumer
        consumer.request_rebalance()

    def current_generation(self) -> int:
        """The group generation of this member."""
        consumer: Membership = self.consumer
        return consumer.generation()

    def take_slot(self) -> Slot:
        """Take the lowest free slot, which decides the member id, the directory and the port. Raises
        SystemExit if settings are wrong, no way leads to a broker, or the directory cannot be used.
        """
        settings = self.steadfaust
        try:
            host = reached_at(settings.peers(), settings.brokers())
        except SettingsError as error:
            raise SystemExit(f"error: {error}") from error
        try:
            self.slot = take_slot(settings.var / "workers" / settings.app_id)
        except OSError as error:
            raise SystemExit(
                f"error: STEADFAUST_VAR is {settings.var}, which cannot be used: {error}"
            ) from error
        self.conf.web_host = host
        self.web_sockets = take_port(settings.web_port and settings.web_port + self.slot.number, host)
        self.conf.web_port = self.web_sockets[0].getsockname()[1]
        self.conf.canonical_url = url_of(host, self.conf.web_port)
        # Commands on this machine need no token at the loopback address.
        self.slot.announce(url_of(LOOPBACK, self.conf.web_port))
        self._name_member(self.slot)
        return self.slot

    def _name_member(self, slot: Slot) -> None:
        machine = f"{socket.gethostname()}-{slot.place}"
        name = static_member_id(self.steadfaust.layout(), slot.number, machine)
        self.conf.consumer_group_instance_id = name

    def worker_init(self) -> None:
        """Set the process up. Faust's commands call this after they have imported the application, and before
        they make an event loop.
        """
        super().worker_init()
        configure_logs(self.steadfaust.log_level, detached=True)
        tune_process()

    # -- life ------------------------------------------------------------------------------------------

    def _new_web(self) -> Any:
        return NoWeb(self)

    def _new_transport(self) -> Any:
        return MembershipTransport(self.conf.broker_consumer, self)

    async def on_start(self) -> None:
        """Check and prepare everything that this worker needs before it joins the group. Raises SystemExit if
        it cannot start.
        """
        await super().on_start()
        try:
            await self._prepare(self.slot or self.take_slot())
        except SteadfaustError as error:
            log.critical("worker_cannot_start", error=str(error))
            self.fatal = error
            raise SystemExit(EXIT_FAILED) from error

    async def _prepare(self, slot: Slot) -> None:
        settings = self.steadfaust
        bootstrap = settings.brokers()
        opened = {
            name: await self._opened.enter_async_context(resource)
            if isinstance(resource, AbstractAsyncContextManager)
            else resource
            for name, resource in self._resources.items()
        }
        app = self._lane_application = self._make_application(opened, self.schemas)
        await until_brokers_answer(bootstrap, lambda: not (self.process and self.process.ending))
        unset = {"partitions", "lanes"} - settings.model_fields_set
        if unset and await self._keeps_its_cut(slot, unset):
            app = self._lane_application = self._make_application(opened, self.schemas)
        share = share_of(settings.lanes)
        options = _kafka_options(settings, share)
        self.cluster = KafkaCluster(bootstrap, options)
        self.operators = OperationsProducer(bootstrap, options)
        announcements = self.announcements = Announcements(
            app,
            self.schemas,
            cluster=self.cluster,
            bootstrap=bootstrap,
            options=options,
            ended_sessions=self.ended_sessions,
        )
        # Read the recorded layout before the topics are checked. It tells whether a topic's partition count
        # is wrong, or this worker's.
        await ensure_topics(app, bootstrap, None, settings.replication, options, before=announcements.read)
        if not self.ended_sessions.is_complete:  # the topic did not exist before
            await announcements.read()
        await announcements.announce()
        cuts = Cuts(app.layout, self.cluster)
        await cuts.look()
        if "lanes" in unset and cuts.newest not in (None, settings.lanes):
            raise LayoutMismatch(
                f"{settings.app_id} has been run with {cuts.newest} lanes since this worker looked up its"
                " lane count: restart it, or set STEADFAUST_LANES"
            )
        self._spawn(announcements.follow())
        stores = RocksStores(self._store_directory(slot), write_buffer_bytes=share.write_buffer)
        # The first access makes the assignor. Otherwise the consumer's thread and the web server could each
        # make one.
        self.assignor.kept = stores.kept()
        ports = Ports(self.cluster, stores, SystemClock(), self._faults)
        tracer = await self._opened.enter_async_context(settings.tracing(settings.app_id))
        measures = {name: HandlerMeasures() for name in app.handlers} if settings.metrics else {}
        shared = shared_by(app, ports, cuts, tracer=tracer, handlers=measures)
        self.host = LaneHost(app, ports, self.on_fatal, shared)

    async def _keeps_its_cut(self, slot: Slot, unset: set[str]) -> bool:
        """If partitions or lanes are not set, use those of the existing application. True if these differ
        from the defaults.
        """
        settings = self.steadfaust
        cluster = KafkaCluster(settings.brokers())
        try:
            found = await recorded_cut(settings.layout(), cluster)
        finally:
            await cluster.close()
        if "partitions" not in unset and found.partitions != settings.partitions:
            return False  # the worker is refused later, because of its partitions
        others = {name for name in unset if getattr(found, name) != getattr(settings, name)}
        for name in others:
            setattr(settings, name, getattr(found, name))
        if others:
            settings.layout()  # what is set and what was found may not fit together
            self._name_member(slot)
            log.warning(
                "cut_kept",
                partitions=settings.partitions,
                lanes=settings.lanes,
                action="set STEADFAUST_PARTITIONS and STEADFAUST_LANES: commands do not look them up",
            )
        return bool(others)

    def _store_directory(self, slot: Slot) -> Path:
        layout = self.lane_application.layout
        # With another lane count a lane has other partitions, so each count gets directories of its own.
        return slot.directory / f"{layout.partitions}-partitions-{layout.lanes}-lanes"

    async def on_started(self) -> None:
        """Join the group."""
        log.info(
            "worker_started", slot=self.slot.number if self.slot else None, web=str(self.conf.canonical_url)
        )
        await self.consumer.subscribe(self.lane_application.sources)
        if self.host is not None:
            self._spawn(hand_over(self.host, self.assignor, self.consumer))
        await self.on_joining()
        if self.on_startup_finished:
            await self.on_startup_finished()

    async def on_joining(self) -> None:
        """Start other work beside the lanes. For subclasses."""

    async def on_stop(self) -> None:
        """End the lanes, then everything that they use. Other workers read uncommitted messages again."""
        if self.host is not None:
            await self.host.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self.operators is not None:
            await self.operators.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self._opened.aclose()
        await self.on_before_shutdown.send()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def on_fatal(self, error: BaseException) -> None:
        """Stop the worker because of an error. Lanes may still commit what they have under way."""
        self.fatal = self.fatal or error
        if self.process is not None:
            self.process.give_up()
        log.critical("worker_stops", error=text_of(error))

    def on_identity_taken(self) -> None:
        """Stop, because another process joins the group with this worker's identity. The next start on this
        directory gets a new one.
        """
        directory = None if self.slot is None else self.slot.directory.parent
        if self.slot is not None:
            self.slot.renew()
        self.on_fatal(
            MembershipLost(
                f"another process has the identity {self.conf.consumer_group_instance_id} of this worker and"
                f" takes its place in the group again and again: {directory} is a copy of its directory, or"
                " shared with it. This worker stops; started again, it has an identity of its own. Give each"
                " machine a STEADFAUST_VAR of its own"
            )
        )

    # -- rebalance -------------------------------------------------------------------------------------

    async def _on_partitions_revoked(self, revoked: set[Any]) -> None:
        """A rebalance begins. Lanes go on, because a new owner fences the old one when it opens the lane."""
        del revoked
        if self.host is not None:
            self.host.membership_unsure()

    async def _on_partitions_assigned(self, assigned: set[Any], generation_id: int = 0) -> None:
        """Start and end lanes to match what the group's leader has assigned."""
        given = self.assignor.assigned
        log.info(
            "lanes_assigned",
            generation=generation_id,
            active=given.active,
            standby=given.standby,
            topics=len(given.topics),
        )
        for topic, lacking in given.waiting.items():
            log.warning("topic_waits", topic=topic, workers_without_it=lacking)
        del assigned
        if given.error:
            self.on_fatal(LayoutMismatch(given.error))
        elif self.host is not None and not self.should_stop:
            brokers = self.steadfaust.brokers().addresses.count(",") + 1
            self.file_shortage = shortage(len(given.active), len(given.standby), brokers)
            if self.file_shortage:
                log.warning("open_files_limit_low", warning=self.file_shortage)
            self.host.assign(given.active, given.standby, given.topics)

    def on_rebalance_start(self) -> None:
        """Note that a rebalance begins. Called in the consumer's thread before anything else of it."""
        self.rebalancing = True
        self.rebalancing_count += 1

    def on_rebalance_return(self) -> None:
        """Note that the rebalance callback has returned."""
        self.rebalancing = False
