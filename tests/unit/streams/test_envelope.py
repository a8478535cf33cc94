"""What stands in a message's headers, and what the answers to it and its dead letter carry."""

import re
import uuid
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.engine.life.positions.declared import DEAD_LETTER_ROOM
from streams.engine.waiting.dead_letters.record import (
    MAX_MESSAGE_BYTES,
    MAX_TRACE_BYTES,
    ROOM_FOR_HEADERS,
    dead_letter,
)
from streams.errors import MissingHeader, PermanentError
from streams.model.envelope import Envelope, derived_id, headers_size, new_headers, record_size, rfc3339


class Record(NamedTuple):
    headers: Any
    topic: str = "orders.placed.v1"
    partition: int = 3
    offset: int = 17
    timestamp: int = 1_500
    key: bytes | None = b"k"
    value: bytes | None = b"v"


def test_a_message_says_what_and_whence_it_is() -> None:
    headers = new_headers("orders.placed.v1", "o-1", source="shop", time=1.5, message_id="m-1")
    envelope = Envelope(Record(headers))
    assert (envelope.id, envelope.type, envelope.source) == ("m-1", "orders.placed.v1", "shop")
    assert envelope.time == "1970-01-01T00:00:01.500Z"
    assert envelope.correlation_id == "m-1"
    assert envelope.causation_id is None
    assert envelope.fingerprint is None


@pytest.mark.parametrize("size", [65, 960_000])
def test_a_time_that_is_longer_than_times_are_is_none(size: int) -> None:
    """It would go into rows, and a row of that size fails the message for some of its handlers only."""
    envelope = Envelope(Record([("ce_id", b"m-1"), ("ce_time", b"2" * size)]))
    assert envelope.time == "1970-01-01T00:00:01.500Z"


def test_what_a_sender_left_out_has_a_default() -> None:
    envelope = Envelope(Record([("ce_id", b"m-1")]))
    assert (envelope.type, envelope.source) == ("orders.placed.v1", "")
    assert envelope.time == "1970-01-01T00:00:01.500Z"
    assert envelope.correlation_id == "m-1"


def test_a_new_message_gets_an_id_of_its_own() -> None:
    ids = {Envelope(Record(new_headers("t", "k", source="s", time=0.0))).id for _ in range(100)}
    assert len(ids) == 100
    assert all(uuid.UUID(one).version == 7 for one in ids)


@pytest.mark.parametrize("headers", [[], [("ce_id", b"")], [("ce_id", None)], [("ce_ID", b"m")]])
def test_a_message_without_an_id_is_named_by_its_place(headers: Any) -> None:
    with pytest.raises(MissingHeader, match=r"orders.placed.v1 partition 3 offset 17 has no ce_id header"):
        Envelope(Record(headers))


def test_an_answer_carries_the_correlation_on_and_names_its_cause() -> None:
    plain = dict(Envelope(Record([("ce_id", b"m-1")])).caused().pairs())
    assert plain == {"ce_specversion": b"1.0", "ce_correlationid": b"m-1", "ce_causationid": b"m-1"}
    traced = Envelope(Record([("ce_id", b"m-2"), ("ce_correlationid", b"order-9"), ("traceparent", b"00-1")]))
    assert dict(traced.caused().pairs()) == {
        "ce_specversion": b"1.0",
        "ce_correlationid": b"order-9",
        "ce_causationid": b"m-2",
        "traceparent": b"00-1",
    }


def test_a_traceparent_that_is_too_long_is_not_passed_on() -> None:
    for size, passed_on in ((256, True), (257, False)):
        envelope = Envelope(Record([("ce_id", b"m-1"), ("traceparent", b"0" * size)]))
        assert ("traceparent" in dict(envelope.caused().pairs())) is passed_on


IDS = st.binary(min_size=1, max_size=20)
NAMES = st.from_regex(rb"[a-z]+\.[a-z_]+", fullmatch=True)


@given(IDS, NAMES, st.integers(0, 1000))
def test_a_derived_id_is_stable_and_a_uuid(incoming: bytes, handler: bytes, index: int) -> None:
    own = derived_id(incoming, handler, index)
    assert own == derived_id(incoming, handler, index)
    assert uuid.UUID(own.decode()).version == 8
    assert uuid.UUID(own.decode()).variant == uuid.RFC_4122


def test_derived_ids_of_different_causes_handlers_and_places_differ() -> None:
    causes = [
        *product((b"m-1", b"m-11", b"m\0svc.p"), (b"svc.pay", b"1svc.pay", b"svc.p"), (0, 1, 2, 10, 11))
    ]
    assert len({derived_id(*cause) for cause in causes}) == len(causes) == 45


@example([(b"a", b"bc"), (b"ab", b"c"), (None, b"abc"), (b"1:a", b"bc"), (b"", b"1:abc")])  # run together
@given(st.lists(st.tuples(st.none() | st.binary(max_size=4), IDS), unique_by=lambda p: (p[0] or b"", p[1])))
def test_the_same_id_of_another_source_is_another_message(pairs: list[tuple[bytes, bytes]]) -> None:
    envelopes = [Envelope(Record([("ce_source", source), ("ce_id", own)])) for source, own in pairs]
    assert len({envelope.identity for envelope in envelopes}) == len(pairs)


@pytest.mark.parametrize(
    ("index", "known"),
    [
        (0, b"62301b9f-f9f2-820d-ac90-4370fec788ce"),
        (1, b"e3406a04-944d-8d65-a47c-25010e8ccfe3"),
        (12, b"bcfd5001-3860-8187-a720-b81130b15dd6"),
    ],
)
def test_a_derived_id_never_changes_between_versions(index: int, known: bytes) -> None:
    assert derived_id(b"m-1", b"svc.pay", index) == known


@given(st.floats(0, 4e9))
def test_times_are_utc_to_the_millisecond(seconds: float) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", rfc3339(seconds))


def deep(levels: int, text: str) -> None:
    if levels == 0:
        raise PermanentError(text)
    deep(levels - 1, text)


def letter_of(error: BaseException, headers: Any = (("ce_id", b"m-1"),), limit: int = 500) -> Any:
    return dead_letter(
        Record(headers), error, group="app", handler="svc.pay", now=2.0, limit=limit, retries=4
    )


def test_a_dead_letter_is_the_record_with_headers_added() -> None:
    headers = [("ce_id", b"m-1"), ("twice", b"1"), ("twice", None)]
    letter = letter_of(PermanentError("no"), headers)
    assert (letter.key, letter.value) == (b"k", b"v")
    assert letter.headers[:3] == headers
    added = dict(letter.headers[3:])
    assert b"PermanentError: no" in added.pop("dlq-stack-trace")
    assert added == {
        "dlq-error-type": b"PermanentError", "dlq-error-message": b"no", "dlq-retry-count": b"4",
        "dlq-failed-at": b"1970-01-01T00:00:02.000Z", "dlq-source-topic": b"orders.placed.v1",
        "dlq-source-partition": b"3", "dlq-source-offset": b"17", "dlq-consumer-group": b"app",
        "dlq-handler": b"svc.pay", "dlq-original-timestamp": b"1500",
    }  # fmt: skip


def test_a_record_too_large_leaves_its_place_and_size() -> None:
    headers = [("ce_id", b"m" * 2_000)]
    size = record_size(b"k", b"v", headers)
    assert letter_of(PermanentError("no"), headers, limit=size - ROOM_FOR_HEADERS).value == b"v"
    letter = letter_of(PermanentError("no"), headers, limit=size - ROOM_FOR_HEADERS - 1)
    added = dict(letter.headers)
    assert (letter.key, letter.value) == (b"k", None)
    assert "ce_id" not in added
    assert added["dlq-omitted-bytes"] == b"%d" % size
    assert added["dlq-source-offset"] == b"17"


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000, "\udcff" * 100_000])
def test_any_error_fits_the_room_of_dead_letters(text: str) -> None:
    try:
        deep(200, text)
    except PermanentError as error:
        letter = letter_of(error)
    headers = dict(letter.headers)
    assert len(headers["dlq-error-message"]) <= MAX_MESSAGE_BYTES
    assert len(headers["dlq-stack-trace"]) <= MAX_TRACE_BYTES
    assert headers_size(letter.headers[1:]) < DEAD_LETTER_ROOM


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (-(2.0**62), "0001-01-01T00:00:00.000Z"),
        (2.0**62, "9999-12-31T23:59:59.000Z"),
        (float("inf"), "9999-12-31T23:59:59.000Z"),
        (float("nan"), "1970-01-01T00:00:00.000Z"),
    ],
)
def test_any_time_that_a_client_says_can_be_shown(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text
