"""The saga as a handler: what the lane is told, versions, and what it is not for."""

from typing import ClassVar

import msgspec
import pytest
from travel import (
    WANTED,
    BookTrain,
    CancelTrain,
    Journey,
    JourneyBooked,
    JourneyOff,
    JourneyReply,
    JourneyTransition,
    JourneyWanted,
    Pay,
    SendTickets,
    begun,
)

from streams.errors import SagaVersionUnknown, WiringError
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.codecs import json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.outcome import Outcome
from streams.model.table import Table
from streams.saga.definition import saga
from streams.saga.engine import orchestrate
from streams.saga.state import SagaRow
from streams.testing.clock import ManualClock

SERVICE = Service("travel")
JOURNEYS = Table("journeys", SagaRow)
CLOCK = ManualClock(1000.0)
First = begun().pivot("pay", Pay)
Second = saga("journey", started_by=JourneyWanted, version=2).pivot("pay", Pay).step("tickets", SendTickets)


class JourneyDreamt(JourneyWanted, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "travel.journey.dreamt.v1"
    dream: str


def handler(*versions: object) -> object:
    return orchestrate(*versions, service=SERVICE, table=JOURNEYS, log=JourneyTransition)  # type: ignore[arg-type]


journey = orchestrate(Journey, service=SERVICE, table=JOURNEYS, log=JourneyTransition)


def started() -> SagaRow:
    return journey(WANTED, None, clock=CLOCK).rows["saga"]  # type: ignore[return-value]


def reply(**changes: str) -> JourneyReply:
    given = JourneyReply(
        saga_id="journey:j-1", step="train", command_id="journey:j-1:train:1", outcome="refused"
    )
    return msgspec.structs.replace(given, **changes)


def test_it_handles_what_starts_it_and_its_replies() -> None:
    assert journey.name == "travel.journey_saga"
    assert journey.accepts == (JourneyWanted, JourneyReply)
    assert journey.resources == ("clock", "consumed")
    assert {BookTrain, CancelTrain, SendTickets, JourneyBooked, JourneyOff} < set(journey.sends)
    assert {JourneyReply, JourneyTransition} < set(journey.sends)
    wiring = choreography(on(JourneyWanted, journey), on(JourneyReply, journey))
    assert wiring.uses_inbox(JourneyWanted.TOPIC)
    Application(Layout("app", 4, 2), wiring, json_without_schema, resources={"clock": CLOCK})


def test_the_outcome_has_row_command_deadline_and_transitions() -> None:
    made: Outcome = journey(WANTED, None, clock=CLOCK)
    row = made.rows["saga"]
    assert isinstance(row, SagaRow)
    assert (row.saga_id, row.version, row.status, row.created_at) == ("journey:j-1", 1, "started", 1000.0)
    command, *told = made.send
    assert isinstance(command, BookTrain)
    transitions = [(each.key, each.after) for each in told if isinstance(each, JourneyTransition)]
    assert transitions == [("j-1", "started"), ("j-1", "in_progress")]
    (timer,) = made.timers
    assert (timer.name, timer.due) == ("train", 1030.0)
    assert timer.message == reply(outcome="timed_out", reason="no reply within 30 s")


def test_a_deadline_goes_to_the_reply_topic_under_its_key() -> None:
    (timer,) = journey(WANTED, None, clock=CLOCK).timers
    assert timer.message.TOPIC == JourneyReply.TOPIC
    assert timer.message.key == WANTED.key


def test_a_reply_cancels_the_deadline() -> None:
    assert journey(reply(), started(), clock=CLOCK).cancel == ["train"]


def test_a_saga_starts_once() -> None:
    again = journey(WANTED, started(), clock=CLOCK)
    assert again == Outcome({}, note="saga journey:j-1 was started before")


def test_what_is_for_no_saga_or_another_one_changes_nothing() -> None:
    assert journey(reply(), None, clock=CLOCK) == Outcome({}, note="there is no saga journey:j-1")
    other = reply(saga_id="return:j-1")
    assert journey(other, started(), clock=CLOCK) == Outcome({}, note="for another saga: return:j-1")


def test_a_saga_ends_with_the_version_it_began_with() -> None:
    old = orchestrate(First, service=SERVICE, table=JOURNEYS, log=JourneyTransition)
    both = orchestrate(Second, First, service=SERVICE, table=JOURNEYS, log=JourneyTransition)
    paid = reply(step="pay", command_id="journey:j-1:pay:1", outcome="success")
    began_old = old(WANTED, None, clock=CLOCK).rows["saga"]
    began_new = both(WANTED, None, clock=CLOCK).rows["saga"]
    assert both(paid, began_old, clock=CLOCK).rows["saga"].status == "completed"
    assert both(paid, began_new, clock=CLOCK).rows["saga"].status == "completing"
    with pytest.raises(SagaVersionUnknown, match=r"journey:j-1 began with version 2, and here are \[1\]"):
        old(paid, began_new, clock=CLOCK)


def test_what_starts_only_an_older_version_begins_that_one() -> None:
    newer = saga("journey", started_by=JourneyDreamt, version=2).pivot("pay", Pay)
    both = orchestrate(newer, First, service=SERVICE, table=JOURNEYS, log=JourneyTransition)
    dreamt = JourneyDreamt(journey="j-1", cents=900, dream="sea")
    assert [both(each, None, clock=CLOCK).rows["saga"].version for each in (WANTED, dreamt)] == [1, 2]


def test_versions_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(WiringError, match="the versions of one saga"):
        handler(First, saga("return", started_by=JourneyWanted).pivot("pay", Pay))
    with pytest.raises(WiringError, match="two definitions have the same version"):
        handler(First, Journey)
    with pytest.raises(WiringError, match="the versions of one saga"):
        handler()
    with pytest.raises(WiringError, match="each version needs a command"):
        handler(begun())
