"""The companions of a stack while it runs: started in order, watched, kept down when a test asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from streams.local import loopback, state
from streams.local.patience import Patience
from streams.local.processes import POLL, READY_WITHIN, STOP_WITHIN, Child, Companion, together


class Companions:
    """Processes by name, each on a port of its own, which it finds in PORT."""

    def __init__(
        self,
        var: state.VarDir,
        declared: Mapping[str, Companion],
        ports: Mapping[str, int],
        say: Callable[[str], None],
    ) -> None:
        self._var = var
        self._declared = declared
        self._ports = ports
        self._say = say
        self._children: dict[str, Child] = {}
        self._up: set[str] = set()
        self._changed: Callable[[], None] = lambda: None

    async def start(self, changed: Callable[[], None]) -> None:
        """Start all, one after the other; `changed` is called whenever `running` says something else."""
        self._changed = changed
        for name in self._declared:
            await self._start(name)

    async def watch(self) -> None:
        """Start again what was kept down; this ends only with an error, the death of one."""
        await together(*(self._watch(name) for name in self._declared))

    async def stop(self) -> None:
        """Stop all, together."""
        await asyncio.gather(*(child.stop(STOP_WITHIN, self._say) for child in self._children.values()))

    def running(self) -> dict[str, state.RunningProcess]:
        """What `stack.json` says of them."""
        return {
            name: state.RunningProcess(
                child.pid,
                child.started,
                f"http://{loopback.HOST}:{self._ports[name]}",
                str(child.log),
                up=name in self._up,
            )
            for name, child in self._children.items()
        }

    async def _start(self, name: str) -> None:
        companion, port = self._declared[name], self._ports[name]
        env = {"PORT": str(port), "STEADFAUST_VAR": str(self._var.root)}
        child = await Child.start(name, companion.command, self._var.log / f"{name}.log", env)
        self._children[name] = child
        self._changed()
        patience = Patience(name, READY_WITHIN, lambda: [child.pid], self._say)
        await child.ready(partial(loopback.http_answers, port, companion.ready), patience)
        self._up.add(name)
        self._changed()
        self._say(f"{name} answers on {loopback.HOST}:{port}")

    async def _watch(self, name: str) -> None:
        while True:
            child = self._children[name]
            await child.wait()
            if not self._var.held(name):
                raise child.death()
            self._say(f"{name} is down, as asked for")
            self._up.discard(name)
            self._changed()
            while self._var.held(name):  # noqa: ASYNC110 - a file, by which another process asks
                await asyncio.sleep(POLL)
            await self._start(name)
