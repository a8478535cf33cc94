"""When the comparison passes: ours decides, and that every fault happened."""

from __future__ import annotations

from chaos.counting.checker import Findings
from chaos.counting.contestants import CONTESTANTS
from chaos.counting.report import report
from chaos.counting.trial import Result, TrialPlan
from chaos.rig.records import Happened

OURS = "lane"
PEER = "faust_exactly_once"
RIGHT = Findings(lost=0, left=0, doubled=0, surplus=0, invented=0, wrong_rows=0)
WRONG = Findings(lost=0, left=0, doubled=1, surplus=1, invented=0, wrong_rows=0)


def result(name: str, findings: Findings | None, *, confirmed: str = "seen") -> Result:
    fault = Happened(kind="SIGKILL", target="worker 0", began=1.0, ended=2.0, confirmed=confirmed)
    return Result(name=name, findings=findings, faults=[fault])


def passes(*results: Result) -> bool:
    return report(CONTESTANTS, list(results), seed=1, plan=TrialPlan(10, 60.0, [])).passed


def test_it_passes_when_ours_is_right_whatever_the_others_do() -> None:
    assert passes(result(OURS, RIGHT), result(PEER, WRONG))
    assert passes(result(OURS, RIGHT), Result(name=PEER, error="it did not come up"))


def test_it_fails_when_ours_is_wrong_or_cannot_be_judged() -> None:
    assert not passes(result(OURS, WRONG), result(PEER, RIGHT))
    assert not passes(Result(name=OURS, error="its topics could not be read"), result(PEER, RIGHT))


def test_it_fails_when_a_fault_was_not_confirmed() -> None:
    assert not passes(result(OURS, RIGHT, confirmed=""), result(PEER, RIGHT))
    assert not passes(result(OURS, RIGHT), result(PEER, RIGHT, confirmed=""))
