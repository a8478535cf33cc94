import re
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.engine.staging.payloads import refers
from streams.errors import BlobAltered, PermanentError
from streams.kafka.records.batches import Plain
from streams.model.claim import (
    DATAREF,
    DEFAULT_THRESHOLD,
    SHA256,
    SIZE,
    BadReference,
    Claim,
    claim_in,
    claim_of,
    is_due,
    object_name,
    verify,
    with_claim,
    without_claim,
)
from streams.model.envelope import ID

DIGEST = sha256(b"a gift").hexdigest()
CLAIM = claim_of("event-payloads", "orders.order.placed.v1", "o-1", b"a gift")


def test_a_name_says_type_id_and_digest() -> None:
    name = f"events/orders.order.placed.v1/o-1-{DIGEST}"
    assert Claim("event-payloads", name, "application/avro", DIGEST, 6) == CLAIM


def test_a_rerun_with_other_bytes_is_another_object() -> None:
    assert claim_of("b", "t", "1", b"one").name != claim_of("b", "t", "1", b"two").name
    assert claim_of("b", "t", "1", b"one").name == claim_of("b", "t", "1", b"one").name


@given(st.text(), st.text())
@example(".", "..")
@example("", "")
@example("../../other", "a/b?c#d%2F e\n")
@example("ü" * 500, "🎁" * 500)
@example("\ud800", "\udfff")
def test_any_type_and_id_make_a_valid_name(message_type: str, message_id: str) -> None:
    name = object_name(message_type, message_id, DIGEST)
    assert re.fullmatch(r"events/[A-Za-z0-9._~%-]+/[A-Za-z0-9._~%-]+-[0-9a-f]{64}", name)
    parts = name.split("/")
    assert all(len(part) <= 200 for part in parts)
    assert not {".", ".."} & set(parts)


def test_long_ids_that_begin_alike_have_names_of_their_own() -> None:
    assert object_name("t", "x" * 300 + "1", DIGEST) != object_name("t", "x" * 300 + "2", DIGEST)


@pytest.mark.parametrize(
    ("payload", "rest", "binary", "due"),
    [
        (DEFAULT_THRESHOLD, 100, False, False), (DEFAULT_THRESHOLD + 1, 100, False, True),
        (900_000, 99_488, False, False), (900_000, 99_489, False, True), (10, 1_000_000, False, True),
        (10, 100, False, False), (10, 100, True, True),
    ],
)  # fmt: skip
def test_what_is_large_or_binary_is_checked_in(payload: int, rest: int, *, binary: bool, due: bool) -> None:
    assert is_due(payload, rest, limit=999_488, binary=binary) is due


def test_the_threshold_is_a_setting() -> None:
    assert is_due(101, 0, limit=1000, threshold=100)
    assert not is_due(100, 0, limit=1000, threshold=100)


@given(st.text(), st.text(), st.binary(), st.sampled_from(["image/png", "application/pdf"]))
def test_a_reference_is_read_back_as_it_was_made(
    message_type: str, message_id: str, data: bytes, content_type: str
) -> None:
    claim = claim_of("event-payloads", message_type, message_id, data, content_type)
    headers = with_claim([(ID, b"o-1")], claim)
    assert headers[0] == (ID, b"o-1")
    assert claim_in(dict(headers)) == claim


def test_headers_are_those_of_cloud_events_in_kafkas_binary_mode() -> None:
    assert with_claim([], CLAIM) == [
        ("ce_dataref", f"s3://event-payloads/events/orders.order.placed.v1/o-1-{DIGEST}".encode()),
        ("content-type", b"application/avro"),
        ("claim-sha256", DIGEST.encode()),
        ("claim-size", b"6"),
    ]


def test_an_earlier_claim_is_replaced() -> None:
    earlier = with_claim([(ID, b"o-1")], claim_of("b-1", "t", "1", b"other"))
    assert with_claim(earlier, CLAIM) == with_claim([(ID, b"o-1")], CLAIM)


def test_a_message_that_carries_its_payload_makes_no_claim() -> None:
    assert claim_in({ID: b"o-1", "content-type": b"application/avro"}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (DATAREF, b""),
        (DATAREF, b"http://event-payloads/events/x"),
        (DATAREF, b"s3://event-payloads"),
        (DATAREF, b"s3://event-payloads/"),
        (DATAREF, b"s3:///events/x"),
        (DATAREF, b"s3://event-payloads/events/a b"),
        (DATAREF, b"s3://event-payloads/events/\xff"),
        (DATAREF, b"s3://event-payloads/" + b"x" * 1025),
        (SHA256, DIGEST.upper().encode()),
        (SHA256, DIGEST[:-1].encode()),
        (SIZE, b"-1"),
        (SIZE, b"1e3"),
        (SIZE, b""),
        (SIZE, "٣".encode()),
        (SIZE, b"9" * 16),
    ],
)
def test_a_malformed_reference_is_permanent_and_names_its_header(name: str, value: bytes) -> None:
    with pytest.raises(BadReference, match=rf"^the header {name} does not read: b") as raised:
        claim_in({**dict(with_claim([], CLAIM)), name: value})
    assert isinstance(raised.value, PermanentError)
    assert len(str(raised.value)) < 300


@pytest.mark.promise("bad-references")
@pytest.mark.parametrize(
    "name", ["", "/x", ".", "../x", "../../x", "../../../etc/passwd", "a/../b", "x" * 256]
)
def test_a_name_that_can_be_no_object_is_permanent(name: str) -> None:
    with pytest.raises(BadReference, match="does not name an object") as raised:
        claim_in({**dict(with_claim([], CLAIM)), DATAREF: f"s3://event-payloads/events/{name}".encode()})
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("name", [SHA256, SIZE])
def test_a_reference_that_could_not_be_verified_is_permanent(name: str) -> None:
    headers = dict(with_claim([], CLAIM))
    del headers[name]
    with pytest.raises(BadReference, match=f"^ce_dataref comes without the header {name}"):
        claim_in(headers)


def test_a_content_type_that_came_without_a_value_is_none() -> None:
    headers: Any = {**dict(with_claim([], CLAIM)), "content-type": None}
    assert claim_in(headers) == CLAIM._replace(content_type="")


def test_with_its_payload_a_message_loses_only_its_reference() -> None:
    plain = [(ID, b"o-1"), ("content-type", b"application/json")]
    assert without_claim(plain) == plain
    assert without_claim(with_claim(plain, CLAIM)) == [(ID, b"o-1")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a gif", "it has 5 bytes, the message says 6"),
        (b"", "it has 0 bytes, the message says 6"),
        (b"a gift!", "it has more bytes, the message says 6"),
        (b"a gilt", f"its SHA-256 is {sha256(b'a gilt').hexdigest()}, the message says {DIGEST}"),
    ],
)
def test_altered_bytes_name_the_object_and_what_differs(data: bytes, message: str) -> None:
    with pytest.raises(BlobAltered) as raised:
        verify(CLAIM, data)
    assert str(raised.value) == f"{CLAIM.reference} is not what was checked in: {message}"


def test_headers_without_a_value_make_no_claim() -> None:
    without: Any = [(ID, b"o-1"), (DATAREF, None), ("content-type", None), (SHA256, None), (SIZE, None)]
    assert claim_in(dict(without)) is None
    assert without_claim(without) == without
    assert not refers(None, Plain("t", 0, 0, 0, b"k", b"", without))
    assert refers(None, Plain("t", 0, 0, 0, b"k", b"", with_claim([], CLAIM)))
