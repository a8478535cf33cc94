"""Orders that are placed: the answers to a key, the order and its message commit together, many at once.

Requests that come while a transaction is under way go into the next one together, each of them by itself:
what one is refused for does not concern the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

import msgspec

from agents.api.statements import SQL
from agents.api.wire import OrderView
from agents.commands import OrderSubmitted
from agents.messages import OrderPlaced
from streams.errors import SteadfaustError, TransientError
from streams.postgres import Connection, Database, Outbox
from streams.postgres.advice import curable_told

#: Orders that one transaction takes at most.
MOST_AT_ONCE = 100
#: What the outbox calls all messages about an order: its relay keeps their order.
AGGREGATE = "order"
_encode = msgspec.json.Encoder().encode


class Placing(NamedTuple):
    """A request to place an order.

    Attributes:
        key: its idempotency key.
        digest: of what it asks for.
        message: what begins the order.
        view: the order as it is answered.
        trace: its traceparent; may be empty.
    """

    key: str
    digest: bytes
    message: OrderPlaced | OrderSubmitted
    view: OrderView
    trace: str = ""

    @property
    def order_id(self) -> str:
        """The order's id."""
        return self.view.order_id

    @property
    def message_id(self) -> str:
        """The id of the message: two for one order are never published."""
        return f"{self.order_id}:begins"


class PlacingAnswer(NamedTuple):
    """The answer to a request, the same the first time and again.

    Attributes:
        status: 202, or 409: there was an order of that id.
        order_id: the order's id.
        body: JSON.
        replayed: whether it was answered before.
    """

    status: int
    order_id: str
    body: bytes
    replayed: bool = False


class KeyInFlight(TransientError):
    """A request with the same key is under way: its answer is not known yet."""


class KeyReused(SteadfaustError):
    """The key was used for another request."""


class Overloaded(TransientError):
    """More requests wait than can be answered in time; nothing was done for this one."""


class AnswerOverdue(TransientError):
    """PostgreSQL takes too long; the order may be placed all the same."""


class Refuse(Protocol):
    """Makes the answer to a key whose order was there already."""

    def __call__(self, order_id: str) -> bytes:
        """The answer's body."""


class OrderPlacing:
    """Places orders; `writers` transactions at once. Run it `async with`.

    Arguments:
        keep: for how long the answer to a key is kept.
        patience: seconds that a request waits for its answer at most.
        waiting: requests that wait at most.
        refuse: makes the answer for an order that is there already.
    """

    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        *,
        keep: timedelta,
        patience: float,
        refuse: Refuse,
        writers: int = 2,
        waiting: int = 2000,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._keep = keep
        self._patience = patience
        self._refuse = refuse
        self._writers = writers
        self.most_waiting = waiting
        self._waiting: deque[tuple[Placing, asyncio.Future[PlacingAnswer]]] = deque()
        self._keys: set[str] = set()
        self._work = asyncio.Semaphore(0)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> int:
        """Requests that wait for a transaction."""
        return len(self._waiting)

    async def __aenter__(self) -> OrderPlacing:
        self._tasks = [asyncio.create_task(self._write()) for _ in range(self._writers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._waiting:
            _fail([self._waiting.popleft()], Overloaded("the server ends"))

    async def place(self, placing: Placing) -> PlacingAnswer:
        """Place the order, or find what its key was answered.

        Raises KeyInFlight, KeyReused, Overloaded; TooLarge for an order that no topic takes. After
        AnswerOverdue and DatabaseUnavailable the order may be placed or not: a request with its key tells.
        """
        if placing.key in self._keys:
            raise KeyInFlight(placing.key)
        if len(self._waiting) >= self.most_waiting:
            raise Overloaded(f"{len(self._waiting)} requests wait")
        answer: asyncio.Future[PlacingAnswer] = asyncio.get_running_loop().create_future()
        self._keys.add(placing.key)
        answer.add_done_callback(lambda _: self._keys.discard(placing.key))
        self._waiting.append((placing, answer))
        self._work.release()
        try:
            async with asyncio.timeout(self._patience):
                return await answer
        except TimeoutError as error:
            raise AnswerOverdue(f"PostgreSQL did not answer within {self._patience:g} s") from error

    async def _write(self) -> None:
        while True:
            await self._work.acquire()
            batch: list[tuple[Placing, asyncio.Future[PlacingAnswer]]] = []
            while self._waiting and len(batch) < MOST_AT_ONCE:
                placing, answer = self._waiting.popleft()
                if not answer.done():  # its client has not waited so long
                    batch.append((placing, answer))
            if batch:
                await self._answer(batch)

    async def _answer(self, batch: list[tuple[Placing, asyncio.Future[PlacingAnswer]]]) -> None:
        try:
            with curable_told():
                found = await self._transact([placing for placing, _ in batch])
        except TransientError as error:
            _fail(batch, error)
        except asyncio.CancelledError:
            _fail(batch, Overloaded("the server ends"))
            raise
        except Exception as error:  # noqa: BLE001 - each request gets it
            if len(batch) == 1:
                _fail(batch, error)
                return
            for each in batch:  # one of them spoils it for the others
                await self._answer([each])
        else:
            for (_, answer), result in zip(batch, found, strict=True):
                _settle(answer, result)

    async def _transact(self, batch: Sequence[Placing]) -> list[PlacingAnswer | Exception]:
        async with (
            self._database.acquire(within=self._patience) as connection,
            self._outbox.transaction(connection) as tx,
        ):
            rows = await connection.fetch(SQL["place"], *_columns(batch), self._keep)
            found: list[PlacingAnswer | Exception] = []
            for placing, row in zip(batch, rows, strict=True):
                if row["placed"]:
                    # Two for one order id seem placed here. The outbox takes no second message of a name: all
                    # is rolled back, and each is tried alone.
                    tx.publish(
                        placing.message,
                        placing.message_id,
                        aggregate_type=AGGREGATE,
                        traceparent=placing.trace,
                    )
                    found.append(PlacingAnswer(202, placing.order_id, _encode(placing.view)))
                elif row["claimed"]:
                    found.append(await self._taken(connection, placing))
                elif row["free"]:
                    found.append(await self._known(connection, placing))
                else:
                    found.append(KeyInFlight(placing.key))
        return found

    async def _taken(self, connection: Connection, placing: Placing) -> PlacingAnswer:
        """There is an order of that id: this is the key's answer from now on."""
        answer = PlacingAnswer(409, placing.order_id, self._refuse(placing.order_id))
        await connection.execute(SQL["refuse"], placing.key, answer.status, answer.body)
        return answer

    async def _known(self, connection: Connection, placing: Placing) -> PlacingAnswer | Exception:
        row = await connection.fetchrow(SQL["answered"], placing.key)
        if row is None:  # it expired this moment
            return KeyInFlight(placing.key)
        if row["digest"] != placing.digest:
            return KeyReused(placing.key)
        return PlacingAnswer(row["status"], row["order_id"], row["answer"], replayed=True)


def _columns(batch: Sequence[Placing]) -> list[list[object]]:
    views = [each.view for each in batch]
    return [
        [each.key for each in batch],
        [each.digest for each in batch],
        [_encode(view) for view in views],
        [view.order_id for view in views],
        [view.way for view in views],
        [view.customer for view in views],
        [view.country for view in views],
        [view.total_cents for view in views],
        [_encode(view.lines).decode() for view in views],
        [view.created_at for view in views],
    ]


def _settle(answer: asyncio.Future[PlacingAnswer], result: PlacingAnswer | Exception) -> None:
    if answer.done():
        return
    if isinstance(result, PlacingAnswer):
        answer.set_result(result)
    else:
        answer.set_exception(result)


def _fail(batch: Sequence[tuple[Placing, asyncio.Future[PlacingAnswer]]], error: Exception) -> None:
    for _, answer in batch:
        _settle(answer, error)
