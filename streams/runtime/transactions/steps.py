"""The steps of a transaction, each within its bound, and the state of a producer after one has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, NoReturn, TypeVar

from streams.errors import Fenced, OutcomeUnknown, SteadfaustError
from streams.runtime.kafka.clients import KafkaOptions
from streams.runtime.transactions.refusals import refusal_of

T = TypeVar("T")


class Steps:
    """A producer whose steps are bounded. After the first exception it is of no more use: every later step
    raises the same kind.
    """

    def __init__(
        self,
        transactional_id: str,
        options: KafkaOptions,
        closing: set[asyncio.Task[None]],
    ) -> None:
        self._id = transactional_id
        self._options = options
        self._closing = closing
        self._failure: Fenced | OutcomeUnknown | None = None
        self._discarded = False
        self._deadlines: set[asyncio.Timeout] = set()

    def _usable(self) -> None:
        """Raises what a step has failed with."""
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure

    def _let_go(self, close: Coroutine[Any, Any, None]) -> None:
        """End the steps that still wait, because one beside them has failed, and close in the background."""
        self._discarded = True
        if self._failure is None:
            self._failure = OutcomeUnknown(f"the producer {self._id} was discarded: start another one")
        loop = asyncio.get_running_loop()
        for deadline in self._deadlines:
            if not deadline.expired():  # it may have just rung, and its step not know it yet
                deadline.reschedule(loop.time())
        task = loop.create_task(close)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _step(self, name: str, work: Awaitable[T], timeout: float | None = None) -> T:
        bound = self._options.step_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(bound) as deadline:
                self._deadlines.add(deadline)
                try:
                    return await work
                finally:
                    self._deadlines.discard(deadline)
        except OutcomeUnknown as error:
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
        if self._was_fenced(error):
            why = "another owner started, or its transaction timed out"
            self._failure = Fenced(f"{self._id} was fenced when it tried to {name}: {why}")
        elif (refusal := refusal_of(error, f"{self._id} failed to {name}")) is not None:
            self._failure = refusal
        else:
            reason = repr(error)
            if isinstance(error, TimeoutError):
                reason = "; ".join(filter(None, (f"no answer within {bound:g} s", self._in_the_way())))
            self._failure = OutcomeUnknown(
                f"{self._id} failed to {name} ({reason}): discard it and start another"
            )
        raise self._failure from error

    def _in_the_way(self) -> str:
        """Why a timed-out step was blocked; empty where that is unknown."""
        return ""

    def _was_fenced(self, error: BaseException) -> bool:
        raise NotImplementedError
