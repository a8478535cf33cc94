"""The consumer inbox: an event's handler changes the database once, however often the event comes."""

from __future__ import annotations

from streams.postgres.inbox.events import EventId
from streams.postgres.inbox.inbox import BatchHandler, ConsumerInbox, Handler, InboxEvent
from streams.postgres.inbox.metrics import InboxMetrics
from streams.postgres.inbox.transactional import ReceivedHandler, ReceivedMessage, TransactionalInbox

__all__ = [
    "BatchHandler",
    "ConsumerInbox",
    "EventId",
    "Handler",
    "InboxEvent",
    "InboxMetrics",
    "ReceivedHandler",
    "ReceivedMessage",
    "TransactionalInbox",
]
