"""Messages of one key are handled in their order, and none waits for longer than faults explain."""

import msgspec
import pytest
from good_run import good_run

from agents.commands import CapturePayment, OrderSagaReply
from agents.messages import LineReserved, ReserveLine, StockReserved
from chaos.evidence.consequences import SentMessage
from chaos.judges.key_order import effects_of, judge_key_order
from chaos.judges.lateness import BOUND, at_most, faulty, judge_waits, waits
from chaos.rig.records import OUTSIDE_LANES, CommitTimes, Happened, RunRecords
from demo.findings import Finding
from streams.model.message import Message


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
    """Messages of one partition, sent and handled at these times."""
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
