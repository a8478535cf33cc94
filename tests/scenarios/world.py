"""Real workers, a real broker and gateway, an outside client, and a checker that knows only the topics."""

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from aiokafka import AIOKafkaProducer

from agents.commands import OrderSubmitted
from agents.gateway import cards
from agents.messages import Order, OrderCancelled, OrderConfirmed, OrderLine, OrderPlaced, StockReceived
from schemas import latest
from streams.host.slots import addresses
from streams.model.codecs import AvroCodec, Schemas, decode_row
from streams.model.envelope import FINGERPRINT, new_headers
from streams.model.message import Message
from streams.model.row_keys import split_row_key
from tables.stock import STOCK
from tests.scenarios.committed import Committed
from tests.waiting import BOUND, eventually

APP = "scenario"
PARTITIONS, LANES = 8, 4
SESSION_TIMEOUT = 6.0
SKUS = 10
SCARCE = "sku-scarce"


def order(number: int, run: str) -> tuple[Order, str]:
    """The order of a number, and the outcome that its data calls for."""
    kind = ("declined", "out of stock", "unsupported", "free")[number % 20] if number % 20 < 4 else "fine"
    lines = [OrderLine(sku=f"sku-{number % SKUS}", units=1 + number % 3)]
    if number % 2:
        lines.append(OrderLine(sku=f"sku-{(number + 3) % SKUS}", units=1))
    if kind == "out of stock":
        lines.append(OrderLine(sku=SCARCE, units=5))
    placed = Order(
        order_id=f"{run}-{number}",
        customer=f"customer-{number % 7}",
        lines=tuple(lines),
        total_cents=0 if kind == "free" else 100 + number,
        card=cards.DECLINED if kind == "declined" else cards.ACCEPTED,
        country="AQ" if kind == "unsupported" else "US",
    )
    expected = {
        "declined": "card_declined",
        "out of stock": "out_of_stock",
        "unsupported": "unsupported_destination",
    }
    return placed, expected.get(kind, "confirmed")


@dataclass
class Worker:
    """A worker process; its log is JSON lines."""

    process: subprocess.Popen[bytes]
    log: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines of an event, oldest first."""
        text = self.log.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        # A line of another thread may have been written behind ours.
        found = [json.JSONDecoder().raw_decode(line)[0] for line in lines if line.startswith("{")]
        return [event for event in found if event.get("event") == name]

    def lanes(self) -> set[int]:
        assigned = self.events("lanes_assigned")
        return set(assigned[-1]["active"]) if assigned else set()

    def generation(self) -> int:
        generation: int = self.events("lanes_assigned")[-1]["generation"]
        return generation

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; SIGKILL is waited for."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND)


class UnreadLog:
    """A pipe for what a worker says, which is read until a test stops that."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._reads = True

    def read_into(self, log: Path) -> None:
        """Copy it into a file from now on."""

        def read() -> None:
            with log.open("ab") as out:
                while self._reads:
                    if select.select([self._reader], [], [], 0.05)[0]:
                        out.write(os.read(self._reader, 1 << 16))
                        out.flush()

        self._thread = threading.Thread(target=read, daemon=True)
        self._thread.start()

    def stop_reading(self) -> None:
        """Read no more, and fill the pipe. Non-blocking is this process's writing end, not the worker's."""
        self._reads = False
        self._thread.join()
        again = os.open(f"/proc/self/fd/{self.writer}", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(again, b"#" * 4096)
        with suppress(BlockingIOError):
            while True:
                os.write(again, b"#")
        os.close(again)

    def close(self) -> None:
        self._reads = False
        self._thread.join()
        os.close(self._reader)
        os.close(self.writer)


@dataclass
class World:
    bootstrap: str
    gateway: str
    var: Path
    choreography: str = "stock-first"
    environment: dict[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    expected: dict[str, tuple[str, int]] = field(default_factory=dict)
    received: Counter[str] = field(default_factory=Counter)
    schemas: Schemas = field(default_factory=Schemas)

    def __post_init__(self) -> None:
        self.committed = Committed(self.bootstrap, PARTITIONS)

    # -- workers --------------------------------------------------------------------------------------

    def start_worker(
        self,
        module: str = "",
        *,
        folder: Path | None = None,
        unread: UnreadLog | None = None,
        **environment: str | None,
    ) -> Worker:
        """Start a worker of the code in a folder, ours by default; a setting of None is not set. It is up
        once `until_shared` returns. What it says goes into a file, or by an `unread` pipe.
        """
        log = self.var / f"worker-{len(self.workers)}.log"
        faulty = "STEADFAUST_FAULTS" in environment
        module = module or ("tests.scenarios.faulty_worker" if faulty else "agents.worker")
        told = {**os.environ, **self._environment(), **self.environment, **environment}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "faust", "-A", module, "worker", "-l", "warn"],
                cwd=folder,
                env={name: value for name, value in told.items() if value is not None},
                stdout=out if unread is None else unread.writer,
                stderr=out if unread is None else unread.writer,
            )
        if unread is not None:
            unread.read_into(log)
        self.workers.append(Worker(process, log))
        return self.workers[-1]

    def _environment(self) -> dict[str, str]:
        return {
            "STEADFAUST_APP_ID": APP,
            "STEADFAUST_BOOTSTRAP": self.bootstrap,
            "STEADFAUST_GATEWAY_URL": self.gateway,
            "STEADFAUST_VAR": str(self.var),
            "STEADFAUST_PARTITIONS": str(PARTITIONS),
            "STEADFAUST_LANES": str(LANES),
            "STEADFAUST_SESSION_TIMEOUT": str(SESSION_TIMEOUT),
            "STEADFAUST_HEARTBEAT": "1",
            "STEADFAUST_CHOREOGRAPHY": self.choreography,
            "STEADFAUST_WEB_PORT": "0",
        }

    def address(self) -> str:
        return addresses(self.var / "workers" / APP)[0]

    def running(self) -> list[Worker]:
        """Workers that have not ended."""
        return [worker for worker in self.workers if worker.process.poll() is None]

    def until_shared(self, workers: Sequence[Worker]) -> None:
        """Wait until these workers own every lane, each some, and have opened them."""

        def shared() -> bool:
            owned = [worker.lanes() for worker in workers]
            opened = all(
                lane in {event["lane"] for event in worker.events("lane_opened")}
                for worker, lanes in zip(workers, owned, strict=True)
                for lane in lanes
            )
            return opened and all(owned) and sorted(n for own in owned for n in own) == list(range(LANES))

        eventually(shared, "every lane owned and open")

    def wipe_stores_of_ended(self, *running: Worker) -> None:
        """Empty the local stores of all workers but those that are running."""
        kept = {str(worker.process.pid) for worker in running}
        for lock in self.var.glob("workers/*/slot-*/lock"):
            if lock.read_text() not in kept:
                for store in lock.parent.glob("*-lanes"):
                    shutil.rmtree(store)

    @contextmanager
    def supplied(self, *, folder: Path | None = None) -> Iterator[None]:
        """Stock has arrived at a worker of the code in a folder, ours by default, and no worker runs."""
        with self.closing():
            first = self.start_worker(folder=folder)
            self.until_shared([first])
            self.receive_stock()
            assert first.stop() == 0
            yield

    @contextmanager
    def closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.stop()
            self.committed.close()

    def stop(self) -> None:
        """End every worker."""
        for worker in self.running():
            worker.process.kill()
            worker.process.wait()

    # -- an outside client ----------------------------------------------------------------------------

    def receive_stock(self) -> None:
        """Enough of every SKU, and too little of the scarce one."""
        units = {f"sku-{n}": 100_000 for n in range(SKUS)} | {SCARCE: 3}
        self.received.update(units)
        self.send([(StockReceived(sku=sku, units=n), f"receipt-{sku}") for sku, n in units.items()])
        eventually(lambda: len(self.stock()) == len(units), "the stock has arrived")

    def place(self, run: str, count: int, *, copies: int = 1, orchestrated: bool = False) -> list[str]:
        """Place orders, each `copies` times with the same message id; returns the order ids.
        Orchestrated ones have a saga each.
        """
        kind = OrderSubmitted if orchestrated else OrderPlaced
        messages: list[tuple[Message, str]] = []
        for number in range(count):
            placed, outcome = order(number, run)
            self.expected[placed.order_id] = (outcome, placed.total_cents)
            messages.append((kind(order=placed), f"message-{placed.order_id}"))
        self.send([message for message in messages for _ in range(copies)])
        return [message.key for message, _ in messages]

    def load(self, run: str, count: int) -> list[str]:
        """Place 100 orders, wait until one is confirmed, and place `count` more. Returns the ids of all as
        soon as the last one is placed.
        """
        before = self.confirmed()
        first = self.place(f"{run}-first", 100)
        eventually(lambda: self.confirmed() > before, "the first orders confirmed")
        return [*first, *self.place(run, count)]

    def send(
        self, messages: Iterable[tuple[Message, str]], *, spoil: Callable[[bytes], bytes] = bytes
    ) -> None:
        """Produce messages with their ids, as any client would; `spoil` does something to their bytes."""

        async def produce() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=5) as producer:
                for message, message_id in messages:
                    codec = self.codec(type(message))
                    headers = new_headers(
                        message.TOPIC, message.key, source="shop", time=time.time(), message_id=message_id
                    )
                    headers.append((FINGERPRINT, codec.fingerprint))
                    value = spoil(codec.encode(message))
                    await producer.send(message.TOPIC, value, key=message.key.encode(), headers=headers)
                await producer.flush()

        asyncio.run(produce())

    def codec(self, kind: type[Any]) -> AvroCodec[Any]:
        return AvroCodec(kind, latest(kind.TOPIC), self.schemas)

    # -- what can be seen from outside ----------------------------------------------------------------

    def read(self, *topics: str) -> list[Any]:
        return self.committed.records(*topics)

    def outcomes(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for record in self.read(OrderConfirmed.TOPIC, OrderCancelled.TOPIC):
            key = record.key.decode()
            if record.topic == OrderConfirmed.TOPIC:
                found.setdefault(key, []).append("confirmed")
            else:
                cancelled = self.codec(OrderCancelled).decode(record.value, None)
                found.setdefault(key, []).append(cancelled.reason)
        return found

    def confirmed(self) -> int:
        """About how many orders have been confirmed: cheap to ask, transaction markers are counted too."""
        return self.committed.ends(OrderConfirmed.TOPIC)

    def settled(self, ids: Iterable[str]) -> int:
        """How many of these orders have come to an end."""
        outcomes = self.outcomes()
        return sum(order_id in outcomes for order_id in ids)

    def settled_since(self, ids: Collection[str], moment: float) -> int:
        """How many of these orders came to an end after a moment, in epoch seconds."""
        keys = {order_id.encode() for order_id in ids}
        ends = self.read(OrderConfirmed.TOPIC, OrderCancelled.TOPIC)
        return sum(end.timestamp > moment * 1000 and end.key in keys for end in ends)

    def until_settled(self, ids: Sequence[str], count: int | None = None) -> None:
        """Wait until all, or `count`, of these orders have come to an end."""
        wanted = len(ids) if count is None else count
        eventually(lambda: self.settled(ids) >= wanted, f"{wanted} of {len(ids)} orders settled")

    def stock(self) -> dict[str, Any]:
        codec = AvroCodec(STOCK.row, latest(STOCK.name), self.schemas)
        rows: dict[str, Any] = {}
        for record in self.read(f"{APP}-{STOCK.name}-changelog"):
            rows[split_row_key(record.key)[0].decode()] = decode_row(codec, record.value)
        return rows

    def ledger(self) -> dict[str, int]:
        with urlopen(f"{self.gateway}/ledger?limit=1") as answer:
            totals: dict[str, int] = json.load(answer)["totals"]
        return totals

    def check(self) -> None:
        """Each order settled once with the outcome its data calls for; money and stock balance."""
        outcomes = self.outcomes()
        assert outcomes == {order_id: [outcome] for order_id, (outcome, _) in self.expected.items()}
        confirmed = sum(cents for outcome, cents in self.expected.values() if outcome == "confirmed")

        def money() -> int:
            totals = self.ledger()
            return totals["captured_cents"] - totals["refunded_cents"]

        eventually(lambda: money() == confirmed, "captured - refunded = value of confirmed orders")
        eventually(lambda: all(row.reserved == 0 for row in self.stock().values()), "nothing reserved")
        for sku, row in self.stock().items():
            assert row.received == self.received[sku] == row.on_hand + row.shipped, sku
