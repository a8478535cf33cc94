"""Whatever requests fail, whatever objects are damaged, lanes crash and operators do meanwhile: each parcel
has been handled once in the end, byte for byte.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule
from lane_desk import letters_by_id, operation
from test_lane_claim_properties import FinerParcelLanes
from test_lane_desk_properties import ANY, Operators

from streams.claims.claim import PREFIX
from streams.model.operations import LetterCommand
from tests.effort import examples


class OperatedParcelLanes(Operators, FinerParcelLanes):
    """The model is a list of texts for each key; which of them come later than others is the operators'."""

    def __init__(self) -> None:
        super().__init__()
        self.to_fail = 60
        self.originals: dict[str, bytes] = {}

    @rule(number=ANY)
    def damage(self, number: int) -> None:
        """What needs this payload becomes a dead letter at once."""
        names = [name for name in self.blobs.names if name.startswith(f"{PREFIX}{self.work.source}/")]
        if not names:
            return
        name = names[number % len(names)]
        slow, failures = self.blobs.slow, self.blobs.failures
        self.blobs.slow = self.blobs.failures = 0
        self.originals.setdefault(name, self.run(self.blobs.get(name)))
        self.blobs.slow, self.blobs.failures = slow, failures
        self.blobs.alter(name, b"?")

    @rule()
    def mend(self) -> None:
        for name, data in self.originals.items():
            self.blobs.alter(name, data)
        self.originals.clear()

    async def until_done(self) -> None:
        world = self.world
        self.mend()
        self.blobs.failures = 0
        await super().until_done()
        while left := await letters_by_id(world):
            for ident in left:
                for kind in (LetterCommand.RESTORE, LetterCommand.REPLAY):
                    command = operation(world, kind, ident, operation_id=f"end-{next(self.ids)}", force=True)
                    await world.post(command)
            await world.settled(world.app.layout.operations)
            await super().until_done()

    async def check(self) -> None:
        parcels = self.parcels
        out = await parcels.passed_on()
        for key, texts in parcels.sent.items():
            found = [each for each in out if each["k"] == key]
            assert [each["n"] for each in found] == list(range(1, len(texts) + 1)), key
            assert sorted(each["text"] for each in found) == sorted(texts), key
            assert (await parcels.row("read", key))["n"] == len(texts), key
        await parcels.check_references()
        assert parcels.checks.held.held == parcels.checks.in_flight.held == 0


OperatedParcelLanes.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestOperatedParcelLanes = OperatedParcelLanes.TestCase
