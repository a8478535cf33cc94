"""What brokers hold back from this process since one of their quotas is used up (KIP-219): an answer says for
how long its connection is read no further. Nothing else shows it: no request fails, and lanes are healthy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, NamedTuple

import structlog

from streams.kafka.throttling import HeldBack, is_said

log = structlog.get_logger(__name__)

#: Between looks while something is held back, in seconds.
_LOOK_EVERY = 1.0
_OTHER = "other"
#: Requests by their numbers, as the metric names them.
_KINDS = {
    0: "produce", 1: "fetch",
    **dict.fromkeys((8, 9, 10, 11, 12, 13, 14), "group"),
    **dict.fromkeys((22, 24, 25, 26, 28), "transaction"),
}  # fmt: skip
#: The quotas that hold requests back; of others it is this one, and that of changes to topics.
_BY_REQUESTS, _BY_CHANGES = "request_percentage", "controller_mutation_rate"
_QUOTAS = {"produce": "producer_byte_rate", "fetch": "consumer_byte_rate", _OTHER: _BY_CHANGES}


class Client(NamedTuple):
    """Whom a quota is for. `user` is empty where only the broker knows its name."""

    client_id: str
    user: str


class Throttles:
    """What is held back from one process: summed, said in its log, and a warning while it lasts."""

    def __init__(self) -> None:
        #: Seconds by kind of request, since the process began.
        self.seconds = dict.fromkeys((*_KINDS.values(), _OTHER), 0.0)
        self._lock = threading.Lock()  # membership has a thread of its own
        self._held: dict[str, HeldBack] = {}
        self._clients: dict[Client, None] = {}
        self._said = False
        self._since = 0.0
        self._looks_on: asyncio.AbstractEventLoop | None = None

    def note(self, api_key: int, seconds: float, client: Client) -> None:
        """Take down what an answer says. To be called in the loop of its connection."""
        kind = _KINDS.get(api_key, _OTHER)
        with self._lock:
            self.seconds[kind] += self._held.setdefault(kind, HeldBack()).add(time.monotonic(), seconds)
            self._clients[client] = None
            if self._looks_on is None or self._looks_on.is_closed():
                self._looks_on = asyncio.get_running_loop()
                self._looks_on.call_later(_LOOK_EVERY, self._look, self._looks_on)

    def warnings(self) -> list[str]:
        """A warning, while it is worth one."""
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
        """The warning, for health."""
        return "".join(self.warnings())

    def _within(self, now: float) -> dict[str, float]:
        """Seconds of the last minute by kind, as far as there are some; most first."""
        held = {kind: each.within(now) for kind, each in self._held.items()}
        return {kind: held[kind] for kind in sorted(held, key=held.__getitem__, reverse=True) if held[kind]}

    def _names(self) -> str:
        return " and ".join(
            f"client {client_id!r}" + (f" of user {user!r}" if user else "")
            for client_id, user in sorted(self._clients)
        )

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say what has begun or ended, and look again while something is held back."""
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
    """Whom a broker takes a connection with these options of aiokafka for."""
    unnamed = "ANONYMOUS" if options.get("security_protocol", "PLAINTEXT") == "PLAINTEXT" else ""
    return Client(options.get("client_id", ""), options.get("sasl_plain_username") or unnamed)
