"""What operators' commands about a handler come to in a partition."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.model.operations import (
    HandlerCommand,
    HandlerOperation,
    HandlerPause,
    PauseState,
    decode_handler_operation,
    encode_operation,
)
from streams.operator.decisions import decide_pause, drained
from streams.operator.pauses import read_pause, set_pause

BEFORE = 1_000
NOW = 2_000


def asks(kind: HandlerCommand) -> HandlerOperation:
    return HandlerOperation(kind=kind, handler="pay.take", who="ann", why="the bank is down", at_ms=5)


def row(state: PauseState) -> HandlerPause:
    return HandlerPause(state, "bob", "earlier", BEFORE)


@dataclass(frozen=True)
class Case:
    before: PauseState | None
    kind: HandlerCommand
    after: PauseState | None
    result: str


PAUSED, DRAINING, DRAINED = PauseState
CASES = [
    Case(None, HandlerCommand.PAUSE, PAUSED, "paused"),
    Case(None, HandlerCommand.DRAIN, DRAINING, "draining"),
    Case(None, HandlerCommand.RESUME, None, "already running"),
    Case(PAUSED, HandlerCommand.PAUSE, PAUSED, "already paused"),
    Case(PAUSED, HandlerCommand.DRAIN, DRAINING, "draining, it was paused"),
    Case(PAUSED, HandlerCommand.RESUME, None, "running, it was paused"),
    Case(DRAINING, HandlerCommand.PAUSE, PAUSED, "paused, it was draining"),
    Case(DRAINING, HandlerCommand.DRAIN, DRAINING, "already draining"),
    Case(DRAINING, HandlerCommand.RESUME, None, "running, it was draining"),
    Case(DRAINED, HandlerCommand.PAUSE, DRAINED, "already drained"),
    Case(DRAINED, HandlerCommand.DRAIN, DRAINED, "already drained"),
    Case(DRAINED, HandlerCommand.RESUME, None, "running, it was drained"),
]


def test_the_table_has_every_case() -> None:
    assert {(case.before, case.kind) for case in CASES} == {
        (before, kind) for before in (None, *PauseState) for kind in HandlerCommand
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} when {case.before or 'running'}")
def test_a_command_leads_to_a_state_or_changes_nothing(case: Case) -> None:
    before = None if case.before is None else row(case.before)
    settled = decide_pause(before, asks(case.kind), now_ms=NOW)
    assert settled.result == case.result
    assert settled.changed is (case.before is not case.after)
    if case.after is None:
        assert settled.pause is None
    elif settled.changed:
        assert settled.pause == HandlerPause(case.after, "ann", "the bank is down", NOW)
    else:
        assert settled.pause == before, "who asked first, and when, stays"


@given(st.lists(st.sampled_from(list(HandlerCommand)), max_size=8), st.sampled_from(list(HandlerCommand)))
def test_a_command_that_is_repeated_changes_nothing(
    commands: list[HandlerCommand], last: HandlerCommand
) -> None:
    pause: HandlerPause | None = None
    for number, kind in enumerate([*commands, last]):
        pause = decide_pause(pause, asks(kind), now_ms=number).pause
    again = decide_pause(pause, asks(last), now_ms=NOW)
    assert (again.pause, again.changed) == (pause, False)


def test_a_drained_handler_holds_and_remembers_who_asked() -> None:
    after = drained(row(DRAINING), NOW)
    assert after == HandlerPause(DRAINED, "bob", "earlier", NOW)
    assert [row(state).holds for state in PauseState] == [True, False, True]


@given(st.builds(HandlerOperation, kind=st.sampled_from(HandlerCommand), handler=st.text(), who=st.text(),
                 why=st.text(), at_ms=st.integers(0, 253_402_300_799_999)))  # fmt: skip
def test_an_operation_comes_back_from_its_message(operation: HandlerOperation) -> None:
    assert decode_handler_operation(encode_operation(operation)) == operation


@given(st.builds(HandlerPause, st.sampled_from(PauseState), st.text(), st.text(), st.integers(0, 1 << 50)))
def test_a_pause_comes_back_from_its_row(pause: HandlerPause) -> None:
    change = set_pause("pay.take", pause)
    assert change.key == b"hpay.take"
    assert read_pause(change.value) == pause
    assert set_pause("pay.take", None).value is None


def test_what_is_no_operation_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_handler_operation(b'{"kind": "stop", "handler": "x", "who": "", "why": "", "at_ms": 1}')
