"""The consumer inbox: an event's handler changes the database once, however often the event comes."""

from __future__ import annotations

from streams.postgres.inbox.inbox import BatchHandler, ConsumerInbox, Handler, InboxEvent
from streams.postgres.inbox.metrics import InboxMetrics

__all__ = ["BatchHandler", "ConsumerInbox", "Handler", "InboxEvent", "InboxMetrics"]
