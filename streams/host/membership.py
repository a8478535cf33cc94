"""Membership in the workers' group. Faust's consumer joins the group and sends heartbeats in its own thread.

It fetches nothing. Each lane reads by itself, from the positions that it opened with, so Faust's buffers,
acks and seeks are not involved.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import aiokafka
import structlog
from aiokafka.errors import (
    BrokerResponseError,
    GroupAuthorizationFailedError,
    InconsistentGroupProtocolError,
    NoError,
    UnknownError,
    UnknownMemberIdError,
    kafka_errors,
)
from aiokafka.protocol.group import HeartbeatRequest
from faust.transport.drivers.aiokafka import (
    AIOKafkaConsumerThread,
    ConsumerRebalanceListener,
    Transport,
    server_list,
)
from faust.transport.drivers.aiokafka import Consumer as FaustConsumer
from mode import Service

from streams.errors import MembershipLost
from streams.kafka.group_members import named_members
from streams.kafka.security import client_arguments
from streams.model.layout import Layout

log = structlog.get_logger(__name__)

#: Milliseconds without a poll until aiokafka leaves the group. It is not sent to brokers, so it may exceed
#: 2**31, which is 25 days.
NEVER_MS = 2**62
WATCH_INTERVAL = 1.0
#: Seconds without an answer after which the lanes' event loop counts as blocked.
STANDS = 3 * WATCH_INTERVAL
#: Seconds until a member that requests a rebalance joins again; longer than its lanes take to open.
REJOIN_AFTER = 3.0


#: How many times within how many seconds a member has to lose its place in the group until it is certain that
#: another process has its identity. A coordinator that fails during a rebalance may forget a member once.
_TAKEN, _WITHIN = 3, 120.0


class FencedInstanceId(BrokerResponseError):
    """Another process has taken over this static member's identity. aiokafka has no class for this error."""

    errno = 82
    message = "FENCED_INSTANCE_ID"


kafka_errors[FencedInstanceId.errno] = FencedInstanceId


class Heartbeats:
    """Replaces a coordinator's heartbeat, and notices if another process uses this member's identity.

    The group accepts the process that joins last. The other one is no longer a member at its next heartbeat,
    although its session has not expired, and joins again. So two such processes would take each other's lanes
    forever.
    """

    def __init__(
        self, coordinator: Any, session: float, taken: Callable[[], None], stands: Callable[[], float]
    ) -> None:
        """`session` is the session timeout in seconds. `taken` is called if another process has the identity.
        `stands` returns how many seconds the lanes' event loop has not answered.
        """
        self._coordinator = coordinator
        self._beat = coordinator._do_heartbeat
        self._send = coordinator._send_req
        coordinator._send_req = self._sent
        self._answer = NoError.errno
        self._session = session
        self._taken = taken
        self._stands = stands
        self._silent = False
        self.last_good = monotonic()
        self._losses: deque[float] = deque(maxlen=_TAKEN)

    async def beat(self) -> bool:
        """Send one heartbeat. Returns False if it fails. Raises what the coordinator raises.

        While the lanes' event loop is blocked, no heartbeat is sent, because this thread would keep lanes
        that nothing runs. After the session timeout the group gives them to other workers.
        """
        if (stood := self._stands()) > STANDS:
            if not self._silent:
                log.warning(
                    "main_loop_stands", seconds=round(stood, 1), action="no heartbeats until it goes on"
                )
            self._silent = True
            return True
        self._silent = False
        member = self._coordinator.member_id
        self._answer = NoError.errno
        good: bool = await self._beat()
        now = monotonic()
        if good:
            self.last_good = now
        elif self._answer == UnknownMemberIdError.errno and now - self.last_good < self._session:
            self._losses.append(now)
            log.warning("membership_taken", member=member, times=len(self._losses))
            if len(self._losses) == _TAKEN and now - self._losses[0] < _WITHIN:
                self._taken()
        return good

    async def _sent(self, request: Any) -> Any:
        """Send a request for the coordinator, and note the answer to a heartbeat. The coordinator also drops
        its member id when its generation is outdated, but that means a missed rebalance, not another process.
        """
        response = await self._send(request)
        if isinstance(request, HeartbeatRequest):
            self._answer = response.error_code
        return response


async def waited_out(coordinator: Any, error: BaseException) -> str:
    """Why this worker cannot be a member for now, if an operator can solve the problem; else empty.

    A broker does not accept workers and other kinds of members in one group. It refuses a worker that joins
    others with a clear error, or with an unknown error if the others use the protocol `consumer`.
    """
    text, group = repr(error), coordinator.group_id
    if GroupAuthorizationFailedError.__name__ in text:
        return (
            f"this worker may not read group {group}: grant READ on the group to its user (kafka-acls.sh"
            f" --add --allow-principal ... --operation Read --group {group}); it is no member until then"
        )
    if InconsistentGroupProtocolError.__name__ in text or UnknownError.__name__ in text:
        return (
            f"the broker does not let this worker into group {group}, in which others are:"
            f" {await named_members(coordinator)}. Stop them: only workers of the application may have its id"
            " as their group; this worker joins when they have left"
        )
    return ""


class _Listener(ConsumerRebalanceListener):
    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        # Pause before the first await, so that nothing is fetched.
        self._thread._ensure_consumer().pause(*assigned)
        await super().on_partitions_assigned(assigned)


def _join_again(coordinator: Any) -> None:
    """Restart the tasks of an aiokafka coordinator after an error. It does not restart them by itself."""
    if coordinator._heartbeat_task is not None and coordinator._heartbeat_task.done():
        coordinator._heartbeat_task = None
    if coordinator._coordination_task.done():
        coordinator._coordination_task = asyncio.create_task(coordinator._coordination_routine())
    coordinator.request_rejoin()


class _Thread(AIOKafkaConsumerThread):
    @Service.task  # type: ignore[untyped-decorator]  # mode publishes no types here
    async def _watch_coordination(self) -> None:
        """Notice errors of this consumer's group coordination. It is never polled, so no poll raises them."""
        trouble, since = "", 0.0
        while not self.should_stop:
            self.parent_loop.call_soon_threadsafe(self._seen)
            await self.sleep(WATCH_INTERVAL)
            coordinator = None if self._consumer is None else self._consumer._coordinator
            if coordinator is None:
                continue
            heartbeats = getattr(coordinator._do_heartbeat, "__self__", None)
            if not isinstance(heartbeats, Heartbeats):
                session = self.app.conf.broker_session_timeout
                heartbeats = Heartbeats(coordinator, session, self._identity_taken, self._stands)
                coordinator._do_heartbeat = heartbeats.beat
            if trouble and heartbeats.last_good > since:
                log.info("membership_goes_on", after=trouble)
                trouble = self.app.membership_trouble = ""
            try:
                coordinator.check_errors()
            except Exception as error:  # noqa: BLE001 - whatever it was, this worker is no member any more
                if why := await waited_out(coordinator, error):
                    if why != trouble:
                        log.warning("membership_waits", cause=why)
                    trouble = self.app.membership_trouble = why
                    since = monotonic()
                    _join_again(coordinator)
                    continue
                if getattr(error, "retriable", False):  # coordination goes on after a request
                    log.warning("membership_retried", error=repr(error))
                    continue
                if FencedInstanceId.__name__ in repr(error):  # it may be wrapped
                    self._identity_taken()
                    return
                lost = MembershipLost(f"this worker is no longer a member of its group: {error!r}")
                self.parent_loop.call_soon_threadsafe(self.app.on_fatal, lost)
                return

    #: When the lanes' event loop last answered, by the monotonic clock; infinite before the first answer.
    _seen_at = math.inf

    def _seen(self) -> None:
        self._seen_at = monotonic()

    def _stands(self) -> float:
        return monotonic() - self._seen_at

    def _identity_taken(self) -> None:
        self.parent_loop.call_soon_threadsafe(self.app.on_identity_taken)

    async def on_thread_stop(self) -> None:
        """Leave the group, even in the middle of a join. A join waits for all other members, some of which
        may be ending or blocked, and aiokafka would wait for the join.
        """
        coordinator = None if self._consumer is None else self._consumer._coordinator
        coordination = getattr(coordinator, "_coordination_task", None)
        if coordination is not None:
            coordination.cancel()
            await asyncio.wait([coordination])
        await super().on_thread_stop()

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        self._assignor = self.app.assignor
        return aiokafka.AIOKafkaConsumer(
            client_id=conf.broker_client_id,
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            bootstrap_servers=server_list(transport.url, transport.default_port),
            **client_arguments(self.app.steadfaust.security()),
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            # This consumer is not polled; aiokafka would call that a stall and leave the group.
            max_poll_interval_ms=NEVER_MS,
            retry_backoff_ms=100,
        )


class Membership(FaustConsumer):
    """Joins the group for the lanes' topics. The app's rebalance callbacks get its assignments."""

    RebalanceListener = _Listener

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    def resume_partitions(self, tps: Iterable[Any]) -> None:
        """Do nothing, because partitions of this consumer stay paused."""

    async def commit(self, *_: Any, **__: Any) -> bool:
        """Do nothing, because lanes commit positions in their transactions."""
        return True

    async def verify_all_partitions_active(self) -> None:
        """Do nothing, because this consumer is idle on purpose. Lanes have their own watchdog."""

    async def perform_seek(self) -> None:
        """Do nothing, because this consumer does not read."""

    def request_rebalance(self) -> None:
        """Join again after REJOIN_AFTER seconds. Called in the consumer's thread. No lane opens during a
        rebalance. If a restarted worker joined at once, its lanes would wait for all other members to join.
        """
        coordinator = self._thread._ensure_consumer()._coordinator
        asyncio.get_running_loop().call_later(REJOIN_AFTER, coordinator.request_rejoin)

    def rejoin(self) -> None:
        """Join again at once, because this worker's metadata has changed. Called in the main thread."""
        coordinator = self._thread._ensure_consumer()._coordinator
        self._thread.thread_loop.call_soon_threadsafe(coordinator.request_rejoin)

    def generation(self) -> int:
        """This worker's group generation."""
        return int(self._thread._ensure_consumer()._coordinator.generation)


class MembershipTransport(Transport):
    """Faust's transport with `Membership` as its consumer."""

    Consumer = Membership


def static_member_id(layout: Layout, slot: int, machine: str) -> str:
    """The worker's `group.instance.id`. It is the same at each start in a slot, so that a quick restart needs
    no rebalance. It differs for other partition or lane counts, because their lanes need a new assignment.
    """
    return f"{layout.app_id}-{machine}-{layout.partitions}x{layout.lanes}-slot-{slot}"
