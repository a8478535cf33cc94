"""An operator looks at sagas and settles them at the command line, through a worker's pages, to the lane and
back.
"""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from lane_commands import CommandLine, Pages, command_line
from lane_sagas import LeaveSeat, PrintTicket, Seat, TakeSeat, TripReply, TripTransition, TripWanted
from lane_scenes import until_so
from lane_worlds import FakeWorld
from test_lane_sagas import post, rows

from streams.cli import saga as commands
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

    async def stand() -> bool:
        return {key: row.status for key, row in (await rows(fake)).items()} == expected

    await until_so(fake, stand)


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


REFUSED, NOTHING, UNFINISHED = 1, 3, 4
WHY = ("--why", "paper is in", "--who", "ann")


@pytest.fixture
async def stands(fake: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[CommandLine, Any]]:
    """An operator at the pages of a worker, and what the sagas there need."""
    monkeypatch.setattr(commands, "PAUSE", 0.01)
    work, lane = await stuck(fake)
    async with command_line(fake, Pages(fake, lane.lane), "saga") as operator:
        yield operator, work


@pytest.fixture
def operator(stands: tuple[CommandLine, Any]) -> CommandLine:
    return stands[0]


@pytest.fixture
def work(stands: tuple[CommandLine, Any]) -> Any:
    return stands[1]


async def test_sagas_are_listed_and_shown_with_their_timeline(fake: FakeWorld, operator: CommandLine) -> None:
    found = await operator.lines("list")
    told = {saga["id"]: saga["status"] for saga in found}
    assert told == {**{f"trip:{key}": "failed" for key in "abcd"}, "trip:e": "started"}
    advised = (await operator.run("show", "trip:a")).stdout
    for operation in ("retry", "done", "skip"):
        assert f"`steadfaust saga {operation} trip:a ticket --why ...`" in advised
    assert "look for a dead letter of tickets.commands.print" in advised
    failed = await operator.run("list", "--status", "failed", "--limit", "2")
    assert failed.stdout.count("waits for an operator: ticket") == 2
    assert (await operator.run("list", "--older-than", "1h")).exit_code == NOTHING
    assert (await operator.run("list", "--stalled")).exit_code == NOTHING
    fake.clock.set(fake.clock.now() + 3600)
    assert len(await operator.lines("list", "--older-than", "60m")) == 5
    assert [s["id"] for s in await operator.lines("list", "--stalled", "--status", "started")] == ["trip:e"]
    shown = (await operator.run("show", "trip:a")).stdout
    for expected in (
        "trip:a  orchestrated  failed stalled",
        "step   ticket",
        "error: PermanentError: no paper",
        "ticket in_progress -> failed",
        "started -> failed",
    ):
        assert expected in shown
    (plain,) = await operator.lines("show", "trip:a")
    assert [step["status"] for step in plain["steps"]] == ["completed", "failed"]


@pytest.mark.promise("saga-operations", "at the command line")
async def test_a_failed_saga_is_retried_to_its_end(
    fake: FakeWorld, operator: CommandLine, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    retried = await operator.run("retry", "trip:a", *WHY)
    assert retried.exit_code == 0, retried.output
    assert "failed -> started: ticket retried: paper is in (ann)" in retried.stdout
    asked = await operator.run("retry", "trip:b", "--no-wait", *WHY)
    assert (asked.exit_code, "steadfaust saga show trip:b" in asked.stdout) == (0, True)
    statuses = {**dict.fromkeys("cd", "failed"), **dict.fromkeys("ab", "completed"), "e": "started"}
    await until_they_stand(fake, statuses)
    assert work.printer.printed == {"trip:a:ticket": 1, "trip:b:ticket": 1}
    monkeypatch.setattr(Pages, "operate", _to_nobody)
    lost = await operator.run("retry", "trip:c", "--timeout", "0.1", *WHY)
    assert (lost.exit_code, "steadfaust saga show trip:c" in lost.stdout) == (UNFINISHED, True)


async def test_steps_are_skipped_and_done_and_sagas_called_off(
    fake: FakeWorld, operator: CommandLine, work: Any
) -> None:
    (skipped,) = await operator.lines("skip", "trip:a", "ticket", *WHY)
    found = (skipped["settled"]["detail"], skipped["saga"]["status"])
    assert found == ("ticket skipped: paper is in (ann)", "completed")
    assert (await operator.run("done", "trip:b", *WHY)).exit_code == 0
    assert (await operator.run("cancel", "trip:e", *WHY)).exit_code == 0
    statuses = {**dict.fromkeys("cd", "failed"), **dict.fromkeys("ab", "completed"), "e": "compensated"}
    await until_they_stand(fake, statuses)
    assert not work.printer.printed


#: Commands that are refused, each with a part of the error.
WRONG = {
    ("retry", "trip:e", *WHY): "trip:e is started: it waits for no operator",
    ("retry", "trip:z", *WHY): "there is no saga trip:z",
    ("retry", "tirp:a", *WHY): "there are trip:...",
    ("show", "trip:z"): "there is no saga trip:z",
    ("cancel", "trip:e", "--why", " "): "who asks, and why",
    ("list", "--status", "faild"): "use started, completing",
}


async def test_what_is_refused_says_so_and_changes_nothing(fake: FakeWorld, operator: CommandLine) -> None:
    for words, says in WRONG.items():
        result = await operator.run(*words)
        assert result.exit_code == 1
        assert says in str(result.exception)
    assert await fake.records(TripRepair.TOPIC) == []
    result = await operator.run("cancel", "trip:a", *WHY)
    assert result.exit_code == REFUSED
    assert "cancel refused: trip:a cannot go back: ticket may have been done" in result.stdout
    result = await operator.run("skip", "trip:a", "seat", *WHY)
    assert result.exit_code == REFUSED
    assert "trip:a does not wait for step seat, but for ticket" in result.stdout
    (shown,) = await operator.lines("show", "trip:a")
    assert shown["saga"]["status"] == "failed"
    assert (await operator.run("list", "--older-than", "soon")).exit_code == 2
    assert (await operator.run("retry", "trip:a")).exit_code == 2, "a reason is needed"


async def _to_nobody(self: Any, posts: Any) -> None:
    """Operations that take their time."""
