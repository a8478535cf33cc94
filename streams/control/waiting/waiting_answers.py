"""Answers about messages that wait, as JSON."""

from __future__ import annotations

import msgspec

WAITING_PATH = "/api/waiting"
#: Why a message waits, and what that is called. `behind`: only where the messages of one key are listed.
REASONS = {
    "retry": "a retry is due later",
    "paused": "the handler is paused",
    "breaker": "the circuit breaker is open",
    "dead": "behind a dead letter",
    "schema": "the schema is not known",
    "object": "a payload cannot be fetched or written",
    "version": "for another version of the application",
    "gone": "no worker has the handler",
    "replay": "a replay has its turn",
    "next": "it has its turn",
    "behind": "behind an earlier message of its key",
    "unreadable": "its queue cannot be read",
}


class WaitingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The first message of a key that waits for a handler. Times are RFC 3339.

    Attributes:
        reason: one of REASONS.
        why: the cause, in words: who paused the handler, which error, which dead letter.
        until: in words, what ends the wait; `due` is when, `due_in` in how many seconds; empty and None where
            no time is known.
        since: from when on it waits; `waited` for how many seconds.
        messages: how many of its key wait for the handler, itself included; `behind` without it.
        attempts: how often the handler has tried it.
        id, type, topic: of the message.
        letter: the id of the dead letter before it; empty: there is none.
        place: where it is in the list of all; a page that begins behind it has this as its cursor.
    """

    key: str
    handler: str
    reason: str
    why: str
    until: str
    due: str
    due_in: float | None
    since: str
    waited: float
    messages: int
    behind: int
    attempts: int
    id: str
    type: str
    topic: str
    partition: int
    lane: int
    letter: str = ""
    place: str = ""


class WaitingPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that wait, the oldest first over all lanes; one for each key and handler.

    Attributes:
        looked: at how many queues.
        left_out: lanes that have not answered, with why: their messages are missing here.
        unsorted: lanes in which not every queue is in the list yet, with why.
        next: the cursor of the next page; empty on the last one. A page may be short and have a next one.
    """

    waiting: list[WaitingAnswer]
    looked: int
    left_out: dict[int, str]
    unsorted: dict[int, str] = {}
    next: str
