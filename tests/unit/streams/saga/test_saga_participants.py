"""A step is done once and undone once, whatever comes first, again or too late."""

from typing import Any

import msgspec
import pytest
from hotels import Rooms, Till, book, cancel, give_back, participant, pay
from travel import (
    BookHotel,
    CancelHotel,
    CancelInsurance,
    JourneyReply,
    JourneyWanted,
    Pay,
    Seat,
    SendTickets,
)

from streams.errors import MessageExpired, PermanentError, TransientError, Unencodable, WiringError
from streams.model.outcome import Outcome
from streams.saga.messages import LONG_AGO, TEXT_BOUND, Command
from streams.saga.participant import Answer, done, later, refused
from streams.saga.participation import Participation
from streams.testing.clock import ManualClock

NOW = 1000.0
CLOCK = ManualClock(NOW)


def of(kind: type[Command], attempt: int = 1, *, expires: float = NOW + 30, **fields: Any) -> Any:
    own = {"saga_id": "journey:j-1", "step": "hotel", "command_id": f"c-{attempt}", "attempt": attempt}
    return kind(**own, expires=expires, **fields)


BOOK, AGAIN = of(BookHotel, seat=7), of(BookHotel, 2, seat=7)
CANCEL = of(CancelHotel, 9, expires=0.0)


class Hotel:
    def __init__(self, free: int = 2) -> None:
        self.step: Participation | None = None
        self.rooms = Rooms(free=free)

    def take(self, command: Command) -> Outcome:
        handler = book if isinstance(command, BookHotel) else cancel
        made: Outcome = handler(command, self.step, self.rooms, clock=CLOCK)
        self.step = made.rows.get("participation", self.step)  # type: ignore[assignment]
        self.rooms = made.rows.get("rooms", self.rooms)  # type: ignore[assignment]
        return made

    def reply_to(self, command: Command) -> str:
        (reply,) = self.take(command).send
        assert (reply.saga_id, reply.step) == (command.saga_id, command.step)
        assert (reply.command_id, reply.key) == (command.command_id, "j-1")
        return reply.outcome


def test_what_is_no_answer_is_named() -> None:
    @participant.command()
    def forget(command: BookHotel) -> Answer:  # type: ignore[return] # as code without a type checker has it
        del command

    with pytest.raises(Unencodable, match=r"the handler of BookHotel returned NoneType: return done\("):
        forget(BOOK, None, clock=CLOCK)


def test_a_command_is_done_and_replied_to_with_its_data() -> None:
    hotel = Hotel()
    (reply,) = hotel.take(BOOK).send
    own = {"saga_id": "journey:j-1", "step": "hotel", "command_id": "c-1"}
    assert reply == JourneyReply(**own, outcome="success", data=msgspec.json.encode(Seat(7)))
    assert hotel.rooms.free == 1
    assert JourneyReply in book.sends


def test_a_refusal_is_a_reply_with_its_reason() -> None:
    (reply,) = Hotel(free=0).take(BOOK).send
    assert (reply.outcome, reply.reason, reply.data) == ("refused", "full", b"")


@pytest.mark.promise("saga-participants")
@pytest.mark.parametrize("free", [2, 0])
def test_a_repeated_command_gets_the_same_reply_and_does_nothing(free: int) -> None:
    hotel = Hotel(free)
    first = hotel.take(BOOK)
    left = hotel.rooms
    hotel.rooms = Rooms(free=1)  # what would be answered now is another thing
    again = hotel.take(BOOK)
    assert again.send == first.send
    assert "rooms" not in again.rows
    assert left.free == max(free - 1, 0)


def test_a_later_attempt_does_something_only_after_a_refusal() -> None:
    hotel = Hotel(free=1)
    assert hotel.reply_to(BOOK) == "success"
    (reply,) = hotel.take(AGAIN).send
    assert (reply.outcome, reply.command_id, reply.data) == ("success", "c-2", msgspec.json.encode(Seat(7)))
    full = Hotel(free=0)
    assert full.reply_to(BOOK) == "refused"
    full.rooms = Rooms(free=1)
    assert full.reply_to(AGAIN) == "success"
    assert full.rooms.free == 0


def test_an_overtaken_attempt_is_not_begun() -> None:
    hotel = Hotel(free=0)
    assert hotel.reply_to(AGAIN) == "refused"
    hotel.rooms = Rooms(free=1)
    assert hotel.reply_to(BOOK) == "cancelled"
    assert hotel.rooms.free == 1


@pytest.mark.promise("saga-participants")
def test_a_compensation_undoes_once() -> None:
    hotel = Hotel(free=1)
    hotel.take(BOOK)
    for _ in range(2):
        assert hotel.reply_to(CANCEL) == "success"
        assert hotel.rooms.free == 1
    assert hotel.reply_to(of(CancelHotel, 10, expires=0.0)) == "success"
    assert hotel.rooms.free == 1


@pytest.mark.promise("saga-participants")
def test_a_compensation_that_comes_first_cancels_the_command() -> None:
    hotel = Hotel()
    assert hotel.reply_to(CANCEL) == "success"
    for attempt in (1, 2):
        assert hotel.reply_to(of(BookHotel, attempt, seat=7)) == "cancelled"
    assert hotel.rooms.free == 2


def test_what_was_undone_or_refused_stays_so() -> None:
    hotel = Hotel()
    for command in (BOOK, CANCEL):
        hotel.take(command)
    assert hotel.reply_to(BOOK) == "cancelled"
    assert hotel.rooms.free == 2
    full = Hotel(free=0)
    full.take(BOOK)
    assert full.reply_to(CANCEL) == "success"
    assert full.rooms.free == 0


def test_a_command_that_comes_too_late_is_not_begun() -> None:
    for expires, outcome in ((NOW - 0.001, "expired"), (NOW, "success"), (0.0, "success")):
        assert Hotel().reply_to(of(BookHotel, seat=7, expires=expires)) == outcome


def test_what_is_done_is_told_even_too_late() -> None:
    hotel = Hotel()
    hotel.take(BOOK)
    assert hotel.reply_to(of(BookHotel, 2, seat=7, expires=NOW - 1)) == "success"


# -- what is asked after

ASKED = of(BookHotel, seat=7, expires=LONG_AGO)


@pytest.mark.promise("saga-not-begun")
def test_what_is_asked_after_unbegun_is_never_begun() -> None:
    hotel = Hotel()
    assert hotel.reply_to(ASKED) == "cancelled"
    assert hotel.reply_to(BOOK) == "cancelled"  # its turn comes now
    assert hotel.reply_to(CANCEL) == "success"
    assert hotel.rooms.free == 2


def test_what_was_cancelled_so_is_done_when_asked_anew() -> None:
    hotel = Hotel()
    assert hotel.reply_to(ASKED) == "cancelled"
    assert hotel.reply_to(AGAIN) == "success"
    assert hotel.reply_to(BOOK) == "success"
    assert hotel.rooms.free == 1


@pytest.mark.parametrize("free", [2, 0])
def test_what_is_answered_is_not_answered_once_more(free: int) -> None:
    hotel = Hotel(free)
    hotel.take(BOOK)
    before = hotel.step, hotel.rooms
    assert hotel.take(ASKED) == Outcome({}, note="it is answered")
    assert (hotel.step, hotel.rooms) == before


def test_what_is_under_way_goes_on_when_asked_after() -> None:
    row = row_of(print_them(of(SendTickets), None, clock=CLOCK))
    asked = print_them(of(SendTickets, expires=LONG_AGO), row, clock=CLOCK)
    assert asked == Outcome({}, note="it is under way")


@pytest.mark.promise("saga-not-begun")
async def test_what_nobody_knows_begun_outside_is_asked_of_the_outside() -> None:
    till = await broken(PAY)  # and its owner has ended before it could write that down
    made = await paying(till, of(Pay, cents=900, expires=LONG_AGO))
    (sent,) = made.send
    assert sent.outcome == "expired"
    assert till.taken == {PAY.operation: 900}
    await paying(till, GIVE_BACK, row_of(made))
    assert till.taken == {}


def test_a_compensation_asked_after_is_still_to_be_made() -> None:
    hotel = Hotel()
    hotel.take(BOOK)
    assert hotel.reply_to(of(CancelHotel, 9, expires=LONG_AGO)) == "expired"
    assert hotel.reply_to(CANCEL) == "success"
    assert hotel.take(of(CancelHotel, 9, expires=LONG_AGO)).send == ()
    assert hotel.rooms.free == 2


# -- what is outside


async def paying(till: Till, command: Any, row: Participation | None = None) -> Outcome:
    handler = pay if isinstance(command, Pay) else give_back
    made: Outcome = await handler(command, row, clock=CLOCK, till=till)
    return made


async def broken(command: Any, row: Participation | None = None) -> Till:
    """A till that has taken the money, and whose answer was lost."""
    till = Till()
    till.breaks = TransientError("no answer")
    with pytest.raises(TransientError, match="no answer"):
        await paying(till, command, row)
    assert till.taken == {command.operation: 900}
    return till


PAY = of(Pay, cents=900)
GIVE_BACK = of(CancelInsurance, 2, expires=0.0)


async def test_an_error_is_raised_so_that_the_lane_decides() -> None:
    till = await broken(PAY)
    with pytest.raises(PermanentError):
        await paying(till, of(Pay, cents=-1))


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (TransientError("no answer"), ("error", "TransientError: no answer")),
        (MessageExpired("its deadline was 3 s ago"), ("expired", "its deadline was 3 s ago")),
    ],
)
def test_a_command_given_up_is_told_to_the_saga(error: Exception, reported: tuple[str, str]) -> None:
    answer = pay.on_give_up(PAY, error)
    assert answer.rows == {}
    (reply,) = answer.send
    assert (reply.command_id, (reply.outcome, reply.reason)) == ("c-1", reported)


def test_of_a_long_error_the_saga_is_told_the_beginning() -> None:
    (sent,) = pay.on_give_up(PAY, PermanentError("no" * 50_000)).send
    assert sent.reason.startswith("PermanentError: nono")
    assert len(sent.reason) == TEXT_BOUND


@pytest.mark.promise("saga-participants")
async def test_what_a_failed_try_did_outside_is_undone() -> None:
    till = await broken(PAY)
    undone = await paying(till, GIVE_BACK)
    assert till.taken == {}
    (reply,) = (await paying(till, PAY, undone.rows["participation"])).send  # type: ignore[arg-type]
    assert reply.outcome == "cancelled"
    assert till.taken == {}


@pytest.mark.promise("saga-participants")
async def test_what_a_try_after_a_refusal_did_outside_is_undone() -> None:
    refusal = Participation.of(PAY, "refused", "card_declined")
    till = await broken(of(Pay, 2, cents=900), refusal)
    await paying(till, of(CancelInsurance, 3, expires=0.0), refusal)
    assert till.taken == {}


async def test_the_outside_is_not_asked_about_what_was_refused_last() -> None:
    till = Till()
    till.taken["journey:j-1:hotel"] = 1
    undone = await paying(till, GIVE_BACK, Participation.of(PAY, "refused", "card_declined"))
    assert till.taken == {"journey:j-1:hotel": 1}
    (reply,) = undone.send
    assert reply.outcome == "success"


async def test_what_is_undone_outside_is_not_asked_for_again() -> None:
    till = Till()
    paid = await paying(till, PAY)
    row: Any = (await paying(till, GIVE_BACK, paid.rows["participation"])).rows["participation"]  # type: ignore[arg-type]
    till.taken["journey:j-1:hotel"] = 1
    await paying(till, of(CancelInsurance, 3, expires=0.0), row)
    assert till.taken == {"journey:j-1:hotel": 1}


# -- answers that come later


@participant.command()
def print_them(command: SendTickets) -> Answer:
    return later()


@participant.compensation()
def shred(command: CancelHotel) -> Answer:
    return later()


def row_of(made: Outcome) -> Participation:
    return made.rows["participation"]


def test_a_late_answer_goes_to_the_attempt_that_asked_last() -> None:
    first: Outcome = print_them(of(SendTickets), None, clock=CLOCK)
    assert first.send == []
    again: Outcome = print_them(of(SendTickets), row_of(first), clock=CLOCK)
    assert (again.send, again.rows) == ((), {})
    newer = row_of(print_them(of(SendTickets, 2), row_of(first), clock=CLOCK))
    with pytest.raises(ValueError, match="is working: there is no answer yet"):
        newer.reply(JourneyReply)
    reply = newer.answered("refused", "no paper").reply(JourneyReply)
    assert (reply.outcome, reply.reason, reply.command_id) == ("refused", "no paper", "c-2")


def test_what_is_under_way_can_be_undone_later_too() -> None:
    row = row_of(print_them(of(SendTickets), None, clock=CLOCK))
    undoing: Outcome = shred(CANCEL, row, clock=CLOCK)
    assert (row_of(undoing).status, undoing.send) == ("undoing", [])
    repeated: Outcome = shred(of(CancelHotel, 10, expires=0.0), row_of(undoing), clock=CLOCK)
    assert repeated.send == ()
    (cancelled,) = print_them(of(SendTickets, 2), row_of(undoing), clock=CLOCK).send
    assert cancelled.outcome == "cancelled"
    reply = row_of(repeated).answered("undone").reply(JourneyReply)
    assert (reply.outcome, reply.command_id) == ("success", "c-10")


# -- declarations


def test_a_participants_handler_says_what_it_is() -> None:
    assert (book.name, book.accepts, book.__doc__) == ("hotels.book", (BookHotel,), "Take a room.")
    assert list(book.rows) == ["participation", "rooms"]
    assert book.rows["participation"].subkey(BOOK) == "journey:j-1:hotel"  # type: ignore[misc]
    assert cancel.rows["participation"].table is book.rows["participation"].table
    assert (pay.is_async, set(pay.resources)) == (True, {"till", "clock"})


def test_a_handler_may_want_the_envelope_and_the_clock() -> None:
    @participant.command()
    def ask(command: SendTickets, *, envelope: Any, clock: Any) -> Answer:
        assert (envelope, clock) == ("envelope", CLOCK)
        return done()

    assert ask.wants_envelope
    assert ask.resources == ("clock",)
    made: Outcome = ask(of(SendTickets), None, clock=CLOCK, envelope="envelope")
    assert row_of(made).status == "done"


def test_what_is_no_command_is_refused_at_import() -> None:
    with pytest.raises(WiringError, match=r"hotels.wrong: annotate its first parameter with a command"):

        @participant.command()
        def wrong(command: JourneyWanted) -> Answer:
            return done()


def test_a_compensation_cannot_refuse() -> None:
    @participant.compensation()
    def refusing(command: CancelHotel) -> Answer:
        return refused("no")

    row = row_of(print_them(of(SendTickets), None, clock=CLOCK))
    with pytest.raises(PermanentError, match="a compensation cannot be refused: no"):
        refusing(CANCEL, row, clock=CLOCK)
