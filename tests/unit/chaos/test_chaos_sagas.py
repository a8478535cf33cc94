"""The checker knows how every saga had to go, and goes red when one, or anybody in it, went otherwise."""

from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest
from good_run import ANSWERS, BEGAN, BOUGHT, Spoil, good, red, says_of

from agents.commands import (
    CancelOrder,
    CapturePayment,
    ConfirmOrder,
    OrderSagaReply,
    OrderSubmitted,
    RefundPayment,
    ReleaseStock,
    ReserveStock,
    ScheduleShipment,
)
from agents.gateway.wire import Refunded
from agents.messages import LineReleased, Order, OrderConfirmed, ReservationSettled, ReserveLine, ShipLine
from chaos.controls.recorded import ENDED, RANG, ROWS
from chaos.evidence.consequences import SentMessage
from chaos.evidence.evidence import Evidence
from chaos.evidence.saga_records import STEPS, Replied, SagaHistory, SagaMessages, SagaRecords
from chaos.judges.lateness import OF_PARTICIPANTS, explained
from chaos.rig.kinds import FaultKind
from demo.evidence import DemoEvidence as Books
from demo.evidence import make_codec
from demo.purchases import ExpectedOutcome, orchestrated, outcome
from streams.model.message import Message

case = pytest.param
pytestmark = [
    pytest.mark.slow("nine seconds of recorded sagas"),
    pytest.mark.promise("chaos", "each finding of the checker goes red when its fault is planted"),
]

LED = "every message led to what it calls for, once"
RECORDED = "every saga recorded once, from its start to one end"
PARTS = "every participant as its saga ended"
BACK = "all given back of what was cancelled for lateness"
OUTCOMES = "each with the outcome its data calls for"
CHARGED = "no order charged twice"
MONEY = "captured - refunded = value of confirmed orders"
STOCK = "received = on hand + shipped"


def an_order(wanted: ExpectedOutcome) -> str:
    return next(each.order_id for each in BOUGHT if orchestrated(each) and outcome(each) is wanted)


CONFIRMED, DECLINED = an_order(ExpectedOutcome.CONFIRMED), an_order(ExpectedOutcome.DECLINED)
NOWHERE, OUT_OF_STOCK = an_order(ExpectedOutcome.NOWHERE), an_order(ExpectedOutcome.OUT_OF_STOCK)


def of(evidence: Evidence, order_id: str = CONFIRMED) -> SagaMessages:
    return evidence.sagas.by_order[order_id]


def ring(those: SagaMessages) -> Replied:
    return next(each for each in those.replies if each.outcome == "timed_out")


def books(evidence: Evidence) -> Books:
    assert evidence.books is not None
    return evidence.books


def lose(kind: type[Message], order_id: str) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        lost = next(each for each in evidence.messages if (each.topic, each.key) == (kind.TOPIC, order_id))
        evidence.messages.remove(lost)
        those = of(evidence, order_id)
        those.commands = [each for each in those.commands if each.sent != lost]
        those.replies = [each for each in those.replies if each.sent != lost]

    return spoil


def ask_again(kind: type[Message], order_id: str) -> Spoil:
    """A command once more, as the next attempt, and answered as the first was."""

    def spoil(evidence: Evidence) -> None:
        those = of(evidence, order_id)
        found = next(each for each in those.commands if each.sent.topic == kind.TOPIC)
        replied = next(each for each in those.replies if each.command_id == found.command_id)
        command = found.sent._replace(message_id="again", offset=9_998)
        reply = replied.sent._replace(message_id="and again", offset=9_999, cause="again")
        evidence.messages += [command, reply]
        another = found.command_id[:-1] + "9"
        those.commands.append(found._replace(sent=command, command_id=another))
        those.replies.append(replied._replace(sent=reply, command_id=another))

    return spoil


def answer_again(evidence: Evidence) -> None:
    """A reply once more, as another message."""
    those = of(evidence)
    again = those.replies[0].sent._replace(message_id="again", offset=9_999)
    evidence.messages.append(again)
    those.replies.append(those.replies[0]._replace(sent=again))


def rerecord(change: Callable[[list[SagaHistory]], object], order_id: str = CONFIRMED) -> Spoil:
    return lambda evidence: change(of(evidence, order_id).transitions)


def row(order_id: str, **changes: object) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        sagas = books(evidence).sagas
        sagas[order_id] = msgspec.structs.replace(sagas[order_id], **changes)

    return spoil


def leave_a_step_standing(evidence: Evidence) -> None:
    saga = books(evidence).sagas[NOWHERE]
    steps = tuple(msgspec.structs.replace(each, status="compensating") for each in saga.steps)
    row(NOWHERE, steps=steps)(evidence)


def participant(table: str, change: Callable[[dict[bytes, bytes], bytes], object]) -> Spoil:
    """The row of DECLINED changes."""

    def spoil(evidence: Evidence) -> None:
        for lane in evidence.rebuilt.tables.values():
            rows = lane[table]
            for key in [key for key in rows if DECLINED.encode() in key]:
                change(rows, key)

    return spoil


def as_of_another(rows: dict[bytes, bytes], key: bytes) -> None:
    rows[key] = next(value for value in rows.values() if value != rows[key])


def settle_as(order_id: str, how: str) -> Spoil:
    def spoil(evidence: Evidence) -> None:
        books(evidence).settlements = [
            msgspec.structs.replace(each, outcome=how) if each.order.order_id == order_id else each
            for each in books(evidence).settlements
        ]

    return spoil


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        case(lose(OrderSagaReply, CONFIRMED), {LED, RECORDED, ENDED, PARTS}, id="a reply is lost"),
        case(lose(OrderSagaReply, OUT_OF_STOCK), {LED, RECORDED, ENDED}, id="a refusal is lost"),
        case(lose(ReservationSettled, CONFIRMED), {LED}, id="the end of the reservation is lost"),
        case(lose(ScheduleShipment, CONFIRMED), {LED, RECORDED, ENDED, PARTS}, id="a command is lost"),
        case(lose(RefundPayment, NOWHERE), {LED, RECORDED, ENDED, PARTS}, id="not refunded"),
        case(lose(ReleaseStock, DECLINED), {LED, RECORDED, ENDED, PARTS}, id="not released"),
        case(lose(ConfirmOrder, CONFIRMED), {LED}, id="never confirmed"),
        case(lose(CancelOrder, DECLINED), {LED}, id="never cancelled"),
        case(ask_again(RefundPayment, NOWHERE), {LED, ENDED}, id="refunded twice"),
        case(ask_again(ReleaseStock, DECLINED), {LED, ENDED}, id="released twice"),
        case(ask_again(CapturePayment, CONFIRMED), {LED, ENDED}, id="captured twice"),
        case(answer_again, {LED, ENDED}, id="a command was answered twice"),
        case(rerecord(lambda entries: entries.pop(3)), {RECORDED}, id="a transition is lost"),
        case(
            rerecord(lambda entries: entries.insert(3, entries[3])),
            {RECORDED},
            id="a transition is there twice",
        ),
        case(
            rerecord(lambda entries: entries.insert(3, entries.pop(4))),
            {RECORDED},
            id="transitions out of turn",
        ),
        case(rerecord(lambda entries: entries.pop(), DECLINED), {RECORDED}, id="a saga without an end"),
        case(
            rerecord(lambda entries: entries.append(entries.pop()._replace(after="completed")), DECLINED),
            {RECORDED},
            id="a saga that tells of another end",
        ),
        case(
            lambda e: e.sagas.by_order.update(stranger=of(e)), {RECORDED, PARTS}, id="a saga without an order"
        ),
        case(lambda e: e.sagas.by_order.pop(CONFIRMED), {RECORDED, PARTS, LED}, id="an order without a saga"),
        case(row(CONFIRMED, status="completing"), {PARTS}, id="a saga that is not over"),
        case(row(NOWHERE, status="failed"), {PARTS}, id="a saga that waits for an operator"),
        case(leave_a_step_standing, {PARTS}, id="a step that is not undone"),
        case(participant("payment-steps", dict.pop), {PARTS}, id="a participant without a row"),
        case(
            participant("inventory-steps", as_of_another), {PARTS}, id="a participant that has undone nothing"
        ),
        case(settle_as(CONFIRMED, "card_declined"), {ENDED, OUTCOMES, MONEY}, id="settled otherwise"),
        case(settle_as(DECLINED, "timed_out"), {ENDED, OUTCOMES}, id="cancelled for no lateness"),
    ],
)
def test_it_goes_red(spoil: Spoil, names: set[str]) -> None:
    evidence = good()
    spoil(evidence)
    assert red(evidence) == names


#: A worker and the gateway are away from 30 s to 36 s; the gateway explains something until 48 s.
EXPLAINED, UNEXPLAINED = 20.0, -20.0


@pytest.mark.parametrize("step", [each.name for each in STEPS])
def test_a_step_that_a_fault_made_late_cancels_its_order(step: str) -> None:
    evidence = good(late=CONFIRMED, at=step, begins=EXPLAINED)
    assert red(evidence) == set()
    assert f"late: 1 {ANSWERS[step]} of" in says_of(evidence, ENDED)


@pytest.mark.parametrize("step", [each.name for each in STEPS])
def test_one_that_is_late_without_a_fault_is_red(step: str) -> None:
    evidence = good(late=CONFIRMED, at=step, begins=UNEXPLAINED)
    assert red(evidence) == {ENDED}
    assert f"order:{CONFIRMED}:{step}:1 at " in says_of(evidence, ENDED)


@pytest.mark.parametrize("kind", [each for each in FaultKind if each not in OF_PARTICIPANTS])
def test_lateness_by_an_outage_of_the_application_is_red(kind: FaultKind) -> None:
    evidence = good(late=CONFIRMED, begins=EXPLAINED)
    evidence.run = msgspec.structs.replace(
        evidence.run, faults=[msgspec.structs.replace(each, kind=kind) for each in evidence.run.faults]
    )
    assert ENDED in red(evidence)


@pytest.mark.parametrize("step", [each.name for each in STEPS])
def test_a_step_only_asked_after_ends_as_called_for(step: str) -> None:
    evidence = good(behind=CONFIRMED, at=step)
    assert red(evidence) == set()
    assert "late" not in says_of(evidence, ENDED)


def ask_without_a_deadline(evidence: Evidence) -> None:
    rung = ring(of(evidence))
    of(evidence).replies.remove(rung)
    evidence.messages.remove(rung.sent)


def ask_after_nothing(evidence: Evidence) -> None:
    evidence.messages.remove(of(evidence).questions.pop().sent)


def ring_again_at_once(evidence: Evidence) -> None:
    rung = ring(of(evidence))
    again = rung._replace(decided=rung.decided + 5, sent=rung.sent._replace(offset=10**6))
    of(evidence).replies.append(again)


def do_it_for_the_question(evidence: Evidence) -> None:
    """Done, and done again for a question."""
    those = of(evidence)
    (question,) = those.questions
    reply = next(e for e in those.replies if e.command_id == question.command_id and e.outcome == "success")
    again = reply.sent._replace(message_id="again", offset=10**6, cause=question.sent.message_id)
    evidence.messages.append(again)
    those.replies.append(reply._replace(sent=again))


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        case(settle_as(CONFIRMED, "timed_out"), {ENDED, OUTCOMES, MONEY}, id="given up unanswered"),
        case(ask_without_a_deadline, {ENDED, LED}, id="a question without a deadline"),
        case(ask_after_nothing, {ENDED, LED}, id="a deadline without a question"),
        case(ring_again_at_once, {ENDED, RANG}, id="a deadline soon after the one before"),
        case(do_it_for_the_question, {ENDED}, id="done again for a question"),
    ],
)
def test_a_question_is_looked_at_as_closely(spoil: Spoil, names: set[str]) -> None:
    evidence = good(behind=CONFIRMED)
    spoil(evidence)
    assert red(evidence) == names


def keep_the_money(evidence: Evidence) -> None:
    books(evidence).ledger = [
        each
        for each in books(evidence).ledger
        if not (isinstance(each, Refunded) and each.charge_operation == f"capture:{CONFIRMED}")
    ]


def settle_again(evidence: Evidence) -> None:
    settlements = books(evidence).settlements
    settlements.append(next(each for each in settlements if each.order.order_id == CONFIRMED))


def ship_all_the_same(evidence: Evidence) -> None:
    line = next(each for each in evidence.messages if each.topic == ReserveLine.TOPIC)
    evidence.messages.append(line._replace(topic=ShipLine.TOPIC, message_id="shipped"))


def ring_too_early(evidence: Evidence) -> None:
    replied, rung = of(evidence).replies, ring(of(evidence))
    replied[replied.index(rung)] = rung._replace(decided=rung.decided - 1)


def reply_before_the_deadline(evidence: Evidence) -> None:
    """The participant's reply was there first, and the saga went by its deadline all the same."""
    replied, rung = of(evidence).replies, ring(of(evidence))
    reply = next(e for e in replied if e.command_id == rung.command_id and e.outcome == "cancelled")
    evidence.messages.remove(reply.sent)
    earlier = reply._replace(outcome="success", sent=reply.sent._replace(offset=rung.sent.offset - 1))
    evidence.messages.append(earlier.sent)
    replied[replied.index(reply)] = earlier


def write_late(evidence: Evidence) -> None:
    """Long after it was decided on: its deadline counts from the decision."""
    saga = of(evidence)
    late = ring(saga).command_id
    saga.commands = [e._replace(time=e.time + 12) if e.command_id == late else e for e in saga.commands]


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        case(keep_the_money, {BACK}, id="its money is not back"),
        case(settle_again, {BACK}, id="settled twice"),
        case(lose(LineReleased, CONFIRMED), {LED}, id="its stock is not back"),
        case(ship_all_the_same, {LED}, id="shipped all the same"),
        case(settle_as(CONFIRMED, "card_declined"), {ENDED}, id="cancelled for another reason"),
        case(settle_as(CONFIRMED, "confirmed"), {ENDED}, id="confirmed all the same"),
        case(lose(RefundPayment, CONFIRMED), {LED, RECORDED, ENDED, PARTS}, id="what may be done is kept"),
        case(ask_again(RefundPayment, CONFIRMED), {LED, ENDED}, id="refunded twice"),
        case(ring_too_early, {ENDED}, id="a deadline before its time"),
        case(
            reply_before_the_deadline,
            {LED, RECORDED, ENDED, OUTCOMES, CHARGED, MONEY, STOCK, ROWS},
            id="a false deadline",
        ),
        case(write_late, set(), id="a command that was written late"),
    ],
)
def test_a_late_order_is_looked_at_as_closely(spoil: Spoil, names: set[str]) -> None:
    evidence = good(late=CONFIRMED, begins=EXPLAINED)
    spoil(evidence)
    assert red(evidence) == names


def test_when_a_command_was_decided_on_is_in_its_headers() -> None:
    own = {"saga_id": "order:o-1", "step": "reserve_inventory", "command_id": "c", "attempt": 1}
    order = Order(order_id="o-1", customer="c", lines=(), total_cents=1, card="tok_accepted", country="US")
    codec = make_codec(ReserveStock, ReserveStock.TOPIC)
    value = codec.encode(ReserveStock(**own, expires=0.0, order=order))  # type: ignore[arg-type]
    headers = [("ce_time", b"1970-01-01T00:16:40.500Z")]
    records = SagaRecords()
    records.take(
        SimpleNamespace(topic=ReserveStock.TOPIC, timestamp=1_012_000, value=value, headers=headers),  # type: ignore[arg-type]
        SentMessage(ReserveStock.TOPIC, 0, 7, "o-1", "m", "orders", "cause"),
    )
    (command,) = records.by_order["o-1"].commands
    assert (command.command_id, command.time, command.decided) == ("c", 1012.0, 1000.5)


def test_a_refused_order_may_be_late_only_before() -> None:
    assert red(good(late=DECLINED, at="reserve_inventory", begins=EXPLAINED)) == set()
    assert red(good(late=DECLINED, at="schedule_shipping", begins=EXPLAINED)) == {ENDED}


def test_a_fault_explains_what_it_covers_half_of() -> None:
    run = good(late=CONFIRMED).run
    fault = next(each for each in run.faults if each.kind in OF_PARTICIPANTS)
    assert explained(fault.began - 10, fault.began + 20, run)
    assert explained(fault.began + 3, fault.began + 33, run)
    assert not explained(fault.began - 21, fault.began + 9, run)
    assert explained(fault.began - 500, fault.began + 20, run), "it lay in its topic before"
    assert not explained(fault.began + 10, fault.began + 40, run)
    assert not explained(BEGAN, BEGAN + 5, run)
    earlier = msgspec.structs.replace(fault, began=BEGAN + 10, ended=BEGAN + 14)
    longer = msgspec.structs.replace(run, faults=[fault, earlier])
    assert explained(fault.began - 21, fault.began + 9, longer), "one after the other"


def test_a_fault_before_an_outage_explains_lateness_after_it() -> None:
    run = good(late=CONFIRMED).run
    fault = next(each for each in run.faults if each.kind in OF_PARTICIPANTS)
    assert fault.ended is not None
    away = msgspec.structs.replace(fault, kind="outage", began=fault.ended + 2, ended=fault.ended + 77)
    decided, late_at = fault.began + 1, away.ended
    assert late_at is not None
    assert not explained(decided, late_at, run)
    put_off = msgspec.structs.replace(run, faults=[*run.faults, away])
    assert explained(decided, late_at, put_off)
    assert not explained(late_at + 20, late_at + 55, put_off), "they have been back for long"
    later = msgspec.structs.replace(away, began=fault.ended + 13)
    assert not explained(decided, late_at, msgspec.structs.replace(run, faults=[*run.faults, later]))


def test_without_orchestration_any_saga_is_red() -> None:
    evidence = good()
    evidence.run = msgspec.structs.replace(evidence.run, orchestrated=False)
    assert RECORDED in red(evidence)
    assert OrderSubmitted.TOPIC in {each.topic for each in evidence.messages}
    assert OrderConfirmed.TOPIC in {each.topic for each in evidence.messages}
