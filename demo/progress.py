"""How far the orders are: a tally, fed from the topics in which orders are settled, and a view of it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median_high
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from agents.messages import OrderCancelled, OrderConfirmed
from demo.evidence import Settlement, settlement
from demo.load import OrdersSeen
from demo.purchases import ExpectedOutcome
from streams.host.client import TopicReader

if TYPE_CHECKING:
    from streams.brokers import Bootstrap  # for its annotations alone: the checker is independent


_RECENT = 3.0  # seconds over which the present rate is taken
_PLAIN_EVERY = 2.0


@dataclass
class OrderCounts:
    """Counts of orders; each order counts once, however many settlements it has.

    `earlier` orders had come to an end before this run: its rate is not about them, nor about the first
    `warm_up` orders that it places.
    """

    orders: int
    clock: Callable[[], float] = time.monotonic
    warm_up: int = 0
    placed: int = 0
    earlier: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)
    first: float | None = None
    began: float | None = None
    moved: float | None = None
    _settled: set[str] = field(default_factory=set)
    _under_way: dict[str, float] = field(default_factory=dict)
    _begun: int = 0
    _ended: deque[tuple[float, float]] = field(default_factory=deque)
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def place(self, order_id: str) -> None:
        """Another order is placed: under way from now on, unless it has come to its end already."""
        self.placed += 1
        self.moved = now = self.clock()
        if self.first is None:
            self.first = now
        if order_id in self._settled:
            return
        self._under_way[order_id] = now
        self._begun += 1
        if self._begun == self.warm_up + 1:
            self.began = now

    def resume(self, settlements: Iterable[Settlement]) -> None:
        """These had come to an end before this run began."""
        self.settle(settlements)
        self.earlier = self.settled
        self.moved = None

    def settle(self, settlements: Iterable[Settlement]) -> None:
        """These have come to an end."""
        for each in settlements:
            order_id = each.order.order_id
            if order_id in self._settled:
                continue
            self._settled.add(order_id)
            self.outcomes[each.outcome] += 1
            self.moved = now = self.clock()
            if (placed := self._under_way.pop(order_id, None)) is not None:
                self.took.append(now - placed)
                self._ended.append((now, now - placed))

    @property
    def settled(self) -> int:
        """Orders that have come to an end."""
        return len(self._settled)

    @property
    def under_way(self) -> int:
        """Orders that are placed and have not come to an end."""
        return len(self._under_way)

    @property
    def warming_up(self) -> bool:
        """Whether what is placed does not count yet."""
        return self.began is None

    @property
    def done(self) -> bool:
        """Whether all are placed and have come to an end."""
        return self.placed >= self.orders and self.settled >= self.orders

    @property
    def seconds(self) -> float:
        """Since the first order after those that warm up; up to the last settlement once all are done."""
        return self._since(self.began)

    @property
    def elapsed(self) -> float:
        """The same, since the first order of all."""
        return self._since(self.first)

    @property
    def rate(self) -> float:
        """Orders settled a second, over all of it but the warm-up."""
        counted = self.settled - self.earlier - self.warm_up
        return counted / self.seconds if self.seconds and counted > 0 else 0.0

    def recent_rate(self) -> float:
        """Orders settled a second just now; called again and again, it takes its samples."""
        now = self.clock()
        self._samples.append((now, self.settled))
        while now - self._samples[0][0] > _RECENT:
            self._samples.popleft()
        then, before = self._samples[0]
        return (self.settled - before) / (now - then) if now > then else 0.0

    def seen(self, within: float) -> OrdersSeen:
        """What the pace follows; orders that came to their end in the last `within` seconds count as
        settled.
        """
        now = self.clock()
        while self._ended and now - self._ended[0][0] > within:
            self._ended.popleft()
        took = median_high(took for _, took in self._ended) if self._ended else 0.0
        oldest = next(iter(self._under_way.values()), now)
        return OrdersSeen(len(self._under_way), len(self._ended), took, now - oldest)

    def half_and_most(self) -> tuple[float, float]:
        """How long half of the orders were under way at most, and 99 of a hundred, in seconds."""
        took = sorted(self.took)
        return (round(took[len(took) // 2], 2), round(took[len(took) * 99 // 100], 2)) if took else (0.0, 0.0)

    def idle(self) -> float:
        """Seconds since anything moved."""
        return 0.0 if self.moved is None else self.clock() - self.moved

    def _since(self, then: float | None) -> float:
        if then is None or self.moved is None:
            return 0.0
        return (self.moved if self.done else self.clock()) - then


async def watch(bootstrap: Bootstrap, tally: OrderCounts) -> None:
    """Feed the tally from the topics, read committed, until cancelled."""
    async with TopicReader(bootstrap, [OrderConfirmed.TOPIC, OrderCancelled.TOPIC]) as reader:
        while True:
            tally.settle(settlement(record) for record in await reader.fetch())


class View:
    """Shows the tally: in place on a terminal, otherwise as a line now and then. Use it with `with`."""

    def __init__(self, tally: OrderCounts, console: Console) -> None:
        self._tally = tally
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, pids: Iterable[int], *, last: bool = False) -> None:
        """Show the counts, with the workers that are alive."""
        row = self._row(pids)
        if self._live is not None:
            table = Table(*row, box=None, padding=(0, 2, 0, 0), header_style="dim")
            table.add_row(*row.values())
            self._live.update(table, refresh=True)
        elif last or self._tally.clock() >= self._next_line:
            self._next_line = self._tally.clock() + _PLAIN_EVERY
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)

    def _row(self, pids: Iterable[int]) -> dict[str, str]:
        tally = self._tally
        return {
            "seconds": f"{tally.elapsed:.1f}",
            "placed": f"{tally.placed:,}",
            "under way": f"{tally.under_way:,}",
            **{outcome.value: f"{tally.outcomes[outcome.value]:,}" for outcome in ExpectedOutcome},
            "orders/s": f"{tally.recent_rate():,.0f}",
            "workers": " ".join(map(str, pids)) or "none",
        }
