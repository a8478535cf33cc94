"""Headers of dead letters as Spring Kafka, Kafka Streams and Kafka Connect write them."""

import pytest

from streams.engine.waiting.dead_letters.foreign import (
    ForeignLetter,
    headers_to_replay,
    matches,
    own_headers,
    read_letter,
)
from streams.ports import Headers, OwnRecord

OWN = [("traceparent", b"00-1-2-01"), ("kafka_correlationId", b"c-1"), ("traceparent", b"again")]
SPRING = [
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", (3).to_bytes(4, "big")),
    ("kafka_dlt-original-offset", (1 << 40).to_bytes(8, "big")),
    ("kafka_dlt-original-timestamp", (1).to_bytes(8, "big")),
    ("kafka_dlt-original-timestamp-type", b"CreateTime"),
    ("kafka_dlt-original-consumer-group", b"billing"),
    ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
    ("kafka_dlt-exception-message", b"Listener failed; no such order"),
    ("kafka_dlt-exception-stacktrace", b"..."),
]
RETRIED = [("retry_topic-attempts", b"\0\0\0\4"), *((name.replace("dlt-", ""), v) for name, v in SPRING)]
COPIED = [
    ("__amazon_msk_replicator", b"eu"),
    ("mm2.source", b"east"),
    ("__replicator_id", b"r-1"),
    ("k2k_offset", b"7"),
]
STREAMS = [
    ("__streams.errors.exception", b"java.lang.IllegalStateException: no such order"),
    ("__streams.errors.message", b"no such order"),
    ("__streams.errors.stacktrace", b"..."),
    ("__streams.errors.topic", b"orders"),
    ("__streams.errors.partition", b"3"),
    ("__streams.errors.offset", b"1099511627776"),
]
CONNECT = [
    ("__connect.errors.topic", b"orders"),
    ("__connect.errors.partition", b"3"),
    ("__connect.errors.offset", b"1099511627776"),
    ("__connect.errors.connector.name", b"sink"),
    ("__connect.errors.task.id", b"0"),
    ("__connect.errors.stage", b"VALUE_CONVERTER"),
    ("__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
    ("__connect.errors.exception.class.name", b"java.lang.IllegalStateException"),
    ("__connect.errors.exception.message", b"no such order"),
    ("__connect.errors.exception.stacktrace", b"..."),
]
FORMS = {"spring": SPRING, "streams": STREAMS, "connect": CONNECT}


def letter_of(headers: Headers) -> ForeignLetter:
    return read_letter(OwnRecord("orders.DLT", 0, 7, 1_000, b"o-1", b"{}", headers))


@pytest.mark.parametrize(("form", "added"), [*FORMS.items(), ("spring", RETRIED)])
def test_a_letter_says_where_it_failed_and_why(form: str, added: list[tuple[str, bytes]]) -> None:
    letter = letter_of([*OWN, *added])
    origin = (letter.topic, letter.topic_partition, letter.topic_offset)
    assert (letter.form, origin) == (form, ("orders", 3, 1 << 40))
    assert letter.error_type == "java.lang.IllegalStateException"
    assert letter.error_message.endswith("no such order")
    assert letter.by == {"spring": "billing", "connect": "sink"}.get(form, "")
    assert list(own_headers([*OWN, *added])) == OWN


def test_a_letter_that_failed_twice_goes_where_it_failed_first() -> None:
    again = [("kafka_dlt-original-topic", b"orders-retry"), ("kafka_dlt-original-partition", b"\0\0\0\0")]
    assert letter_of([*SPRING, *again]).topic == "orders"
    assert list(own_headers([*SPRING, *again])) == []


def test_a_record_without_such_headers_is_unknown() -> None:
    letter = letter_of(OWN)
    assert (letter.form, letter.topic, letter.topic_partition) == ("unknown", "", -1)


@pytest.mark.parametrize("value", [b"", b"x" * 99, b"three"])
def test_a_number_that_is_none_is_passed_over(value: bytes) -> None:
    letter = letter_of([("__streams.errors.topic", b"orders"), ("__streams.errors.partition", value)])
    assert (letter.topic, letter.topic_partition) == ("orders", -1)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ({"error": "IllegalStateException", "topic": "orders"}, True),
        ({"error": "java.lang.IllegalStateException"}, True),
        ({"error": "StateException"}, False),
        ({"message": "such order", "by": "billing", "key": "o-1", "form": "spring"}, True),
        ({"topic": "orders", "key": "o-2"}, False),
    ],
)
def test_all_filters_have_to_hold(where: dict[str, str], holds: bool) -> None:
    assert matches(letter_of(SPRING), where) is holds


def test_a_replay_has_no_headers_of_replication() -> None:
    kept, dropped = headers_to_replay([*OWN, *COPIED, *SPRING], (), 1e9)
    assert kept == OWN
    assert dropped == [name for name, _ in COPIED]


@pytest.mark.parametrize(("now", "is_kept"), [(1_000_000_000.0, True), (1_000_000_002.0, False)])
def test_an_expiry_is_replayed_until_it_has_passed(now: float, is_kept: bool) -> None:
    expiry = ("ce_expirytime", b"2001-09-09T01:46:41Z")
    kept, dropped = headers_to_replay([expiry, ("ce_id", b"1")], (), now)
    assert kept == [*[expiry] * is_kept, ("ce_id", b"1")]
    assert dropped == ["ce_expirytime"] * (not is_kept)


def test_a_replay_lacks_the_headers_that_are_named() -> None:
    headers = [("x-a", b"1"), ("x-b", b"2"), ("X-a", b"3"), ("y", b"4")]
    assert headers_to_replay(headers, ["x-*", "y"], 0.0) == ([("X-a", b"3")], ["x-a", "x-b", "y"])
