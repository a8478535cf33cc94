"""How a saga looks to an operator, whoever conducts it."""

from typing import Any

import pytest
from travel import (
    BookHotel,
    BookTrain,
    CancelHotel,
    CancelTrain,
    JourneyBooked,
    JourneyOff,
    JourneyWanted,
    Pay,
    Seat,
    SendTickets,
    started,
)

from streams.saga.views import Course, SagaView, Seen, choreographed, orchestrated
from streams.testing.sagas import SagaUnderTest, refused, success


def paying() -> SagaUnderTest:
    saga = started(now=1000.0)
    saga.time_passes(3).reply(success, Seat(7)).expect_command(BookHotel).reply(success)
    return saga.expect_command(Pay).time_passes(2)


def test_an_orchestrated_saga_shows_past_and_coming_steps() -> None:
    view = orchestrated(paying().row)
    assert (view.saga_id, view.way, view.version) == ("journey:j-1", "orchestrated", 1)
    assert (view.status, view.pending) == ("started", ("pay", "tickets"))
    assert [(each.name, each.status, each.began_at, each.ended_at) for each in view.steps] == [
        ("train", "completed", 1000.0, 1003.0),
        ("hotel", "completed", 1003.0, 1003.0),
        ("pay", "in_progress", 1003.0, 0.0),
        ("tickets", "pending", 0.0, 0.0),
    ]
    assert view.steps[0].action == BookTrain.TOPIC
    assert (view.created_at, view.changed_at, view.entries) == (1000.0, 1003.0, len(view.log))


def test_one_that_goes_back_shows_what_remains_and_why() -> None:
    saga = paying().reply(refused, reason="card_declined").expect_compensation(CancelHotel)
    view = orchestrated(saga.row)
    assert (view.status, view.reason, view.pending) == ("compensating", "card_declined", ("train", "hotel"))
    saga.reply(success).expect_compensation(CancelTrain)
    assert orchestrated(saga.row).pending == ("train",)
    saga.reply(success).expect_event(JourneyOff)
    assert orchestrated(saga.row).pending == ()


def test_what_may_have_been_done_is_to_be_undone() -> None:
    saga = started().time_passes(31).expect_compensation(CancelTrain)
    assert orchestrated(saga.row).pending == ("train",)


def test_one_that_is_failed_says_for_which_step_it_waits() -> None:
    saga = paying().reply(success).expect_command(SendTickets).reply(refused, reason="no_paper")
    view = orchestrated(saga.row)
    assert (view.status, view.waits_for, view.pending) == ("failed", ("tickets",), ("tickets",))
    assert view.steps[-1].error == "refused: no_paper"


def test_time_stops_at_the_end_whatever_reply_comes_late() -> None:
    saga = paying().reply(success).expect_command(SendTickets).reply(success).expect_event(JourneyBooked)
    saga.time_passes(500).repeat_reply()
    view = orchestrated(saga.row)
    assert (view.elapsed(9_999.0), view.stalled(9_999.0, 1.0)) == (5.0, False)


def test_one_that_exceeds_its_limit_is_stalled() -> None:
    view = orchestrated(paying().row)
    assert not view.stalled(1060.0, limit=60.0)
    assert view.stalled(1060.1, limit=60.0)


# -- choreographed ----------------------------------------------------------------------------------------

WAY = Course(steps=(JourneyWanted, BookTrain, Pay), failures={JourneyOff: (CancelTrain,), CancelHotel: ()})


def seen(*kinds: type[Any], detail: str = "") -> list[Seen]:
    return [Seen(kind.TOPIC, 1000.0 + n, detail) for n, kind in enumerate(kinds)]


def viewed(*kinds: type[Any], **more: Any) -> SagaView:
    return choreographed("journey:j-1", WAY, seen(*kinds, detail="full"), **more)


@pytest.mark.parametrize(
    ("kinds", "status", "pending"),
    [
        ((JourneyWanted,), "started", (BookTrain, Pay)),
        ((JourneyWanted, Pay), "completed", ()),  # of different topics, either may come first
        ((BookTrain,), "started", (JourneyWanted, Pay)),
        ((JourneyWanted, BookTrain, Pay), "completed", ()),
        ((JourneyWanted, BookTrain, JourneyOff), "compensating", (CancelTrain,)),
        ((JourneyWanted, JourneyOff, CancelTrain), "compensated", ()),
        ((JourneyWanted, CancelHotel), "compensated", ()),
    ],
)
def test_a_choreographed_saga_stands_as_its_events_say(kinds: Any, status: str, pending: Any) -> None:
    view = viewed(*kinds)
    assert (view.status, view.pending) == (status, tuple(kind.TOPIC for kind in pending))
    assert (view.way, view.version, view.waits_for) == ("choreographed", 0, ())
    assert {step.name for step in view.steps} >= {kind.TOPIC for kind in kinds}


def test_what_never_comes_is_not_waited_for() -> None:
    assert viewed(JourneyWanted, JourneyOff, without=[CancelTrain]).status == "compensated"


def test_its_steps_are_its_events_and_a_failure_says_why() -> None:
    view = viewed(JourneyWanted, BookTrain, JourneyOff, SendTickets)
    assert view.reason == "full"
    assert [(step.name, step.status, step.ended_at) for step in view.steps] == [
        (JourneyWanted.TOPIC, "completed", 1000.0),
        (BookTrain.TOPIC, "completed", 1001.0),
        (JourneyOff.TOPIC, "failed", 1002.0),
        (CancelTrain.TOPIC, "pending", 0.0),
        (SendTickets.TOPIC, "completed", 1003.0),
    ]
    assert [entry.step for entry in view.log] == [step.name for step in view.steps if step.ended_at]
    assert (view.created_at, view.changed_at, view.elapsed(1010.0)) == (1000.0, 1003.0, 10.0)
