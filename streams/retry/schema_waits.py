"""Messages written with a schema that nobody has announced yet: they wait, for a time (docs/adr/0016)."""

from __future__ import annotations

import structlog

from streams.errors import MessageExpired, SchemaNeverAnnounced, UnknownSchema
from streams.model.application import Application, BoundHandler
from streams.model.envelope import rfc3339
from streams.retry.queue import Reason, Waiting
from streams.retry.retries import Retries, is_replay, queue_of_key
from streams.staging.arrival import Arrival

log = structlog.get_logger(__name__)

#: Unknown schemas that are told of, each once: anybody can make up fingerprints.
MOST_TOLD = 100


class SchemaWaits:
    """Lets them wait in the queues of one lane."""

    def __init__(self, app: Application, retries: Retries) -> None:
        self._patience = app.lane_options.schema_patience
        self._retries = retries
        self._told: set[str] = set()

    def tell(self, unknown: UnknownSchema) -> None:
        """Tell in the log of a schema that messages wait for, once."""
        if unknown.fingerprint not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(unknown.fingerprint)
            log.warning("schema_unknown", fingerprint=unknown.fingerprint, action=str(unknown))

    def wait(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        unknown: UnknownSchema,
        now: float,
    ) -> None:
        """Let a message that cannot be read yet wait, and whatever comes after it under its message key: its
        ordering key is not known. One that has waited for too long, or has expired, is given up.
        """
        if arrival.queue and self._retries.waits_on(arrival, handler):
            return
        gate, local = self._retries.gates[handler.name], queue_of_key(arrival, handler)
        if not arrival.queue and local in gate.queues:
            self._retries.stand_behind(arrival, handler, inbox_key, local)
            return
        since = arrival.record.waits_since if isinstance(arrival.record, Waiting) else now
        deadline = None if is_replay(arrival) else arrival.envelope.deadline
        if (over := self._over(unknown, since, deadline, now)) is None:
            due = since + self._patience
            due = due if deadline is None else min(due, deadline + 0.001)
            self._wait(arrival, handler, inbox_key, unknown, since, due, now)
        else:
            gate.unread.forget(arrival.queue)
            self._retries.give_up(arrival, handler, inbox_key, over, arrival.attempts, now)

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

    def _wait(
        self,
        arrival: Arrival,
        handler: BoundHandler,
        inbox_key: bytes | None,
        unknown: UnknownSchema,
        since: float,
        due: float,
        now: float,
    ) -> None:
        gate, retries = self._retries.gates[handler.name], self._retries
        if arrival.queue:
            retries.put_off(arrival, gate, Reason.SCHEMA, due, arrival.attempts, 0.0)
        elif arrival.entry.prefix in gate.pauses:
            retries.begin(arrival, handler, inbox_key, Reason.PAUSED, now)
            return
        elif not retries.begin(arrival, handler, inbox_key, Reason.SCHEMA, due):
            return
        local = arrival.queue or queue_of_key(arrival, handler)
        gate.unread.add(local, arrival.record.topic, unknown.fingerprint.encode(), since)
