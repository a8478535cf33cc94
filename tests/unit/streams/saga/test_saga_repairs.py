"""What operators do about sagas: calling one off, and being told what came of it."""

from typing import Any

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
    JourneyOff,
    JourneyRepair,
    JourneyReply,
    JourneyTransition,
    JourneyWanted,
    Pay,
    Seat,
    SendTickets,
    begun,
    paid,
    with_hotel,
    with_train,
)

from streams.errors import RepairRefused
from streams.model.handlers import Service
from streams.model.outcome import Outcome
from streams.model.table import Table
from streams.saga import repairs
from streams.saga.definition import Backoff, step
from streams.saga.engine import orchestrate
from streams.saga.state import LOG_BOUND, SagaRow
from streams.testing.clock import ManualClock
from streams.testing.sagas import SagaUnderTest, error, given_saga, refused, success

pytestmark = pytest.mark.promise("saga-operations")

CLOCK = ManualClock(1000.0)
journey = orchestrate(
    Journey,
    service=Service("travel"),
    table=Table("journeys", SagaRow),
    log=JourneyTransition,
    repairs=JourneyRepair,
)


def asked(operation: Any, step: str = "", *, saga_id: str = "journey:j-1") -> JourneyRepair:
    return JourneyRepair(saga_id=saga_id, operation=operation, step=step, who="ann", why="she rang")


# -- cancelling -------------------------------------------------------------------------------------------


def test_calling_off_undoes_first_what_may_have_been_done() -> None:
    saga = with_train().cancel("she rang")
    saga.expect_compensation(CancelHotel).expect_status("compensating", hotel="compensating")
    saga.reply(success).expect_compensation(CancelTrain, seat=7).reply(success)
    saga.expect_event(JourneyOff, reason="cancelled")
    saga.expect_status("compensated", train="compensated", hotel="compensated", pay="pending")


@pytest.mark.parametrize("outcome", [success, refused, error])
def test_the_reply_to_what_was_in_progress_comes_too_late(outcome: Any) -> None:
    saga = with_train().cancel("she rang").expect_compensation(CancelHotel)
    saga.reply(outcome, to=BookHotel).expect_nothing()
    assert saga.entries[-1].detail.startswith("not awaited")
    saga.reply(success, to=CancelHotel).expect_compensation(CancelTrain)


def test_no_deadline_of_what_was_in_progress_rings_any_more() -> None:
    saga = with_train().cancel("she rang").expect_compensation(CancelHotel).reply(success)
    saga.expect_compensation(CancelTrain).reply(success).expect_event(JourneyOff)
    before = len(saga.entries)
    saga.time_passes(10_000)
    assert len(saga.entries) == before


def test_a_step_between_two_tries_is_undone() -> None:
    one = begun().step("train", BookTrain, compensate=CancelTrain, retry=Backoff(times=2, delay=5))
    saga = given_saga(one).start(WANTED).expect_command(BookTrain).reply(error).cancel("she rang")
    saga.expect_compensation(CancelTrain).time_passes(20).expect_nothing()
    saga.reply(success).expect_status("compensated")


def test_a_group_is_undone_together_also_what_is_in_progress() -> None:
    group = begun().together(
        step("train", BookTrain, compensate=CancelTrain, reply=Seat),
        step("insurance", BookInsurance, compensate=CancelInsurance),
        step("tickets", SendTickets, changes_nothing=True),
    )
    saga = given_saga(group).start(WANTED)
    saga.expect_command(BookTrain).expect_command(BookInsurance).expect_command(SendTickets)
    saga.reply(success, Seat(1), to=BookTrain).cancel("she rang")
    saga.expect_compensation(CancelTrain).expect_compensation(CancelInsurance).expect_nothing()
    saga.reply(success, to=CancelTrain).reply(success, to=CancelInsurance)
    saga.expect_status("compensated", tickets="failed")


def test_a_pivot_that_can_be_undone_is_called_off() -> None:
    one = begun().pivot("train", BookTrain, compensate=CancelTrain)
    saga = given_saga(one).start(WANTED).expect_command(BookTrain).cancel("she rang")
    saga.expect_compensation(CancelTrain).reply(success).expect_status("compensated")


def test_what_made_a_step_fail_before_stays_the_reason() -> None:
    group = begun().together(
        step("train", BookTrain, compensate=CancelTrain), step("tickets", SendTickets, changes_nothing=True)
    )
    saga = given_saga(group).start(WANTED).expect_command(BookTrain).expect_command(SendTickets)
    saga.reply(refused, reason="full", to=BookTrain).cancel("she rang")
    saga.expect_status("compensated")
    assert saga.row.reason == "full"


def failed_compensation() -> SagaUnderTest:
    one = begun().step("train", BookTrain, compensate=CancelTrain, retry_compensation=Backoff())
    saga = given_saga(one.pivot("pay", Pay)).start(WANTED).expect_command(BookTrain).reply(success)
    saga.expect_command(Pay).reply(refused).expect_compensation(CancelTrain).reply(error)
    return saga.expect_status("failed")


def unanswered_pivot() -> SagaUnderTest:
    saga = given_saga(begun().pivot("pay", Pay, retry=Backoff())).start(WANTED).expect_command(Pay)
    return saga.reply(error).expect_status("failed")


@pytest.mark.promise("saga-cancellation")
@pytest.mark.parametrize(
    ("saga", "why_not"),
    [
        (paid, "is past its pivot"),
        (lambda: paid().reply(refused), "is past its pivot"),
        (with_hotel, "cannot go back: pay may have been done"),
        (unanswered_pivot, "cannot go back: pay may have been done"),
        (lambda: unanswered_pivot().retry("pay").expect_command(Pay), "cannot go back"),
        (lambda: with_train().reply(refused).expect_compensation(CancelTrain), "goes back already"),
        (failed_compensation, "goes back already"),
        (lambda: failed_compensation().skip("train", "so"), "is compensated"),
        (lambda: given_saga(begun().local("look", lambda _: None)).start(WANTED), "is completed"),
    ],
)  # fmt: skip
def test_what_cannot_go_back_any_more_is_not_called_off(saga: Any, why_not: str) -> None:
    before = saga()
    with pytest.raises(RepairRefused, match=f"^journey:j-1 {why_not}"):
        before.cancel("she rang")


# -- as messages ------------------------------------------------------------------------------------------


def settled(saga: SagaUnderTest, repair: JourneyRepair) -> tuple[SagaRow, list[JourneyTransition], Outcome]:
    """The row, what the topic of transitions is told, and all of the outcome."""
    outcome = journey(repair, saga.row, clock=CLOCK)
    row = outcome.rows["saga"]
    return row, [each for each in outcome.send if isinstance(each, JourneyTransition)], outcome


@pytest.mark.parametrize(
    ("operation", "step", "detail"),
    [
        ("retry", "tickets", "tickets retried: she rang (ann)"),
        ("skip", "tickets", "tickets skipped: she rang (ann)"),
        ("done", "tickets", "tickets done by hand: she rang (ann)"),
    ],
)
def test_an_operation_is_done_and_told_with_who_and_why(operation: str, step: str, detail: str) -> None:
    row, told, _ = settled(paid().reply(refused), asked(operation, step))
    assert row.status != "failed"
    assert told[0].detail == detail == row.log[-len(told)].detail


def test_calling_off_is_told_with_who_and_why() -> None:
    row, told, outcome = settled(with_train(), asked("cancel"))
    assert (row.status, row.reason) == ("compensating", "cancelled")
    assert (told[0].after, told[0].detail) == ("compensating", "cancelled: she rang (ann)")
    assert [type(each) for each in outcome.send if not isinstance(each, JourneyTransition)] == [CancelHotel]


@pytest.mark.parametrize(
    ("operation", "step", "why"),
    [
        ("retry", "hotel", "journey:j-1 is started: it waits for no operator"),
        ("skip", "boat", "journey:j-1 is started: it waits for no operator"),
        ("cancel", "", "journey:j-1 cannot go back: pay may have been done, and nothing undoes it"),
    ],
)
def test_a_refused_one_changes_nothing_and_is_told(operation: str, step: str, why: str) -> None:
    before = with_hotel()
    row, told, outcome = settled(before, asked(operation, step))
    assert (row.status, row.steps, row.reason) == (before.row.status, before.row.steps, "")
    assert (list(outcome.send), outcome.timers, outcome.cancel) == (told, [], [])
    assert [entry.detail for entry in told] == [f"{operation} refused: {why}; it was asked: she rang (ann)"]
    assert told[0].before == told[0].after
    assert told[0].detail.startswith(repairs.refusal(operation))
    assert repairs.reason_text(asked(operation, step)) in told[0].detail


def test_a_repair_of_no_saga_or_another_one_does_nothing() -> None:
    assert journey(asked("cancel"), None, clock=CLOCK).rows == {}
    other = asked("cancel", saga_id="return:j-1")
    assert journey(other, with_train().row, clock=CLOCK).rows == {}


def test_of_what_is_said_only_the_beginning_is_kept() -> None:
    saga, long = with_hotel(), "x" * 10_000
    repair = JourneyRepair(saga_id="journey:j-1", operation="cancel", step="", who=long, why=long)
    for _ in range(LOG_BOUND + 1):
        row, _, _ = settled(saga, repair)
        saga._row = row
    assert max(len(entry.detail) for entry in saga.row.log) < 1300


def test_a_saga_without_a_topic_for_repairs_takes_none() -> None:
    handler = orchestrate(
        Journey, service=Service("travel"), table=Table("journeys", SagaRow), log=JourneyTransition
    )
    assert handler.accepts == (JourneyWanted, JourneyReply)
    assert handler.repairs is None
    assert journey.accepts == (JourneyWanted, JourneyReply, JourneyRepair)
