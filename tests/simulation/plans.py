"""What happens in a simulated run, as data: made from a seed, printed, and made smaller when it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from streams.testing.simulation import deploys, topics, troubles
from streams.testing.simulation.faults import kinds_of
from streams.testing.simulation.plan import Plan, PlanStep
from tests.simulation import chains, desk, errands, lost_ends, oddities, pages, parcels, sagas_part
from tests.simulation.letters import BREAKER, RETRY, Counted, Passed, Rang, Written
from tests.simulation.letters_part import Shape
from tests.simulation.skew import skewed

KEYS = "abcdef"
TOPICS = (
    "letters.counted.v1",
    "letters.passed.v1",
    "letters.rang.v1",
    "sim-counts-changelog",
)
#: Topics that may be deleted.
REMADE = (
    *(Written.TOPIC,) * 4, *(Counted.TOPIC,) * 2, Passed.TOPIC, Rang.TOPIC,
    "sim-counts-changelog", "sim-lane-changelog", "sim-inbox-changelog", "sim-dead_letters-changelog",
)  # fmt: skip
#: What other versions of the letters have otherwise.
VERSIONS = (
    (("settled", True),), (("settled", False),), (("audited", "sync"),), (("audited", "async"),),
    (("audited", ""),), (("passed", True),), (("passed", False),), (("timed", True),), (("timed", False),),
    (("wide", True),), (("loopback", False),), (("loopback", True), ("settled", True)), (("max_batch", 2),),
    (("settled", True), ("passed", True), ("audited", "sync"), ("wide", True)),
)  # fmt: skip
#: Those of all runs.
OPTIONS = {
    "max_backlog": 200,
    "max_message_bytes": 100_000,
    "fenced_pause": 1.0,
    "edit_dead_letters": True,
    "retry": RETRY,
    "breaker": BREAKER,
}


def plan_of(seed: int) -> Plan:
    """The run of a seed."""
    rng = Random(seed)
    partitions = rng.choice((1, 2, 3, 4))
    machines = rng.choice((1, 2, 2, 3))
    options = {
        **OPTIONS,
        "max_batch": rng.choice((1, 3, 50)),
        "max_ahead": rng.choice((0, 5, 10_000)),
        "loopback": rng.random() < 0.8,
        "linger": rng.choice((0.0, 0.0, 0.05)),
    }
    shapes: list[Any] = []
    steps = [*_faults(rng, machines), *_more(seed, machines)]
    mixed = Random(f"{seed} subjects")
    subjects = [*mixed.choice(MIXES), *[name for name in BESIDE if mixed.random() < 0.2]]
    if "errands" in subjects:  # they have operators of their own
        subjects = ["errands"]
    if chains.is_thin(seed):
        subjects = []
    flood = Random(f"{seed} flood")
    if subjects == ["letters"]:  # of other subjects nothing is said yet where a topic is gone
        steps += _topics(seed) + _deploys(seed) + _remade(seed) + _renamed(seed)
    for subject in subjects:
        shape, some = SUBJECTS[subject](rng)
        shapes.append(shape)
        steps += some
    if subjects[:1] == ["letters"] and flood.random() < 0.3:
        options["max_in_flight"] = flood.choice((2, 4, 8))
        steps += _flood(flood)
    if subjects == ["errands"]:
        shapes = [errands.stored(seed, shapes[0])]
    if subjects[:1] == ["sagas"]:
        steps += sagas_part.deploys(seed, shapes[0].has)
    if "errands" not in subjects and not {each.kind for each in steps} & NO_CHAINS:
        shape, some = chains.plan(seed)
        shapes += shape
        steps += some
    letters_hold = any(getattr(shape, "holds", False) for shape in shapes)
    steps += _cuts(seed, partitions, machines)
    steps = skewed(seed, machines, steps, options, letters_hold=letters_hold)
    steps += pages.looks(seed, max((step.at for step in steps), default=1.0))
    shapes.append(pages.Pages())
    alone = "errands" in subjects or chains.is_thin(seed)
    if not alone and not {each.kind for each in steps} & NO_CHAINS:
        shape, some = lost_ends.plan(seed)
        shapes += shape
        steps += some
    return Plan(
        seed,
        partitions,
        rng.randint(1, partitions),
        machines,
        rng.choice((0, 1, 1)),
        tuple(shapes),
        options,
        tuple(sorted(steps, key=lambda step: step.at)),
    )


def _letters(rng: Random) -> tuple[Shape, list[PlanStep]]:
    shape = Shape(
        settled=rng.random() < 0.6,
        audited=rng.choice(("", "sync", "async")),
        passed=rng.random() < 0.5,
        timed=rng.random() < 0.3,
        ordered=rng.random() < 0.3,
        holds=rng.random() < 0.2,
    )
    steps: list[PlanStep] = []
    keys = KEYS[: rng.choice((1, 3, 6))]
    troubled = rng.random() < 0.6
    for number in range(rng.choice((4, 10, 25))):
        more: dict[str, Any] = {}
        if troubled and rng.random() < 0.2:
            more["fails"] = rng.choice((1, 2, 3))
        elif troubled and rng.random() < 0.1:
            more["poison"] = rng.choice(("curable", "for ever"))
        if rng.random() < 0.3:
            more["to"] = rng.choice(KEYS)
        if rng.random() < 0.2:
            more["rings"] = rng.choice((0.0, 0.5, 20.0))
        at = rng.uniform(0, 40)
        steps.append(PlanStep(at, "write", (rng.choice(keys), f"m{number}", more, rng.random() < 0.1)))
        if rng.random() < 0.15:
            steps.append(replace(steps[-1], at=at + rng.choice((0.0, 0.3, 30.0))))
    if rng.random() < 0.1:
        forged = rng.choice(KEYS), f"forged{rng.randrange(1000)}"
        steps.append(PlanStep(rng.uniform(0.5, 45), "forge", forged))
    return shape, steps


def _flood(rng: Random) -> list[PlanStep]:
    """More letters at once, of more keys, than a lane has places for in the background."""
    steps, began = [], rng.uniform(0, 40)
    for number in range(rng.choice((10, 30))):
        more = {"slow": rng.choice((0.05, 0.3, 1.5)), "fails": rng.choice((0, 0, 0, 1))}
        at = began + rng.choice((0.0, 0.0, 0.2, 0.5))
        steps.append(PlanStep(at, "write", (f"flood{number}", f"of{number}", more, False)))
    return steps


SUBJECTS: Mapping[str, Callable[[Random], tuple[Any, list[PlanStep]]]] = {
    "letters": _letters,
    "sagas": sagas_part.plan,
    "parcels": parcels.plan,
    "desk": desk.plan,
    "oddities": oddities.plan,
    "errands": errands.plan,
}
#: Steps of runs in which nothing is said yet of chains.
NO_CHAINS = frozenset(("recreate", "remake", "delete", "grow", "cut", "deploy", "roll_back"))
#: What may come beside.
BESIDE = ("desk", "oddities")
#: Most runs are about one subject, so that they stay short.
MIXES = (
    *[("letters",)] * 5, *[("sagas",)] * 3, *[("parcels",)] * 2, *[("errands",)] * 3, ("letters", "sagas")
)  # fmt: skip


def _faults(rng: Random, machines: int) -> list[PlanStep]:
    steps: list[PlanStep] = []

    kinds = {
        **kinds_of(rng, machines),
        "limit": lambda: (rng.choice(TOPICS), rng.choice((0.5, 20.0, 90.0))),
    }  # fmt: skip
    for _ in range(rng.choice((0, 1, 3, 6))):
        kind = rng.choice(list(kinds))
        steps.append(PlanStep(rng.uniform(0.5, 45), kind, kinds[kind]()))
    if rng.random() < 0.7:
        steps.append(PlanStep(rng.choice((20, 60)), "heal", ()))
    for _ in range(rng.choice((0, 0, 1, 3))):
        kind = rng.choice(("replay", "replay", "replay", "discard", "restore"))
        steps.append(
            PlanStep(rng.choice((15.0, 30.0, 61.0, 61.0, 70.0)), "operate", (kind, rng.random() < 0.3))
        )
    return steps


def _more(seed: int, machines: int) -> list[PlanStep]:
    """Rarer faults, by numbers of their own."""
    rng = Random(f"{seed} troubles")
    return _some(rng, rng.choice((0, 0, 1, 2)), troubles.kinds(rng, machines))


def _topics(seed: int) -> list[PlanStep]:
    rng = Random(f"{seed} topics")
    return _some(rng, rng.choice((0, 0, 0, 1, 2)), topics.kinds(rng, REMADE, Written.TOPIC))


def _remade(seed: int) -> list[PlanStep]:
    """In one run of thirty a topic is made again, and has more records than before when a lane looks."""
    rng = Random(f"{seed} remade")
    if rng.random() > 0.03:
        return []
    return [PlanStep(rng.uniform(10, 40), "remake", (rng.choice((20, 60)), rng.choice((2.0, 20.0))))]


def _deploys(seed: int) -> list[PlanStep]:
    rng = Random(f"{seed} deploys")
    return _some(rng, rng.choice((0, 0, 0, 1, 3)), deploys.kinds(rng, VERSIONS))


def _renamed(seed: int) -> list[PlanStep]:
    """In one run of thirty a handler gets another name while messages may wait for it. It may go back."""
    rng = Random(f"{seed} renamed")
    if rng.random() > 0.03:
        return []
    version = (("audited", rng.choice(("sync", "async"))),)
    at, how = rng.uniform(8, 30), (rng.choice(deploys.HOW), rng.choice((0.5, 4.0)))
    steps = [
        PlanStep(rng.uniform(0.5, 5), "deploy", (version, *how)),
        PlanStep(at, "deploy", ((*version, ("auditor", "check")), *how)),
    ]
    return [*steps, PlanStep(at + 9.0, "roll_back", how)] if rng.random() < 0.6 else steps


def _cuts(seed: int, partitions: int, machines: int) -> list[PlanStep]:
    """In one run of ten the number of lanes changes, perhaps twice."""
    rng = Random(f"{seed} lanes")
    if rng.random() > 0.1 or partitions == 1:
        return []
    times = [rng.uniform(0.5, 40) for _ in range(rng.choice((1, 2)))]
    return [PlanStep(at, "lanes", deploys.cuts(rng, partitions, machines)) for at in times]


def _some(rng: Random, number: int, kinds: Mapping[str, Callable[[], tuple[Any, ...]]]) -> list[PlanStep]:
    steps = []
    for _ in range(number):
        kind = rng.choice(list(kinds))
        steps.append(PlanStep(rng.uniform(0.5, 40), kind, kinds[kind]()))
    return steps
