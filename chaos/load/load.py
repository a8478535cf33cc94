"""The load of a run: purchases at a steady rate, half of them for sagas, and poison; in no order, by clients
that repeat themselves. Most orders are placed over HTTP.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from aiokafka.errors import KafkaError

from agents.cancellation import RequestCancellation
from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced, StockReceived
from chaos.load.arrivals import arrivals
from chaos.load.called_off import SUPPLY, Coming, comings
from chaos.load.clients import ATTACHED, CODECS, producer
from chaos.load.notes import NOTES_EACH, note, note_id, schema
from chaos.load.shop import Shop
from chaos.rig.records import LARGEST, Way
from chaos.rig.waiting import ChaosFailed
from demo.load import SOURCE
from demo.purchases import Purchase, attachments, draw, orchestrated, order, purchases, receipts
from demo.trouble import poison
from streams.errors import BlobsUnavailable
from streams.model.claim import VALUE, Claim, with_claim
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import Codec, Schemas, avro
from streams.model.envelope import FINGERPRINT, RECORD_OVERHEAD, headers_size, new_headers
from streams.model.message import Message

_RECEIPT_EVERY = 20
_NOTE_EVERY = 4
_NOTE_TWICE = 0.2
_TAKEN_WITHIN = 60.0
_PAUSE = 0.02
#: Before a file is sent again that the object store did not take, in seconds: it says so at once.
_AFTER_OUTAGE = 0.5
#: Bytes that the cluster takes for a record.
_LIMIT = 1_000_000
#: Of so many orders one is written to Kafka by its client, all others are placed over HTTP; but for those
#: with more bytes of files than this, which take the way by the object store.
_TO_KAFKA_ONE_IN, _MOST_OF_FILES = 4, 700
#: Messages a second while there is next to no traffic.
_TRICKLE = 1.0
_Headers = list[tuple[str, bytes]]
#: One for each codec.
_Producers = Sequence[Any]


@dataclass(frozen=True)
class _Sent:
    """A record, and the payload that is to be in the object store before it is sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: _Headers
    payload: tuple[Claim, bytes] | None = None


class Load:
    """Sends until `end` is called, then waits until the cluster has taken everything.

    What cluster or object store do not take is sent again, with the same id: the client may well have sent it
    twice.

    Attributes:
        placed: how many purchases of the file were placed, from its start; final when `run` has returned.
        sent: how many messages in all.
        again: how many had to be sent again.
        notes: how many notes were made.
        shop: the client of the orders API; None: there is none, and all goes to Kafka.
        span: when the first order was placed, and the last, in seconds since the epoch.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        seed: int,
        rate: float,
        most: int,
        called_off: float = 0.0,
        shop: Shop | None = None,
    ) -> None:
        """`rate` in messages a second, repetitions included; `most` orders in all. Beside a share of them
        comes one that is `called_off`.
        """
        self.placed = 0
        self.sent = 0
        self.again = 0
        self.notes = 0
        self.span = (0.0, 0.0)
        self.shop = shop
        self._bootstrap = bootstrap
        self._rate = rate
        self._due = 0.0
        self._purchases = purchases(most)
        self._share_called_off = called_off
        self._coming: list[tuple[int, Coming]] = []
        self._order_ids = [purchase.order_id for purchase in self._purchases]
        self._chance = random.Random(seed)
        self._ended = False
        self._makes_notes = False
        self._receives = True
        self._receipts_again: Sequence[StockReceived] = ()
        self._under_way = 0
        self._failure: BaseException | None = None
        self._refused: list[_Sent] = []
        self._delivering: set[asyncio.Task[None]] = set()
        self._claims: ClaimChecks | None = None
        self._make_codec = avro(schema, Schemas())
        self._codecs: dict[type[Message], Codec[Any]] = {}

    def lasts(self, seconds: float) -> bool:
        """Whether there are purchases for so much longer."""
        return len(self._purchases) - self.placed > seconds * self._rate

    def accepted(self) -> Mapping[Way, int]:
        """How many orders each orders API has accepted so far."""
        return dict(self.shop.accepted) if self.shop is not None else {}

    def begin_notes(self) -> None:
        """Their topic is there: make notes from now on."""
        self._makes_notes = True

    def end(self) -> None:
        """Place no further purchase."""
        self._ended = True

    async def run(self, claims: ClaimChecks | None = None) -> None:
        """Send, payloads over the threshold by the object store if there is one. Raises ChaosFailed when the
        last messages are not taken in time.
        """
        self._claims = claims
        async with AsyncExitStack() as started:
            producers = [
                await started.enter_async_context(producer(self._bootstrap, codec)) for codec in CODECS
            ]
            await self._send_all(producers)
            await self._until_taken(producers)

    @contextmanager
    def without_receipts(self) -> Iterator[None]:
        """Meanwhile no stock is received; then all receipts are sent again, with the ids that they had."""
        self._receives = False
        try:
            yield
        finally:
            self._receives = True
            self._receipts_again = receipts()

    @contextmanager
    def trickling(self) -> Iterator[None]:
        """Meanwhile there is next to no traffic."""
        rate, self._rate = self._rate, min(self._rate, _TRICKLE)
        self._due = max(self._due, time.time())  # what is in arrears does not come now
        try:
            yield
        finally:
            self._rate = rate

    async def _send_all(self, producers: _Producers) -> None:
        began = self._due = time.time()
        repeated = receipts()
        for number, row in enumerate(arrivals(self._rows(), self._chance)):
            await asyncio.sleep(max(0.0, self._due - time.time()))
            self._due += 1 / self._rate
            self._send_refused(producers)
            purchase = self._purchases[row]
            self._place(producers, purchase)
            self._call_off(producers, number, purchase)
            if (spoiled := poison(purchase)) is not None:
                key, value, headers = spoiled.record
                self._hand_over(producers, _Sent(spoiled.topic, key, value, list(headers)))
            if number % _RECEIPT_EVERY == 0 and self._receives:
                self._receive(producers, [self._chance.choice(repeated), *self._receipts_again])
                self._receipts_again = ()
            if self._makes_notes and number % _NOTE_EVERY == 0:
                self._send_note(producers)
        self._receive(producers, self._receipts_again)
        self._send_due(producers, self._coming)
        self.span = (began, time.time())

    def _place(self, producers: _Producers, purchase: Purchase) -> None:
        files = attachments(purchase, ATTACHED, LARGEST)
        begins = OrderSubmitted if orchestrated(purchase) else OrderPlaced
        small = sum(len(file.data) for file in files) <= _MOST_OF_FILES
        if self.shop is not None and small and draw(purchase.row, "over HTTP", _TO_KAFKA_ONE_IN):
            way: Way = "submitted" if begins is OrderSubmitted else "placed"
            self._begin(self.shop.place(order(purchase), way, files))
        else:
            placed = begins(order=order(purchase), attachments=files)
            self._send(producers, placed, f"placed-{purchase.order_id}")

    def _call_off(self, producers: _Producers, number: int, beside: Purchase) -> None:
        """Orders that are called off come beside others; some of what is sent of them comes later."""
        if self._share_called_off and number == 0:
            self._receive(producers, [SUPPLY])
        self._coming += ((number + c.after, c) for c in comings(beside, self._share_called_off))
        self._send_due(producers, [each for each in self._coming if each[0] <= number])
        self._coming = [each for each in self._coming if each[0] > number]

    def _send_due(self, producers: _Producers, those: Sequence[tuple[int, Coming]]) -> None:
        for each in (coming for _, coming in those):
            if self.shop is None or each.way is None:
                self._send(producers, each.message, each.message_id)
            elif isinstance(each.message, RequestCancellation):
                self._begin(self.shop.call_off(each.message.order_id, each.way))
            else:
                self._begin(self.shop.place(each.message.order, each.way, once=True))

    def _receive(self, producers: _Producers, those: Sequence[StockReceived]) -> None:
        for receipt in those:
            self._send(producers, receipt, f"stock-{receipt.sku}")

    def _rows(self) -> Iterator[int]:
        for row in range(len(self._purchases)):
            if self._ended:
                return
            self.placed = row + 1
            yield row

    def _send_note(self, producers: _Producers) -> None:
        if self.notes >= len(self._order_ids) * NOTES_EACH:
            return
        made = self.notes
        self.notes += 1
        for number in (
            made,
            *([self._chance.randint(0, made)] if self._chance.random() < _NOTE_TWICE else []),
        ):
            self._send(producers, note(number, self._order_ids), note_id(number))

    def _send(self, producers: _Producers, message: Message, message_id: str) -> None:
        kind = type(message)
        codec = self._codecs.get(kind) or self._codecs.setdefault(kind, self._make_codec(kind, kind.TOPIC))
        headers = new_headers(kind.TOPIC, message.key, source=SOURCE, time=time.time(), message_id=message_id)
        key, value = message.key.encode(), codec.encode(message)
        marked = [*headers, (FINGERPRINT, codec.fingerprint)]
        claims, rest = self._claims, len(key) + headers_size(marked) + RECORD_OVERHEAD
        if claims is None or not claims.is_due(len(value), rest, limit=_LIMIT):
            self._hand_over(producers, _Sent(kind.TOPIC, key, value, marked))
            return
        claim = claims.claim(kind.TOPIC, message_id, value, codec.content_type)
        by_reference = _Sent(kind.TOPIC, key, VALUE, with_claim(marked, claim), (claim, value))
        self._hand_over(producers, by_reference)

    def _hand_over(self, producers: _Producers, sent: _Sent) -> None:
        """Not awaited: aiokafka holds a sender back while an earlier batch of its partition is tried again,
        and a partition without a leader must not stop the load of the others.
        """
        self._begin(self._deliver(producers[crc32(sent.key or b"") % len(producers)], sent))

    def _begin(self, sending: Coroutine[Any, Any, None]) -> None:
        self.sent += 1
        self._under_way += 1
        task = asyncio.create_task(self._watched(sending))
        self._delivering.add(task)
        task.add_done_callback(self._delivering.discard)

    async def _watched(self, sending: Coroutine[Any, Any, None]) -> None:
        try:
            await sending
        except Exception as error:  # noqa: BLE001 - raised where the load is made
            self._failure = self._failure or error
        finally:
            self._under_way -= 1

    async def _deliver(self, producer: Any, sent: _Sent) -> None:
        try:
            if self._claims is not None and sent.payload is not None:
                await self._claims.check_in(*sent.payload)
            await producer.send_and_wait(sent.topic, sent.value, key=sent.key, headers=sent.headers)
        except KafkaError:
            self._refused.append(sent)
        except BlobsUnavailable:
            await asyncio.sleep(_AFTER_OUTAGE)
            self._refused.append(sent)

    def _send_refused(self, producers: _Producers) -> None:
        if self._failure is not None:
            raise self._failure
        refused, self._refused = self._refused, []
        for sent in refused:
            self.again += 1
            self._hand_over(producers, sent)

    async def _until_taken(self, producers: _Producers) -> None:
        deadline = time.monotonic() + _TAKEN_WITHIN
        while self._under_way or self._refused:
            if time.monotonic() > deadline:
                left = self._under_way + len(self._refused)
                raise ChaosFailed(f"the cluster did not take {left} messages within {_TAKEN_WITHIN:.0f} s")
            self._send_refused(producers)
            await asyncio.sleep(_PAUSE)
