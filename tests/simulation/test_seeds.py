"""Runs of several workers that one seed decides: the invariants hold, and each lost protection is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.controls import CONTROLS
from tests.waiting import BOUND

ROOT = Path(__file__).parents[2]


def simulate(*asked: str, bound: float = BOUND) -> tuple[int, str]:
    """The command's exit status and what it prints; a process of its own has an order of sets of its own."""
    command = [sys.executable, "-m", "tests.simulation", *asked]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=bound, check=False
    )
    assert ran.returncode in (0, 1), ran.stderr
    return ran.returncode, ran.stdout


@pytest.mark.promise(
    "protocol-model", "real hosts, lanes and standbys of several workers over the fake broker"
)
@pytest.mark.promise(
    "latest-assignment", "a group whose members hear late, miss what was decided, and decide again and again"
)
@pytest.mark.promise(
    "key-order",
    "failures, deadlines, crashes and fences; sync handlers, async ones that take their time, "
    "and finer ordering keys",
)
@pytest.mark.promise("dead-letters", "operators at any time among failures, crashes and fences")
@pytest.mark.promise(
    "pauses", "any operations at any time among failures, crashes, fences, replays and discards"
)
@pytest.mark.promise(
    "replayed-payloads", "operators at any time among failing requests, damaged objects, crashes and fences"
)
@pytest.mark.promise(
    "payloads",
    "random sizes, failing and slow requests, failing handlers, crashes and fences; sync "
    "handlers, async ones, and finer ordering keys",
)
@pytest.mark.promise(
    "truncated-logs", "a topic and a table's changelog that lose their newest records while lanes work"
)
@pytest.mark.promise("unknown-schema", "schemas announced at any time among failures, crashes and fences")
@pytest.mark.promise("clock-ahead")
@pytest.mark.promise("random-faults")
@pytest.mark.promise("saga-end", "transfers")
@pytest.mark.promise("saga-crashes", "transfers, with money, on several workers that are killed")
@pytest.mark.promise("saga-operations", "transfers")
@pytest.mark.promise("saga-cancellation", "transfers")
@pytest.mark.parametrize("first", range(0, 200, 100))
def test_whatever_happens_every_invariant_holds(first: int) -> None:
    status, said = simulate("--seeds", f"{first}:{first + 100}")
    assert status == 0, said


#: Seeds that have found something, with ten looks a second at what is due, each with what that was.
FOUND = {
    3225: "a note had an old stamp in a topic that brokers stamp, and retention took it",
    3418: "the lane changelog was made again, and with it went the position of a former version",
    3867: "a transfer above the limit was refused, which the judge took for a disturbance",
    3883: "an operator fenced an idle lane, whose store was behind what the operator wrote",
    3900: "all was taken as settled while a worker still ended a lane that another one had",
    4527: "a dead letter took the place of one of the former topic, at the same offset",
    4585: "the lane changelog was made again while its rows were read",
    7945: "as 3418, with a deploy and a full disk",
    9385: "a topic was made again, and the next version did not read it",
    1901: "no broker answered, which only a real worker's page says",
    6072: "a lane moved to another worker, whose watchdog began anew",
    7547: "a lane changelog was made again, and with it went the head of a queue",
    15110: "a clock set forward ended the pause of a partition, and a message was given up",
    16054: "a lane opened again and again, and its page did not show it",
    16334: "a clock set back, and the page no longer named an open transaction",
    204260: "a dead letter that others wait behind was gone with its changelog",
    207861: "a handler had another name, and the log was cut before it was read",
    211083: "an expired message was given up before its turn among those of its ordering key",
    1284: "a message expired while others of its key ran, and was tried all the same",
    5029: "a message expired while its payload was fetched, and was tried all the same",
    5123: "a handler was paused between its gate's answer and an attempt that takes time",
    887: "a stray reply and an expired command named the same saga, and the judge counted one",
    235508: "a worker that was refused was to start again by a task of its own, and ended that, too",
    21517: "a position passed what was handled ahead of it, before the lane had taken that, and it was again",
    53582: "a topic took next to nothing twice at once, and the run left it so",
    1405: "the line was so thin that a lane's first positions took longer than a transaction may",
    1782: "as 1405, with one message in a transaction from the beginning",
    549: "one lane's disk failed, and with it the page of its worker",
    3494: "two starts of a saga had one id, and the judge took the one that came second for the first",
    8597: "the answer to an operator who went on with a log was lost, and the judge counted no answer",
    1149: "a lane committed elsewhere while a partition stood for 40 s, as each request took 9 s",
    4943: "a message came after three handlers of 15 s each, in a lane that committed meanwhile",
    8551: "a commit under way left a position in a topic that was deleted and made again twice",
}


def test_seeds_that_have_found_something_hold() -> None:
    status, said = simulate("--tick", "0.1", "--seeds", ",".join(map(str, FOUND)))
    assert status == 0, said


#: Controls that are found within some tens of seeds.
QUICK = (
    "no-inbox",
    "no-fencing",
    "store-before-commit",
    "unmarked-loop",
    "offsets-outside",
    "reuse-after-doubt",
    "unawaited-sends",
    "retry-overtaken",
    "hole-2-refusals",
    "held-store",
    "unchecked-cuts",
)


@pytest.mark.promise("protocol-model")
def test_lost_protections_are_found_soon() -> None:
    status, said = simulate("--controls", *QUICK, "--seeds", "0:100")
    assert status == 0, said


@pytest.mark.promise("protocol-model")
@pytest.mark.verify("test_lost_protections_are_found_soon has those that are found soon")
@pytest.mark.timeout(1800)
def test_each_lost_protection_is_found() -> None:
    others = [name for name in CONTROLS if name and name not in QUICK]
    status, said = simulate("--controls", *others, "--seeds", "0:2000", bound=1800)
    assert status == 0, said


@pytest.mark.verify("thousands of seeds: two hundred do not meet every state")
@pytest.mark.timeout(1800)
def test_faults_meet_lanes_in_each_state() -> None:
    status, said = simulate("--coverage", "--seeds", "0:2000", bound=1800)
    assert status == 0, said


def test_runs_of_each_subject_are_the_same_each_time() -> None:
    first, second = (simulate("--seeds", "0:20,41,159", "--digests")[1].splitlines()[:-1] for _ in range(2))
    assert first == second
    assert len(set(first)) == 22


def test_a_failing_run_is_made_smaller() -> None:
    _, found = simulate("--control", "unmarked-loop", "--seeds", "0:200", "--until-found")
    seed = found.partition(":")[0]
    status, said = simulate("--control", "unmarked-loop", "--seed", seed, "--shrink")
    assert status == 1
    assert said.count(" step what=") == 1, said
