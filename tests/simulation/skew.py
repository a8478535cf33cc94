"""More of what is rare by chance: faults in pairs, hot keys, old stamps, messages that take long.

Each has numbers of its own, so that the rest of a seed's plan does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from streams.testing.simulation import troubles
from streams.testing.simulation.faults import kinds_of
from streams.testing.simulation.plan import PlanStep
from streams.units import DAY

KEYS = "abcdef"
#: Steps that are no faults.
NO_FAULTS = frozenset(
    (
        "write",
        "forge",
        "backfill",
        "transfer",
        "stray",
        "entry",
        "expired",
        "repair",
        "heal",
        "operate",
        "parcel",
        "sweep",
        "begin",
        "hold",
        "intrude",
        "thin",
        "look",
    )
)
#: What people do to topics.
TOPICS = frozenset(("recreate", "remake", "delete", "grow", "cut"))


def skewed(
    seed: int, machines: int, steps: Sequence[PlanStep], options: dict[str, Any], *, letters_hold: bool
) -> list[PlanStep]:
    """The steps of a plan, with more of these. `options` are those of its lanes.

    Args:
        letters_hold: a dead letter holds what comes after it. A hot key would then fill its queue for as long
            as nobody replays the letter, which is no fault of the lane.
    """
    found = list(steps)
    kinds = {step.kind for step in steps}
    if "write" in kinds and not kinds & TOPICS:
        hot = [] if letters_hold or "deploy" in kinds else _hot(Random(f"{seed} hot"))
        if hot:
            options |= {"max_waiting": 60, "max_backlog": 20}
        found = [*_slow(Random(f"{seed} slow"), found), *hot, *_backfill(Random(f"{seed} backfill"))]
        found = _numbers(Random(f"{seed} numbers"), found)
        found += _limit(Random(f"{seed} limit"))
        if not letters_hold:
            found += _misread(Random(f"{seed} misread"), found)
    if "parcel" in kinds:
        found += _spoiled(Random(f"{seed} spoiled"), found)
    found = _together(Random(f"{seed} together"), [*found, *_pair(Random(f"{seed} pairs"), machines)])
    return [
        *found, *_strangers(Random(f"{seed} strangers")), *_overtaken(Random(f"{seed} overtaken"), machines),
        *_unfit(Random(f"{seed} unfit"), machines),
    ]  # fmt: skip


def _slow(rng: Random, steps: list[PlanStep]) -> list[PlanStep]:
    """In one run of three some messages take long where their handler is async: others pass them by."""
    if rng.random() > 0.3:
        return steps
    long = {step.what[1] for step in steps if step.kind == "write" and rng.random() < 0.15}
    seconds = rng.choice((1.0, 6.0))

    def slowly(step: PlanStep) -> PlanStep:
        key, letter, more, *rest = step.what
        return replace(step, what=(key, letter, {**more, "slow": seconds}, *rest))

    return [slowly(step) if step.kind == "write" and step.what[1] in long else step for step in steps]


def _numbers(rng: Random, steps: list[PlanStep]) -> list[PlanStep]:
    """In one run of ten a message has a number that JSON has not."""
    if rng.random() > 0.1:
        return steps
    number, letter = (
        rng.choice(("nan", "inf", "-inf")),
        rng.choice([s for s in steps if s.kind == "write"]).what[1],
    )

    def with_number(step: PlanStep) -> PlanStep:
        key, _, more, *rest = step.what
        return replace(step, what=(key, letter, {**more, "number": number}, *rest))

    return [with_number(step) if step.kind == "write" and step.what[1] == letter else step for step in steps]


def _hot(rng: Random) -> list[PlanStep]:
    """In one run of eight many messages of one key come at once. The first of them fails for a while."""
    if rng.random() > 0.12:
        return []
    key, at = rng.choice(KEYS), rng.uniform(0, 30)
    trouble = rng.choice(({"fails": 3}, {"fails": 3}, {"poison": "for ever"}, {}))
    return [
        PlanStep(at + number * 0.02, "write", (key, f"hot{number}", {} if number else trouble, False))
        for number in range(90)
    ]


def _backfill(rng: Random) -> list[PlanStep]:
    """In one run of ten messages have old stamps: of a client that stamps in seconds, or of another log."""
    if rng.random() > 0.1:
        return []
    age = rng.choice((30 * DAY, 1.7e9))
    return [
        PlanStep(rng.uniform(0, 40), "backfill", (rng.choice(KEYS), f"old{number}", age))
        for number in range(3)
    ]


def _limit(rng: Random) -> list[PlanStep]:
    """In one run of thirty a topic takes next to nothing from some time on, and nobody raises that again."""
    if rng.random() > 0.03:
        return []
    return [
        PlanStep(
            rng.uniform(0.5, 30), "limit", (rng.choice(("letters.counted.v1", "letters.passed.v1")), 1e6)
        )
    ]


def _misread(rng: Random, steps: list[PlanStep]) -> list[PlanStep]:
    """In one run of ten the rows that one message has changed cannot be read for a while."""
    if rng.random() > 0.1:
        return []
    written = rng.choice([step for step in steps if step.kind == "write"])
    seconds = rng.choice((1.0, 20.0))
    return [PlanStep(written.at + rng.choice((0.1, 5.0)), "misread", (written.what[1], seconds))]


def _spoiled(rng: Random, steps: Sequence[PlanStep]) -> list[PlanStep]:
    """In one run of two a payload is another one for a while, as its reference is written."""
    large = [step for step in steps if step.kind == "parcel" and step.what[2] > 300]
    if rng.random() > 0.5 or not large:
        return []
    parcel = rng.choice(large)
    return [PlanStep(parcel.at - 0.001, "spoil", (parcel.what[1], 30.0))]


def _strangers(rng: Random) -> list[PlanStep]:
    """In one run of thirty a worker of another application joins, under the same name."""
    return [PlanStep(rng.uniform(0.5, 40), "foreigner", ())] if rng.random() < 0.03 else []


def _overtaken(rng: Random, machines: int) -> list[PlanStep]:
    """In one run of twenty a lane waits as it opens, and its former owner goes on."""
    if rng.random() > 0.05 or machines == 1:
        return []
    at, number = rng.uniform(0.5, 20), rng.randrange(machines)
    return [PlanStep(at, "deaf_then_opening", (number, "committed", rng.choice((4.0, 8.0))))]


def _unfit(rng: Random, machines: int) -> list[PlanStep]:
    """In one run of thirty a disk or a clock is wrong for so long that others have to go on."""
    if rng.random() > 0.03 or machines == 1:
        return []
    at, number = rng.uniform(0.5, 20), rng.randrange(machines)
    kind = rng.choice(("disk_full_long", "clock_wrong"))
    return [
        PlanStep(at, kind, (number, 200.0)),
        *[PlanStep(at + after, "look", ()) for after in (110.0, 120.0, 130.0, 140.0, 150.0)],
    ]


def _pair(rng: Random, machines: int) -> list[PlanStep]:
    """In one run of five a fault that strikes while another one is under way."""
    if rng.random() > 0.2:
        return []
    kinds = troubles.pairs(rng, machines)
    kind = rng.choice(list(kinds))
    return [PlanStep(rng.uniform(0.5, 30), kind, kinds[kind]())]


def _together(rng: Random, steps: list[PlanStep]) -> list[PlanStep]:
    """In half of all runs faults come just after another fault, or as a message comes: lanes are at work."""
    movable = {*kinds_of(rng, 1), *troubles.kinds(rng, 1)}
    faults = [step for step in steps if step.kind in movable]
    if rng.random() > 0.5 or not faults:
        return steps
    times = [step.at for step in steps if step.at < 45]
    after = (0.0, 0.001, 0.003, 0.02, 0.3, 1.2, 11.5, 13.0)
    moved = {id(step): rng.choice(times) + rng.choice(after) for step in faults if rng.random() < 0.8}
    return [replace(step, at=moved.get(id(step), step.at)) for step in steps]
