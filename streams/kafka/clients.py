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
#: Minimum seconds between log lines with the same text.
INTERVAL = 10.0
#: Minimum seconds between log lines about missing replicas.
REPLICAS_INTERVAL = 60.0
_MOST = 1000

Producer = Literal["newest", "v1"]


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Limits for every Kafka client of a worker. Sizes are in bytes, times in seconds.

    Attributes:
        max_batch: largest record batch. The topics' max.message.bytes must not be smaller.
        max_record: largest record, which then has a batch of its own; 0 means max_batch. A dead letter has
            extra headers, so the topics for dead letters allow more.
        max_fetch: most bytes in one fetch, so a reader holds at most this much in memory for each broker.
        max_partition_fetch: most bytes of one partition in one fetch.
        max_unpacked: largest size of a decompressed batch; a larger batch is not read.
        fetch_wait: how long a broker waits for new records before it answers a fetch.
        transaction_timeout: after this long the broker aborts the open transaction of a dead owner.
        step_timeout: timeout of each of begin, send, send_offsets and commit.
        start_timeout: timeout of initialising a transactional id.
        metadata_timeout: timeout of each request for topics, offsets and positions.
        request_timeout: timeout of one request to one broker; afterwards it is sent again.
        producer: transaction protocol: the newest that the cluster supports, or "v1", which all support.
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
    """Repeat `question` until it is answered: a broker may be down, or a partition or group may be moving.

    Raises ClusterUnavailable after `bound` seconds, or at once for a permanent error.
    """
    last: BaseException | None = None
    try:
        async with asyncio.timeout(bound):
            while True:
                try:
                    return await question()
                except KafkaError as error:
                    last = error
                    # A timeout inside aiokafka passes, and so does an outdated list of brokers.
                    if not error.retriable and not isinstance(error, KafkaTimeoutError):
                        break
                await asyncio.sleep(_ASK_AGAIN)
    except TimeoutError as error:
        last = last or error
        raise ClusterUnavailable(f"Kafka did not tell {what} within {bound:g} s: {last!r}") from last
    raise ClusterUnavailable(f"Kafka does not tell {what}: {last!r}") from last


#: Seconds that `close_within` waits for a client to close.
CLOSE_WITHIN = 5.0


async def close_within(what: str, close: Callable[[], Awaitable[object]]) -> None:
    """Close a client; if that takes longer than `CLOSE_WITHIN`, log a warning and go on without it.

    aiokafka waits for tasks that may swallow their cancellation, which must not make a shutdown hang.
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
    """Let a producer that has not started yet keep an unsent batch for up to `seconds`. By default, aiokafka
    drops a batch without a leader after the timeout of one request; an election takes longer.
    """
    producer._request_timeout_ms = int(seconds * 1000)
    producer._message_accumulator._batch_ttl = seconds


async def require_partitions(client: Any, tps: Collection[TP], timeout: float) -> None:
    """Wait until the cluster knows these partitions.

    Raises TopicMismatch if the cluster answers but lacks a partition, and ClusterUnavailable if no broker
    answers. aiokafka itself waits for an unknown topic without an error, or with one that does not name it.
    """
    answered = False
    for topic in {tp.topic for tp in tps}:
        client.add_topic(topic)  # even if it is known: an update drops topics that are not tracked
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
    """Node id of a partition's leader as an aiokafka client knows it; negative if it knows none."""
    leader = client.cluster.leader_for_partition(tp)
    return -1 if leader is None else int(leader)


def _unknown(client: Any, tps: Iterable[TP]) -> list[TP]:
    partitions_for_topic = client.cluster.partitions_for_topic
    return [tp for tp in tps if tp.partition not in (partitions_for_topic(tp.topic) or ())]


class ThrottledLines(logging.Filter):
    """Lets a line through, and then drops similar lines for `interval` seconds."""

    def __init__(self, interval: float, alike: Callable[[logging.LogRecord], Hashable | None]) -> None:
        """Lines with the same key from `alike` are similar. A line with key None is always written."""
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
    """Many transactions log this error once for each partition, while the broker verifies the partition.
    Replicas are really missing only if the error persists.
    """
    known = isinstance(record.args, tuple) and NotEnoughReplicasError in record.args
    return "not enough replicas" if known else None


def throttle_logs() -> None:
    """Limit repeated log lines of aiokafka's clients."""
    sender.log.addFilter(ThrottledLines(REPLICAS_INTERVAL, _not_enough_replicas))
    for module in (client, cluster, fetcher, group_coordinator, sender):
        module.log.addFilter(ThrottledLines(INTERVAL, _text))


client.create_conn = connect
client.AIOKafkaClient.bootstrap = telling(client.AIOKafkaClient.bootstrap)
throttle_logs()
