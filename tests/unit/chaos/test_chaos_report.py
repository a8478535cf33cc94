"""A run's report says what happened, and passes only when nothing was found wrong by anybody."""

import json

import msgspec
import pytest
from good_run import good_run

from chaos.check import CheckReport as Checked
from chaos.judges.stalls import CommitGap
from chaos.report import RunReport, encode, markdown
from chaos.rig.records import Happened
from demo.findings import Finding

KILL = Happened(kind="kill_worker", target="worker-1", began=1010.0, ended=1016.5, confirmed="pid 7 ended")
NEVER = Happened(kind="remove_worker", target="worker-2", began=1030.0, ended=None, confirmed="")
RUN = msgspec.structs.replace(good_run(), seed=7, load=(1000.0, 1060.0), faults=[KILL, NEVER])
GREEN = Finding(name="every order settled exactly once", passed=True, says="100 orders")
RED = Finding(name="no dead letters", passed=False, says="3 in a topic")
STALL = CommitGap("kill_worker", alone=True, lane=2, began=1010.0, seconds=6.3, limit=10.0)


def report(*findings: Finding, problems: list[str] | None = None) -> RunReport:
    checked = Checked(all(each.passed for each in findings), list(findings), [STALL], 1.0)
    return RunReport(
        problems=problems or [], left_out=2, seconds=200.0, sent=120, again=3, run=RUN, checked=checked
    )


def test_it_passes_when_driver_and_checker_found_nothing() -> None:
    assert report(GREEN).passed
    assert "passed: seed 7" in markdown(report(GREEN))


UNCHECKED = msgspec.structs.replace(report(GREEN), checked=None)


@pytest.mark.parametrize(
    "red",
    [report(GREEN, RED), report(GREEN, problems=["worker-1 hung"]), UNCHECKED],
    ids=["checker", "driver", "nothing checked"],
)
def test_it_fails_otherwise_and_tells_how_to_repeat_it(red: RunReport) -> None:
    assert not red.passed
    assert json.loads(encode(red))["passed"] is False
    assert "FAILED: seed 7" in markdown(red)
    assert "SEED=7 repeats it" in markdown(red)


def test_the_document_has_every_fault_finding_problem_and_stall() -> None:
    text = markdown(report(GREEN, RED, problems=["worker-1 hung at the end"]))
    assert "- 10 s: `kill_worker` of worker-1, healed after 6.5 s: pid 7 ended\n" in text
    assert "- 30 s: `remove_worker` of worker-2, never healed: NOT CONFIRMED\n" in text
    assert "- **pass: every order settled exactly once.** 100 orders" in text
    assert "- **FAIL: no dead letters.** 3 in a topic" in text
    assert "- **FAIL:** worker-1 hung at the end" in text
    assert "| `kill_worker` | 2 | 6.3 | yes |" in text
    assert "2 faults of 2 kinds (2 more were planned)" in text
