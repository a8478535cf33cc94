"""Which records a lane has handled before it reads them, and what it has still to handle."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.engine.staging.loops import Loops, was_looped
from streams.model.envelope import LOOPBACK
from streams.ports import TP, OwnRecord, Record
from streams.testing import FakeRecord

TOPIC, KEY = "middle", b"a"


@pytest.mark.parametrize(
    ("headers", "looped"),
    [
        ([], False),
        ([("traceparent", None)], False),
        ([(LOOPBACK, None)], False),
        ([(LOOPBACK, b"other")], False),
        ([(LOOPBACK, b"app"), ("after", b"")], False),
        ([("before", None), (LOOPBACK, b"app")], True),
    ],
)
def test_only_the_applications_own_mark_at_the_end_counts(headers: list[Any], looped: bool) -> None:
    assert was_looped(OwnRecord("orders", 0, 0, 0, b"key", b"", headers), b"app") is looped
    assert not was_looped(FakeRecord("orders", 0, 0, 0, b"key", b"", headers), b"app")


def record(own: bool, offset: int) -> Record:
    return (OwnRecord if own else FakeRecord)(TOPIC, 0, offset, 0, KEY, b"{}", [])


@given(st.data())
def test_a_key_loops_only_when_nothing_is_before_it(data: st.DataObject) -> None:
    """Ids are of two only, so that many records have the same one."""
    loops, offset, foreign = Loops([TOPIC], {}), 0, False
    written: list[bytes] = []
    unhandled: list[Record] = []
    for _ in range(data.draw(st.integers(1, 30))):
        message_id = data.draw(st.sampled_from([b"1", b"2"]))
        match data.draw(st.sampled_from(["write", "read", "read another's", "handle", "handle again"])):
            case "write":
                loops.add(TOPIC, KEY, message_id)
                written.append(message_id)
            case "read" if written:
                unhandled.append(record(True, offset := offset + 1))
                loops.add_read(unhandled[-1], written.pop(0))
            case "read another's":
                unhandled.append(record(False, offset := offset + 1))
                loops.add_read(unhandled[-1], message_id)
                foreign = True
            case "handle" if unhandled:
                loops.remove_read(unhandled.pop(data.draw(st.integers(0, len(unhandled) - 1))))
            case "handle again":
                loops.remove_read(record(False, 1_000))  # from a queue, where it has waited
        assert loops.may_loop(TP(TOPIC, 0), KEY) == (not (written or unhandled or foreign))
