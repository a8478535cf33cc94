"""Whatever operators do, and whatever crashes meanwhile: a message has been handled once, or has a row that
says why not.
"""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from lane_checker import check, counts, latest
from lane_desk import letters, letters_by_id, operation
from lane_worlds import World
from test_lane_properties import Lanes
from test_lane_retry_properties import FinerRetryingLanes, RetryingLanes

from streams.dead_letters.row import Letter, letter_id
from streams.model.layout import DEAD_LETTERS
from streams.model.operations import LetterCommand
from streams.policy.breaker import BreakerPolicy
from streams.policy.retry import RetryPolicy
from streams.staging.keys import store_key
from tests.effort import examples

#: Says which of those that there are by then: how many, a busy machine's timing may decide.
ANY = st.integers(0, 999)
KINDS = st.sampled_from(
    [
        LetterCommand.REPLAY,
        LetterCommand.REPLAY,
        LetterCommand.REPLAY,
        LetterCommand.DISCARD,
        LetterCommand.RESTORE,
    ]
)


class Operators(Lanes):
    """They replay, discard and restore at any time, twice at once, and before anything is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = count()

    @rule(number=ANY, kind=KINDS, force=st.booleans(), twice=st.booleans())
    def operate(self, number: int, kind: LetterCommand, *, force: bool, twice: bool) -> None:
        known = self.known()
        if known:
            which = known[number % len(known)]
            post = operation(self.world, kind, which, operation_id=f"op-{next(self.ids)}", force=force)
            self.run(self.world.post(*([post, post] if twice else [post])))

    def known(self) -> list[str]:
        """The letters that there are or were, seen without asking a broker that may be made to fail."""
        rows = self.world.cluster.visible(self.world.app.layout.changelog(DEAD_LETTERS))
        return sorted({letter_id(store_key(row.partition, row.key)) for row in rows})


class OperatedLanes(Operators, RetryingLanes):
    """Operators among handlers with bugs, that are mended some time."""

    @rule(number=ANY)
    def mend(self, number: int) -> None:
        if self.dead:
            self.dead.discard(sorted(self.dead)[number % len(self.dead)])

    async def until_done(self) -> None:
        world, desk = self.world, self.world.app.layout.operations
        await Lanes.until_done(self)
        await world.settled(desk)
        while any(key[:1] == b"q" for _, key in await latest(world, "lane")):
            for ident in await held_by(world):
                self.dead.clear()
                kind = LetterCommand.DISCARD if next(self.ids) % 2 else LetterCommand.REPLAY
                command = operation(world, kind, ident, operation_id=f"end-{next(self.ids)}", force=True)
                await world.post(command)
            await world.clock.advance(1.0)
            await world.settled(desk)
        await Lanes.until_done(self)

    async def check(self) -> None:
        world, work = self.world, self.work
        left = {which(letter) for letter in await letters(world)}
        await check(world, work, [post for id_, post in self.posts.items() if ("count", id_) not in left])
        wanted: dict[str, int] = {}
        for id_ in self.posts:
            if ("tally", id_) not in left:
                key = id_.partition("-")[0]
                wanted[key] = wanted.get(key, 0) + 1
        assert await counts(world, "tallies") == wanted
        assert not [key for _, key in await latest(world, "lane") if key[:1] in (b"q", b"w")]


async def held_by(world: World) -> list[str]:
    """The letters that hold others."""
    return [ident for ident, letter in (await letters_by_id(world)).items() if letter.queue]


def which(letter: Letter) -> tuple[str, str]:
    """The handler and the message's id."""
    return letter.handler.partition(".")[2], (dict(letter.headers)["ce_id"] or b"").decode()


class HoldingLanes(OperatedLanes):
    """The same where later messages wait behind a dead letter."""

    lane_options: ClassVar[dict[str, Any]] = {
        "retry": RetryPolicy(immediate=0, delays=(0.5,), hold_while_dead=True),
        "breaker": BreakerPolicy(minimum=8, window=5.0, open_for=1.0, max_open_for=4.0, probes=2),
        "max_waiting": 6,
    }


class FinerOperatedLanes(OperatedLanes, FinerRetryingLanes):
    """Async handlers that take their time, and order by less than the key."""


class FinerHoldingLanes(HoldingLanes, FinerRetryingLanes):
    """The same, where later messages wait behind a dead letter."""


for machine in (OperatedLanes, HoldingLanes, FinerOperatedLanes, FinerHoldingLanes):
    machine.TestCase.settings = settings(
        max_examples=examples(40),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
TestOperatedLanes = OperatedLanes.TestCase
TestHoldingLanes = HoldingLanes.TestCase
TestFinerOperatedLanes = FinerOperatedLanes.TestCase
TestFinerHoldingLanes = FinerHoldingLanes.TestCase
