"""Sagas for operators: trips whose tickets are not printed until the printer is mended, and one whose seat
nobody ever answers for.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from lane_sagas import LeaveSeat, PrintTicket, Seat, TakeSeat, TripReply, TripTransition, TripWanted
from lane_worlds import FakeWorld
from test_lane_sagas import post, rows

from streams.errors import PermanentError
from streams.model.choreography import Choreography, choreography, on
from streams.model.handlers import Service
from streams.model.table import Table
from streams.saga.definition import NEVER, saga
from streams.saga.engine import orchestrate
from streams.saga.messages import Repair
from streams.saga.participant import Answer, Participant, done, later
from streams.saga.participation import Participation
from streams.saga.state import SagaRow


class TripRepair(Repair, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "trips.saga.repairs"


#: How long a saga may take here, in seconds.
HOUR = 3600.0
#: A timeout that no test waits for, in seconds.
NEVER_MIND = 1e7

Errand = (
    saga("trip", started_by=TripWanted)
    .step("seat", TakeSeat, compensate=LeaveSeat, timeout=NEVER_MIND)
    .pivot("ticket", PrintTicket, timeout=NEVER_MIND, retry=NEVER)
)
errand = orchestrate(
    Errand, service=Service("trips"), table=Table("trips", SagaRow), log=TripTransition, repairs=TripRepair
)
seats = Participant(Service("seats"), Table("seat-steps", Participation))
tickets = Participant(Service("tickets"), Table("ticket-steps", Participation))
SEATS = Table("seats", Seat)

#: Keys of trips whose ticket is not printed; and of the one that waits for its seat.
UNPRINTED, UNSEATED = "abcd", "e"


class Printer:
    """What was printed; it is broken until it is mended."""

    def __init__(self) -> None:
        self.broken = True
        self.printed: Counter[str] = Counter()

    async def print(self, operation: str) -> None:
        if self.broken:
            raise PermanentError("no paper")
        self.printed[operation] = 1  # once, however often it is asked


@seats.command(seat=SEATS)
def take(command: TakeSeat, seat: Seat | None) -> Answer:
    assert seat is None
    taken = Seat(taken=True)
    return later(seat=taken) if command.key == UNSEATED else done(seat=taken)


@seats.compensation(seat=SEATS)
def leave(command: LeaveSeat, seat: Seat) -> Answer:
    assert seat.taken
    return done(seat=Seat(taken=False))


@tickets.command()
async def print_ticket(command: PrintTicket, *, printer: Printer) -> Answer:
    await printer.print(command.operation)
    return done()


@dataclass(frozen=True)
class Errands:
    wiring: Choreography
    resources: dict[str, Any]
    printer: Printer


def errands(clock: Any) -> Errands:
    printer = Printer()
    wiring = choreography(
        on(TripWanted, errand),
        on(TripReply, errand),
        on(TripRepair, errand),
        on(TakeSeat, take),
        on(LeaveSeat, leave),
        on(PrintTicket, print_ticket),
    )
    return Errands(wiring, {"clock": clock, "printer": printer}, printer)


async def until_they_stand(fake: FakeWorld, expected: dict[str, str]) -> None:
    """Wait until the sagas have these statuses, by key."""
    done: list[bool] = []

    async def watch() -> None:
        while {key: row.status for key, row in (await rows(fake)).items()} != expected:
            await fake.clock.sleep(0.05)
        done.append(True)

    fake.spawn(watch())
    await fake.until(lambda: done)


async def stuck(fake: FakeWorld) -> tuple[Errands, Any]:
    """Trips that wait for an operator, and one under way; then the printer is mended. Their lane runs."""
    work = errands(fake.clock)
    # What operators ask comes between a saga's steps only where these are transactions of their own.
    await fake.start(work, saga_limit=HOUR, loopback=False)
    await fake.post(*(post(fake, TripWanted(k=key, to="home")) for key in UNPRINTED + UNSEATED))
    lane = await fake.open()
    await until_they_stand(fake, {**dict.fromkeys(UNPRINTED, "failed"), UNSEATED: "started"})
    await fake.settled(*fake.app.routes)
    work.printer.broken = False
    return work, lane
