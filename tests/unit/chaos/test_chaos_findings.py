"""The checker must go red for each way in which a run can fail, and say of which."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from good_post import PARTITIONS, Written
from good_run import BEGAN, BOUGHT, LANES, Spoil, bury, good, put_off, red, says_of

from agents.messages import (
    DocumentsPacked,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderConfirmed,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ReleaseLine,
    ReservationSettled,
    ReserveLine,
    ShipLine,
    StockReleased,
    StockReservationFailed,
)
from chaos.controls.recorded import KEY_ORDER, OBJECTS, RETRIES
from chaos.evidence.consequences import SentMessage
from chaos.evidence.evidence import Evidence
from chaos.evidence.rebuilt import Compared, Place
from chaos.rig.records import ProcessEnd
from demo.purchases import ExpectedOutcome, order, outcome
from streams.engine.staging.keys import WAITING
from streams.model.message import Message
from streams.ports import TP

case = pytest.param
pytestmark = [
    pytest.mark.slow("eight seconds of recorded runs"),
    pytest.mark.promise("chaos", "each finding of the checker goes red when its fault is planted"),
]

IDS = "every message there once"
LED = "every message led to what it calls for, once"
COMPENSATED = "no compensation twice"
TABLES = "every table as its changelog has it"
POSITIONS = "no position above an unhandled message"
OPEN = "no transaction open"
WORKERS = "no worker hung or died by itself"
FAULTS = "every fault happened"
LETTERS = "every poisonous record a dead letter once, and nothing else"
FILES = "every file came out as it was put in"
STALLS = "no stall over its limit"
NOT_LOOKED_AT = "all else"

#: One of whose lines there is enough.
OUT_OF_STOCK = next(
    p.order_id for p in BOUGHT if outcome(p) is ExpectedOutcome.OUT_OF_STOCK and len(order(p).lines) > 1
)
ANSWERS = {LineReserved.TOPIC, LineRefused.TOPIC}
REFUSALS = {StockReservationFailed.TOPIC, ReservationSettled.TOPIC}


def a(kind: type[Message], evidence: Evidence) -> SentMessage:
    return next(each for each in evidence.messages if each.topic == kind.TOPIC)


def lose(kind: type[Message]) -> Spoil:
    return lambda evidence: evidence.messages.remove(a(kind, evidence))


def add(kind: type[Message], **changes: Any) -> Spoil:
    """One of its messages once more, but for these changes."""
    return lambda evidence: evidence.messages.append(a(kind, evidence)._replace(**changes))


def double(kind: type[Message]) -> Spoil:
    """The same once more, at another offset."""
    return add(kind, offset=9_999)


def alter(name: str, **changes: Any) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        held = getattr(evidence, name)
        first = next(iter(held)) if isinstance(held, dict) else 0
        held[first] = held[first]._replace(**changes)

    return spoil


def another_sku(evidence: Evidence) -> None:
    line = a(ReserveLine, evidence)
    evidence.messages[evidence.messages.index(line)] = line._replace(key="cd-999")


def led_on_twice(evidence: Evidence) -> None:
    """Two answers of one order each led on, to half of what they should together."""
    answers = [each for each in evidence.messages if each.key == OUT_OF_STOCK and each.topic in ANSWERS]
    ids = {each.message_id for each in answers}
    failed = next(each for each in evidence.messages if each.cause in ids and each.topic in REFUSALS)
    other = next(each for each in answers if each.message_id != failed.cause)
    evidence.messages[evidence.messages.index(failed)] = failed._replace(cause=other.message_id)


def compensate_again(kind: type[Message]) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        done = next(each for each in evidence.compensations if each[0] == kind.TOPIC)
        evidence.compensations[done] += 1

    return spoil


def with_copies(*copies: Compared) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        evidence.copies = [*(Compared("x", lane, Place.AT_END) for lane in range(1, LANES)), *copies]

    return spoil


def rows(evidence: Evidence, table: str) -> dict[bytes, bytes]:
    return next(lane[table] for lane in evidence.rebuilt.tables.values() if lane[table])


def forget(topic: str) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        message_id = next(each.message_id for each in evidence.messages if each.topic == topic).encode()
        for tables in evidence.rebuilt.tables.values():
            for key in [key for key in tables["inbox"] if key.endswith(message_id)][:1]:
                del tables["inbox"][key]

    return spoil


def in_lane(evidence: Evidence, partition: int, key: bytes, value: bytes) -> None:
    evidence.rebuilt.add("lane", Written("app-lane-changelog", partition, 0, key, value))


def commit_beyond(evidence: Evidence) -> None:
    tp = next(iter(evidence.committed))
    evidence.committed[tp] += 1
    in_lane(evidence, tp.partition, b"p" + tp.topic.encode(), b"%d" % evidence.committed[tp])


def reset_the_group(evidence: Evidence) -> None:
    evidence.committed[next(iter(evidence.committed))] -= 1


def an_open_transaction(evidence: Evidence) -> None:
    evidence.unstable[TP("orders.order.placed.v1", 0)] = (5, 7)
    evidence.books = None


def ended(**changes: object) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        worker = ProcessEnd(worker="worker-1", pid=3, exit_code=0, expected=True, hung=False)
        workers = [*evidence.run.workers, msgspec.structs.replace(worker, **changes)]
        evidence.run = msgspec.structs.replace(evidence.run, workers=workers)

    return spoil


def unconfirmed(evidence: Evidence) -> None:
    faults = [msgspec.structs.replace(each, confirmed="") for each in evidence.run.faults]
    evidence.run = msgspec.structs.replace(evidence.run, faults=faults)


def stand_still(evidence: Evidence) -> None:
    evidence.commits.seen[1] = [time for time in evidence.commits.seen[1] if not 30 < time - BEGAN < 41]


def bury_an_order(evidence: Evidence) -> None:
    """A message that was postponed too often, for one."""
    placed = a(OrderPlaced, evidence)
    record = Written(*placed[:3], placed.key.encode(), b"an order")
    bury(evidence, record, "BlobsUnavailable", "orders.open")
    evidence.poison.popitem()


def double_its_row(evidence: Evidence) -> None:
    letters = rows(evidence, "dead_letters")
    letters[b"another key"] = next(iter(letters.values()))


def another_row(evidence: Evidence) -> None:
    letters = rows(evidence, "dead_letters")
    key, value = letters.popitem()
    letters[key] = value.replace(b"Undecodable", b"KeyMismatch")


def poison_without_a_plan(evidence: Evidence) -> None:
    bury(evidence, Written("orders.order.placed.v1", 0, 99_999, b"k", b"v"), "Undecodable")


def poison_that_never_came(evidence: Evidence) -> None:
    evidence.poison.clear()
    evidence.letters.clear()
    for lane in evidence.rebuilt.tables.values():
        lane["dead_letters"].clear()


def retry(*tiers: int, **changes: Any) -> Spoil:
    return lambda evidence: put_off(evidence, a(PaymentCaptured, evidence)._replace(**changes), *tiers)


def answer_of_the_retried(evidence: Evidence) -> SentMessage:
    return next(each for each in evidence.messages if each.cause == evidence.retried[0].message_id)


def retry_in_vain(evidence: Evidence) -> None:
    evidence.messages.remove(answer_of_the_retried(evidence))


def retry_too_well(evidence: Evidence) -> None:
    again = answer_of_the_retried(evidence)._replace(message_id="again", offset=9_999)
    evidence.messages.append(again)


def packed(change: Callable[[list[tuple[str, str]]], list[tuple[str, str]]]) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        assert evidence.books is not None
        order_id, files = evidence.books.packed.popitem()
        evidence.books.packed[order_id] = change(files)

    return spoil


def test_it_passes_when_all_is_right() -> None:
    assert {outcome(purchase) for purchase in BOUGHT} == set(ExpectedOutcome)
    assert red(good()) == set()


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        case(double(OrderConfirmed), {IDS, LED}, id="an event is there twice"),
        case(add(ShipLine, message_id=""), {IDS, LED}, id="a message without id"),
        case(add(OrderConfirmed, message_id="made anew"), {LED}, id="confirmed twice"),
        case(
            add(PaymentCaptured, topic=PaymentFailed.TOPIC, message_id="no"),
            {LED},
            id="captured and declined",
        ),
        case(lose(OrderConfirmed), {LED}, id="never confirmed"),
        case(lose(ReleaseLine), {LED}, id="not released"),
        case(lose(PaymentRefunded), {LED}, id="not refunded"),
        case(another_sku, {LED}, id="a command for another SKU"),
        case(led_on_twice, {LED}, id="two answers led on"),
        case(add(StockReleased, message_id="stray", cause="never sent"), {LED}, id="nothing caused it"),
        case(compensate_again(PaymentRefunded), {COMPENSATED}, id="refunded twice"),
        case(compensate_again(StockReleased), {COMPENSATED}, id="stock released twice"),
        case(compensate_again(LineReleased), {COMPENSATED}, id="a line released twice"),
        case(compensate_again(ReleaseLine), {COMPENSATED}, id="a second command to release"),
        case(
            with_copies(Compared("y", 0, Place.AT_END, ("stock b'cd' differs",))), {TABLES}, id="another row"
        ),
        case(
            with_copies(Compared("x", 0, Place.AT_END), Compared("y", 0, Place.AHEAD, ("at 9, end 8",))),
            {TABLES},
            id="a copy ahead",
        ),
        case(with_copies(Compared("x", 0, Place.BEHIND)), {TABLES}, id="only a copy behind"),
        case(with_copies(), {TABLES}, id="no copy"),
        case(lambda e: e.unreadable.append("the store in slot-1"), {TABLES}, id="a copy that cannot be read"),
        case(forget("orders.order.placed.v1"), {POSITIONS}, id="an order not handled"),
        case(forget("inventory.stock.received.v1"), {POSITIONS}, id="a receipt not handled"),
        case(commit_beyond, {POSITIONS}, id="a position beyond the end"),
        case(reset_the_group, {POSITIONS}, id="the group was reset"),
        case(lambda e: e.committed.pop(next(iter(e.committed))), {POSITIONS}, id="the group lost a position"),
        case(an_open_transaction, {OPEN, NOT_LOOKED_AT}, id="an open transaction"),
        case(ended(hung=True), {WORKERS}, id="a worker hung"),
        case(ended(expected=False, exit_code=1), {WORKERS}, id="a worker died"),
        case(ended(expected=False), {WORKERS}, id="a worker left by itself"),
        case(ended(exit_code=1), {WORKERS}, id="a worker ended with an error"),
        case(unconfirmed, {FAULTS}, id="a fault that was not seen"),
        case(stand_still, {STALLS}, id="a stall"),
        case(lambda e: e.letters.pop(), {LETTERS}, id="a dead letter is lost"),
        case(lambda e: e.letters.append(e.letters[0]), {LETTERS}, id="a dead letter is there twice"),
        case(alter("letters", content=b"other"), {LETTERS}, id="a dead letter was altered"),
        case(alter("letters", error="KeyMismatch"), {LETTERS}, id="given up for another reason"),
        case(alter("letters", handler="orders.open"), {LETTERS}, id="given up by a handler"),
        case(bury_an_order, {LETTERS}, id="an order is a dead letter"),
        case(lambda e: rows(e, "dead_letters").clear(), {LETTERS}, id="a dead letter has no row"),
        case(double_its_row, {LETTERS}, id="a dead letter has two rows"),
        case(another_row, {LETTERS}, id="a dead letter's row says otherwise"),
        case(poison_without_a_plan, {LETTERS}, id="poison without a plan"),
        case(poison_that_never_came, {LETTERS}, id="poison that never came"),
        case(retry(1, offset=99_999), {RETRIES}, id="a retry of nothing"),
        case(retry(1, message_id="another"), {RETRIES}, id="a retry of another message"),
        case(lambda e: e.retried.append(e.retried[0]), {RETRIES}, id="postponed twice after one attempt"),
        case(retry(1, 3), {RETRIES}, id="a retry tier is skipped"),
        case(retry_in_vain, {LED, RETRIES}, id="a retry without effect"),
        case(retry_too_well, {LED, RETRIES, KEY_ORDER}, id="a retry with two effects"),
        case(lambda e: e.objects.popitem(), {OBJECTS}, id="an object is missing"),
        case(alter("objects", size=6), {OBJECTS}, id="an object is too short"),
        case(alter("objects", digest="0" * 64), {OBJECTS}, id="an object has other bytes"),
        case(alter("referred", digest="0" * 64), {OBJECTS}, id="a message says another digest"),
        case(lambda e: rows(e, "claims").popitem(), {OBJECTS}, id="an object that no row names"),
        case(packed(lambda files: []), {FILES}, id="a file is lost"),
        case(packed(lambda files: files * 2), {FILES}, id="a file is there twice"),
        case(packed(lambda files: [("x", "y")]), {FILES}, id="another file"),
        case(lose(OrderDocumented), {LED}, id="files without a message"),
        case(lose(DocumentsPacked), {LED}, id="files that were not packed"),
        case(double(OrderPlaced), set(), id="a client placed an order again"),
        case(
            with_copies(Compared("x", 0, Place.AT_END), Compared("y", 0, Place.BEHIND)),
            set(),
            id="a copy behind another",
        ),
        case(ended(exit_code=-9), set(), id="a worker was killed"),
    ],
)
def test_it_goes_red_for_what_is_wrong_alone(spoil: Spoil, names: set[str]) -> None:
    evidence = good()
    spoil(evidence)
    assert red(evidence) == names


def test_a_retry_that_still_waits_needs_no_effect_yet() -> None:
    evidence = good()
    retry_in_vain(evidence)
    hop = evidence.retried[0]
    name = WAITING + hop.handler.encode() + b"\0any"
    in_lane(evidence, hop.origin.partition, name, msgspec.msgpack.encode(list(hop.origin)))
    assert red(evidence) == {LED}


def test_where_no_poison_was_sent_any_dead_letter_is_red() -> None:
    evidence = good()
    evidence.run = msgspec.structs.replace(evidence.run, poison_every=0)
    assert red(evidence) == {LETTERS}
    poison_that_never_came(evidence)
    assert red(evidence) == set()


def test_a_message_above_the_position_need_not_be_handled() -> None:
    evidence = good()
    waiting = a(OrderPlaced, evidence)._replace(message_id="waits", offset=10**6)
    evidence.messages.append(waiting)
    assert POSITIONS not in red(evidence)


def test_a_message_is_looked_for_in_its_own_partition() -> None:
    evidence = good()
    placed = a(OrderPlaced, evidence)
    away = (placed.partition + 1) % PARTITIONS
    evidence.messages.append(placed._replace(partition=away, offset=-1))
    assert red(evidence) == set()


def test_it_names_what_is_wrong() -> None:
    evidence = good()
    lost = a(OrderConfirmed, evidence)
    evidence.messages.remove(lost)
    assert f"of {lost.key} lacks OrderConfirmed" in says_of(evidence, LED)
    again = good()
    double(OrderConfirmed)(again)
    assert f"OrderConfirmed {a(OrderConfirmed, again).message_id}" in says_of(again, IDS)
