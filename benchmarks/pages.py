"""How long each page of the web view takes among many rows: `python -m benchmarks.pages [--rows 1000000]`.

One worker of the order application has recovered so many orders, 1 % of which are stalled, and a dead letter
for each hundredth. The pages are fetched over HTTP, one after the other, and read to their end.
"""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated

import aiohttp
import msgspec
import typer

from agents.messages import Order, OrderLine, OrderPlaced, PaymentCaptured, ShipmentScheduled, StockReserved
from agents.settings import OrderSettings
from benchmarks.growth.packing import Packed, fill
from benchmarks.sections import NotMeasured
from benchmarks.worker_process import BenchmarkWorker
from demo.evidence import make_codec
from demo.load import receive_stock
from demo.purchases import order, purchases
from demo.workers import PROJECT
from schemas import latest
from streams.engine.waiting.dead_letters.row import encode_letter, key_of, new_letter
from streams.host.client import Producer
from streams.host.slots import addresses
from streams.local import Stack, declared, local_stack
from streams.model.codecs import AvroCodec, Schemas, encode_row
from streams.model.envelope import ID, rfc3339
from streams.model.layout import DEAD_LETTERS, Layout, murmur2
from streams.model.row_keys import row_key
from streams.testing.log import FakeRecord
from tables.orders import ORDERS, HistoryEntry, TrackedOrder

_LANES = 4
_PARTITIONS = 16
#: Rows were written so long ago, in seconds: a timeline begins an hour ago.
_AGE = 7200.0
_STORED = 50_000
_AT_ONCE = 100_000
_KINDS = 500
_LETTERS = 100
_STALLED = 100
_INDEXED_WITHIN = 1800.0
_GONE_BY = (OrderPlaced.TOPIC, StockReserved.TOPIC, PaymentCaptured.TOPIC, ShipmentScheduled.TOPIC)


def key(number: int) -> str:
    """An order's id."""
    return f"order-{number:07}"


def tracked(number: int, at: float) -> TrackedOrder:
    """An order as orders keeps it: confirmed, or never shipped for one in a hundred."""
    seen = _GONE_BY if number % _STALLED else _GONE_BY[:2]
    history = tuple(
        HistoryEntry(type=topic, time=rfc3339(at + n / 10), detail="") for n, topic in enumerate(seen)
    )
    bought = Order(
        order_id=key(number),
        customer=f"customer-{number}",
        lines=(OrderLine(sku=f"cd-{number % 490:03}", units=1),),
        total_cents=1000 + number,
        card="tok_visa",
        country="US",
    )
    return TrackedOrder(order=bought, status="confirmed" if number % _STALLED else "pending", history=history)


def rows(count: int, layout: Layout) -> Iterator[Packed]:
    """The orders' records in their changelog. Of their values there are some hundred."""
    codec = AvroCodec(TrackedOrder, latest(ORDERS.name), Schemas())
    values = [encode_row(codec, tracked(number, time.time() - _AGE)) for number in range(_KINDS)]
    for number in range(count):
        name = key(number).encode()
        yield partition_of(name, layout), row_key(name), values[number % _KINDS], []


def letters(count: int, layout: Layout) -> Iterator[Packed]:
    """Dead letters of every hundredth order."""
    error = ConnectionError("the gateway does not answer")
    for number in range(0, count, _LETTERS):
        name = key(number).encode()
        partition = partition_of(name, layout)
        record = FakeRecord(OrderPlaced.TOPIC, partition, number, 1, name, b"{}", [(ID, b"placed-" + name)])
        now = int((time.time() - _AGE) * 1000)
        letter = new_letter(record, error, handler="payments.capture", attempts=5, now_ms=now, limit=_STORED)
        yield partition, key_of(letter), encode_letter(letter, _STORED), []


def partition_of(name: bytes, layout: Layout) -> int:
    """Where a key belongs."""
    # Not the layout's, which remembers what it has hashed: millions of keys come once each.
    return (murmur2(name) & 0x7FFFFFFF) % layout.partitions


def pages(count: int, visit: int) -> dict[str, str]:
    """The paths of the n-th visit, by the name of the page."""
    some = key(random.Random(visit).randrange(count))
    return {
        "overview": "/",
        "tables": "/tables",
        "rows of a table, first page": "/tables/orders",
        "rows that begin with `order-05`": "/tables/orders?prefix=order-05",
        "rows of a key": f"/tables/orders/rows?key={some}",
        "versions of a key's rows": f"/tables/orders/history?key={some}",
        "sagas": "/sagas",
        "sagas that are completed": "/sagas?status=completed",
        "sagas that take too long": "/sagas?stalled=1",
        "a saga": f"/sagas/order:{some}",
        "dead letters in groups": "/dead-letters",
        "dead letters of a handler": "/dead-letters/letters?handler=payments.capture",
        "handlers": "/handlers",
        "a handler": "/handlers/payments.capture",
        "search, an order of today": f"/timeline?q={purchases(20)[visit % 20].order_id}",
        "search, an old order": f"/timeline?q={some}",
        "what waits": "/waiting",
        "topics": "/topics",
        "a topic": f"/topics/{OrderPlaced.TOPIC}",
        "a worker": "/worker",
    }


class PageVisitor:
    """Asks a worker's pages, and measures in milliseconds."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def get(self, path: str, encoding: str = "identity") -> bytes:
        """The whole page as it is sent. Raises NotMeasured if the answer is no page."""
        headers = {"Accept-Encoding": encoding}
        async with self._session.get(f"{self._url}{path}", headers=headers) as response:
            body = await response.read()
        if response.status != 200:
            raise NotMeasured(f"{path} is answered {response.status}: {body[:500].decode()}")
        return body

    async def timed(self, path: str) -> tuple[float, int]:
        """How long a page took, and its bytes as browsers get them."""
        began = time.perf_counter()
        sent = len(await self.get(path, "gzip"))
        return (time.perf_counter() - began) * 1000, sent

    async def next_pages(self, count: int) -> list[tuple[float, int]]:
        """The pages after the first of a table, one after the other."""
        took, cursor = list[tuple[float, int]](), ""
        for _ in range(count):
            found = msgspec.json.decode(await self.get(f"/api/tables/orders?cursor={cursor}"))
            cursor = found["next"]
            took.append(await self.timed(f"/tables/orders?cursor={cursor}"))
        return took

    async def indexed(self, count: int) -> None:
        """Wait until the index of sagas has all of them. Raises NotMeasured."""
        deadline = time.monotonic() + _INDEXED_WITHIN
        while True:
            sagas = msgspec.json.decode(await self.get("/api/overview"))["sagas"]
            if sum(sagas.values()) >= count:
                return
            if time.monotonic() > deadline:
                raise NotMeasured(f"not indexed within {_INDEXED_WITHIN:g} s: {sagas}")
            await asyncio.sleep(1)


def report(name: str, pages: list[tuple[float, int]], cpu: float) -> None:
    """A line: median, 95th percentile, longest, each one's share of the processor; the most kB."""
    took, sent = sorted(each for each, _ in pages), max(each for _, each in pages)
    late = took[math.ceil(0.95 * len(took)) - 1]
    figures = f"{median(took):.0f} | {late:.0f} | {took[-1]:.0f} | {cpu / len(took) * 1000:.0f}"
    print(f"| {name} | {figures} | {sent / 1000:.1f} |", flush=True)


@contextmanager
def filled(stack: Stack, var: Path, count: int) -> Iterator[BenchmarkWorker]:
    """A worker that has all of it in its lanes."""
    environment = {
        "STEADFAUST_WEB_PORT": "0",
        "STEADFAUST_PARTITIONS": str(_PARTITIONS),
        "STEADFAUST_LANES": str(_LANES),
        "STEADFAUST_STANDBYS": "0",
        "STEADFAUST_VAR": str(var),
    }
    settings = OrderSettings(var=var, partitions=_PARTITIONS, lanes=_LANES)
    layout = settings.layout()
    with BenchmarkWorker("agents.worker", environment, var / "log" / "first.log") as first:
        asyncio.run(first.owns(_LANES, within=600))
        asyncio.run(receive_stock(stack.bootstrap, settings.app_id))
        asyncio.run(_orders(stack))
    for table, records in ((ORDERS.name, rows(count, layout)), (DEAD_LETTERS, letters(count, layout))):
        topic = layout.changelog(table)
        written = asyncio.run(fill(stack.bootstrap, topic, records, at_once=_AT_ONCE, age=_AGE))
        print(f"{written:,} records in {topic}", flush=True)
    with BenchmarkWorker(
        "benchmarks.pages_worker", environment, var / "log" / "worker.log", web=True
    ) as worker:
        asyncio.run(worker.owns(_LANES, within=600))
        yield worker


async def _orders(stack: Stack) -> None:
    async with Producer(stack.bootstrap, make_codec, source="pages") as producer:
        for each in purchases(20):
            await producer.send(OrderPlaced(order=order(each)), message_id=f"placed-{each.order_id}")


async def measure(url: str, worker: BenchmarkWorker, count: int, times: int) -> None:
    """Wait until all is counted, warm up, measure, print."""
    bound = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=bound, auto_decompress=False) as session:
        visitor = PageVisitor(url.rstrip("/"), session)
        began = time.monotonic()
        await visitor.indexed(count)
        print(f"indexed after {time.monotonic() - began:.0f} s\n")
        print("| page | median | p95 | longest | CPU | kB |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
        for name in pages(count, 0):
            for visit in range(3):
                await visitor.timed(pages(count, -1 - visit)[name])
            busy = worker.cpu_seconds
            took = [await visitor.timed(pages(count, visit)[name]) for visit in range(times)]
            report(name, took, worker.cpu_seconds - busy)
        busy = worker.cpu_seconds
        took = await visitor.next_pages(times)
        report("rows of a table, each next page, with its JSON", took, worker.cpu_seconds - busy)


def command(
    rows: Annotated[int, typer.Option(min=1000)] = 1_000_000,
    times: Annotated[int, typer.Option(min=2, help="How often each page is fetched.")] = 20,
) -> None:
    """Measure the pages of a worker with so many rows in a table."""
    with tempfile.TemporaryDirectory() as home:
        var = Path(home)
        processes = declared(PROJECT / "pyproject.toml")
        with local_stack(var, processes=processes) as stack, filled(stack, var, rows) as worker:
            settings = OrderSettings(var=var)
            (url,) = addresses(var / "workers" / settings.app_id)
            asyncio.run(measure(url, worker, rows, times))


if __name__ == "__main__":
    typer.run(command)
