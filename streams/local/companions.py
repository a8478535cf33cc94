"""The companions of a stack while it runs: started in order, watched, kept down when a test asks for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from streams.local import loopback, state
from streams.local.busy_timeout import BusyTimeout
from streams.local.processes import POLL, READY_WITHIN, STOP_WITHIN, Child, Companion, together

_REVIVED_AFTER = 1.0
"""Seconds between a death and the next start."""


@dataclass(frozen=True)
class RunningCompanion:
    """A companion as the supervisor runs it.

    Attributes:
        command: the command line.
        url: what `stack.json` says of where it is.
        where: the same for the progress line.
        answers: whether it can be used.
        env: what its environment has beside the supervisor's.
        stops_by: asks it to stop in order.
        revives: one that died is started again, as a service manager does.
        clear: ends what it leaves running when it is killed; called after each end of it.
    """

    command: list[str]
    url: str
    where: str
    answers: Callable[[], Awaitable[bool]]
    env: Mapping[str, str]
    stops_by: signal.Signals = signal.SIGTERM
    revives: bool = False
    clear: Callable[[], None] = lambda: None


def answering_http(companion: Companion, port: int, var: state.VarDir) -> RunningCompanion:
    """A companion that finds its port in PORT, and answers there by HTTP."""
    where = f"{loopback.HOST}:{port}"
    return RunningCompanion(
        command=companion.command,
        url=f"http://{where}",
        where=where,
        answers=partial(loopback.http_answers, port, companion.ready),
        env={"PORT": str(port), "STEADFAUST_VAR": str(var.root)},
    )


class Companions:
    """Processes by name, each on a port of its own."""

    def __init__(
        self, var: state.VarDir, parts: Mapping[str, RunningCompanion], say: Callable[[str], None]
    ) -> None:
        self._var = var
        self._parts = parts
        self._say = say
        self._children: dict[str, Child] = {}
        self._up: set[str] = set()
        self._changed: Callable[[], None] = lambda: None

    async def start(self, changed: Callable[[], None]) -> None:
        """Start all, one after the other; `changed` is called whenever `running` says something else."""
        self._changed = changed
        for name in self._parts:
            await self._start(name)

    async def watch(self) -> None:
        """Start again what was kept down, and what died and revives; this ends only with an error."""
        await together(*(self._watch(name) for name in self._parts))

    async def stop(self) -> None:
        """Stop all, together."""
        await asyncio.gather(*(self._stop(name) for name in self._children))

    def running(self) -> dict[str, state.RunningProcess]:
        """Their entries in `stack.json`."""
        return {
            name: state.RunningProcess(
                child.pid,
                child.started,
                self._parts[name].url,
                str(child.log),
                up=name in self._up,
            )
            for name, child in self._children.items()
        }

    async def _start(self, name: str) -> None:
        part = self._parts[name]
        child = await Child.start(name, part.command, self._var.log / f"{name}.log", part.env)
        self._children[name] = child
        self._changed()
        patience = BusyTimeout(name, READY_WITHIN, lambda: [child.pid], self._say)
        await child.ready(part.answers, patience)
        self._up.add(name)
        self._changed()
        self._say(f"{name} answers on {part.where}")

    async def _stop(self, name: str) -> None:
        part = self._parts[name]
        await self._children[name].stop(STOP_WITHIN, self._say, part.stops_by)
        await asyncio.to_thread(part.clear)

    async def _watch(self, name: str) -> None:
        while True:
            child = self._children[name]
            await child.wait()
            await asyncio.to_thread(self._parts[name].clear)
            held = self._var.held(name)
            if not held and not self._parts[name].revives:
                raise child.death()
            self._say(f"{name} is down, as requested" if held else f"{child.death()}; it starts again")
            self._up.discard(name)
            self._changed()
            if not held:
                await asyncio.sleep(_REVIVED_AFTER)
            while self._var.held(name):  # noqa: ASYNC110 - a file, by which another process asks
                await asyncio.sleep(POLL)
            await self._start(name)
