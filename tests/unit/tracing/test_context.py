"""What a `traceparent` says, by W3C's own rules."""

import pytest

from streams.tracing.context import TraceContext, parse, says_unsampled, trace_at, trace_id_of

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADER = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (HEADER + b"01", True),
        (HEADER + b"00", False),
        (HEADER + b"03", True),
        (HEADER + b"02", False),
        (b"01" + HEADER[2:] + b"01-what-later-versions-add", True),
        (b"01" + HEADER[2:] + b"00", False),
    ],
)
def test_a_header_says_which_span_and_whether_it_is_recorded(header: bytes, sampled: bool) -> None:
    assert parse(header) == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"junk",
        b"0" * 9000,
        HEADER,
        HEADER + b"1",
        HEADER + b"01-more",
        HEADER + b"01\n",
        HEADER.upper() + b"01",
        b"ff" + HEADER[2:] + b"01",
        HEADER.replace(b"0af7651916cd43dd8448eb211c80319c", b"0" * 32) + b"01",
        HEADER.replace(b"b7ad6b7169203331", b"0" * 16) + b"01",
    ],
)
def test_what_is_no_header_says_nothing(header: bytes) -> None:
    assert parse(header) is None


def test_what_is_written_is_read_again() -> None:
    context = TraceContext(5, 7, sampled=True)
    assert parse(context.header) == context
    assert parse(context._replace(sampled=False).header) == context._replace(sampled=False)


@pytest.mark.parametrize("flags", [b"00", b"01", b"02", b"03", b"fe", b"ff", b"0e", b"0f"])
def test_the_quick_look_agrees_with_the_thorough_one(flags: bytes) -> None:
    context = parse(HEADER + flags)
    assert says_unsampled(HEADER + flags) is not context.sampled


def test_vendors_notes_are_kept_up_to_their_length() -> None:
    for size, kept in ((512, "v" * 512), (513, "")):
        assert parse(HEADER + b"01", b"v" * size).state == kept


def test_a_message_without_a_trace_has_always_the_same() -> None:
    assert trace_id_of(b"shop:m-1") == trace_id_of(b"shop:m-1") != trace_id_of(b"shop:m-2")


def test_a_link_is_made_of_an_id_only() -> None:
    at = "https://traces/{trace_id}"
    assert trace_at(at, f"{TRACE:032x}") == f"https://traces/{TRACE:032x}"
    for junk in ("", "x", "0" * 32, f"{TRACE:032x}/..", f"{TRACE:032X}", f"{TRACE:032x}\n"):
        assert trace_at(at, junk) == ""
