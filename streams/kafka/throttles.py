"""Tracks how long brokers throttle this process because it exceeds a quota (KIP-219). Each answer states for
how long the broker will not read its connection. Nothing else shows it: no request fails, lanes are healthy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, NamedTuple

import structlog

from streams.kafka.throttling import HeldBack, is_said

log = structlog.get_logger(__name__)

#: Seconds between checks while the process is throttled.
_LOOK_EVERY = 1.0
_OTHER = "other"
#: The metric's name for each request, by api key.
_KINDS = {
    0: "produce", 1: "fetch",
    **dict.fromkeys((8, 9, 10, 11, 12, 13, 14), "group"),
    **dict.fromkeys((22, 24, 25, 26, 28), "transaction"),
}  # fmt: skip
#: Quotas that throttle requests: one for every kind of request, and one more for some kinds.
_BY_REQUESTS, _BY_CHANGES = "request_percentage", "controller_mutation_rate"
_QUOTAS = {"produce": "producer_byte_rate", "fetch": "consumer_byte_rate", _OTHER: _BY_CHANGES}


class Client(NamedTuple):
    """The client that a quota applies to. `user` is empty if only the broker knows its name."""

    client_id: str
    user: str


class Throttles:
    """Sums up how long a process is throttled, logs when that begins and ends, and warns meanwhile."""

    def __init__(self) -> None:
        #: Throttled seconds by kind of request, since the process started.
        self.seconds = dict.fromkeys((*_KINDS.values(), _OTHER), 0.0)
        self._lock = threading.Lock()  # group membership runs in its own thread
        self._held: dict[str, HeldBack] = {}
        self._clients: dict[Client, None] = {}
        self._said = False
        self._since = 0.0
        self._looks_on: asyncio.AbstractEventLoop | None = None

    def note(self, api_key: int, seconds: float, client: Client) -> None:
        """Record the throttle time of an answer. Call it in the event loop of the connection."""
        kind = _KINDS.get(api_key, _OTHER)
        with self._lock:
            self.seconds[kind] += self._held.setdefault(kind, HeldBack()).add(time.monotonic(), seconds)
            self._clients[client] = None
            if self._looks_on is None or self._looks_on.is_closed():
                self._looks_on = asyncio.get_running_loop()
                self._looks_on.call_later(_LOOK_EVERY, self._look, self._looks_on)

    def warnings(self) -> list[str]:
        """A warning while brokers throttle this process noticeably; otherwise empty."""
        with self._lock:
            held = self._within(time.monotonic())
            if not self._said or not held:
                return []
            spent = " and ".join(f"{kind} for {seconds:.0f} s" for kind, seconds in held.items())
            quotas = dict.fromkeys([*(_QUOTAS[kind] for kind in held if kind in _QUOTAS), _BY_REQUESTS])
            text = (
                f"a quota of the brokers slows this process: they held back {spent} of the last minute, of"
                f" {self._names()}. Messages wait meanwhile. kafka-configs.sh --describe --entity-type"
                f" clients (or users) shows quotas, here {' or '.join(quotas)}: raise it, or leave it if"
                " this load is to be slow"
            )
            return [text]

    async def check(self) -> str:
        """The warning for the health check; empty if there is none."""
        return "".join(self.warnings())

    def _within(self, now: float) -> dict[str, float]:
        """Throttled seconds in the last minute by kind, largest first, without zeros."""
        held = {kind: each.within(now) for kind, each in self._held.items()}
        return {kind: held[kind] for kind in sorted(held, key=held.__getitem__, reverse=True) if held[kind]}

    def _names(self) -> str:
        return " and ".join(
            f"client {client_id!r}" + (f" of user {user!r}" if user else "")
            for client_id, user in sorted(self._clients)
        )

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Log the begin or the end of throttling, and check again as long as it lasts."""
        now = time.monotonic()
        with self._lock:
            held = self._within(now)
            said = is_said(max(held.values(), default=0.0), before=self._said)
            if said != self._said:
                self._said = said
                self._say(now, held)
            if held:
                loop.call_later(_LOOK_EVERY, self._look, loop)
            else:
                self._looks_on = None
                self._clients.clear()

    def _say(self, now: float, held: dict[str, float]) -> None:
        if not self._said:
            log.info("kafka_throttles_no_more", seconds=round(now - self._since, 1))
            return
        self._since = now
        log.warning(
            "kafka_throttles",
            held={kind: round(seconds, 1) for kind, seconds in held.items()},
            clients=self._names(),
            action="messages wait; kafka-configs.sh --describe shows quotas of clients and of users",
        )


throttles = Throttles()


def client_of(options: dict[str, Any]) -> Client:
    """The client that a broker sees in a connection with these aiokafka options."""
    unnamed = "ANONYMOUS" if options.get("security_protocol", "PLAINTEXT") == "PLAINTEXT" else ""
    return Client(options.get("client_id", ""), options.get("sasl_plain_username") or unnamed)
