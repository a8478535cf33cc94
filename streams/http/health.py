"""Whether a process can do its work, and if not all of it, why: OK, DEGRADED or DOWN, with reasons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from streams.errors import TransientError

Status = Literal["OK", "DEGRADED", "DOWN"]
_ORDER: tuple[Status, ...] = ("OK", "DEGRADED", "DOWN")


class Report(msgspec.Struct, frozen=True):
    """The result of a check.

    Attributes:
        status: OK: all works. DEGRADED: it works, but not as well as it should. DOWN: it does not work.
        reasons: why it is not OK, for people.
    """

    status: Status
    reasons: tuple[str, ...] = ()


class Check(NamedTuple):
    """Something to look at: returns why it is not well, or an empty text.

    Attributes:
        name: what reasons begin with.
        look: the question; what it raises of `TransientError` is a reason too.
        severity: what its failure makes of the whole.
    """

    name: str
    look: Callable[[], Awaitable[str]]
    severity: Literal["DEGRADED", "DOWN"] = "DOWN"


class Health:
    """Asks all checks at once, each for `patience` seconds at most; an answer is good for `keep` seconds."""

    def __init__(self, checks: Sequence[Check], *, patience: float = 2.0, keep: float = 1.0) -> None:
        self._checks = checks
        self._patience = patience
        self._keep = keep
        self._report: tuple[float, Report] | None = None
        self._asking = asyncio.Lock()

    async def report(self) -> Report:
        """Current health."""
        async with self._asking:
            if self._report is None or time.monotonic() >= self._report[0] + self._keep:
                self._report = time.monotonic(), await self._look()
            return self._report[1]

    async def _look(self) -> Report:
        found = await asyncio.gather(*(self._ask(check) for check in self._checks))
        bad = [(check, why) for check, why in zip(self._checks, found, strict=True) if why]
        worst = max((_ORDER.index(check.severity) for check, _ in bad), default=0)
        return Report(_ORDER[worst], tuple(f"{check.name}: {why}" for check, why in bad))

    async def _ask(self, check: Check) -> str:
        try:
            async with asyncio.timeout(self._patience):
                return await check.look()
        except TimeoutError:
            return f"no answer within {self._patience:g} s"
        except TransientError as error:
            return str(error)
