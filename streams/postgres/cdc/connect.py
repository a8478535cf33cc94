"""Kafka Connect by its HTTP interface: the one connector that relays the outbox."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
import msgspec

from streams.postgres.cdc.connector import NAME
from streams.postgres.errors import ConnectBusy, ConnectUnavailable

_TIMEOUT = 10.0
_MISSING = 404
FAILED, STOPPED = "FAILED", "STOPPED"
_STARTING = 503
_BUSY = 409
"""While its workers agree on who does what."""
_REBALANCE = b"because a rebalance is"
"""The same, of what it should do to offsets: a 500 then."""


class TaskStatus(NamedTuple):
    """A part of the connector that runs somewhere; `trace` says why it has failed."""

    id: int
    state: str
    trace: str = ""


class ConnectorStatus(NamedTuple):
    """State of the connector: a task that has failed leaves the connector itself RUNNING.

    A connector that could not start, such as while brokers were away, is FAILED and may have no tasks;
    `trace` says why.
    """

    state: str
    tasks: tuple[TaskStatus, ...]
    trace: str = ""

    @property
    def failed(self) -> tuple[TaskStatus, ...]:
        """Tasks that will not go on by themselves."""
        return tuple(task for task in self.tasks if task.state == FAILED)

    @property
    def needs_restart(self) -> bool:
        """Whether the connector relays nothing until it is restarted."""
        return not self.is_running and bool(self.failed or self.state == FAILED)

    @property
    def is_running(self) -> bool:
        """Whether rows are relayed now."""
        return bool(self.tasks) and all(task.state == "RUNNING" for task in self.tasks)

    @property
    def problem(self) -> str:
        """Why rows are not relayed, in a sentence; empty: they are."""
        if self.is_running:
            return ""
        if self.failed:
            return f"task {self.failed[0].id} of the connector has failed: {_cause(self.failed[0].trace)}"
        if self.state == FAILED:
            return f"the connector has failed: {_cause(self.trace)}"
        return f"the connector is {self.state}, and no task of it runs"


def _cause(trace: str) -> str:
    return (trace.strip().splitlines() or ["it does not say why"])[-1].strip()


class Connect:
    """A cluster of Kafka Connect at a URL; use it `async with`.

    Every method raises ConnectUnavailable when it does not answer, or refuses.
    """

    def __init__(self, url: str) -> None:
        self._all = f"{url.rstrip('/')}/connectors"
        self._url = f"{self._all}/{NAME}"
        self._health = f"{url.rstrip('/')}/health"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers={"Content-Type": "application/json"}, timeout=aiohttp.ClientTimeout(total=_TIMEOUT)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def configure(self, settings: Mapping[str, str]) -> None:
        """Have the connector run with these settings; changes nothing when it does."""
        found = await self._ask("GET", "/config")
        if found is None or {name: value for name, value in found.items() if name != "name"} != settings:
            await self._ask("PUT", "/config", dict(settings))

    async def status(self) -> ConnectorStatus | None:
        """The connector's state; None: there is no such connector.

        Raises ConnectBusy while Connect starts: it has not read then which connectors there are.
        """
        found = await self._ask("GET", "/status")
        if found is None:
            await self._require_started()
            return None
        tasks = (TaskStatus(task["id"], task["state"], task.get("trace", "")) for task in found["tasks"])
        connector = found["connector"]
        return ConnectorStatus(connector["state"], tuple(tasks), connector.get("trace", ""))

    async def restart_failed(self) -> None:
        """Start again what has failed of it."""
        await self._ask("POST", "/restart?includeTasks=true&onlyFailed=true")

    async def create_stopped(self, settings: Mapping[str, str]) -> None:
        """Make the connector without running it; one that is there is stopped."""
        if await self.status() is None:
            body = {"name": NAME, "config": dict(settings), "initial_state": STOPPED}
            await self._ask("POST", "", body, at=self._all)
        else:
            await self._ask("PUT", "/stop")

    async def forget_offsets(self) -> None:
        """Let a connector that is stopped begin from nothing, which reads what waits from the table."""
        await self._ask("DELETE", "/offsets")

    async def resume(self) -> None:
        """Run a connector that is stopped."""
        await self._ask("PUT", "/resume")

    async def remove(self) -> None:
        """Stop the connector for good; nothing when there is none."""
        await self._ask("DELETE", "")

    async def _require_started(self) -> None:
        if self._session is None:
            return
        try:
            async with self._session.get(self._health) as answer:
                starts = answer.status == _STARTING
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectUnavailable(f"Kafka Connect at {self._url} does not answer: {error!r}") from error
        if starts:
            raise ConnectBusy(f"Kafka Connect at {self._url} starts: try again")

    async def _ask(self, method: str, path: str, body: object = None, *, at: str = "") -> Any:
        if self._session is None:
            raise RuntimeError("Connect was not opened: use it with `async with`")
        try:
            async with self._session.request(method, (at or self._url) + path, json=body) as answer:
                data = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            cause = str(error) or type(error).__name__
            raise ConnectUnavailable(f"Kafka Connect at {self._url} does not answer: {cause}") from error
        if answer.status == _MISSING:
            return None
        if answer.status == _BUSY or (not answer.ok and _REBALANCE in data):
            raise ConnectBusy(f"Kafka Connect at {self._url} is rebalancing: try again")
        if not answer.ok:
            text = data.decode(errors="replace")[:500]
            raise ConnectUnavailable(f"Kafka Connect at {self._url} refused ({answer.status}): {text}")
        return msgspec.json.decode(data) if data else {}
