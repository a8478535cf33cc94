"""What a saga does with replies, refusals, silence and operators, told with the test kit."""

import itertools
import re
from typing import Any

import msgspec
import pytest
from travel import (
    WANTED,
    BookHotel,
    BookInsurance,
    BookTrain,
    CancelHotel,
    CancelInsurance,
    CancelTrain,
    Journey,
    JourneyBooked,
    JourneyOff,
    JourneyReply,
    Pay,
    Seat,
    SendTickets,
    begun,
    paid,
    started,
    with_hotel,
    with_train,
)

from streams.errors import RepairRefused, TooLarge, Unencodable
from streams.saga import repairs
from streams.saga.definition import NEVER, Backoff, Refusal, Saga, step
from streams.saga.state import KEPT_BOUND, LOG_BOUND
from streams.saga.transition import receive
from streams.testing.sagas import SagaUnderTest, cancelled, error, expired, given_saga, refused, success

ONCE_MORE = Backoff(times=1, delay=5)


def one_step(**options: Any) -> Saga:
    return begun().step("train", BookTrain, compensate=CancelTrain, **options)


def test_all_that_succeeds_completes_with_data_from_a_reply() -> None:
    saga = with_hotel()
    saga.reply(success).expect_command(SendTickets)
    assert saga.row.status == "completing"
    saga.reply(success).expect_event(JourneyBooked, journey="j-1", seat=7)
    saga.expect_status("completed", train="completed", hotel="completed", pay="completed")
    saga.time_passes(10_000).expect_status("completed")


@pytest.mark.promise("saga-end")
def test_a_refusal_undoes_from_the_last_to_the_first() -> None:
    saga = with_hotel().reply(refused, reason="card_declined")
    saga.expect_compensation(CancelHotel).expect_status("compensating")
    saga.reply(success).expect_compensation(CancelTrain, seat=7).expect_nothing()
    saga.reply(success).expect_event(JourneyOff, reason="card_declined")
    saga.expect_status(
        "compensated", train="compensated", hotel="compensated", pay="failed", tickets="pending"
    )


@pytest.mark.parametrize("outcome", ["timeout", error, expired])
def test_a_step_that_may_have_been_done_is_undone_first(outcome: Any) -> None:
    saga = with_train()
    saga.time_passes(31) if outcome == "timeout" else saga.reply(outcome)
    saga.expect_compensation(CancelHotel).expect_nothing().reply(success)
    saga.expect_compensation(CancelTrain).reply(success).expect_event(JourneyOff)
    saga.expect_status("compensated", hotel="compensated", train="compensated")


@pytest.mark.promise("saga-end")
@pytest.mark.promise("saga-replies")
@pytest.mark.parametrize("when", range(4))
def test_a_late_success_makes_no_step_and_one_compensation(when: int) -> None:
    saga = with_train().time_passes(31).expect_compensation(CancelHotel)

    def late(moment: int) -> None:
        if moment == when:
            saga.reply(success, to=BookHotel).expect_nothing()
            assert saga.entries[-1].detail == "not awaited: success of journey:j-1:hotel:1"

    late(0)
    saga.reply(success, to=CancelHotel).expect_compensation(CancelTrain)
    late(1)
    saga.reply(success, to=CancelTrain).expect_event(JourneyOff, reason="timed_out")
    late(2)
    saga.time_passes(1000)
    late(3)
    saga.expect_status("compensated", hotel="compensated")


@pytest.mark.promise("saga-replies")
def test_a_timeout_after_the_reply_changes_nothing() -> None:
    saga = started()
    timer = saga._timers["train"]  # rung in the moment in which the reply is handled
    saga.reply(success, Seat(7)).expect_command(BookHotel)
    before = saga.row
    saga._deliver(timer.message).expect_nothing()
    assert saga.row.steps == before.steps
    assert saga.row.status == before.status
    assert saga.entries[-1].detail == "not awaited: timed_out of journey:j-1:train:1"


@pytest.mark.promise("saga-replies")
def test_a_repeated_or_unknown_reply_is_noted_and_changes_nothing() -> None:
    saga = with_train()
    before = saga.row
    repeated = saga._said
    for odd in (repeated, msgspec.structs.replace(repeated, step="boat", command_id="")):
        saga._hear(odd).expect_nothing()
        assert saga.row.steps == before.steps
        assert saga.entries[-1].step == odd.step
        assert saga.entries[-1].before == saga.entries[-1].after
        assert saga.entries[-1].detail.startswith("not awaited: success")
    saga.repeat_reply().expect_nothing()
    assert saga.row.status == "started"


def test_a_success_with_other_data_than_declared_is_undone() -> None:
    for data in (None, JourneyOff(journey="j", reason="r")):
        saga = started().reply(success, data).expect_compensation(CancelTrain)
        assert "the reply to step train is no Seat" in saga.row.step("train").error


def test_a_step_is_tried_again_before_the_saga_goes_back() -> None:
    saga = given_saga(one_step(retry=Backoff(times=2, delay=5), timeout=30)).start(WANTED)
    saga.expect_command(BookTrain, attempt=1).reply(error).expect_nothing()
    saga.time_passes(4.9).expect_nothing().time_passes(0.2)
    saga.expect_command(BookTrain, attempt=2, command_id="journey:j-1:train:2")
    saga.time_passes(30).expect_nothing().time_passes(10)
    saga.expect_command(BookTrain, attempt=3).reply(success).expect_status("completed")


@pytest.mark.parametrize("outcome", [expired, refused, cancelled])
def test_tries_end_and_what_they_may_have_done_is_undone(outcome: Any) -> None:
    saga = given_saga(one_step(retry=ONCE_MORE)).start(WANTED).expect_command(BookTrain)
    saga.time_passes(36).expect_command(BookTrain).reply(outcome)
    saga.expect_compensation(CancelTrain, attempt=3, expires=0.0).reply(success).expect_status("compensated")


def test_a_refusal_is_not_tried_again() -> None:
    saga = given_saga(one_step(retry=ONCE_MORE)).start(WANTED).expect_command(BookTrain)
    saga.reply(refused, reason="full").expect_status("compensated", train="failed")


def test_a_reply_to_an_earlier_try_answers_no_later() -> None:
    saga = given_saga(one_step(retry=ONCE_MORE)).start(WANTED).expect_command(BookTrain)
    first = saga._expected
    saga.time_passes(35).expect_command(BookTrain)
    second, saga._expected = saga._expected, first
    saga.reply(success).expect_status("started", train="in_progress")
    saga._expected = second
    saga.reply(success).expect_status("completed")


def test_a_pivot_without_compensation_is_asked_until_it_is_answered() -> None:
    saga = with_hotel().time_passes(15.1).expect_command(Pay, attempt=2).expect_status("started")
    saga.reply(refused, reason="card_declined").expect_compensation(CancelHotel)


def test_a_pivot_that_never_answers_leaves_the_saga_failed() -> None:
    saga = with_hotel()
    for attempt in range(2, 12):
        saga.time_passes(10).time_passes(min(5 * 2 ** (attempt - 2), 300)).expect_command(
            Pay, attempt=attempt
        )
    saga.time_passes(10_000).expect_status("failed", pay="failed", hotel="completed")
    saga.retry("pay").expect_command(Pay, attempt=12).reply(success).expect_command(SendTickets)


def test_a_pivot_with_a_compensation_is_undone_when_unanswered() -> None:
    saga = given_saga(begun().pivot("train", BookTrain, compensate=CancelTrain)).start(WANTED)
    saga.expect_command(BookTrain).time_passes(30).expect_compensation(CancelTrain).reply(success)
    saga.expect_status("compensated", train="compensated")


def test_after_the_pivot_a_refusal_waits_for_an_operator() -> None:
    saga = paid().reply(refused, reason="no_paper").expect_status("failed", tickets="failed")
    assert saga.row.step("tickets").error == "refused: no_paper"
    saga.time_passes(10_000).expect_status("failed")
    saga.retry("tickets").expect_command(SendTickets).reply(success).expect_event(JourneyBooked)
    saga.expect_status("completed")


def test_a_local_step_after_the_pivot_can_be_retried() -> None:
    says: list[Refusal | None] = [Refusal("closed"), Refusal("still_closed"), None]
    saga = given_saga(begun().pivot("pay", Pay).local("book", lambda _: says.pop(0))).start(WANTED)
    saga.expect_command(Pay).reply(success).expect_status("failed", book="failed")
    saga.retry("book").expect_status("failed", book="failed")
    assert saga.row.step("book").error == "refused: still_closed"
    saga.retry("book").expect_status("completed", book="completed")
    assert saga.row.step("book").error == ""


def test_the_end_does_not_tell_a_failure_before_a_retry() -> None:
    asked = given_saga(one_step().pivot("pay", Pay, retry=NEVER).ends(compensated=JourneyOff)).start(WANTED)
    asked.expect_command(BookTrain).reply(success).expect_command(Pay).time_passes(30).expect_status("failed")
    asked.retry("pay").expect_command(Pay).reply(refused, reason="no_money").expect_compensation(CancelTrain)
    asked.reply(success).expect_event(JourneyOff, reason="no_money").expect_status("compensated")
    saga = paid().reply(refused, reason="no_paper").expect_status("failed")
    saga.retry("tickets").expect_command(SendTickets).reply(success).expect_event(JourneyBooked)
    assert saga.row.reason == ""


@pytest.mark.parametrize("decide", ["skip", "mark_done"])
def test_an_operator_may_skip_or_settle_a_step(decide: str) -> None:
    saga = paid().reply(refused)
    getattr(saga, decide)("tickets", "called her").expect_event(JourneyBooked)
    saga.expect_status("completed", tickets="skipped" if decide == "skip" else "completed")
    assert saga.row.step("tickets").error == "called her"


def stuck() -> SagaUnderTest:
    saga = with_hotel().reply(refused).expect_compensation(CancelHotel)
    for attempt in itertools.count(3):  # two commands were sent before
        saga.reply(error, reason="closed")
        if saga.row.status == "failed":
            return saga.expect_nothing()
        saga.time_passes(min(5 * 2 ** (attempt - 3), 300)).expect_compensation(CancelHotel, attempt=attempt)
    raise AssertionError


@pytest.mark.promise("saga-failed-compensation")
def test_a_compensation_that_keeps_failing_leaves_the_saga_failed() -> None:
    saga = stuck().expect_status("failed", hotel="failed", train="completed")
    assert saga.row.step("hotel").attempt == 12
    assert saga.row.step("hotel").error == "error: closed"
    assert saga.entries[-1].detail == "hotel is not undone: error: closed"


def test_a_doubtful_step_that_is_not_undone_fails_the_saga() -> None:
    saga = given_saga(one_step(retry_compensation=ONCE_MORE)).start(WANTED).expect_command(BookTrain)
    saga.time_passes(30).expect_compensation(CancelTrain).reply(error).time_passes(5)
    saga.expect_compensation(CancelTrain).reply(error).expect_status("failed", train="failed")
    saga.skip("train", "it was never booked").expect_status("compensated", train="skipped")


def test_a_pivot_that_is_retried_has_not_been_passed() -> None:
    saga = given_saga(begun().pivot("pay", Pay, retry=NEVER)).start(WANTED).expect_command(Pay)
    saga.reply(error).expect_status("failed").retry("pay").expect_command(Pay).expect_status("started")
    saga.reply(refused).expect_status("compensated")


def test_a_compensation_without_reply_is_sent_again() -> None:
    saga = with_hotel().reply(refused).expect_compensation(CancelHotel).time_passes(35)
    saga.expect_compensation(CancelHotel, attempt=3).reply(success).expect_compensation(CancelTrain)


@pytest.mark.parametrize("outcome", [refused, cancelled, expired])
def test_only_a_success_ends_a_compensation(outcome: Any) -> None:
    saga = with_hotel().reply(refused).expect_compensation(CancelHotel)
    saga.reply(outcome).expect_nothing().time_passes(5).expect_compensation(CancelHotel)


def test_an_operator_settles_a_compensation_that_keeps_failing() -> None:
    saga = stuck().retry("hotel").expect_compensation(CancelHotel).reply(success)
    saga.expect_compensation(CancelTrain).reply(success).expect_event(JourneyOff).expect_status("compensated")
    saga = stuck().skip("hotel", "they keep it").expect_compensation(CancelTrain)
    saga.expect_status("compensating", hotel="skipped")
    saga = stuck().mark_done("hotel", "by telephone").expect_compensation(CancelTrain)
    saga.expect_status("compensating", hotel="compensated")


def test_an_operators_decision_that_does_not_fit_changes_nothing() -> None:
    with pytest.raises(RepairRefused, match="is started: it waits for no operator"):
        started().retry("train")
    with pytest.raises(RepairRefused, match="does not wait for step train, but for hotel"):
        stuck().skip("train", "why not")
    with pytest.raises(RepairRefused, match="does not wait for step pay, but for hotel"):
        stuck().retry("pay")  # it was refused: there is no way forward any more


Group = (
    begun()
    .step("hotel", BookHotel, compensate=CancelHotel, fields={"seat": lambda _: 1})
    .together(
        step("train", BookTrain, compensate=CancelTrain, timeout=20),
        step("insurance", BookInsurance, compensate=CancelInsurance, when=lambda facts: facts["insured"]),
        step("tickets", SendTickets, changes_nothing=True, timeout=40),
    )
    .pivot("pay", Pay)
)
INSURED = msgspec.structs.replace(WANTED, insured=True)


def grouped() -> SagaUnderTest:
    saga = given_saga(Group).start(INSURED).expect_command(BookHotel).reply(success)
    return saga.expect_command(BookTrain).expect_command(BookInsurance).expect_command(SendTickets)


def test_a_group_is_complete_when_all_of_it_is() -> None:
    saga = grouped().reply(success, to=SendTickets).reply(success, to=BookTrain).expect_nothing()
    saga.reply(success, to=BookInsurance).expect_command(Pay).reply(success).expect_status("completed")


def test_a_failed_group_waits_for_all_and_is_undone_together() -> None:
    saga = grouped().reply(refused, reason="full", to=SendTickets).reply(success, to=BookTrain)
    saga.expect_status("started", train="completed", tickets="failed").time_passes(30)
    saga.expect_compensation(CancelTrain).expect_compensation(CancelInsurance).expect_nothing()
    saga.reply(success, to=CancelInsurance).expect_nothing()
    saga.reply(success, to=CancelTrain).expect_compensation(CancelHotel).reply(success)
    saga.expect_status("compensated", tickets="failed", insurance="compensated")
    assert saga.row.reason == "full"


def test_a_step_that_does_not_apply_is_skipped() -> None:
    saga = given_saga(Group).start(WANTED).expect_command(BookHotel).reply(success)
    saga.expect_command(BookTrain).expect_command(SendTickets).reply(refused).reply(success, to=BookTrain)
    saga.expect_compensation(CancelTrain).reply(success).expect_compensation(CancelHotel).reply(success)
    saga.expect_status("compensated", insurance="skipped")


def test_a_local_step_gives_facts_or_refuses() -> None:
    def cheap(facts: Any) -> Seat | Refusal:
        return Seat(facts["cents"]) if facts["cents"] < 1000 else Refusal("too_dear")

    local = (
        begun()
        .local("check", cheap, gives=Seat)
        .step("hotel", BookHotel, compensate=CancelHotel)
        .ends(compensated=JourneyOff)
    )
    given_saga(local).start(WANTED).expect_command(BookHotel, seat=900)
    saga = given_saga(local).start(msgspec.structs.replace(WANTED, cents=1000))
    saga.expect_event(JourneyOff, reason="too_dear").expect_status("compensated", check="failed")


def test_a_local_step_gives_what_it_says() -> None:
    made: Any = JourneyOff(journey="j-1", reason="so")
    local = begun().local("check", lambda _: made, gives=Seat)
    with pytest.raises(Unencodable, match="what local step check gives does not fit"):
        given_saga(local).start(WANTED)


def test_commands_carry_saga_step_expiry_and_operation() -> None:
    saga = started()
    command = saga._expected
    assert (command.saga_id, command.step, command.key) == ("journey:j-1", "train", "j-1")
    assert (command.operation, command.command_id) == ("journey:j-1:train", "journey:j-1:train:1")
    assert command.expires == saga.now + 30


def test_changes_are_told_in_order_and_the_log_is_bounded() -> None:
    saga = paid().reply(success).expect_event(JourneyBooked)
    changes = [(entry.step, entry.before, entry.after) for entry in saga.entries]
    assert changes[:2] == [("", "", "started"), ("train", "pending", "in_progress")]
    assert changes[2] == ("train", "in_progress", "completed")
    assert changes[-2:] == [("tickets", "in_progress", "completed"), ("", "completing", "completed")]
    for _ in range(2 * LOG_BOUND):
        saga.repeat_reply()
    assert [entry.number for entry in saga.entries] == list(range(1, len(saga.entries) + 1))
    assert list(saga.row.log) == saga.entries[-LOG_BOUND:]
    assert saga.row.entries == len(saga.entries)


class Note(msgspec.Struct, frozen=True):
    text: str


@pytest.mark.promise("saga-size")
def test_however_long_the_errors_are_the_row_stays_small() -> None:
    saga = with_hotel().reply(refused, reason="r" * 50_000).expect_compensation(CancelHotel)
    for tries in range(10):
        saga.reply(error, reason="e" * 50_000).time_passes(min(5 * 2**tries, 300))
        saga.expect_compensation(CancelHotel)
    saga.reply(error).expect_status("failed")
    saga.skip("hotel", "s" * 50_000).expect_compensation(CancelTrain)
    foreign = JourneyReply(saga_id=saga.row.saga_id, step="s" * 50000, command_id="c" * 50000, outcome="due")
    strange = receive(Journey, saga.row, foreign, saga.now).row
    assert len(msgspec.json.encode(strange)) < 50_000


def test_a_message_that_would_fill_the_row_begins_no_saga() -> None:
    with pytest.raises(TooLarge, match=r"journey:jj.*JourneyWanted.*`forgets`"):
        given_saga(Journey).start(msgspec.structs.replace(WANTED, journey="j" * KEPT_BOUND))


@pytest.mark.promise("saga-size")
def test_data_that_would_fill_the_row_is_not_taken() -> None:
    noted = begun().step("train", BookTrain, compensate=CancelTrain, reply=Note)
    noted = noted.step("hotel", BookHotel, compensate=CancelHotel, reply=Note, fields={"seat": lambda _: 1})
    saga = given_saga(noted).start(WANTED).expect_command(BookTrain)
    saga.reply(success, Note("n" * (KEPT_BOUND // 2))).expect_command(BookHotel)
    saga.reply(success, Note("n" * (KEPT_BOUND // 2))).expect_compensation(CancelHotel)
    assert re.search(
        "step hotel of journey:j-1 .* with its start message and its replies", saga.row.step("hotel").error
    )
    assert len(msgspec.json.encode(saga.row)) < 2 * KEPT_BOUND


# -- participants of the same application


def ours(definition: Saga = Journey) -> SagaUnderTest:
    return given_saga(definition, ours=True).start(WANTED)


def test_our_participant_has_its_time_from_taking_the_command() -> None:
    saga = ours().expect_command(BookTrain, expires=0.0, within=30.0)
    saga.reply(success, Seat(7)).expect_command(BookHotel).reply(success).expect_command(Pay)
    saga.reply(refused).expect_compensation(CancelHotel, expires=0.0, within=0.0)


def test_our_participant_is_asked_at_the_deadline() -> None:
    saga = ours().expect_command(BookTrain).time_passes(31)
    saga.expect_question(BookTrain, attempt=1, command_id="journey:j-1:train:1")
    saga.expect_status("started", train="in_progress")
    assert saga.entries[-1].detail == "no reply yet; asked after journey:j-1:train:1"
    saga.reply(success, Seat(7)).expect_command(BookHotel).expect_status("started", train="completed")


def test_what_was_not_begun_in_time_is_not_undone() -> None:
    saga = ours().expect_command(BookTrain).reply(success, Seat(7)).expect_command(BookHotel).time_passes(31)
    saga.expect_question(BookHotel).reply(cancelled, reason="it was not begun in time")
    saga.expect_compensation(CancelTrain).expect_status("compensating", hotel="failed").reply(success)
    saga.expect_event(JourneyOff, reason="timed_out").expect_status("compensated", hotel="failed")


def test_what_may_have_been_begun_in_time_is_undone() -> None:
    saga = ours(one_step()).expect_command(BookTrain).time_passes(31).expect_question(BookTrain)
    saga.reply(expired).expect_compensation(CancelTrain).reply(success).expect_status("compensated")


def test_what_was_not_begun_in_time_is_tried_again() -> None:
    saga = ours(one_step(retry=ONCE_MORE)).expect_command(BookTrain).time_passes(31)
    saga.expect_question(BookTrain).reply(cancelled).time_passes(5).expect_command(BookTrain, attempt=2)
    saga.time_passes(31).expect_question(BookTrain, attempt=2).reply(cancelled).expect_status("compensated")


@pytest.mark.promise("saga-backlog")
def test_our_participant_is_asked_ever_more_seldom_for_a_day() -> None:
    saga = ours(one_step(timeout=30).ends(compensated=JourneyOff)).expect_command(BookTrain)
    begun_at, asked_at = saga.now, []
    while not saga.time_passes(10).sent(CancelTrain):
        if saga.sent(BookTrain):
            saga.expect_question(BookTrain)
            asked_at.append(saga.now)
    waits = [after - before for before, after in itertools.pairwise([begun_at, *asked_at])]
    assert (waits[:5], waits[-1], len(waits)) == ([30, 60, 120, 240, 480], 3600, 30)
    assert waits == sorted(waits)
    assert 86_400 < saga.now - begun_at < 100_000
    saga.expect_compensation(CancelTrain).reply(success).expect_event(JourneyOff, reason="timed_out")


def test_our_compensation_is_asked_after_and_not_sent_anew() -> None:
    saga = ours(one_step()).expect_command(BookTrain).reply(error).expect_compensation(CancelTrain)
    saga.time_passes(31).expect_question(CancelTrain, attempt=2).expect_status("compensating")
    saga.reply(expired).time_passes(5).expect_compensation(CancelTrain, attempt=3).reply(success)
    saga.expect_status("compensated")


def test_the_participants_of_others_are_not_asked() -> None:
    saga = given_saga(Journey, ours=[BookTrain]).start(WANTED).expect_command(BookTrain, within=30.0)
    saga.reply(success, Seat(7)).expect_command(BookHotel, expires=saga.now + 30, within=0.0)
    saga.time_passes(31).expect_compensation(CancelHotel)


def test_the_kit_says_what_was_sent_instead() -> None:
    with pytest.raises(AssertionError, match="has not sent Pay, but BookHotel"):
        started().reply(success, Seat(1)).expect_command(Pay)
    with pytest.raises(AssertionError, match=r"BookHotel has \{'seat': 1\}"):
        started().reply(success, Seat(1)).expect_command(BookHotel, seat=2)
    with pytest.raises(AssertionError, match="it has also sent BookHotel"):
        started().reply(success, Seat(1)).time_passes(31)
    with pytest.raises(AssertionError, match="BookTrain undoes nothing"):
        given_saga(Journey).start(WANTED).expect_compensation(BookTrain)
    with pytest.raises(AssertionError, match="it is started"):
        started().expect_status("completed")
    with pytest.raises(AssertionError, match=r"its steps have other statuses: \{'train': 'in_progress'\}"):
        started().expect_status("started", train="completed")


@pytest.mark.parametrize("decide", ["skip", "mark_done"])
def test_a_step_whose_reply_is_needed_can_only_be_retried(decide: str) -> None:
    needed = begun().pivot("pay", Pay).step("train", BookTrain, reply=Seat)
    saga = given_saga(needed).start(WANTED).expect_command(Pay).reply(success).expect_command(BookTrain)
    with pytest.raises(RepairRefused, match="has to say what came of it"):
        getattr(saga.reply(refused), decide)("train", "done")
    saga.expect_status("failed", train="failed")
    assert [each.name for each in repairs.awaiting_operator(saga.row)] == ["train"]
    saga.retry("train").expect_command(BookTrain).reply(success, Seat(1)).expect_status("completed")
    assert repairs.awaiting_operator(saga.row) == []
