"""A definition is checked as it is made, and the error names the step."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from travel import (
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
    JourneyWanted,
    Pay,
    Seat,
    SendTickets,
    begun,
)

from streams.errors import WiringError
from streams.model.policy.bounds import LONGEST
from streams.saga.definition import Backoff, saga, step
from streams.saga.messages import Command, Reply


class OtherReply(Reply, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "other.saga.replies"


class Elsewhere(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "other.commands.do"
    REPLY = OtherReply


class Insured(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "other.commands.insure"
    REPLY = OtherReply
    insured: bool


class Nowhere(Command, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "nowhere.commands.do"


def with_train(**options: Any) -> Any:
    return begun().step("train", BookTrain, compensate=CancelTrain, **options)


TRAIN = step("train", BookTrain, compensate=CancelTrain)
HOTEL = step("hotel", BookHotel, compensate=CancelHotel)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "an unknown command": (
        lambda: begun().step("train", JourneyWanted, changes_nothing=True),  # type: ignore[arg-type]
        r"saga journey, step 'train': .*JourneyWanted.* is not a command",
    ),
    "an unknown compensation": (
        lambda: begun().step("train", BookTrain, compensate=Seat),  # type: ignore[arg-type]
        "step 'train': .*Seat.* is not a command",
    ),
    "no compensation before the pivot": (
        lambda: begun().step("train", BookTrain),
        "step 'train': it comes before the pivot and has no compensation",
    ),
    "no compensation in a group": (
        lambda: begun().together(TRAIN, step("insurance", BookInsurance)),
        "step 'insurance': it comes before the pivot and has no compensation",
    ),
    "a compensation after the pivot": (
        lambda: begun().pivot("pay", Pay).step("train", BookTrain, compensate=CancelTrain),
        "step 'train': it comes after the pivot and is never undone",
    ),
    "a second pivot": (
        lambda: begun().pivot("pay", Pay).pivot("again", Pay),
        "step 'again': there is already a pivot",
    ),
    "a name twice": (
        lambda: with_train().together(TRAIN),
        "step 'train': another step has that name",
    ),
    "a name twice in a group": (
        lambda: begun().together(TRAIN, step("train", Pay, changes_nothing=True)),
        "step 'train': another step has that name",
    ),
    "a field that nobody has": (
        lambda: with_train().step("hotel", BookHotel, compensate=CancelHotel),
        "step 'hotel': BookHotel needs `seat`, which neither JourneyWanted nor a reply",
    ),
    "a field of a step that may be left out": (
        lambda: with_train(reply=Seat, when=lambda facts: facts["insured"]).together(HOTEL),
        "step 'hotel': BookHotel needs `seat`",
    ),
    "a field of the group itself": (
        lambda: begun().together(step("train", BookTrain, compensate=CancelTrain, reply=Seat), HOTEL),
        "step 'hotel': BookHotel needs `seat`",
    ),
    "a field that no command has": (
        lambda: begun().pivot("pay", Pay, fields={"cent": lambda facts: facts["cents"]}),
        "step 'pay': `cent` in `fields`: neither of its commands has it",
    ),
    "a field that is not given so": (
        lambda: begun().pivot("pay", Pay, fields={"saga_id": lambda facts: "x"}),
        "step 'pay': `saga_id` in `fields`",
    ),
    "a field that it forgets": (
        lambda: saga("journey", started_by=JourneyWanted, forgets=["insured"]).step(
            "train", Insured, changes_nothing=True
        ),
        "step 'train': Insured needs `insured`",
    ),
    "a field that it cannot forget": (
        lambda: saga("journey", started_by=JourneyWanted, forgets=["cents", "insured"]),
        "saga journey forgets `cents`: name fields of JourneyWanted that have a default",
    ),
    "no time": (lambda: with_train(timeout=0), "step 'train': its timeout is 0 s"),
    "no number": (lambda: with_train(timeout=math.nan), "its timeout is nan s: give a positive"),
    "milliseconds": (lambda: with_train(timeout=3e12), "its timeout is .*over ten years: give seconds"),
    "a name for nobody": (
        lambda: begun().step("the train", BookTrain, changes_nothing=True),
        "step 'the train': use lower-case letters",
    ),
    "a reply to another topic": (
        lambda: with_train().step("else", Elsewhere, changes_nothing=True),
        "step 'else': Elsewhere has another reply topic",
    ),
    "replies to two topics in a group": (
        lambda: begun().together(
            step("train", BookTrain, compensate=CancelTrain), step("else", Elsewhere, changes_nothing=True)
        ),
        "step 'else': Elsewhere has another reply topic",
    ),
    "a command without a reply": (
        lambda: begun().step("nowhere", Nowhere, changes_nothing=True),
        "step 'nowhere': Nowhere has no TOPIC or no REPLY",
    ),
    "an end that it cannot say": (
        lambda: with_train().ends(completed=JourneyBooked),
        "saga journey: JourneyBooked needs `seat`, which it never knows",
    ),
    "an end undone with what was never said": (
        lambda: with_train(reply=Seat).ends(compensated=JourneyBooked),
        "JourneyBooked needs `seat`",
    ),
    "an empty group": (lambda: begun().together(), "a group without steps"),
    "a saga for nobody": (
        lambda: saga("a:b", started_by=JourneyWanted),
        "saga 'a:b': use lower-case letters",
    ),
}


@pytest.mark.parametrize(("make", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_fit_names_the_step(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(WiringError, match=says):
        make()


def test_a_definition_is_a_value() -> None:
    start = begun()
    longer = start.step("train", BookTrain, compensate=CancelTrain)
    assert start.stages == ()
    assert [each.name for each in longer.steps()] == ["train"]
    assert Journey.replies is JourneyReply
    assert (Journey.completed, Journey.compensated) == (JourneyBooked, JourneyOff)


def test_what_comes_after_the_pivot_only_goes_forward() -> None:
    assert [each.name for each in Journey.steps()] == ["train", "hotel", "pay", "tickets"]
    assert [each.pivot for each in Journey.steps()] == [False, False, True, False]
    assert [each.forward_only for each in Journey.steps()] == [False, False, False, True]


def test_a_field_comes_by_name_from_a_reply_or_function() -> None:
    seat = {"seat": lambda facts: facts["cents"] // 100}
    given = begun().step("hotel", BookHotel, compensate=CancelHotel, fields=seat)
    (hotel,) = given.steps()
    own = {"saga_id": "journey:j", "step": "hotel", "command_id": "c", "attempt": 1, "expires": 0.0}
    made = hotel.command_of(BookHotel, {"cents": 700, "journey": "j"}, **own)
    assert made == BookHotel(**own, seat=7)
    with_train(reply=Seat).together(HOTEL)


def test_a_group_and_a_step_that_changes_nothing_are_steps() -> None:
    made = (
        begun()
        .together(TRAIN, step("insurance", BookInsurance, compensate=CancelInsurance))
        .step("look", Pay, changes_nothing=True)
        .local("add_up", lambda facts: Seat(facts["cents"]), gives=Seat)
        .pivot("pay", Pay)
        .step("tickets", SendTickets)
    )
    stages = [" ".join(each.name for each in stage) for stage in made.stages]
    assert stages == ["train insurance", "look", "add_up", "pay", "tickets"]


def test_tries_are_many_where_there_is_no_way_back() -> None:
    tries = {each.name: each.tries.times for each in Journey.steps()}
    assert tries == {"train": 0, "hotel": 0, "pay": 10, "tickets": 10}
    can_go_back = begun().pivot("train", BookTrain, compensate=CancelTrain)
    assert [each.tries.times for each in can_go_back.steps()] == [0]


@pytest.mark.promise("policies")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"times": 1.5}, "times of a Backoff is 1.5: give a whole number"),
        ({"times": -1}, "times of a Backoff is -1: give 0 or more"),
        ({"delay": math.inf}, "delay of a Backoff is inf s"),
        ({"delay": 1e18}, "delay of a Backoff is .*over ten years"),
        ({"most": math.nan}, "most of a Backoff is nan s"),
        ({"factor": 1e10}, "factor of a Backoff is 1"),
        ({"factor": 0.5}, "factor of a Backoff is 0.5: give 1 for equal delays"),
    ],
)
def test_a_backoff_that_cannot_work_is_refused_when_made(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(WiringError, match=told):
        Backoff(**wrong)


def test_a_step_that_may_take_ten_years_is_asked_after() -> None:
    (one,) = begun().pivot("train", BookTrain, timeout=LONGEST, compensate=CancelTrain).steps()
    assert one.asking.wait(30) == LONGEST


def test_a_backoff_grows_up_to_its_most_and_ends() -> None:
    backoff = Backoff(times=4, delay=2, factor=3, most=30)
    assert [backoff.wait(tries) for tries in range(1, 6)] == [2, 6, 18, 30, None]
    assert Backoff(times=10**6).wait(10**6) == 300
