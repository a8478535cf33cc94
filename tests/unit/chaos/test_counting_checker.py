"""The comparison's checker sees each way in which counting can go wrong, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.counting.checker import CountingEvidence, Findings, OutputGap, Produced, judge, longest_stall

case = pytest.param
RIGHT = Findings(lost=0, left=0, doubled=0, surplus=0, invented=0, wrong_rows=0)

PRODUCED = [
    Produced(id=number, key=f"k{number % 3}", partition=number % 2, offset=number) for number in range(12)
]
EVIDENCE = CountingEvidence(
    produced=PRODUCED, outputs=list(range(12)), rows={"k0": 4, "k1": 4, "k2": 4}, committed={0: 12, 1: 12}
)
#: The rows when the last event was not counted.
LEFT = {"k0": 4, "k1": 4, "k2": 3}


def but(**changes: object) -> CountingEvidence:
    return msgspec.structs.replace(EVIDENCE, **changes)


def without(number: int) -> list[int]:
    return [each for each in EVIDENCE.outputs if each != number]


def test_all_counted_once_is_right() -> None:
    assert judge(EVIDENCE) == RIGHT
    assert judge(EVIDENCE).right


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        case(but(outputs=without(5)), {"lost": 1}, id="an output is missing, its event committed"),
        case(
            but(outputs=without(11), rows=LEFT, committed={0: 12, 1: 11}),
            {"left": 1},
            id="an event was not committed, and not counted",
        ),
        case(
            but(outputs=without(11), committed={0: 12, 1: 11}),
            {"left": 1, "wrong_rows": 1},
            id="an event was not committed, but counted",
        ),
        case(
            but(outputs=without(11), rows=LEFT, committed={0: 12}),
            {"left": 1},
            id="a partition was never committed",
        ),
        case(but(outputs=[*range(12), 7]), {"doubled": 1, "surplus": 1}, id="an output came twice"),
        case(
            but(outputs=[*range(12), 7, 7, 8]), {"doubled": 2, "surplus": 3}, id="one came twice, one thrice"
        ),
        case(but(outputs=[*range(12), 99]), {"invented": 1}, id="an output of no event"),
        case(but(rows={"k0": 5, "k1": 4, "k2": 4}), {"wrong_rows": 1}, id="a row counts too many"),
        case(but(rows={"k0": 3, "k1": 3, "k2": 4}), {"wrong_rows": 2}, id="rows count too few"),
        case(but(rows={"k0": 4, "k1": 4}), {"wrong_rows": 1}, id="a row is missing"),
        case(but(rows={**EVIDENCE.rows, "k9": 1}), {"wrong_rows": 1}, id="a row of no key"),
    ],
)
def test_it_goes_red(evidence: CountingEvidence, found: dict[str, int]) -> None:
    findings = judge(evidence)
    assert findings == msgspec.structs.replace(RIGHT, **found)
    assert not findings.right


def test_an_event_produced_twice_is_left_until_its_last_commit() -> None:
    again = PRODUCED[5]._replace(offset=12)
    assert judge(but(produced=[*PRODUCED, again])) == RIGHT
    assert judge(but(produced=[*PRODUCED, again], outputs=without(5), rows=LEFT)).left == 1


def drop(evidence: CountingEvidence, number: int) -> dict[str, object]:
    return {"outputs": [each for each in evidence.outputs if each != number]}


def double(evidence: CountingEvidence, number: int) -> dict[str, object]:
    return {"outputs": [*evidence.outputs, number]}


def count_again(evidence: CountingEvidence, number: int) -> dict[str, object]:
    key = evidence.produced[number].key
    return {"rows": {**evidence.rows, key: evidence.rows[key] + 1}}


@given(
    keys=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=40),
    harms=st.lists(st.tuples(st.sampled_from([drop, double, count_again]), st.integers(0, 39)), max_size=8),
)
def test_whatever_harm_is_done_is_seen(
    keys: list[str], harms: list[tuple[Callable[[CountingEvidence, int], dict[str, object]], int]]
) -> None:
    produced = [Produced(n, key, 0, n) for n, key in enumerate(keys)]
    evidence = CountingEvidence(
        produced=produced, outputs=range(len(keys)), rows=Counter(keys), committed={0: len(keys)}
    )
    assert judge(evidence).right
    for harm, number in harms:
        evidence = msgspec.structs.replace(evidence, **harm(evidence, number % len(keys)))
    dropped_and_doubled = Counter(evidence.outputs) == Counter(range(len(keys)))
    assert judge(evidence).right == (dropped_and_doubled and evidence.rows == Counter(keys))


@pytest.mark.parametrize(
    ("arrivals", "given_up", "began", "ended", "stall"),
    [
        case(
            {0: [1.0, 2.0, 9.0, 10.0], 1: [1.0, 4.0, 5.0, 10.0]},
            (),
            0.0,
            99.0,
            OutputGap(2.0, 7.0),
            id="of one partition",
        ),
        case({0: [8.0, 9.0]}, (), 0.0, 9.0, OutputGap(0.0, 8.0), id="before the first output"),
        case({0: [1.0]}, [0], 0.0, 30.0, OutputGap(1.0, 29.0), id="until it was given up"),
        case({}, [3], 0.0, 30.0, OutputGap(0.0, 30.0), id="given up without any output"),
        case({0: [1.0], 1: [1.0, 2.0]}, [], 0.0, 30.0, OutputGap(0.0, 1.0), id="none once it has finished"),
        case({0: [1.0, 20.5, 21.0]}, (), 20.0, 30.0, OutputGap(20.0, 0.5), id="none before the load"),
    ],
)
def test_the_longest_stall(
    arrivals: dict[int, list[float]], given_up: list[int], began: float, ended: float, stall: OutputGap
) -> None:
    assert longest_stall(arrivals, given_up, began=began, ended=ended) == stall
