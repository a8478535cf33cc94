"""Membership of the worker cluster: Faust's consumer, in its own thread, joins the group and heartbeats.

It fetches nothing: each lane reads for itself, from the positions it has opened with. So none of Faust's
buffers, acks and seeks stands between the broker and the lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import aiokafka
from faust.transport.drivers.aiokafka import (
    AIOKafkaConsumerThread,
    ConsumerRebalanceListener,
    Transport,
    server_list,
)
from faust.transport.drivers.aiokafka import Consumer as FaustConsumer


class _Listener(ConsumerRebalanceListener):
    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        # Before anything is awaited, so that nothing is fetched.
        self._thread._ensure_consumer().pause(*assigned)
        await super().on_partitions_assigned(assigned)


class _Thread(AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        self._assignor = self.app.assignor
        return aiokafka.AIOKafkaConsumer(
            client_id=conf.broker_client_id,
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            bootstrap_servers=server_list(transport.url, transport.default_port),
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            # Nobody polls this consumer; aiokafka would call that a stall and leave the group.
            max_poll_interval_ms=2**31 - 1,
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

    def generation(self) -> int:
        """The group generation that this worker is a member of."""
        return int(self._thread._ensure_consumer()._coordinator.generation)


class MembershipTransport(Transport):
    """Faust's transport with our consumer."""

    Consumer = Membership


def static_member_id(app_id: str, slot: int, machine: str) -> str:
    """The same for each start in a slot, so that a quick restart costs no rebalance."""
    return f"{app_id}-{machine}-slot-{slot}"
