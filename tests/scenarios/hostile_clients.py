"""Several clients that throw records at a broker, in each codec, and remember where each has come to lie."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from confluent_kafka import Producer

from streams.ports import TP
from streams.testing.batches import CODECS, batch
from tests.raw_kafka import sent
from tests.scenarios.hostile_records import Thrown

Position = tuple[str, int, int]
_COMPRESSIONS = (None, "gzip", "snappy", "lz4", "zstd")
#: Of a batch by hand: records and bytes at most, so that topics take it in any codec.
_RECORDS, _BYTES = 20, 800_000
_BOUND = 120.0


class Clients:
    """aiokafka and librdkafka in each codec, and batches by hand; use it `async with`.

    Attributes:
        lie: what was thrown, by where it lies.
        used: how many records came in which way.
    """

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.lie: dict[Position, Thrown] = {}
        self.used: dict[str, int] = defaultdict(int)
        self._random = random.Random(seed)
        self._bootstrap = bootstrap
        self._raw: Any = None
        self._python: dict[str | None, Any] = {}
        self._c: dict[str | None, Producer] = {}

    async def __aenter__(self) -> Clients:
        self._raw = AIOKafkaClient(bootstrap_servers=self._bootstrap)
        await self._raw.bootstrap()
        for codec in _COMPRESSIONS:
            self._python[codec] = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                compression_type=codec,
                linger_ms=5,
                max_request_size=1 << 20,
                max_batch_size=_BYTES,
            )
            await self._python[codec].start()
            self._c[codec] = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "compression.type": codec or "none",
                    "linger.ms": 5,
                    "batch.size": _BYTES,
                    "message.max.bytes": 1_000_000,
                }
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for producer in self._python.values():
            await producer.stop()
        await self._raw.close()

    async def throw(self, records: Sequence[Thrown]) -> None:
        """Returns when the broker has all of them; raises when it does not take one."""
        by_hand: dict[tuple[TP, int | None], list[Thrown]] = defaultdict(list)
        python: list[Thrown] = []
        c: list[Thrown] = []
        for each in records:
            ways = [by_hand[TP(each.topic, each.partition), each.timestamp]]
            if _is_plain(each):
                ways.append(c)
                if all(value is not None for _, value in each.headers) and (each.key or each.value):
                    ways.append(python)
            self._random.choice(ways).append(each)
        async with asyncio.timeout(_BOUND):
            await asyncio.gather(
                self._throw_python(python),
                asyncio.to_thread(self._throw_c, c),
                *(self._throw_raw(tp, at, each) for (tp, at), each in by_hand.items()),
            )

    async def _throw_python(self, records: Sequence[Thrown]) -> None:
        futures = []
        for each in records:
            codec = self._random.choice(_COMPRESSIONS)
            self.used[f"aiokafka {codec}"] += 1
            headers = [(name.decode(), value) for name, value in each.headers]
            future = await self._python[codec].send(
                each.topic, each.value, key=each.key, partition=each.partition, headers=headers
            )
            futures.append(future)
        for each, done in zip(records, await asyncio.gather(*futures), strict=True):
            self._note(each, done.offset)

    def _throw_c(self, records: Sequence[Thrown]) -> None:
        refused: list[object] = []
        found: list[tuple[Thrown, int]] = []

        def told(each: Thrown) -> Any:
            def tell(error: object, message: Any) -> None:
                if error:
                    refused.append((each.kind, error))
                else:
                    found.append((each, message.offset()))

            return tell

        for number, each in enumerate(records):
            codec = _COMPRESSIONS[number % len(_COMPRESSIONS)]
            self.used[f"librdkafka {codec}"] += 1
            headers: list[Any] = [(name.decode(), value) for name, value in each.headers]
            self._c[codec].produce(
                each.topic, each.value, each.key, each.partition, headers=headers, on_delivery=told(each)
            )
            self._c[codec].poll(0)
        left = [producer.flush(_BOUND) for producer in self._c.values()]
        assert (sum(left), refused) == (0, [])
        for each, offset in found:
            self._note(each, offset)

    async def _throw_raw(self, tp: TP, timestamp: int | None, records: Sequence[Thrown]) -> None:
        for some in _batches(records):
            if some[0].whole is not None:
                (each,) = some
                self.used["a batch by hand, alone"] += 1
                self._note(each, await sent(self._raw, tp, each.whole))
                continue
            lies = any(each.lie for each in some)
            codec = "none" if lies else self._random.choice(list(CODECS))
            self.used[f"by hand {codec}"] += len(some)
            at = int(time.time() * 1000) if timestamp is None else timestamp
            raw = batch([each.raw(delta) for delta, each in enumerate(some)], codec=codec, timestamp=at)
            base = await sent(self._raw, tp, raw)
            for delta, each in enumerate(some):
                self._note(each, base + delta)

    def _note(self, each: Thrown, offset: int) -> None:
        assert self.lie.setdefault((each.topic, each.partition, offset), each) is each


def _is_plain(each: Thrown) -> bool:
    if each.whole or each.lie or each.timestamp is not None or each.is_damaged:
        return False
    try:
        for name, _ in each.headers:
            name.decode()
    except UnicodeDecodeError:
        return False
    return all(name and b"\0" not in name for name, _ in each.headers)


def _batches(records: Sequence[Thrown]) -> list[list[Thrown]]:
    found: list[list[Thrown]] = []
    size = 0
    for each in records:
        own = (
            len(each.key or b"")
            + len(each.value or b"")
            + sum(len(n) + len(v or b"") for n, v in each.headers)
        )
        alone = each.whole is not None
        if alone or not found or len(found[-1]) == _RECORDS or size + own > _BYTES or found[-1][0].whole:
            found.append([])
            size = 0
        found[-1].append(each)
        size += own
    return found
