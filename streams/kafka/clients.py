"""Options and waits that all Kafka clients of a worker share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import structlog
from aiokafka import client, cluster
from aiokafka.consumer import fetcher, group_coordinator
from aiokafka.errors import KafkaError, KafkaTimeoutError, NotEnoughReplicasError
from aiokafka.producer import sender

from streams.brokers import Bootstrap, Brokers
from streams.errors import ClusterUnavailable, TopicMismatch
from streams.kafka.connections import connect, telling
from streams.kafka.security import client_arguments
from streams.ports import TP
from streams.system.shares import MOST
from streams.units import MIB

T = TypeVar("T")
log = structlog.get_logger(__name__)

_ASK_AGAIN = 0.05
#: Between lines that say the same, in seconds.
INTERVAL = 10.0
#: Between lines about missing replicas, in seconds.
REPLICAS_INTERVAL = 60.0
_MOST = 1000

Producer = Literal["newest", "v1"]


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Bounds of every Kafka client of a worker. Sizes are in bytes, times in seconds.

    Attributes:
        max_batch: how much is packed into one record batch. The topics' max.message.bytes must not be less.
        max_record: the largest record, alone in its batch; 0 means max_batch. Dead letters have headers
            added, and their topics more room.
        max_fetch: what one fetch may bring, and so what a reader holds in memory, for each broker.
        max_partition_fetch: what one fetch may bring of one partition.
        max_unpacked: what one batch may be decompressed to; one that would be more is not read.
        fetch_wait: how long a broker holds back the answer when nothing new is there.
        transaction_timeout: after this long the broker aborts the open transaction of a dead owner.
        step_timeout: bound on each of begin, send, send_offsets and commit.
        start_timeout: bound on initialising a transactional id.
        metadata_timeout: bound on each question about topics, offsets and positions.
        request_timeout: bound on one request to one broker, after which it is sent again.
        producer: the protocol of transactions: the newest that the cluster has, or the one that all have.
    """

    max_batch: int = MIB
    max_record: int = 0
    max_fetch: int = MOST.fetch
    max_partition_fetch: int = MOST.partition_fetch
    max_unpacked: int = 16 * MIB
    fetch_wait: float = 0.5
    transaction_timeout: float = 15.0
    step_timeout: float = 25.0
    start_timeout: float = 30.0
    metadata_timeout: float = 15.0
    request_timeout: float = 20.0
    producer: Producer = "newest"

    def connection(self, bootstrap: Bootstrap) -> dict[str, Any]:
        """Arguments that every aiokafka client takes. Raises SettingsError, see `client_arguments`."""
        brokers = Brokers.of(bootstrap)
        return {
            "bootstrap_servers": brokers.addresses,
            "request_timeout_ms": int(self.request_timeout * 1000),
            **client_arguments(brokers.security),
        }


async def ask(what: str, question: Callable[[], Awaitable[T]], bound: float) -> T:
    """Ask until there is an answer: a broker may be down or about to hand over what the question is about.

    Raises ClusterUnavailable after `bound` seconds, or at once for an error that does not pass.
    """
    last: BaseException | None = None
    try:
        async with asyncio.timeout(bound):
            while True:
                try:
                    return await question()
                except KafkaError as error:
                    last = error
                    # aiokafka's own patience has ended, or its list of brokers is of before: both pass.
                    if not error.retriable and not isinstance(error, KafkaTimeoutError):
                        break
                await asyncio.sleep(_ASK_AGAIN)
    except TimeoutError as error:
        last = last or error
        raise ClusterUnavailable(f"Kafka did not tell {what} within {bound:g} s: {last!r}") from last
    raise ClusterUnavailable(f"Kafka does not tell {what}: {last!r}") from last


#: Seconds that closing a client may take.
CLOSE_WITHIN = 5.0


async def close_within(what: str, close: Callable[[], Awaitable[object]]) -> None:
    """Close a client, and go on without it where that does not end: aiokafka waits for tasks that may
    swallow what is to end them. A shutdown must not hang of it; what is left ends with its connections.
    """
    closing = asyncio.ensure_future(close())
    try:
        done, _ = await asyncio.wait([closing], timeout=CLOSE_WITHIN)
    except asyncio.CancelledError:
        closing.cancel()
        raise
    if done:
        closing.result()
        return
    closing.cancel()
    closing.add_done_callback(_look_at)
    log.warning(
        "client_does_not_close",
        client=what,
        waited=CLOSE_WITHIN,
        action="abandoned; everything else continues",
    )


def _look_at(closing: asyncio.Future[object]) -> None:
    """Retrieve the outcome of a close that was left behind, so that asyncio logs no error."""
    if not closing.cancelled():
        closing.exception()


def deliver_within(producer: Any, seconds: float) -> None:
    """Let a producer that is not started yet keep a batch for so long. aiokafka gives one up that has had no
    leader, or no room, for the bound on one request; an election takes longer.
    """
    producer._request_timeout_ms = int(seconds * 1000)
    producer._message_accumulator._batch_ttl = seconds


async def require_partitions(client: Any, tps: Collection[TP], timeout: float) -> None:
    """Wait until the cluster knows these partitions.

    Raises TopicMismatch when it answers and does not, ClusterUnavailable when it does not answer.
    aiokafka by itself waits for an unknown topic without an error, or with one that does not name it.
    """
    answered = False
    for topic in {tp.topic for tp in tps}:
        client.add_topic(topic)  # also known ones: an update forgets topics that are not tracked
    missing = _unknown(client, tps)
    try:
        async with asyncio.timeout(timeout):
            while missing:
                answered = await client.force_metadata_update()
                missing = _unknown(client, missing)
                if missing:
                    await asyncio.sleep(0.1)
    except TimeoutError:
        names = ", ".join(sorted(f"{tp.topic}[{tp.partition}]" for tp in missing))
        if not answered:
            raise ClusterUnavailable(
                f"no broker answered for {timeout:g} s about {names}: check the brokers' addresses"
            ) from None
        raise TopicMismatch(
            f"the cluster has no {names}: create the topics, with the application's number of partitions"
        ) from None


def leader_of(client: Any, tp: TP) -> int:
    """The leader of a partition, as far as a client of aiokafka knows; negative when none is known."""
    leader = client.cluster.leader_for_partition(tp)
    return -1 if leader is None else int(leader)


def _unknown(client: Any, tps: Iterable[TP]) -> list[TP]:
    partitions_for_topic = client.cluster.partitions_for_topic
    return [tp for tp in tps if tp.partition not in (partitions_for_topic(tp.topic) or ())]


class ThrottledLines(logging.Filter):
    """Lets a line through, and those alike only after `interval` seconds."""

    def __init__(self, interval: float, alike: Callable[[logging.LogRecord], Hashable | None]) -> None:
        """`alike` tells which lines are; None: this line is like no other."""
        super().__init__()
        self._interval = interval
        self._alike = alike
        self._quiet_until: dict[Hashable, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        key = self._alike(record)
        if key is None:
            return True
        now = time.monotonic()
        if now < self._quiet_until.get(key, 0.0):
            return False
        if len(self._quiet_until) >= _MOST:
            self._quiet_until.clear()
        self._quiet_until[key] = now + self._interval
        return True


def _text(record: logging.LogRecord) -> str:
    return record.getMessage()


def _not_enough_replicas(record: logging.LogRecord) -> str | None:
    """It comes with many a transaction, while the broker verifies a partition, once for each partition. Only
    one that does not go away tells of replicas that are really missing.
    """
    known = isinstance(record.args, tuple) and NotEnoughReplicasError in record.args
    return "not enough replicas" if known else None


def throttle_logs() -> None:
    """Filter the loggers of aiokafka's clients."""
    sender.log.addFilter(ThrottledLines(REPLICAS_INTERVAL, _not_enough_replicas))
    for module in (client, cluster, fetcher, group_coordinator, sender):
        module.log.addFilter(ThrottledLines(INTERVAL, _text))


client.create_conn = connect
client.AIOKafkaClient.bootstrap = telling(client.AIOKafkaClient.bootstrap)
throttle_logs()
