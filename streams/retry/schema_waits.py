"""Messages written with a schema that nobody has announced yet: they wait, for a time (docs/adr/0016)."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from streams.errors import MessageExpired, SchemaNeverAnnounced, UnknownSchema
from streams.model.application import LaneOptions
from streams.model.envelope import rfc3339
from streams.retry.gate import HandlerGate
from streams.retry.queue import Reason, WaitingMessage, is_replay
from streams.retry.retries import Retries
from streams.retry.waiting_line import WaitingLine, queue_of_key
from streams.staging.arrival import Attempt

log = structlog.get_logger(__name__)

#: Unknown schemas that the log names, each once: anybody can make up fingerprints.
MOST_LOGGED = 100


class SchemaWaits:
    """Lets them wait in the queues of one lane."""

    def __init__(
        self, options: LaneOptions, gates: Mapping[str, HandlerGate], line: WaitingLine, retries: Retries
    ) -> None:
        self._patience = options.schema_patience
        self._gates = gates
        self._line = line
        self._retries = retries
        self._logged: set[str] = set()

    def log_unknown(self, unknown: UnknownSchema) -> None:
        """Name a schema that messages wait for in the log, once."""
        if unknown.fingerprint not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(unknown.fingerprint)
            log.warning("schema_unknown", fingerprint=unknown.fingerprint, action=str(unknown))

    def wait(self, attempt: Attempt, unknown: UnknownSchema, now: float) -> None:
        """Let a message that cannot be read yet wait, and whatever comes after it under its message key: its
        ordering key is not known. One that has waited for too long, or has expired, is given up.
        """
        arrival, handler = attempt.arrival, attempt.handler
        if arrival.queue and self._retries.waits_on(attempt):
            return
        gate, local = self._gates[handler.name], queue_of_key(arrival, handler)
        if not arrival.queue and local in gate.queues:
            self._line.stand_behind(attempt, local, now)
            return
        since = arrival.record.waits_since if isinstance(arrival.record, WaitingMessage) else now
        deadline = None if is_replay(arrival.record) else arrival.envelope.deadline
        if (over := self._over(unknown, since, deadline, now)) is None:
            due = since + self._patience
            due = due if deadline is None else min(due, deadline + 0.001)
            self._wait(attempt, unknown, since, due, now)
        else:
            gate.unread.forget(arrival.queue)
            self._retries.give_up(attempt, over, now)

    def _over(
        self, unknown: UnknownSchema, since: float, deadline: float | None, now: float
    ) -> MessageExpired | SchemaNeverAnnounced | None:
        """Why a message does not wait any more; None: it does."""
        if deadline is not None and deadline < now:
            return MessageExpired(f"its deadline was {now - deadline:.1f} s ago, and it waits: {unknown}")
        if since + self._patience <= now:
            return SchemaNeverAnnounced(
                f"schema {unknown.fingerprint} was not announced within {self._patience:g} s from"
                f" {rfc3339(since)}: start a worker that has it, then replay this message"
            )
        return None

    def _wait(self, attempt: Attempt, unknown: UnknownSchema, since: float, due: float, now: float) -> None:
        arrival, gate = attempt.arrival, self._gates[attempt.handler.name]
        if arrival.queue:
            self._line.put_off(attempt, Reason.SCHEMA, due)
        elif arrival.entry.prefix in gate.pauses:
            self._line.begin(attempt, Reason.PAUSED, now, now)
            return
        elif not self._line.begin(attempt, Reason.SCHEMA, due, now):
            return
        local = arrival.queue or queue_of_key(arrival, attempt.handler)
        gate.unread.add(local, arrival.record.topic, unknown.fingerprint.encode(), since)
