"""How long messages waited, what was noted, and what an order calls for."""

import msgspec
import pytest
from good_run import good_run

from agents.commands import CapturePayment, OrderSagaReply
from agents.messages import LineReserved, Order, OrderLine, ReserveLine, StockReserved
from chaos.evidence.calls import NOTES_TOPIC
from chaos.evidence.consequences import SentMessage
from chaos.evidence.plain import Counting, judge_counts
from chaos.judges.key_order import effects_of, judge_key_order
from chaos.judges.lateness import BOUND, at_most, faulty, judge_waits, waits
from chaos.judges.noted import counted, judge_notes
from chaos.judges.rows import outcome_of
from chaos.rig.records import OUTSIDE_LANES, CommitTimes, Happened, RunRecords
from demo.findings import Finding
from demo.purchases import ORDINARY, SHORT, SOLD_OUT, order, outcome, purchases, receipts
from streams.engine.staging.keys import store_key
from streams.model.codecs import AvroCodec, Schemas, encode_row
from streams.model.message import Message, Row
from streams.model.row_keys import row_key
from tables.values import MAX_LINES, MAX_ORDER_BYTES

pytestmark = pytest.mark.promise("chaos", "each finding of the checker goes red when its fault is planted")


def cause_of(
    number: int, key: str = "cd-1", *, kind: type[Message] = ReserveLine, at: float = 0.0
) -> SentMessage:
    return SentMessage(kind.TOPIC, 0, number, key, f"{key}-{number}", "app", "x", at)


def led(
    cause: SentMessage, offset: int, *, kind: type[Message] = LineReserved, at: float = 0.0
) -> SentMessage:
    return SentMessage(kind.TOPIC, 0, offset, "o-1", f"of-{cause.message_id}", "app", cause.message_id, at)


def key_order(*messages: SentMessage, questions: frozenset[str] = frozenset()) -> Finding:
    return judge_key_order(messages, list(effects_of(messages, questions)))


ONE, TWO = cause_of(1), cause_of(2)


def test_two_of_one_key_are_handled_in_their_order() -> None:
    assert key_order(ONE, TWO, led(ONE, 5), led(TWO, 6)).passed
    swapped = key_order(ONE, TWO, led(ONE, 6), led(TWO, 5))
    assert not swapped.passed
    assert "ReserveLine cd-1-2 of cd-1 ahead of ReserveLine cd-1-1 of cd-1" in swapped.says


def test_of_other_keys_partitions_or_topics_nothing_is_said() -> None:
    other = cause_of(2, "cd-2")
    assert key_order(ONE, other, led(ONE, 6), led(other, 5)).passed
    away = led(TWO, 5)._replace(partition=1)
    assert key_order(ONE, TWO, led(ONE, 6), away).passed
    assert key_order(ONE, TWO, led(ONE, 6), led(TWO, 5, kind=StockReserved)).passed


def test_what_was_sent_again_counts_where_it_came_first() -> None:
    again = ONE._replace(offset=9)
    assert key_order(ONE, TWO, again, led(ONE, 5), led(TWO, 6)).passed
    assert not key_order(again, TWO, ONE, led(ONE, 6), led(TWO, 5)).passed


def test_a_question_passes_the_command_that_waits() -> None:
    command, question = cause_of(1, "o-1", kind=CapturePayment), cause_of(2, "o-1", kind=CapturePayment)
    answers = led(command, 6, kind=OrderSagaReply), led(question, 5, kind=OrderSagaReply)
    assert not key_order(command, question, *answers).passed
    assert key_order(command, question, *answers, questions=frozenset({question.message_id})).passed


def test_only_the_last_answer_of_an_order_leads_on() -> None:
    answers = [cause_of(number, "o-1", kind=LineReserved) for number in (1, 2, 3)]
    assert key_order(*answers, led(answers[2], 1, kind=StockReserved)).passed
    early = key_order(*answers, led(answers[1], 1, kind=StockReserved))
    assert not early.passed
    assert "gathered before the last of them was there" in early.says


def a_run(*faults: tuple[float, float]) -> RunRecords:
    happened = [
        Happened(kind="kill_worker", target="it", began=began, ended=ended, confirmed="so")
        for began, ended in faults
    ]
    return msgspec.structs.replace(good_run(), faults=happened)


def test_what_happens_at_the_database_edge_makes_nobody_late() -> None:
    run = a_run((0.0, 100.0))
    elsewhere = [msgspec.structs.replace(fault, kind=kind) for fault in run.faults for kind in OUTSIDE_LANES]
    beside = msgspec.structs.replace(run, faults=elsewhere)
    assert (at_most(10.0, 20.0, run), at_most(10.0, 20.0, beside)) == (100.0 + BOUND, BOUND)
    assert (faulty(10.0, 20.0, run), faulty(10.0, 20.0, beside)) == (10.0, 0.0)


def handled(*times: tuple[float, float]) -> list[SentMessage]:
    causes = [cause_of(number, f"cd-{number}", at=at) for number, (at, _) in enumerate(times)]
    return [*causes, *(led(each, each.offset, at=at) for each, (_, at) in zip(causes, times, strict=True))]


def late(*times: tuple[float, float]) -> list[float]:
    return [each.seconds for each in waits(effects_of(handled(*times), frozenset()))]


def test_a_backlog_makes_nobody_late() -> None:
    assert late((0, 100), (1, 101), (2, 102), (103, 104)) == [0, 0, 0]


def test_one_is_late_since_one_behind_it_was_handled() -> None:
    assert late((0, 60), (1, 10), (2, 20)) == [50, 0]


def test_the_last_of_a_partition_has_no_known_turn() -> None:
    assert late((0, 5), (1, 60)) == [0]
    assert late((0, 5)) == []


def committing(*but: tuple[float, float]) -> CommitTimes:
    """All lanes commit every second, but not within these times."""
    times = [float(time) for time in range(1, 200) if not any(a < time < b for a, b in but)]
    return CommitTimes(seen=dict.fromkeys(range(a_run().lanes), times))


def may_be_late(seconds: float, run: RunRecords, *stops: tuple[float, float]) -> bool:
    those = handled((0, 5 + seconds), (1, 5))
    return judge_waits(effects_of(those, frozenset()), run, committing(*stops)).passed


@pytest.mark.parametrize(
    ("faults", "longest"),
    [
        ([], BOUND),
        ([(10.0, 22.0)], BOUND + 12),
        ([(10.0, 16.0), (17.0, 29.0), (30.0, 36.0)], BOUND + 12),
        ([(200.0, 230.0)], BOUND),
    ],
)
def test_it_may_be_late_by_the_longest_fault(faults: list[tuple[float, float]], longest: float) -> None:
    assert may_be_late(longest, a_run(*faults))
    assert not may_be_late(longest + 1, a_run(*faults))


ONE_AFTER_THE_OTHER = [(10.0, 40.0), (40.0, 70.0)]


@pytest.mark.parametrize(
    ("faults", "stops", "most"),
    [
        pytest.param(ONE_AFTER_THE_OTHER, [(10, 38), (42, 68)], 28 + 26, id="stopped twice"),
        pytest.param(ONE_AFTER_THE_OTHER, [(10, 38)], 30, id="less than the longest fault lasted"),
        pytest.param(ONE_AFTER_THE_OTHER, [(at, at + 5) for at in range(10, 70, 5)], 30, id="slow"),
        pytest.param([(10.0, 12.0)], [(30, 80)], 2, id="stopped by itself"),
    ],
)
def test_nothing_passes_in_a_lane_that_faults_have_stopped(
    faults: list[tuple[float, float]], stops: list[tuple[float, float]], most: float
) -> None:
    run = msgspec.structs.replace(a_run(*faults), load=(0.0, 200.0))
    assert may_be_late(BOUND + most, run, *stops)
    assert not may_be_late(BOUND + most + 1, run, *stops)


SCHEMA = '{"type": "record", "name": "Notes", "fields": [{"name": "count", "type": "long"}]}'


class Notes(Row, frozen=True, kw_only=True):
    count: int


def tables(**counts: int) -> list[dict[str, dict[bytes, bytes]]]:
    """The state of two lanes, the second without any note."""
    codec = AvroCodec(Notes, SCHEMA, Schemas())
    rows = {
        store_key(3, row_key(order_id.encode())): encode_row(codec, Notes(count=count))
        for order_id, count in counts.items()
    }
    return [{"notes": rows}, {}]


def notes(order_id: str, *ids: str) -> list[SentMessage]:
    return [SentMessage(NOTES_TOPIC, 3, offset, order_id, n, "demo", "") for offset, n in enumerate(ids)]


def test_the_counts_are_read_from_the_table() -> None:
    assert counted(tables(one=2, two=700)) == {"one": 2, "two": 700}


@pytest.mark.parametrize(
    ("made", "sent", "counts", "passed"),
    [
        pytest.param(0, [], {}, True, id="no deploy"),
        pytest.param(2, notes("one", "n-0", "n-1"), {"one": 2}, True, id="each once"),
        pytest.param(2, notes("one", "n-0", "n-1", "n-0"), {"one": 2}, True, id="one sent twice"),
        pytest.param(2, notes("one", "n-0", "n-1"), {"one": 3}, False, id="one counted twice"),
        pytest.param(2, notes("one", "n-0", "n-1"), {"one": 1}, False, id="one not counted"),
        pytest.param(2, notes("one", "n-0", "n-1"), {}, False, id="none counted"),
        pytest.param(2, notes("one", "n-0"), {"one": 1}, False, id="one not in the topic"),
        pytest.param(0, [], {"one": 1}, False, id="one out of nothing"),
        pytest.param(1, notes("one", "n-0"), {"two": 1}, False, id="counted for another order"),
    ],
)
def test_each_counts_once(made: int, sent: list[SentMessage], counts: dict[str, int], passed: bool) -> None:
    assert judge_notes(made, sent, counts).passed is passed


RECEIVED = {receipt.sku: receipt.units for receipt in receipts()}


def an_order(
    *lines: tuple[str, int], cents: int = 100, card: str = "tok_accepted", country: str = "US"
) -> Order:
    wanted = tuple(OrderLine(sku=sku, units=units) for sku, units in lines)
    return Order(order_id="o", customer="c", lines=wanted, total_cents=cents, card=card, country=country)


def became(placed: Order) -> str:
    return outcome_of(placed, RECEIVED)


def test_it_agrees_with_what_orders_were_made_for() -> None:
    some = purchases(5_000)
    assert [became(order(each)) for each in some] == [outcome(each).value for each in some]


def test_each_reason() -> None:
    plenty = (ORDINARY[0], 1)
    assert became(an_order(plenty)) == "confirmed"
    assert became(an_order()) == "no_lines"
    assert became(an_order(*[plenty] * (MAX_LINES + 1))) == "too_many_lines"
    assert became(an_order(*[plenty] * MAX_LINES)) != "too_many_lines"
    assert became(an_order(("x" * MAX_ORDER_BYTES, 1))) == "order_too_large"
    assert became(an_order(("unknown", 1))) == "out_of_stock"
    assert became(an_order((SOLD_OUT[0], 1))) == "out_of_stock"
    assert became(an_order((SHORT[0], 1), (SHORT[0], 1))) == "out_of_stock", "all lines of a SKU count"
    assert became(an_order(plenty, card="tok_declined")) == "card_declined"
    assert became(an_order(plenty, card="tok_declined", cents=0)) == "confirmed", "nothing is charged"
    assert became(an_order(plenty, country="AQ")) == "unsupported_destination"


def test_of_several_reasons_the_first_on_its_way() -> None:
    assert became(an_order(("unknown", 1), card="tok_declined", country="AQ")) == "out_of_stock"
    assert became(an_order((ORDINARY[0], 1), card="tok_declined", country="AQ")) == "card_declined"


def counting(*records: tuple[str, bytes | None]) -> Counting:
    made = Counting()
    for topic, message_id in records:
        made.add(topic, [("ce_id", message_id)])
    return made


def test_records_and_ids_are_counted_by_topic() -> None:
    counts = counting(("a", b"1"), ("a", b"1"), ("a", b"2"), ("b", None)).counts()
    assert counts == {"a": (3, 2), "b": (1, 1)}


def test_as_many_of_each_and_as_many_ids() -> None:
    both = counting(("a", b"1"), ("a", b"2")).counts()
    assert judge_counts(both, both).passed
    assert not judge_counts(both, counting(("a", b"1")).counts()).passed
    assert not judge_counts(both, counting(("a", b"1"), ("a", b"1")).counts()).passed
    assert not judge_counts(both, {}).passed
    assert not judge_counts({}, both).passed
    assert "a: (2, 2) and (0, 0)" in judge_counts(both, {}).says
