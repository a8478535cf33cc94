"""Breakages of what a run has left, each of which the checker must find: by hand, on evidence that is whole.

They cost no run: they are made to the evidence of a run that is recorded, and take what they need from it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
import msgspec

from agents.commands import OrderSagaReply, OrderSubmitted, RefundPayment
from agents.messages import LineReserved, OrderPlaced, ReserveLine
from chaos.evidence.consequences import SentMessage
from chaos.evidence.decoding import Origin, decoder, split_key
from chaos.evidence.evidence import Evidence
from chaos.evidence.in_postgres import SOURCE, OrderRow
from chaos.evidence.retry_rows import Retried
from chaos.evidence.saga_records import CommandRecord, Replied, SagaMessages
from chaos.evidence.stores import Rows
from chaos.judges.lateness import TIME
from chaos.judges.sagas import TIMERS_TABLE as TIMERS
from chaos.rig.records import Happened
from schemas import latest

ENDED = "every saga ended as its order calls for, late only by a fault"
WAITS = "no message late for longer than a fault lasts"
RETRIES = "every retry of a message that came to its end once"
KEY_ORDER = "messages of one key handled in their order"
RANG = "every timer rang when it was due, once"
OBJECTS = "every object there that a message refers to"
ROWS = "every row as its order calls for"
ACCEPTED = "every order that was accepted is in PostgreSQL and on Kafka once"
STATUS = "PostgreSQL says of every order what Kafka says"
OUTBOX = "every row of the outbox on Kafka, in its order's order"
COUNTS = "two clients that share no code count the same"

#: Seconds by which what is stuck is late: far longer than any fault of a short run.
_STUCK = 150.0
_AGAIN = 10**6
_PREFIX, _FINGERPRINT = 2, 8


@dataclass(frozen=True)
class Breakage:
    """What is broken, and the finding that must be red for it. `files`: only where orders came with files;
    `over_http`: only where they came by the orders API.
    """

    says: str
    finds: str
    make: Callable[[Evidence], None]
    files: bool = False
    over_http: bool = False


def lose_a_reply(evidence: Evidence) -> None:
    """The saga gets no reply to a step, and does not go on."""
    saga = _a_saga(evidence)
    lost = next(each for each in saga.replies if each.outcome == "success")
    saga.replies.remove(lost)
    evidence.messages.remove(lost.sent)


def hold_a_command(evidence: Evidence) -> None:
    """A participant has answered minutes after all else, in a run in which the gateway fails all the time."""
    began, ended = evidence.run.load
    over = max([ended, *(each.time for each in evidence.messages)]) + _STUCK
    faults = [
        Happened(kind="gateway_down", target="it", began=at, ended=at + 6, confirmed="so")
        for at in map(float, range(int(began), int(over), 10))
    ]
    evidence.run = msgspec.structs.replace(evidence.run, faults=faults)
    reply = next(each for each in _replies(evidence) if each.outcome == "success").sent
    _replace(evidence, reply, reply._replace(time=over))


def compensate_again(evidence: Evidence) -> None:
    """A payment is given back a second time."""
    saga, command = _undone(evidence)
    reply = next(each for each in saga.replies if each.command_id == command.command_id)
    saga.replies.append(reply._replace(sent=_again(evidence, reply.sent)))


def compensate_nothing(evidence: Evidence) -> None:
    """A payment is kept, though its order was cancelled after it."""
    saga, command = _undone(evidence)
    those = [each for each in saga.replies if each.command_id == command.command_id]
    saga.commands.remove(command)
    for each in those:
        saga.replies.remove(each)
    for sent in (command.sent, *(each.sent for each in those)):
        evidence.messages.remove(sent)


def lose_a_retry(evidence: Evidence) -> None:
    """A message was postponed and never tried again."""
    effect = _an_effect(evidence)
    cause = next(each for each in evidence.messages if each.message_id == effect.cause)
    origin = Origin(cause.topic, cause.partition, cause.offset)
    evidence.retried.append(Retried(origin, cause.message_id, "inventory.reserve_line", 1, 3))
    evidence.messages.remove(effect)


def retry_behind_its_key(evidence: Evidence) -> None:
    """A message was postponed, and the next one of its key was handled meanwhile."""
    cause_of = {each.message_id: each for each in evidence.messages if each.topic == ReserveLine.TOPIC}
    first: dict[tuple[str, int], SentMessage] = {}
    for each in sorted(evidence.messages, key=lambda each: each.offset):
        cause = cause_of.get(each.cause)
        if each.topic != LineReserved.TOPIC or cause is None:
            continue
        before = first.setdefault((cause.key, each.partition), each)
        if before is not each:
            _replace(evidence, before, before._replace(offset=each.offset))
            _replace(evidence, each, each._replace(offset=before.offset))
            return
    raise LookupError("no two messages of one key have led to the same partition")


def never_ring(evidence: Evidence) -> None:
    """A command was long without a reply, and its saga did not ask after it."""
    saga, command = _first_command(evidence)
    saga.commands[saga.commands.index(command)] = command._replace(decided=command.decided - _STUCK * 10)


def ring_twice(evidence: Evidence) -> None:
    """A deadline rings, and at once again."""
    saga, command = _first_command(evidence)
    for number in range(2):
        at = command.decided + TIME + number
        sent = command.sent._replace(
            topic=OrderSagaReply.TOPIC, offset=_AGAIN + number, message_id=f"{number}"
        )
        saga.replies.append(Replied(sent, command.command_id, "timed_out", at, at))


def leave_a_timer(evidence: Evidence) -> None:
    """A timer waits though its saga has ended."""
    order_id = next(iter(evidence.sagas.by_order)).encode()
    name = b"orders.order_saga\0" + len(order_id).to_bytes(2, "big") + order_id + b"process_payment"
    next(iter(evidence.rebuilt.tables.values()))[TIMERS] = {b"\0\0" + name: bytes(8)}


def lose_an_object(evidence: Evidence) -> None:
    """The payload of a message is gone."""
    del evidence.objects[next(iter(evidence.referred))]


def alter_an_object(evidence: Evidence) -> None:
    """It has other bytes, as many as before."""
    name = next(iter(evidence.referred))
    evidence.objects[name] = evidence.objects[name]._replace(digest="0" * 64)


def refund_other_cents(evidence: Evidence) -> None:
    """The row of a payment that a saga gave back has a cent more than was charged."""
    rows, key, row = next(
        found for found in _payments(evidence) if found[2]["status"] == "refunded" and found[2]["cents"]
    )
    out = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(latest("payments")))
    fastavro.schemaless_writer(out, schema, {**row, "cents": row["cents"] + 1})
    rows[key] = rows[key][:_FINGERPRINT] + out.getvalue()


def count_otherwise(evidence: Evidence) -> None:
    """One of the two clients has missed a record."""
    topic, count = next(iter(evidence.counts_again.items()))
    evidence.counts_again[topic] = count._replace(records=count.records - 1)


def lose_an_order_in_postgres(evidence: Evidence) -> None:
    """An order that was accepted is gone from PostgreSQL."""
    evidence.database.orders.remove(_stored(evidence))


def lose_an_order_on_kafka(evidence: Evidence) -> None:
    """It is gone from Kafka: its row was marked, and not written."""
    evidence.messages.remove(_begun(evidence))


def forget_an_order_everywhere(evidence: Evidence) -> None:
    """It is gone from both: its client alone knows of it."""
    lost = _begun(evidence)
    evidence.messages.remove(lost)
    evidence.database.orders.remove(next(e for e in evidence.database.orders if e.order_id == lost.key))
    evidence.database.outbox = [each for each in evidence.database.outbox if each.order_id != lost.key]


def double_an_order(evidence: Evidence) -> None:
    """It began a second time, under another name, which no inbox knows."""
    _again(evidence, _begun(evidence))


def tell_another_status(evidence: Evidence) -> None:
    """PostgreSQL has an older status of an order."""
    orders = evidence.database.orders
    stored = _stored(evidence)
    orders[orders.index(stored)] = stored._replace(status="pending")


def leave_a_row(evidence: Evidence) -> None:
    """A row of the outbox waits for good."""
    rows = evidence.database.outbox
    rows[0] = rows[0]._replace(published=False)


BREAKAGES = (
    Breakage("a saga's reply is lost", ENDED, lose_a_reply),
    Breakage("a saga is stuck in a short run", WAITS, hold_a_command),
    Breakage("a saga's step is compensated twice", ENDED, compensate_again),
    Breakage("a saga's step is not compensated", ENDED, compensate_nothing),
    Breakage("a retry is lost", RETRIES, lose_a_retry),
    Breakage("a retry is handled behind one after it", KEY_ORDER, retry_behind_its_key),
    Breakage("a timer never rings", RANG, never_ring),
    Breakage("a timer rings twice", RANG, ring_twice),
    Breakage("a timer is left behind", RANG, leave_a_timer),
    Breakage("a payload's object is missing", OBJECTS, lose_an_object, files=True),
    Breakage("a payload's object has other bytes", OBJECTS, alter_an_object, files=True),
    Breakage("a saga's refunded payment has other cents", ROWS, refund_other_cents),
    Breakage("a reader has missed a record", COUNTS, count_otherwise),
    Breakage("an order is missing in PostgreSQL", ACCEPTED, lose_an_order_in_postgres, over_http=True),
    Breakage("an order is missing on Kafka", ACCEPTED, lose_an_order_on_kafka, over_http=True),
    Breakage("an accepted order is nowhere", ACCEPTED, forget_an_order_everywhere, over_http=True),
    Breakage("an order began twice", ACCEPTED, double_an_order, over_http=True),
    Breakage("a status in PostgreSQL differs", STATUS, tell_another_status, over_http=True),
    Breakage("a row of the outbox is not published", OUTBOX, leave_a_row, over_http=True),
)


def _a_saga(evidence: Evidence) -> SagaMessages:
    """One of which all steps succeeded."""
    return next(
        saga
        for saga in evidence.sagas.by_order.values()
        if saga.commands and all(each.outcome == "success" for each in saga.replies)
    )


def _first_command(evidence: Evidence) -> tuple[SagaMessages, CommandRecord]:
    saga = _a_saga(evidence)
    return saga, saga.commands[0]


def _undone(evidence: Evidence) -> tuple[SagaMessages, CommandRecord]:
    """A saga that has given a payment back, and its command for that."""
    return next(
        (saga, command)
        for saga in evidence.sagas.by_order.values()
        for command in saga.commands
        if command.sent.topic == RefundPayment.TOPIC
    )


def _replies(evidence: Evidence) -> Iterator[Replied]:
    for saga in evidence.sagas.by_order.values():
        commands = {each.sent.message_id for each in saga.commands}
        yield from (each for each in saga.replies if each.sent.cause in commands)


def _stored(evidence: Evidence) -> OrderRow:
    """An order in PostgreSQL that came by the API."""
    return next(each for each in evidence.database.orders if each.way != "unknown")


def _begun(evidence: Evidence) -> SentMessage:
    """The beginning of an order that came by the API."""
    begins = (OrderPlaced.TOPIC, OrderSubmitted.TOPIC)
    return next(each for each in evidence.messages if each.source == SOURCE and each.topic in begins)


def _an_effect(evidence: Evidence) -> SentMessage:
    return next(each for each in evidence.messages if each.topic == LineReserved.TOPIC)


def _again(evidence: Evidence, sent: SentMessage) -> SentMessage:
    """The same once more, as another message."""
    again = sent._replace(message_id="again", offset=_AGAIN)
    evidence.messages.append(again)
    return again


def _replace(evidence: Evidence, sent: SentMessage, other: SentMessage) -> None:
    evidence.messages[evidence.messages.index(sent)] = other


def _payments(evidence: Evidence) -> Iterator[tuple[Rows, bytes, dict[str, Any]]]:
    """The payments of orders that sagas see to."""
    decode = decoder("payments")
    for lane in evidence.rebuilt.tables.values():
        rows = lane.get("payments", {})
        for key, value in rows.items():
            if split_key(key[_PREFIX:])[0] in evidence.sagas.by_order:
                yield rows, key, decode(value[_FINGERPRINT:])
