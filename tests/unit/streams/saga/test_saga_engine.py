"""The saga as a handler: its outcomes, versions, and what it is not for."""

from typing import Any, ClassVar

import msgspec
import pytest
from travel import (
    WANTED,
    BookTrain,
    CancelTrain,
    Journey,
    JourneyBooked,
    JourneyOff,
    JourneyRepair,
    JourneyReply,
    JourneyTransition,
    JourneyWanted,
    OfJourney,
    Pay,
    Seat,
    SendTickets,
    begun,
)

from streams.errors import PermanentError, SagaVersionUnknown, Unencodable, WiringError
from streams.model.application import Application
from streams.model.choreography import WiringWarning, choreography, on
from streams.model.codecs import json_without_schema
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.outcome import Outcome
from streams.model.table import Table
from streams.saga.definition import Saga, saga
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
    command, *reports = made.send
    assert isinstance(command, BookTrain)
    transitions = [(each.key, each.after) for each in reports if isinstance(each, JourneyTransition)]
    assert transitions == [("j-1", "started"), ("j-1", "in_progress")]
    (timer,) = made.timers
    assert (timer.name, timer.due) == ("train", 1030.0)
    assert timer.message == reply(outcome="timed_out", reason="no reply within 30 s")


def test_a_reply_cancels_the_deadline() -> None:
    assert journey(reply(), started(), clock=CLOCK).cancel == ["train"]


def test_what_is_no_admission_is_named() -> None:
    admits: Any = lambda _: True  # noqa: E731 - what is returned is the whole of it
    handler = orchestrate(Journey, service=SERVICE, table=JOURNEYS, log=JourneyTransition, admit=admits)
    with pytest.raises(Unencodable, match=r"`admit` of saga journey returned bool: return admitted"):
        handler(WANTED, None, clock=CLOCK)


def test_a_saga_does_not_begin_in_the_row_of_another() -> None:
    dreams = saga("dream", started_by=JourneyWanted).pivot("pay", Pay)
    dream = orchestrate(dreams, service=SERVICE, table=JOURNEYS, log=JourneyTransition)
    with pytest.raises(PermanentError, match="table journeys has journey:j-1 already"):
        dream(WANTED, started(), clock=CLOCK)


def test_a_saga_starts_once() -> None:
    again = journey(WANTED, started(), clock=CLOCK)
    assert again == Outcome({}, note="saga journey:j-1 was started before")


class JourneyDoubled(OfJourney, frozen=True, kw_only=True):
    """The sender gets the reason: its journey is another one already."""

    TOPIC: ClassVar[str] = "travel.journey.doubled.v1"
    cents: int
    reason: str


OTHER = msgspec.structs.replace(WANTED, cents=1)


def test_another_start_is_in_the_log_and_counted() -> None:
    made = orchestrate(Journey, service=SERVICE, table=JOURNEYS, log=JourneyTransition)
    again = made(OTHER, started(), clock=CLOCK)
    row = again.rows["saga"]
    assert isinstance(row, SagaRow)
    assert msgspec.structs.replace(row, entries=2, log=row.log[:-1]) == started()
    assert row.log[-1].detail == "ignored: JourneyWanted with other content would start it again"
    (report,) = again.send
    assert isinstance(report, JourneyTransition)
    assert report.log_line()[:2] == ("warning", "saga_ignored")
    assert made.ignored == {"started_before": 1}


def test_another_start_is_told_to_its_client_where_asked() -> None:
    asks = Journey.ends(completed=JourneyBooked, compensated=JourneyOff, conflict=JourneyDoubled)
    made = orchestrate(asks, service=SERVICE, table=JOURNEYS, log=JourneyTransition)
    begun = made(WANTED, None, clock=CLOCK).rows["saga"]
    report, _ = made(OTHER, begun, clock=CLOCK).send
    assert report == JourneyDoubled(journey="j-1", cents=1, reason="started_before")
    assert JourneyDoubled in made.sends
    assert made(WANTED, begun, clock=CLOCK).send == ()


def test_the_same_start_is_known_by_what_the_row_keeps() -> None:
    forgetful = saga("journey", started_by=JourneyWanted, forgets=["insured"]).pivot("pay", Pay)
    made = orchestrate(forgetful, service=SERVICE, table=JOURNEYS, log=JourneyTransition)
    begun = made(WANTED, None, clock=CLOCK).rows["saga"]
    assert made(msgspec.structs.replace(WANTED, insured=True), begun, clock=CLOCK).send == ()
    assert made(OTHER, begun, clock=CLOCK).send != ()


@pytest.mark.parametrize("asked", [JourneyReply, JourneyRepair])
def test_what_is_for_an_unknown_saga_is_told_and_counted(asked: type[Any]) -> None:
    made = orchestrate(Journey, service=SERVICE, table=JOURNEYS, log=JourneyTransition, repairs=JourneyRepair)
    repair = JourneyRepair(saga_id="journey:j-1", operation="retry", step="train", who="ann", why="so")
    dropped = made(reply() if asked is JourneyReply else repair, None, clock=CLOCK)
    (report,) = dropped.send
    assert (dropped.rows, report.saga_id, report.number, report.step) == ({}, "journey:j-1", 0, "train")
    assert report.detail.startswith("ignored: there is no such saga: re")
    assert report.log_line()[:2] == ("warning", "saga_ignored")
    assert made.ignored == {"no_such_saga": 1}


def test_what_is_for_another_saga_changes_nothing() -> None:
    (report,) = journey(reply(saga_id="return:j-1"), started(), clock=CLOCK).send
    found = (report.saga_id, report.detail)
    assert found == ("return:j-1", "ignored: it is for another saga: refused of journey:j-1:train:1")


@pytest.mark.promise("saga-versions")
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


def test_an_ended_saga_of_an_older_version_answers_too_late() -> None:
    class TooLate(OfJourney, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "travel.journey.too_late.v1"
        cents: int

    class Berth(msgspec.Struct):
        seat: int
        deck: int

    def version(number: int, gives: type[Any]) -> Saga:
        begun = saga("journey", started_by=JourneyWanted, version=number)
        with_train = begun.step("train", BookTrain, compensate=CancelTrain, reply=gives).pivot("pay", Pay)
        return with_train.ends(completed=JourneyBooked, compensated=JourneyOff, too_late=TooLate)

    def of(*versions: Saga) -> Any:
        return orchestrate(
            *versions, service=SERVICE, table=JOURNEYS, log=JourneyTransition, repairs=JourneyRepair
        )

    old, newer = version(1, Seat), version(2, Berth)
    row = of(old)(WANTED, None, clock=CLOCK).rows["saga"]
    for step, data in (("train", b'{"seat":7}'), ("pay", b"")):
        told = reply(step=step, command_id=f"journey:j-1:{step}:1", outcome="success")
        row = of(old)(msgspec.structs.replace(told, data=data), row, clock=CLOCK).rows["saga"]
    assert row.status == "completed"
    cancel = JourneyRepair(saga_id="journey:j-1", operation="cancel", step="", who="ann", why="so")
    kinds = [type(each) for each in of(old, newer)(cancel, row, clock=CLOCK).send]
    assert TooLate in kinds
    alone = of(newer)
    (report,) = alone(cancel, row, clock=CLOCK).send
    assert "it has ended, and what journey:j-1 received cannot be read any more" in report.detail
    assert alone.ignored == {"unreadable": 1}


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


def test_a_saga_without_a_line_for_its_replies_is_refused() -> None:
    with pytest.raises(WiringError, match=r"travel.journey_saga takes JourneyReply.*Add on\(JourneyReply"):
        choreography(on(JourneyWanted, journey))


def test_a_compensation_without_a_line_is_warned_of() -> None:
    @SERVICE.handler()
    def take(command: BookTrain | CancelTrain) -> Outcome:
        return Outcome({})

    lines = [on(JourneyWanted, journey), on(JourneyReply, journey)]
    choreography(*lines)  # all its participants are elsewhere
    with pytest.warns(WiringWarning, match="undoes BookTrain by CancelTrain, and no line takes that here"):
        choreography(*lines, on(BookTrain, take))
    choreography(*lines, on(BookTrain, take), on(CancelTrain, take))


def test_data_of_a_reply_that_cannot_be_json_is_refused() -> None:
    class Tone(msgspec.Struct):
        tone: complex

    with pytest.raises(WiringError, match="Tone cannot be JSON: complex in it"):
        begun().step("train", BookTrain, compensate=CancelTrain, reply=Tone)
