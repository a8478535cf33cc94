"""Membership of the worker cluster: Faust's consumer, in its own thread, joins the group and heartbeats.

It fetches nothing: each lane reads for itself, from the positions it has opened with. So none of Faust's
buffers, acks and seeks is between the broker and the lane.
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

#: aiokafka compares it with the time since the last poll, and tells no broker: 2**31 would be 25 days.
NEVER_MS = 2**62
WATCH_INTERVAL = 1.0
#: The loop of the lanes stands still when it has not answered for so many seconds.
STANDS = 3 * WATCH_INTERVAL
#: Until a member that asks for a decision joins again, in seconds: longer than its lanes take to open.
REJOIN_AFTER = 3.0


#: So often a member's place in the group is taken, within so many seconds, until it is sure that another
#: process has its identity. A coordinator that fails in the middle of a rebalance may forget a member once.
_TAKEN, _WITHIN = 3, 120.0


class FencedInstanceId(BrokerResponseError):
    """The group has given this static member's place to another process; aiokafka has no error for it."""

    errno = 82
    message = "FENCED_INSTANCE_ID"


kafka_errors[FencedInstanceId.errno] = FencedInstanceId


class Heartbeats:
    """Takes the place of a coordinator's heartbeat, and notices that another process has this member's
    identity.

    The group lets the one that joins last have it: the other is no member at its next heartbeat, although its
    session has not ended, and joins again. Two such processes take each other's lanes without end.
    """

    def __init__(
        self, coordinator: Any, session: float, taken: Callable[[], None], stands: Callable[[], float]
    ) -> None:
        """`session` is the time after which the group forgets a silent member, in seconds; `taken` is called
        when the identity is another process's; `stands` returns how long the loop of the lanes has stood
        still.
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
        """One heartbeat; False when it did not succeed. Raises what the coordinator raises.

        While the loop of the lanes stands still no heartbeat is sent: this thread runs on, and would keep
        lanes that nobody works on. Once it has stood for a session the group gives them to others.
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
        """Send for the coordinator, and see what a heartbeat is answered: a generation that is over has it
        forget its member id as well, and tells of no other process, but of a rebalance that was missed.
        """
        response = await self._send(request)
        if isinstance(request, HeartbeatRequest):
            self._answer = response.error_code
        return response


async def waited_out(coordinator: Any, error: BaseException) -> str:
    """Why this worker cannot be a member for now, where that passes once somebody mends it; else empty.

    A broker refuses to let workers and members of another kind into one group. To a worker that comes second
    it says so, or answers with an unknown error, when the others are of the protocol `consumer`.
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
        # Before anything is awaited, so that nothing is fetched.
        self._thread._ensure_consumer().pause(*assigned)
        await super().on_partitions_assigned(assigned)


def _join_again(coordinator: Any) -> None:
    """Have a coordinator of aiokafka's go on after an error: it begins none of its tasks anew by itself."""
    if coordinator._heartbeat_task is not None and coordinator._heartbeat_task.done():
        coordinator._heartbeat_task = None
    if coordinator._coordination_task.done():
        coordinator._coordination_task = asyncio.create_task(coordinator._coordination_routine())
    coordinator.request_rejoin()


class _Thread(AIOKafkaConsumerThread):
    @Service.task  # type: ignore[untyped-decorator]  # mode publishes no types here
    async def _watch_coordination(self) -> None:
        """Notice the end of this consumer's coordination: it is never polled, so no poll raises it."""
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

    #: When the loop of the lanes has last answered, as `monotonic` has it.
    _seen_at = math.inf

    def _seen(self) -> None:
        self._seen_at = monotonic()

    def _stands(self) -> float:
        return monotonic() - self._seen_at

    def _identity_taken(self) -> None:
        self.parent_loop.call_soon_threadsafe(self.app.on_identity_taken)

    async def on_thread_stop(self) -> None:
        """Leave, also in the middle of a join: that waits for all other members, some of which may be about
        to end, or stand still, and aiokafka would wait for it.
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
    """Joins the group for the lanes' topics; what it is given comes to the app's rebalance callbacks."""

    RebalanceListener = _Listener

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    def resume_partitions(self, tps: Iterable[Any]) -> None:
        """Nothing to resume: partitions stay paused here."""

    async def commit(self, *_: Any, **__: Any) -> bool:
        """Nothing to commit: positions are in the lanes' transactions."""
        return True

    async def verify_all_partitions_active(self) -> None:
        """Not here: the lanes have their own watchdog, this consumer is idle on purpose."""

    async def perform_seek(self) -> None:
        """Nothing to seek."""

    def request_rebalance(self) -> None:
        """Join again, soon; called in the consumer's thread. Not at once: no lane opens in a rebalance, and a
        worker that was restarted would have its lanes wait until every other member has joined.
        """
        coordinator = self._thread._ensure_consumer()._coordinator
        asyncio.get_running_loop().call_later(REJOIN_AFTER, coordinator.request_rejoin)

    def rejoin(self) -> None:
        """Join again at once: this worker has something else to say of itself. Called in the main thread."""
        coordinator = self._thread._ensure_consumer()._coordinator
        self._thread.thread_loop.call_soon_threadsafe(coordinator.request_rejoin)

    def generation(self) -> int:
        """The group generation that this worker is a member of."""
        return int(self._thread._ensure_consumer()._coordinator.generation)


class MembershipTransport(Transport):
    """Faust's transport with our consumer."""

    Consumer = Membership


def static_member_id(layout: Layout, slot: int, machine: str) -> str:
    """The same for each start in a slot, so that a quick restart costs no rebalance. Another cut is another
    member: its lanes must be decided on, not handed over from its predecessor.
    """
    return f"{layout.app_id}-{machine}-{layout.partitions}x{layout.lanes}-slot-{slot}"
