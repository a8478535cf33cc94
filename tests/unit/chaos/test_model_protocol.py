"""The protocol holds in every state that it can reach; without any one of its rules it does not."""

import json
import re

import pytest

from chaos.model.__main__ import main
from chaos.model.controls import CONTROLS, BrokenSpec
from chaos.model.explorer import DEAD_END, explore
from chaos.model.protocol import ProtocolModel, State
from chaos.model.rules import RULES
from chaos.model.spec import Spec

pytestmark = [
    pytest.mark.slow("fifteen seconds of states"),
    pytest.mark.promise("protocol-model"),
]


COVERED_BY = "nine seconds; two copies in one transaction, and overtaking, cover it"


@pytest.mark.parametrize(
    ("spec", "least"),
    [
        pytest.param(
            Spec(messages=(1, 2, 1)),
            500_000,
            id="three messages, one sent twice",
            marks=pytest.mark.verify(COVERED_BY),
        ),
        pytest.param(Spec(messages=(1, 1), max_batch=2), 50_000, id="both copies in one transaction"),
        pytest.param(Spec(messages=(1,), inbox=False), 20_000, id="a topic without inbox"),
        pytest.param(
            Spec(messages=(1, 2), inbox=False, overtakes=True), 300_000, id="one message before another"
        ),
    ],
)
def test_the_protocol_holds_in_every_state(spec: Spec, least: int) -> None:
    space = explore(ProtocolModel(spec))
    assert {rule: trace.steps for rule, trace in space.broken.items()} == {}
    assert space.complete
    assert space.states > least
    assert space.goals > 0


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_without_one_of_its_rules_it_fails(control: BrokenSpec) -> None:
    space = explore(ProtocolModel(control.spec), until=control.breaks)
    assert control.breaks in space.broken
    assert space.broken[control.breaks].steps


def kinds(space_of: Spec) -> set[str]:
    """Every kind of step that is taken anywhere, without its numbers and names."""
    protocol = ProtocolModel(space_of)
    seen, todo, found = {protocol.initial()}, [protocol.initial()], set()
    while todo:
        for step in protocol.steps(todo.pop()):
            found.add(re.sub(r"\d+", "n", re.sub(r"\b[AB]\b", "X", step.label)))
            if step.state not in seen:
                seen.add(step.state)
                todo.append(step.state)
    return found


def test_all_that_can_go_wrong_does_somewhere() -> None:
    # A rule that holds because nothing ever happens would hold for nothing.
    found = kinds(Spec(messages=(1,)))
    for expected in (
        "the group gives the lane to X",
        "the transaction times out: its producer is fenced",
        "an InitProducerId of an attempt given up arrives late: it fences",
        "the commit marker of the offsets is written",
        "abort markers are written",
        "X learns that it has lost the lane",
        "X gives up the commit in flight and closes the lane",
        "X is killed",
        "X is killed and loses its disk",
        "X loses power, and with it the last write of the row",
        "X has an error or no answer: discards its producer, is to open again",
        "X sends: is fenced, is to open again",
        "X commits: is fenced, is to open again",
        "X begins and sends: is fenced, is to open again",
        "X initialises its id: the transaction left open is to be aborted",
        "X recovers, copies a record of rows",
        "X passes over what was aborted: there is no more",
        "X follows as a standby, copies a record of inbox and position",
        "X reads position n; the changelog says n: is to open again",
    ):
        assert expected in found
    assert not any("PositionLost" in label for label in found)


def test_a_counter_example_is_a_way_that_can_be_gone() -> None:
    control = next(c for c in CONTROLS if c.name == "reuse-after-doubt")
    protocol = ProtocolModel(control.spec)
    trace = explore(protocol, until=control.breaks).broken[control.breaks]
    fronts: set[State] = {protocol.initial()}
    for label in trace.steps:
        fronts = {step.state for state in fronts for step in protocol.steps(state) if step.label == label}
    assert trace.state in fronts
    kafka = protocol._kafkas.values[trace.state[0]]
    assert [entry.ids for entry in kafka.decided(kafka.outputs)] == [(1,), (1,)]


def test_the_command_prints_the_space(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--messages", "1", "--max-batch", "1", "--control", "none"]) == 0
    printed = capsys.readouterr().out
    assert "complete" in printed
    assert "BROKEN" not in printed
    assert printed.count("holds") == 4 * len((*RULES, DEAD_END))


def test_the_command_prints_the_steps_of_a_control(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--control", "store-before-commit"]) == 0
    printed = capsys.readouterr().out
    assert "breaks: RocksDB equals the committed changelog at its position" in printed
    assert " 1. A learns that the lane is its own\n" in printed
    assert printed.rstrip().endswith("A writes RocksDB, then has all answers, sends EndTxn")


def test_the_command_tells_of_a_single_control_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--control", "offsets-outside", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["offsets-outside"]
    assert report["offsets-outside"]["broken"][report["offsets-outside"]["breaks"]]


def test_the_command_fails_when_it_has_not_seen_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--messages", "1", "--limit", "2000", "--control", "none"]) == 1
    assert "NOT COMPLETE" in capsys.readouterr().out
