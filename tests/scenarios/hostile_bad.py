"""Kinds of records that are no messages, or no operations and announcements."""

import json
from dataclasses import replace

from streams.engine.staging.keys import store_key
from streams.engine.waiting.dead_letters.row import letter_id
from streams.testing.batches import CODECS, batch, record
from tests.scenarios.hostile_orders import reads
from tests.scenarios.hostile_records import (
    ANNOUNCEMENTS,
    FINGERPRINTS,
    HANDLERS,
    LAYOUT,
    OPERATIONS,
    PLACED,
    Fate,
    Header,
    Thrower,
    Thrown,
    by_reference,
    kind,
    with_header,
    without,
)
from tests.scenarios.world import PARTITIONS


@kind("no id", 1)
def _no_id(t: Thrower) -> Thrown:
    made = t.good().dead("", "MissingHeader")
    ways = (without(made, "ce_id"), with_header(made, "ce_id", b""), with_header(made, "ce_id", None))
    none = replace(made, headers=[])
    last = replace(made, headers=[*made.headers, (b"ce_id", t.random.choice((b"", None)))])
    return t.random.choice((*ways, none, last))


@kind("an id, a source or a correlation id too long", 1)
def _too_long(t: Thrower) -> Thrown:
    made = t.good().dead("", "HeaderTooLong")
    name = t.random.choice((b"ce_id", b"ce_source", b"ce_correlationid"))
    long = b"l" * t.random.choice((1025, 5_000, 60_000))
    return replace(made, headers=[*made.headers, (name, long)])


@kind("no key, or no value", 1)
def _nothing(t: Thrower) -> Thrown:
    made = t.good().dead("", "MissingHeader")
    key, value = t.random.choice(((None, made.value), (made.key, None), (None, None), (None, b"")))
    return replace(made, key=key, value=value)


@kind("another's key", 1)
def _another(t: Thrower) -> Thrown:
    made = t.good().dead("", "KeyMismatch")
    key = t.random.choice((b"", b"\xff\xfe", b"\0", t.id().encode(), b"k" * 65_535, b"k" * 9_000))
    return replace(made, key=key, partition=LAYOUT.partition_of(key))


@kind("a key too long", 0.3)
def _key_too_long(t: Thrower) -> Thrown:
    key = b"k" * t.random.choice((65_536, 100_000))
    return replace(t.good().dead("", "TooLarge"), key=key)


@kind("another's key, in another partition", 1)
def _another_elsewhere(t: Thrower) -> Thrown:
    made = _another(t)
    assert isinstance(made, Thrown)
    where = (made.partition + t.random.randint(1, PARTITIONS - 1)) % PARTITIONS
    return replace(made, partition=where, home=made.partition)


@kind("cut off", 1)
def _cut(t: Thrower) -> Thrown:
    made = t.good().dead("", "Undecodable")
    assert made.value
    return replace(made, value=made.value[: t.random.randrange(len(made.value))])


@kind("bytes left over", 0.5)
def _more(t: Thrower) -> Thrown:
    made = t.good().dead("", "Undecodable")
    assert made.value
    return replace(made, value=made.value + t.random.randbytes(t.random.randint(1, 50)))


@kind("flipped bits", 3)
def _flipped(t: Thrower) -> Thrown:
    while True:
        made = t.good().dead("", "Undecodable")
        assert made.value
        data = bytearray(made.value)
        for _ in range(t.random.randint(1, 4)):
            data[t.random.randrange(len(data))] ^= 1 << t.random.randrange(8)
        if not reads(made.topic, bytes(data)):
            return replace(made, value=bytes(data))


@kind("random bytes", 1)
def _random(t: Thrower) -> Thrown:
    while True:
        made = t.good().dead("", "Undecodable")
        data = t.random.choice((t.bytes(3), t.bytes(400), b"\xff" * 400, b"\x80" * 4_000, b"{}", b"\0"))
        if not reads(made.topic, data):
            return replace(made, value=data)


@kind("numbers out of bounds", 2)
def _out_of_bounds(t: Thrower) -> Thrown:
    huge = (2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 1, 2**70, -(2**63), -(2**63) - 1, -(2**70))
    n = t.random.choice(huge)
    which = t.random.randrange(4)
    if which == 0:
        return replace(t.delivery("sku-3", t.random.choice((0, -1, 10**9 + 1, n))).dead("", "Undecodable"))
    if which == 1:
        return t.any_order_value(
            t.sound_order(cents=t.random.choice((-1, 10**12 + 1, -n, 2**62, 2**63, 2**70)))
        )
    return t.any_order_value(
        t.sound_order(lines=(("sku-1", 1), ("sku-1", t.random.choice((0, -1, 10**9 + 1, n)))))
    )


@kind("texts that are too long, empty or no Unicode", 1)
def _bad_texts(t: Thrower) -> Thrown:
    order = t.sound_order()
    ways = (
        replace(order, order_id="x" * 201), replace(order, order_id=""), replace(order, order_id=b"\xff\xfe"),
        replace(order, lines=(("", 1),)), replace(order, lines=(("s" * 201, 1),)),
        replace(order, customer="c" * 1001), replace(order, card="c" * 1001),
        replace(order, country="c" * 5_000),
        replace(order, customer=b"\xed\xa0\x80"), replace(order, customer=b"\xc0\x80"),
    )  # fmt: skip
    return t.any_order_value(t.random.choice(ways))


@kind("a fingerprint that is none", 1)
def _bad_fingerprint(t: Thrower) -> Thrown:
    made = t.good().dead("", "Undecodable")
    ways = (
        b"0" * 15, b"0" * 17, b"X" * 16, b"\xff" * 16, b"\0" * 16, b"ABCDEF0123456789", b" " * 16,
        b"f" * 9_000,
    )  # fmt: skip
    return with_header(made, "schema-fingerprint", t.random.choice(ways))


@kind("a fingerprint of something else", 0.5)
def _other_fingerprint(t: Thrower) -> Thrown:
    made = t.stock().dead("", "Undecodable")
    return with_header(made, "schema-fingerprint", FINGERPRINTS[PLACED])


@kind("a fingerprint that nobody announces", 2)
def _unknown(t: Thrower) -> list[Thrown]:
    order = t.order()
    made = order.dead("", "SchemaNeverAnnounced", handlers=HANDLERS[order.topic])
    made = with_header(made, "schema-fingerprint", t.random.randbytes(8).hex().encode())
    if t.random.random() < 0.3:
        made = replace(made, value=t.bytes(100) or b"x")
    if t.random.random() < 0.2:
        past = t.random.choice((b"0001-01-01T00:00:00+00:00", b"1970-01-01T00:00:00Z"))
        expired = replace(made, error=("MessageExpired",), headers=[*made.headers, (b"ce_expirytime", past)])
        return [expired]
    if t.random.random() < 0.3:  # another of its key, which waits behind it
        own = b"behind-%d-%d" % (t.seed, t.number)
        return [made, with_header(order, "ce_id", own)]
    return [made]


@kind("a reference that does not read", 1)
def _bad_reference(t: Thrower) -> Thrown:
    order = t.order()
    made = replace(by_reference(order.dead("", "BadReference"), t), upload=None)
    name, values = t.random.choice((
        ("ce_dataref", (b"", b"s3://", b"http://x/y", b"s3://B/x", b"s3://event-payloads/../../etc/passwd",
                        b"s3://event-payloads/events//x", b"s3://event-payloads/" + b"x" * 300, b"\xff\0",
                        b"s3://event-payloads/events/\xc3\xbc", b"file:///dev/zero", b"s3://event-payloads/.")),
        ("claim-sha256", (b"", b"0" * 63, b"G" * 64, b"\xff" * 64)),
        ("claim-size", (b"", b"-1", b"1e9", b"9" * 16, b"\xd9\xa1", b"0x1")),
    ))  # fmt: skip
    if t.random.random() < 0.2:
        return without(made, t.random.choice(("claim-sha256", "claim-size")))
    return with_header(made, name, t.random.choice(values))


@kind("a reference to nothing, or to another's", 0.3)
def _dangling(t: Thrower) -> Thrown:
    order = t.order()
    made = replace(by_reference(order, t), upload=None)
    handlers = HANDLERS[made.topic]
    if t.random.random() < 0.4:
        where = t.random.choice((b"s3://another-bucket/events/x", b"s3://event-payloads/private/x"))
        return with_header(made, "ce_dataref", where).dead("", "BadReference", handlers=handlers)
    size = t.random.choice((b"0", b"5", b"999999999999999"))
    return with_header(made, "claim-size", size).dead("", "BlobMissing", handlers=handlers)


@kind("a reference to what was altered", 0.1)
def _altered(t: Thrower) -> Thrown:
    order = t.order()
    made = by_reference(order.dead("", "BlobAltered", handlers=HANDLERS[order.topic]), t)
    assert made.upload
    name, data = made.upload
    return replace(made, upload=(name, t.random.choice((data[:-1], data + b"x", bytes(len(data)), b""))))


@kind("a reference to what cannot be read", 0.1)
def _referred_rubbish(t: Thrower) -> Thrown:
    order = t.order()
    return by_reference(order.dead("", "Undecodable", handlers=HANDLERS[order.topic]), t, b"\xff" * 30)


@kind("near the limit of its topic", 0.004)
def _large(t: Thrower) -> Thrown:
    made = t.good().dead("", "Undecodable")
    return replace(made, value=b"\xff" + t.random.randbytes(t.random.randint(980_000, 998_000)))


@kind("beyond the limit, compressed", 0.004)
def _compressed(t: Thrower) -> Thrown:
    made = t.good().dead("", "Undecodable")
    raw = batch([record(0, made.key, value := b"\xff" * 3_000_000, made.headers)], codec="zstd")
    return replace(made, value=value, whole=raw)


# What no client library reads


@kind("a header's name that is not UTF-8", 2)
def _names(t: Thrower) -> Thrown:
    made = t.good().dead("", "Unreadable")
    name = t.random.choice((b"\xff\xfe", "größe".encode("latin-1"), b"\x80", b"\xed\xa0\x80"))
    return replace(made, headers=[*made.headers, (name, b"x")])


@kind("too many headers", 0.2)
def _headers(t: Thrower) -> Thrown:
    made = t.good().dead("", "Unreadable")
    return replace(made, headers=[*made.headers, *[(b"", b"")] * 1001])


@kind("an offset that lies", 0.5)
def _lies(t: Thrower) -> Thrown:
    return replace(t.good().dead("", "Unreadable"), lie=t.random.choice((-1, 5_000, 1 << 33)))


@kind("a bomb", 0.002)
def _bomb(t: Thrower) -> Thrown:
    made = t.good().dead("", "Unreadable")
    codec = t.random.choice([name for name in CODECS if name != "none"])
    made = replace(made, value=bytes(17 << 20))
    return replace(made, whole=batch([made.raw(0)], codec=codec))


# What only workers and operators write


def _to_lanes(t: Thrower, value: bytes, *, partition: int | None = None) -> Thrown:
    partition = t.random.randrange(PARTITIONS) if partition is None else partition
    t.number += 1
    headers: list[Header] = [(b"ce_id", f"op-{t.seed}-{t.number}".encode()), (b"ce_source", b"nobody")]
    return Thrown("", OPERATIONS, partition, t.bytes(20), value, headers, Fate.PASSED_BY)


def _operation(t: Thrower, **changed: object) -> tuple[bytes, int, str]:
    partition = t.random.randrange(PARTITIONS)
    letter = letter_id(store_key(partition, t.random.randbytes(20)))
    said = {"kind": "discard", "letter": letter, "who": "w\0é", "why": "none", "at_ms": 1, **changed}
    return json.dumps(said).encode(), partition, letter


@kind("an operation that does not read", 1)
def _bad_operation(t: Thrower) -> Thrown:
    ways: tuple[dict[str, object], ...] = (
        {"kind": "explode"}, {"letter": "!"}, {"letter": ""}, {"at_ms": 10**18}, {"at_ms": -1},
        {"at_ms": 2**70},
        {"who": None}, {"headers": [1]}, {"value": "no base64!"}, {"letter": "a" * 70_001},
        {"letter": letter_id(store_key(PARTITIONS + 5, b"another"))},
    )  # fmt: skip
    data, partition, _ = _operation(t, **t.random.choice(ways))
    data = t.random.choice(
        (data, data, data, b"", b"{", b"\xff", b'{"x":' * 9_000, b"[" * 5_000, t.bytes(99), b"null")
    )
    made = _to_lanes(t, data, partition=partition)
    return t.random.choice((made, made, made, replace(made, value=None), without(made, "ce_id")))


@kind("an operation in a record that does not read", 0.3)
def _damaged_operation(t: Thrower) -> Thrown:
    made = _to_lanes(t, _operation(t)[0])
    return replace(made, headers=[*made.headers, (b"\xff", b"")], error=("Unreadable",))


@kind("an operation on a handler that does not read", 0.3)
def _bad_command(t: Thrower) -> Thrown:
    made = _to_lanes(t, t.random.choice((b"{}", b'{"kind": "stop"}', b"", b"\xff")))
    return replace(made, headers=[*made.headers, (b"ce_type", b"steadfaust.handler.operation")])


@kind("an operation on no letter", 0.5)
def _operation_on_nothing(t: Thrower) -> Thrown:
    data, partition, letter = _operation(t, kind=t.random.choice(("discard", "replay", "restore", "edit")))
    return replace(_to_lanes(t, data, partition=partition), fate=Fate.REFUSED, letter=letter)


@kind("an announcement that is no schema", 0.1)
def _announcement(t: Thrower) -> Thrown:
    values = (
        b"", b"{", b"\xff\xfe", b"null", b"[" * 5_000, b'"nothing"', b'{"type": "record"}', b"1" * 900, None,
        b'{"x":' * 9_000,
    )  # fmt: skip
    key = t.random.choice((b"schema:", b"schema:\xff", b"schema:0123456789abcdef", b"layout"))
    return Thrown("", ANNOUNCEMENTS, 0, key, t.random.choice(values), [], Fate.PASSED_BY)


@kind("an announcement in a record that does not read", 0.05)
def _damaged_announcement(t: Thrower) -> Thrown:
    headers: list[Header] = [(b"\xff", b"")]
    return Thrown("", ANNOUNCEMENTS, 0, b"schema:x", b"{}", headers, Fate.PASSED_BY, error=("Unreadable",))
