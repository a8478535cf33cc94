"""Commands about handlers in a partition, and queues that wait for schemas."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streams.engine.waiting.operations.decisions import decide_pause, drained
from streams.engine.waiting.operations.pauses import read_pause, set_pause
from streams.engine.waiting.unread import LOOK, MOST_LOOKED_AT, MOST_READY, Awaited, Unread
from streams.errors import Undecodable, UnknownSchema
from streams.model.operations import (
    HandlerCommand,
    HandlerOperation,
    HandlerPause,
    PauseState,
    decode_handler_operation,
    encode_operation,
)

pytestmark = [pytest.mark.promise("pauses"), pytest.mark.promise("unknown-schema")]

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


def test_a_drained_handler_holds_and_remembers_who_asked() -> None:
    assert drained(row(DRAINING), NOW) == HandlerPause(DRAINED, "bob", "earlier", NOW)
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


QUEUES = st.sampled_from([b"%d" % number for number in range(6)])
SCHEMAS = st.sampled_from([b"%016x" % number for number in range(4)])
TOPICS = st.sampled_from(["made", "sent", "of another version"])


class Announced:
    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.asked = 0
        codec = SimpleNamespace(require=self.require)
        self.routes: Any = {topic: SimpleNamespace(codec=codec) for topic in ("made", "sent")}

    def require(self, fingerprint: bytes) -> None:
        self.asked += 1
        if fingerprint not in self.known:
            raise UnknownSchema(fingerprint.decode())


class AnyUnread(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.unread = Unread()
        self.announced = Announced()
        self.waits: dict[bytes, tuple[str, bytes]] = {}

    @rule(queue=QUEUES, topic=TOPICS, schema=SCHEMAS)
    def one_waits(self, queue: bytes, topic: str, schema: bytes) -> None:
        self.unread.add(queue, topic, schema, self.now)
        self.waits[queue] = (topic, schema)

    @rule(queue=QUEUES)
    def one_ends(self, queue: bytes) -> None:
        self.unread.forget(queue)
        self.waits.pop(queue, None)

    @rule(schema=SCHEMAS)
    def somebody_announces(self, schema: bytes) -> None:
        self.announced.known.add(schema)

    @rule(seconds=st.sampled_from([0.0, 0.3, LOOK, -3600.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_look_too_early_gives_out_no_other(self) -> None:
        assert set(self.unread.ready(self.announced.routes, self.now)) <= self.readable()

    @rule()
    def a_look_gives_out_all_that_can_be_read(self) -> None:
        self.now += LOOK
        found = self.unread.ready(self.announced.routes, self.now)
        assert set(found) == self.readable()
        for queue in found:
            self.unread.later(queue)

    def readable(self) -> set[bytes]:
        routes, known = self.announced.routes, self.announced.known
        return {queue for queue, (topic, schema) in self.waits.items() if topic in routes and schema in known}

    @invariant()
    def what_cannot_be_read_is_told(self) -> None:
        told = self.unread.awaited()
        unreadable = [self.waits[queue][1].decode() for queue in self.waits.keys() - self.readable()]
        for schema in unreadable:
            assert told[schema].keys >= unreadable.count(schema)
        assert sum(each.keys for each in told.values()) <= len(self.waits)
        assert all(each.since <= 1e9 for each in told.values())


TestAnyUnread = AnyUnread.TestCase


def test_each_schema_is_told_with_its_earliest_time() -> None:
    unread = Unread()
    unread.add(b"one", "made", b"a" * 16, 7.0)
    unread.add(b"two", "sent", b"a" * 16, 5.0)
    unread.add(b"three", "made", b"b" * 16, 9.0)
    assert unread.awaited() == {"a" * 16: Awaited(2, 5.0), "b" * 16: Awaited(1, 9.0)}


def test_what_is_no_message_is_given_out_too() -> None:
    def require(fingerprint: bytes) -> None:
        raise Undecodable("it is no schema")

    unread, routes = Unread(), {"made": SimpleNamespace(codec=SimpleNamespace(require=require))}
    unread.add(b"one", "made", b"a" * 16, 7.0)
    assert unread.ready(routes, 10.0) == [b"one"]  # type: ignore[arg-type]


def test_a_bounded_look_goes_on_in_the_next() -> None:
    unread, announced = Unread(), Announced()
    for number in range(3 * MOST_LOOKED_AT):
        unread.add(b"%d" % number, "made", b"%016x" % number, 7.0)
    announced.known.add(b"%016x" % (3 * MOST_LOOKED_AT - 1))
    looks = [unread.ready(announced.routes, 10.0 + LOOK * look) for look in range(3)]
    assert looks == [[], [], [b"%d" % (3 * MOST_LOOKED_AT - 1)]]
    assert announced.asked == 3 * MOST_LOOKED_AT


def test_those_that_cannot_run_hold_up_no_others() -> None:
    unread, announced = Unread(), Announced()
    announced.known.add(b"a" * 16)
    for number in range(2 * MOST_READY):
        unread.add(b"%d" % number, "made", b"a" * 16, 7.0)
    first = unread.ready(announced.routes, 10.0)
    for queue in first:
        unread.later(queue)
    assert len(first) == MOST_READY
    assert not set(first) & set(unread.ready(announced.routes, 10.0))
