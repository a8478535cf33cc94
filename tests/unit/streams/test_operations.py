"""What operators may do about a dead letter, as a table."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streams.engine.waiting.dead_letters.record import ROOM_FOR_HEADERS, dead_letter, place_of
from streams.engine.waiting.dead_letters.row import (
    Letter,
    LetterState,
    decode_letter,
    decode_summary,
    encode_letter,
    failed_again,
    letter_id,
    letter_key,
    local_key,
    new_letter,
    parse_id,
    topic_of,
)
from streams.engine.waiting.operations.decisions import Do, OperationLimits, decide_letter
from streams.errors import PermanentError
from streams.model.claim import claim_in, claim_of, with_claim
from streams.model.envelope import headers_size, record_size
from streams.model.operations import LetterCommand, Operation, decode_operation, encode_operation
from streams.testing.log import FakeRecord

pytestmark = pytest.mark.promise("dead-letters")

LIMITS = OperationLimits(max_replays=3, edit=True)


def record(**more: Any) -> FakeRecord:
    given = {
        "topic": "shop.order.placed.v1",
        "partition": 3,
        "offset": 17,
        "timestamp": 5,
        "key": b"order-1",
        "value": b"{}",
        "headers": [("ce_id", b"id-1"), ("ce_type", b"placed"), ("colour", b"red")],
    }
    return FakeRecord(**{**given, **more})


def a_letter(**more: Any) -> Letter:
    raw = new_letter(
        record(), PermanentError("no"), handler="shop.place", attempts=3, now_ms=1000, limit=20_000
    )
    return replace(raw, **more)


def command(kind: LetterCommand, **more: Any) -> Operation:
    return Operation(kind=kind, letter="x", **{"who": "ann", "why": "because", "at_ms": 1, **more})


def decided(letter: Letter | None, operation: Operation, **more: Any) -> Any:
    return decide_letter(letter, operation, **{"id_bytes": b"op-1", "now_ms": 2000, "limits": LIMITS, **more})


EDITED = command(LetterCommand.EDIT, value=b"new")
DEAD, REPLAYING = LetterState.DEAD, LetterState.REPLAYING
PARKED, GONE, HOLDS = LetterState.PARKED, LetterState.DISCARDED, {"queue": b"q"}


@pytest.mark.parametrize(
    ("before", "operation", "state", "do"),
    [
        ({}, command(LetterCommand.REPLAY), REPLAYING, Do.REPLAY),
        ({"state": PARKED}, command(LetterCommand.REPLAY), PARKED, Do.NOTHING),
        ({"state": PARKED}, command(LetterCommand.REPLAY, force=True), REPLAYING, Do.REPLAY),
        ({"state": GONE}, command(LetterCommand.REPLAY, force=True), GONE, Do.NOTHING),
        ({"state": REPLAYING}, command(LetterCommand.REPLAY, force=True), REPLAYING, Do.NOTHING),
        ({"omitted": 9}, command(LetterCommand.REPLAY), DEAD, Do.NOTHING),
        ({}, command(LetterCommand.DISCARD), GONE, Do.NOTHING),
        (HOLDS, command(LetterCommand.DISCARD), GONE, Do.RELEASE),
        ({"state": PARKED}, command(LetterCommand.DISCARD), GONE, Do.NOTHING),
        ({}, command(LetterCommand.DISCARD, why=""), DEAD, Do.NOTHING),
        ({"state": REPLAYING}, command(LetterCommand.DISCARD), REPLAYING, Do.NOTHING),
        ({"state": GONE}, command(LetterCommand.RESTORE), DEAD, Do.NOTHING),
        ({"state": GONE, "replays": 3}, command(LetterCommand.RESTORE), PARKED, Do.NOTHING),
        ({}, command(LetterCommand.RESTORE), DEAD, Do.NOTHING),
        ({}, EDITED, REPLAYING, Do.REPLAY),
        ({}, command(LetterCommand.EDIT), DEAD, Do.NOTHING),
        ({"omitted": 9}, EDITED, DEAD, Do.NOTHING),
        ({"omitted": 9}, command(LetterCommand.EDIT, value=b"new", headers=[]), REPLAYING, Do.REPLAY),
        ({"state": PARKED}, EDITED, PARKED, Do.NOTHING),
    ],
)
def test_what_follows(before: dict[str, Any], operation: Operation, state: LetterState, do: Do) -> None:
    verdict = decided(a_letter(**before), operation)
    assert (verdict.letter.state, verdict.do) == (state, do)
    assert verdict.letter.history[-1].who == "ann"
    assert verdict.letter.history[-1].result == verdict.result


@pytest.mark.parametrize(
    ("operation", "state", "do"),
    [
        (command(LetterCommand.DISCARD), GONE, Do.RELEASE),
        (command(LetterCommand.DISCARD, why=""), REPLAYING, Do.NOTHING),
        (command(LetterCommand.REPLAY, force=True), REPLAYING, Do.NOTHING),
        (command(LetterCommand.RESTORE), REPLAYING, Do.NOTHING),
        (EDITED, REPLAYING, Do.NOTHING),
    ],
)
def test_a_replay_without_a_handler_can_only_be_discarded(
    operation: Operation, state: LetterState, do: Do
) -> None:
    verdict = decided(a_letter(state=REPLAYING), operation, gone=True)
    assert (verdict.letter.state, verdict.do) == (state, do)


def test_about_a_letter_that_is_not_there_nothing_is_done() -> None:
    assert decided(None, command(LetterCommand.REPLAY)).do is Do.NOTHING


def test_an_edited_value_goes_with_its_schema() -> None:
    letter = a_letter(headers=[("ce_id", b"1"), ("schema-fingerprint", b"old")])
    after = decided(letter, command(LetterCommand.EDIT, value=b"new", fingerprint=b"new")).letter
    assert [value for name, value in after.headers if name == "schema-fingerprint"] == [b"new"]


def test_editing_has_to_be_enabled() -> None:
    verdict = decided(a_letter(), EDITED, limits=OperationLimits())
    assert (verdict.do, verdict.letter.value) == (Do.NOTHING, b"{}")


def test_an_edited_message_has_a_new_id_always_the_same() -> None:
    first = decided(a_letter(), EDITED).letter
    headers = dict(first.headers)
    assert first.value == b"new"
    assert headers["colour"] == b"red"
    assert headers["ce_causationid"] == headers["ce_correlationid"] == b"id-1"
    assert headers["ce_id"] not in (b"id-1", b"")
    assert decided(a_letter(), EDITED).letter.headers == first.headers
    other = decided(a_letter(), EDITED, id_bytes=b"op-2").letter
    assert dict(other.headers)["ce_id"] != headers["ce_id"]


def test_an_edited_message_is_caused_by_the_one_it_was() -> None:
    was = [("ce_id", b"id-1"), ("ce_causationid", b"id-0"), ("ce_correlationid", b"order-9")]
    headers = dict(decided(a_letter(headers=was), EDITED).letter.headers)
    assert (headers["ce_causationid"], headers["ce_correlationid"]) == (b"id-1", b"order-9")


def test_an_edited_message_with_its_payload_refers_to_none() -> None:
    own = [("ce_id", b"1"), ("colour", b"red")]
    letter = a_letter(value=b"", headers=with_claim(own, claim_of("ours", "parcel", "1", b"large")))
    headers = dict(decided(letter, EDITED).letter.headers)
    assert claim_in(headers) is None
    assert headers["colour"] == b"red"
    other = claim_of("ours", "parcel", "1", b"another")
    moved = decided(letter, command(LetterCommand.EDIT, headers=with_claim(own, other))).letter
    assert (moved.value, claim_in(dict(moved.headers))) == (b"", other)


def test_a_letter_is_parked_after_so_many_replays_that_fail() -> None:
    letter, found = a_letter(queue=b"q"), []
    for n in range(LIMITS.max_replays):
        again = a_letter(value=b"again")
        letter = failed_again(letter, again, now_ms=2000 + n, max_replays=LIMITS.max_replays)
        found.append((letter.replays, letter.state))
    assert found == [(1, DEAD), (2, DEAD), (3, PARKED)]
    assert (letter.value, letter.failed_at_ms) == (b"again", 1000)
    assert len(letter.history) == LIMITS.max_replays


@given(
    st.binary(max_size=2000) | st.none(), st.text(max_size=20), st.text(max_size=20), st.integers(0, 1 << 60)
)
def test_an_id_gives_back_partition_and_key(key: bytes | None, handler: str, topic: str, offset: int) -> None:
    own = letter_key(key, handler, topic, offset)
    local = (3).to_bytes(2, "big") + own
    assert parse_id(letter_id(local)) == (3, own)
    if "\0" not in handler + topic:
        assert topic_of(own) == topic
    assert len(letter_id(local)) < 2000


@pytest.mark.parametrize(("more", "kept"), [(0, True), (1, False)])
def test_a_letter_keeps_what_its_topic_takes(more: int, kept: bool) -> None:
    """The record in the dead letter topic has them where the row has them."""
    limit = 1000
    rest = record_size(b"k" * 1100, b"", [("ce_id", b"1")])
    value = b"v" * (limit + ROOM_FOR_HEADERS - rest - 1 + more)  # its size takes a byte more than that of b""
    large = record(key=b"k" * 1100, value=value, headers=[("ce_id", b"1")])
    assert record_size(large.key, large.value, large.headers) == limit + ROOM_FOR_HEADERS + more
    error = PermanentError("no")
    letter = new_letter(large, error, handler="shop.place", attempts=1, now_ms=1000, limit=limit)
    sent = dead_letter(large, error, group="shop", handler="shop.place", now=1.0, limit=limit)
    size = len(large.key or b"") + len(value) + headers_size(large.headers)
    assert (letter.value, letter.omitted) == ((value, 0) if kept else (None, size))
    assert sent.value == letter.value
    assert letter.key == b"k" * limit
    assert sent.key == b"k" * (1100 if kept else limit)


@pytest.mark.parametrize("text", ["", "A", "??", "é", "AAAA=", "AAA"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_id(text)


def test_two_letters_never_share_a_row() -> None:
    places = [("h", "t", 1), ("h", "t", 2), ("h", "u", 1), ("i", "t", 1), ("", "t", 1)]
    more: list[tuple[int | None, ...]] = [(None, None), (7, None), (None, 1), (None, -1), (7, 1)]
    keys = {letter_key(key, *place, *add) for place in places for key in (b"a", b"b", b"") for add in more}
    assert len(keys) == 75


@given(
    st.binary(max_size=900),
    st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=50) | st.none()), max_size=4),
    st.text(max_size=3000),
)
def test_a_row_gives_back_the_record_as_it_came(value: bytes, headers: Any, message: str) -> None:
    came = record(value=value, headers=headers)
    made = new_letter(came, ValueError(message), handler="", attempts=0, now_ms=7, limit=10_000)
    again = decode_letter(encode_letter(made, 50_000))
    assert again == made
    assert (again.key, again.value, again.headers) == (came.key, value, headers)
    assert decode_summary(encode_letter(made, 50_000)).offset == 17
    assert local_key(made)[:2] == b"\0\3"


def test_too_large_a_row_loses_history_trace_and_value() -> None:
    letter = a_letter(value=b"v" * 900, trace="t" * 900)
    for n in range(20):
        letter = decided(letter, command(LetterCommand.RESTORE, why=f"{n}" * 50)).letter
    whole = len(encode_letter(letter, 1 << 20))
    sizes = {}
    for limit in range(whole, 300, -10):
        data = encode_letter(letter, limit)
        kept = decode_letter(data)
        sizes[len(kept.history), bool(kept.trace), bool(kept.value)] = len(data)
        assert len(data) <= limit or not kept.value
    assert list(sizes) == [(20, True, True), (1, True, True), (1, False, True), (1, False, False)]
    assert decode_letter(encode_letter(letter, 400)).omitted == letter.size


def test_its_place_is_where_the_applications_own_code_was() -> None:
    def outer() -> Any:
        return msgspec.json.decode(b"{") if False else int("no number")

    with pytest.raises(ValueError, match="no number") as caught:
        outer()
    assert place_of(caught.value).endswith(" outer")
    assert place_of(ValueError("never raised")) == ""


def test_an_operation_survives_its_message() -> None:
    operation = command(LetterCommand.EDIT, value=b"\xff", headers=[("a", b"\x00")], force=True, job="j")
    assert decode_operation(encode_operation(operation)) == operation
