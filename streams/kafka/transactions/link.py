"""The connections of one producer, and requests that are repeated after temporary errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, RequestTimedOutError

from streams.brokers import Bootstrap
from streams.kafka.clients import KafkaOptions, leader_of
from streams.kafka.transactions.codes import error_of, moved, passes, pause
from streams.kafka.wire import VersionedRequest
from streams.ports import TP

_CLOSE_TIMEOUT = 2.0
#: Seconds before the next lookup of a coordinator that is missing or unreachable.
_SEARCH = 0.05
#: After these errors, it is unknown whether the broker has executed the request.
_LOST = (KafkaConnectionError, RequestTimedOutError)


class Coordinator(NamedTuple):
    """Identifies the coordinator of a transactional id or of a group."""

    kind: CoordinationType
    key: str


class BrokerLink:
    """A producer's aiokafka client: its connections to the brokers, and its metadata about leaders."""

    def __init__(self, bootstrap: Bootstrap, options: KafkaOptions) -> None:
        self.bootstrap = bootstrap
        self._options = options
        self.client: Any = None
        #: The last temporary error, for the text of a timeout.
        self.trouble = ""
        self._nodes: dict[Coordinator, int] = {}
        self._cut = False

    async def open(self) -> None:
        """Connect to any broker. Raises KafkaConnectionError, AccessRefused or SettingsError."""
        self.client = AIOKafkaClient(**self._options.connection(self.bootstrap))
        await self.client.bootstrap()

    async def ask(self, node: int, call: VersionedRequest, group: Any = ConnectionGroup.DEFAULT) -> Any:
        """Send a request to a broker once. Raises NodeNotReadyError if nothing was sent, and another
        KafkaError if the answer was lost or the producer was discarded.
        """
        connection = await self.client._get_conn(node, group=group)
        if self._cut:  # checked here because nothing awaits between this line and the send
            raise KafkaError("the producer was discarded")
        if connection is None:
            raise NodeNotReadyError(f"broker {node} cannot be reached")
        try:
            return await connection.send(call)
        except TimeoutError as error:
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise RequestTimedOutError(f"broker {node} has not answered") from error

    async def ask_coordinator(
        self, of: Coordinator, call: VersionedRequest, *, repeatable: bool = False
    ) -> Any:
        """Repeat a request until its answer has no error. The caller must add a timeout.

        Raises a permanent error at once. A lost answer is an error, too, unless the request is `repeatable`:
        the coordinator may execute it twice without harm.
        """
        tries = 0
        while True:
            tries += 1
            try:
                node = await self._find(of)
                answer = await self.ask(node, call, ConnectionGroup.COORDINATION)
            except (NodeNotReadyError, *_LOST) as error:
                if not repeatable and not isinstance(error, NodeNotReadyError):
                    raise
                self.trouble = repr(error)
                await self._search(of)
            else:
                codes = {code for code in answer.codes if code}
                if not codes:
                    return answer
                for code in codes:
                    if not passes(code):
                        raise error_of(code)(f"{of.key}: code {code}")
                self.note(codes)
                if moved(codes):
                    self._nodes.pop(of, None)
                await asyncio.sleep(pause(codes, tries))

    async def _find(self, of: Coordinator) -> int:
        while of not in self._nodes:
            try:
                self._nodes[of] = await self.client.coordinator_lookup(*of)
            except KafkaError as error:
                if not error.retriable or self._cut:
                    raise
                self.trouble = repr(error)
                await self._search(of)
        return self._nodes[of]

    async def _search(self, of: Coordinator) -> None:
        self._nodes.pop(of, None)
        await self.refresh()
        await asyncio.sleep(_SEARCH)

    def leader(self, tp: TP) -> int:
        """Node id of a partition's leader; negative if none is known."""
        return leader_of(self.client, tp)

    async def refresh(self) -> None:
        """Update the metadata about brokers and leaders, if any broker answers."""
        await self.client.force_metadata_update()

    def note(self, codes: Iterable[int]) -> None:
        """Keep the last temporary errors: a step that times out names them as the cause."""
        self.trouble = ", ".join(sorted(error_of(code).__name__ for code in codes))

    def cut(self) -> None:
        """Send nothing from now on."""
        self._cut = True

    async def close(self) -> None:
        """Close the connections."""
        if self.client is None:
            return
        with suppress(Exception):  # the broker closes what cannot be closed here
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self.client.close()
