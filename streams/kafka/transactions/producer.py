"""Kafka transactions in as few requests as the cluster allows."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import NoReturn, TypeVar

import structlog
from aiokafka.client import CoordinationType
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    InvalidTimestampError,
    InvalidTxnState,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
)

from streams.brokers import Bootstrap
from streams.errors import Fenced, OutcomeUnknown, SteadfaustError, TransactionFailed
from streams.kafka.clients import KafkaOptions, require_partitions
from streams.kafka.transactions import requests
from streams.kafka.transactions.batches import PackedBatch, ProducerSequences, pack
from streams.kafka.transactions.codes import FENCED, error_of, moved, passes, pause
from streams.kafka.transactions.limits import BatchLimits
from streams.kafka.transactions.link import BrokerLink, Coordinator
from streams.kafka.transactions.questions import describe_limit, describe_transaction
from streams.kafka.transactions.refusals import TOO_LARGE, clock_wrong, refusal_of, too_large
from streams.kafka.transactions.requests import V1, Owner, WrittenBatch
from streams.ports import NO_NOTES, TP, Note, Sendable

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Seconds that a request may take whose answer only improves the text of an error.
EXPLAINED_WITHIN = 2.0
#: Stands for the answer if nothing was sent.
_NOBODY = WrittenBatch(LeaderNotAvailableError.errno, -1, "no leader can be reached")


class TransactionalProducer:
    """A transactional producer with a fixed id and a timeout for each step. It is unusable once a step has
    raised TransactionFailed or Fenced: every later call raises the same kind of error. `discard` releases it.

    At its start, it asks which protocol the cluster supports (`TransactionProtocol`). It repeats a request
    after a temporary error, but not if the answer was lost. The first request of a transaction shows whether
    the producer was fenced; `begin` sends none, and neither does an empty transaction.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        transactional_id: str,
        options: KafkaOptions,
        *,
        starting: asyncio.Lock,
        closing: set[asyncio.Task[None]],
        limits: BatchLimits | None = None,
    ) -> None:
        """`limits` are the batch limits that all producers of a worker share."""
        self._id = transactional_id
        self._options = options
        self._closing = closing
        self._failure: Fenced | TransactionFailed | None = None
        self._starting = starting
        self._started = self._discarded = False
        self._deadlines: set[asyncio.Timeout] = set()
        self._link = BrokerLink(bootstrap, options)
        self._coordinator = Coordinator(CoordinationType.TRANSACTION, transactional_id)
        self._protocol = V1
        self._sequences = ProducerSequences(Owner(transactional_id, -1, -1))
        self._known: set[TP] = set()
        self._limits = limits or BatchLimits()
        # State of the open transaction.
        self._begun = False
        self._began = 0.0
        self._enrolled: set[TP] = set()
        self._groups: set[str] = set()
        # Requests that add partitions or groups go one after another, because the coordinator would refuse a
        # concurrent one. A partition's batches go one after another, too.
        self._enrolling, self._sending = asyncio.Lock(), asyncio.Lock()

    @property
    def producer_id(self) -> int:
        """The id that the cluster assigned at the start. It changes when its epochs are used up."""
        return self._sequences.owner.producer_id

    async def start(self) -> None:
        """Initialise the id: fences its previous owner and ends the transaction that the owner left open.

        Raises Fenced, or OutcomeUnknown if the cluster does not answer within the timeout.
        """
        if self._started or self._failure is not None:
            raise RuntimeError(f"the producer {self._id} was started before: make another one")
        # Two concurrent starts with the same id would fence each other.
        async with self._starting:
            self._started = True
            await self._step("initialise", self._initialise(), self._options.start_timeout)

    async def begin(self) -> None:
        """Begin a transaction. Sends no request, so only the next step notices if another owner started."""
        self._running()
        await self._step("begin", self._begin())

    async def send(self, batches: Mapping[TP, Sequence[Sendable]]) -> dict[TP, int]:
        """Write all records and wait until the brokers have acknowledged them.

        Returns the offset after the last record of each partition; the transaction's marker comes later and
        is not counted. Raises TooLarge if a record does not fit a batch, before anything is sent;
        RecordRefused if a broker refuses one of the records; and Refused if it refuses the transaction.
        """
        self._running()
        now = int(time.time() * 1000)
        limits, options = self._limits, self._options
        if due := limits.due({tp.topic: None for tp in batches}):
            await self._ask_limits(due)
        packed = {
            tp: pack(tp, records, now, options, limits.of(tp.topic, options.max_batch))
            for tp, records in batches.items()
            if records
        }
        return await self._step("send", self._send(packed))

    async def send_offsets(
        self, offsets: Mapping[TP, int], group: str, notes: Mapping[TP, Note] = NO_NOTES
    ) -> None:
        """Add the group's offsets to the transaction, each with its note if it has one."""
        self._running()
        await self._step("send offsets", self._send_offsets(offsets, group, notes))

    async def commit(self) -> None:
        """Commit. Raises Fenced, or OutcomeUnknown if the answer was lost."""
        self._running()
        await self._step("commit", self._commit())

    async def discard(self) -> None:
        """Release the producer without an abort or a commit. Its connections close in the background."""
        if not self._started or self._discarded:
            return
        self._link.cut()
        self._discarded = True
        if self._failure is None:
            self._failure = OutcomeUnknown(f"the producer {self._id} was discarded: start another one")
        loop = asyncio.get_running_loop()
        for deadline in self._deadlines:  # end concurrent steps that still wait
            if not deadline.expired():  # it may have expired just now, before its step has noticed
                deadline.reschedule(loop.time())
        task = loop.create_task(self._link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _running(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure
        if not self._started:
            raise RuntimeError(f"the producer {self._id} was not started")

    async def _step(self, name: str, work: Awaitable[T], timeout: float | None = None) -> T:
        bound = self._options.step_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(bound) as deadline:
                self._deadlines.add(deadline)
                try:
                    return await work
                finally:
                    self._deadlines.discard(deadline)
        except TransactionFailed as error:
            if self._failure is None:
                self._failure = error
            raise
        except SteadfaustError:
            raise
        except Exception as error:  # noqa: BLE001 - aiokafka raises assertions too, and all mean the same here
            self._fail(name, bound, error)

    def _fail(self, name: str, bound: float, error: Exception) -> NoReturn:
        if self._discarded and self._failure is not None:
            raise type(self._failure)(str(self._failure)) from error  # discarded meanwhile
        # With V2, a transaction timeout raises the epoch, too. The coordinator then takes our end for a
        # repeat of its own abort; a commit does not match that, so it answers InvalidTxnState.
        if isinstance(error, FENCED) or (self._protocol.enrols and isinstance(error, InvalidTxnState)):
            why = "another owner started, or its transaction timed out"
            self._failure = Fenced(f"{self._id} was fenced when it tried to {name}: {why}")
        elif (refusal := refusal_of(error, f"{self._id} failed to {name}")) is not None:
            self._failure = refusal
        else:
            reason = repr(error)
            if isinstance(error, TimeoutError):
                reason = "; ".join(filter(None, (f"no answer within {bound:g} s", self._link.trouble)))
            self._failure = OutcomeUnknown(
                f"{self._id} failed to {name} ({reason}): discard it and start another"
            )
        raise self._failure from error

    async def _initialise(self) -> None:
        link, options = self._link, self._options
        await link.open()
        if options.producer != "v1":
            call = requests.protocol_of()
            with suppress(IncompatibleBrokerVersion):  # the broker does not know the request
                self._protocol = await link.ask_coordinator(self._coordinator, call, repeatable=True)
        call = requests.init_producer(self._id, options.transaction_timeout)
        self._sequences.renew(await link.ask_coordinator(self._coordinator, call, repeatable=True))

    async def _begin(self) -> None:
        if self._begun:
            raise KafkaError("a transaction is open already")
        self._begun, self._began = True, time.time()
        self._link.trouble = ""

    def _require_begun(self) -> None:
        if not self._begun:
            raise KafkaError("no transaction is open")

    async def _send(self, packed: Mapping[TP, list[PackedBatch]]) -> dict[TP, int]:
        self._require_begun()
        async with self._sending:
            if unknown := packed.keys() - self._known:
                await require_partitions(self._link.client, unknown, self._options.metadata_timeout)
                self._known |= unknown
            if self._protocol.enrols:
                # Let concurrently sent offsets go first. While the last transaction's markers are being
                # written, both are refused: offsets at once, records after the broker has retried for 20 ms.
                await asyncio.sleep(0)
                async with self._enrolling:
                    return await self._write(packed)
            async with self._enrolling:
                if new := packed.keys() - self._enrolled:
                    call = requests.add_partitions(self._sequences.owner, new)
                    await self._link.ask_coordinator(self._coordinator, call)
                    self._enrolled |= new
            return await self._write(packed)

    async def _write(self, packed: Mapping[TP, list[PackedBatch]]) -> dict[TP, int]:
        """Write the first batch of every partition, then the second of each, and so on."""
        ends: dict[TP, int] = {}
        for several in zip_longest(*packed.values()):
            batches = {tp: each for tp, each in zip(packed, several, strict=True) if each is not None}
            ends |= await self._write_once(batches)
        return ends

    async def _write_once(self, batches: Mapping[TP, PackedBatch]) -> dict[TP, int]:
        """Write one batch to each partition. After a temporary error, the same bytes are sent again."""
        owner, ends = self._sequences.owner, {}
        left = {tp: batch.build(owner, self._sequences.next(tp)) for tp, batch in batches.items()}
        tries = 0
        while left:
            tries, codes = tries + 1, set()
            for tp, (code, offset, message) in (await self._produce(left)).items():
                if not code and offset >= 0:
                    ends[tp] = offset + batches[tp].records
                    self._sequences.written(tp, batches[tp].records)
                    del left[tp]
                elif passes(code):
                    codes.add(code)
                elif code:
                    await self._explain(tp, code, message, len(left[tp]), batches[tp].records)
                    raise error_of(code)(f"{tp.topic}[{tp.partition}]: code {code} {message}".rstrip())
                else:
                    raise KafkaError(f"the broker did not say where it wrote a batch of {_names([tp])}")
            if codes:
                self._link.note(codes)
                if moved(codes):
                    await self._link.refresh()
                await asyncio.sleep(pause(codes, tries))
        self._enrolled |= ends.keys()
        return ends

    async def _explain(self, tp: TP, code: int, message: str, size: int, records: int) -> None:
        """Request the details that the error of a batch lacks. Raises Refused (or its subclass ClockWrong) or
        RecordRefused for a wrong timestamp or a batch that is too large; returns for other errors.
        """
        error = error_of(code)
        if issubclass(error, InvalidTimestampError):
            call = describe_transaction(self._id)
            started = await self._told(self._link.ask_coordinator(self._coordinator, call))
            raise clock_wrong(self._began - started.at_ms / 1000 if started else None, tp, message)
        if issubclass(error, TOO_LARGE):
            limit = await self._told(self._link.ask(self._link.leader(tp), describe_limit(tp.topic)))
            raise too_large(tp, size, records, self._limits.refused(tp.topic, size, limit))

    async def _ask_limits(self, topics: Iterable[str]) -> None:
        """Read the batch limits of these topics again, because an operator may have raised them."""
        for topic in topics:
            if (leader := self._link.leader(TP(topic, 0))) >= 0:
                limit = await self._told(self._link.ask(leader, describe_limit(topic)))
                self._limits.learned(topic, limit, self._options.max_batch)

    async def _told(self, question: Awaitable[T]) -> T | None:
        """Await an answer that only adds details to an error; None if it fails or takes too long."""
        try:
            async with asyncio.timeout(EXPLAINED_WITHIN):
                return await question
        except (KafkaError, TimeoutError) as error:
            log.warning("refusal_not_explained", id=self._id, error=repr(error))
            return None

    async def _produce(self, batches: Mapping[TP, bytearray]) -> Mapping[TP, WrittenBatch]:
        """Send the batches to each leader once. Returns an answer for each partition."""
        by_leader: defaultdict[int, dict[TP, bytearray]] = defaultdict(dict)
        for tp, batch in batches.items():
            by_leader[self._link.leader(tp)][tp] = batch
        answers_due = (self._ask_leader(leader, some) for leader, some in by_leader.items())
        answers: Sequence[Mapping[TP, WrittenBatch] | BaseException]
        if len(by_leader) > 1 and batches.keys() <= self._enrolled:  # concurrently
            # Wait for every answer, so that no request is still under way if this step fails.
            answers = await asyncio.gather(*answers_due, return_exceptions=True)
        else:
            answers = [await each for each in answers_due]
        found: dict[TP, WrittenBatch] = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found |= answer
        return found

    async def _ask_leader(self, leader: int, batches: Mapping[TP, bytearray]) -> Mapping[TP, WrittenBatch]:
        call = requests.produce(self._protocol, self._sequences.owner, batches, self._options.step_timeout)
        try:
            answer: Mapping[TP, WrittenBatch] = await self._link.ask(leader, call)
        except NodeNotReadyError:
            return dict.fromkeys(batches, _NOBODY)
        if answer.keys() != batches.keys():
            raise KafkaError(f"broker {leader} did not answer for {_names(batches.keys() - answer.keys())}")
        return answer

    async def _send_offsets(self, offsets: Mapping[TP, int], group: str, notes: Mapping[TP, Note]) -> None:
        self._require_begun()
        if not offsets:
            return
        link, owner = self._link, self._sequences.owner
        keeper = Coordinator(CoordinationType.GROUP, group)
        call = requests.commit_offsets(self._protocol, owner, group, offsets, notes)
        async with self._enrolling:
            if self._protocol.enrols:
                await link.ask_coordinator(keeper, call)
            elif group not in self._groups:
                await link.ask_coordinator(self._coordinator, requests.add_offsets(owner, group))
            self._groups.add(group)
        if not self._protocol.enrols:
            await link.ask_coordinator(keeper, call)

    async def _commit(self) -> None:
        self._require_begun()
        if len(self._deadlines) > 1:
            raise KafkaError("another step of the transaction is under way")
        if self._enrolled or self._groups:
            call = requests.end(self._protocol, self._sequences.owner)
            outcome = await self._link.ask_coordinator(self._coordinator, call)
            if self._protocol.enrols and outcome.producer_id < 0:
                raise KafkaError("the coordinator did not say the next epoch")
            self._sequences.renew(outcome)
        self._begun = False
        self._enrolled.clear()
        self._groups.clear()


def _names(tps: Iterable[TP]) -> str:
    return ", ".join(sorted(f"{tp.topic}[{tp.partition}]" for tp in tps))
