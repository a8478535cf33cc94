"""Kinds of good records, plain and odd, and of repeated ones."""

import time
from dataclasses import replace

from tests.scenarios.hostile_orders import Order
from tests.scenarios.hostile_records import (
    LAYOUT,
    Fate,
    Header,
    Thrower,
    Thrown,
    by_reference,
    kind,
    with_header,
    without,
)
from tests.scenarios.world import APP, PARTITIONS


@kind("good", 8)
def _good(t: Thrower) -> Thrown:
    return t.good()


TIMES = (
    b"", b"yesterday", b"-1", b"0000-00-00T00:00:00Z", b"9999-12-31T23:59:59+14:00", b"\xff\xfe", b"1e400",
    b"0001-01-01T00:00:00-23:59", b"2026-13-45T99:99:99Z", b"nan", b"\0" * 40, "٢٠٢٦".encode(), b"2" * 5_000,
)  # fmt: skip


@kind("good, times that are none", 2)
def _times(t: Thrower) -> Thrown:
    made = t.order(ce_time=t.random.choice(TIMES))
    name = t.random.choice((b"ce_expirytime", b"ce_within", b"timer-due"))
    value = t.random.choice((*TIMES, b"inf", b"-inf", b"-1e309", b"0x10", b"1_000", b"9" * 400))
    return replace(made, headers=[*made.headers, (name, value)])


@kind("good, a time as large as a record", 0.005)
def _large_time(t: Thrower) -> Thrown:
    return t.order(ce_time=b"2" * 960_000)


@kind("good, forged headers", 2)
def _forged(t: Thrower) -> Thrown:
    made = t.good()
    forged: list[Header] = [
        (b"dlq-source-topic", b"elsewhere"), (b"dlq-source-offset", b"-7"), (b"dlq-raw", b"record"),
        (b"dlq-error-type", b"\xff"), (b"dlq-handler", None), (b"dlq-omitted-bytes", b"99"),
        (b"retry-attempt", b"2147483648"), (b"retry-due", b"0"), (b"retry-tier", b"-1"),
        (b"retry-handler", b""),
        (b"ce_type", b"orders.saga.replies"), (b"ce_type", None), (b"ce_subject", b"x" * 9_000),
        (b"ce_causationid", b"\xff" * 2_000), (b"ce_specversion", b"99"), (b"claim-sha256", b"none"),
        (b"claim-size", b"-1"), (b"content-type", None),
        (b"ce_dataref", b"s3://elsewhere/of no use: a value"),
        (b"ce_dataref", None), (b"ce_within", None), (b"ce_expirytime", None), (b"timer-due", b""),
    ]  # fmt: skip
    return replace(made, headers=[*made.headers, *t.random.sample(forged, t.random.randint(1, 9))])


@kind("good, a forged mark of loopback", 1)
def _looped(t: Thrower) -> Thrown:
    made = t.good()
    return replace(made, headers=[*made.headers, (b"loopback", APP.encode())])


@kind("good, strange headers", 2)
def _strange(t: Thrower) -> Thrown:
    made = t.good()
    names = ["", "\0", "ü", "\U0001f4a3", "a" * 300, "CE_ID", "ce_id ", "ce-id", "\u202e", "x\ny"]
    more: list[Header] = [
        (t.random.choice(names).encode(), t.random.choice((None, t.bytes(99))))
        for _ in range(t.random.choice((1, 3, 200)))
    ]
    return replace(made, headers=[*more, *made.headers])


@kind("good, traceparent and correlation of any bytes", 1)
def _traced(t: Thrower) -> Thrown:
    return t.order(traceparent=t.bytes(t.random.choice((10, 256, 20_000))), ce_correlationid=t.bytes(1024))


@kind("good, strange ids", 2)
def _ids(t: Thrower) -> Thrown:
    made = t.good()
    unique = f"{t.seed}.{t.number}".encode()
    strange = t.random.choice(
        (b"\0", b"\xff\xfe\xfd", "ünï\U0001f4a3".encode(), b" \n\t", b"'; --", b"../..")
    )
    long = t.random.random() < 0.3
    own = (strange + unique).ljust(1024, b"x") if long else strange + unique
    made = with_header(made, "ce_id", own)
    source = t.random.choice((b"shop", b"", None, b"\xff", b"\0", b"s" * 1024))
    return with_header(made, "ce_source", source)


@kind("good, an id said twice: the last one counts", 1)
def _twice(t: Thrower) -> Thrown:
    made = t.good()
    first = t.random.choice((b"", b"y" * 5_000, b"\xff", t.known[0].headers[1][1] if t.known else b"0"))
    return replace(made, headers=[(b"ce_id", first), *made.headers])


TEXTS = (
    "\0", "a\0b", "\x7f", "ünï", "\U0001f4a3", "\u202etxt", "\n", " ", "%00", "../..", "'; DROP TABLE",
    "\ufffe",
    "{}", "a/b?c=d&e#f", "\u0130", "\\u0000",
)  # fmt: skip


@kind("good, texts of any characters", 2)
def _texts(t: Thrower) -> Thrown:
    odd = t.random.choice(TEXTS)
    order = t.sound_order()
    which = t.random.choice(("order_id", "customer", "card", "country", "sku"))
    if which == "sku":
        order = replace(order, lines=((odd, 1), *order.lines))
    elif which == "order_id":
        order = replace(order, order_id=f"{order.order_id}{odd}")
    elif which == "customer":
        order = replace(order, customer=(odd * 1000)[:1000])
    elif which == "card":
        order = replace(order, card=t.random.choice((odd, f"tok_{odd}", "tok_nobody", "", "t" * 1000)))
    else:
        order = replace(order, country=odd)
    return t.order(order)


@kind("good, ids as long as may be", 1)
def _long(t: Thrower) -> Thrown:
    order = t.sound_order()
    return t.order(replace(order, order_id=str(order.order_id).ljust(200, t.random.choice("xü"))))


@kind("good, numbers on the bound", 1)
def _bounds(t: Thrower) -> Thrown:
    if t.random.random() < 0.5:
        return t.order(t.sound_order(lines=(("sku-1", 10**9),)))
    return t.order(t.sound_order(cents=t.random.choice((0, 1, 10**12))))


@kind("good, no lines", 1)
def _no_lines(t: Thrower) -> Thrown:
    return t.order(t.sound_order(lines=()))


@kind("good, one SKU on many lines", 1)
def _same_sku(t: Thrower) -> Thrown:
    return t.order(t.sound_order(lines=(("sku-2", 1),) * t.random.choice((2, 10, 50))))


@kind("good, many SKUs that there are not", 0.05)
def _many_lines(t: Thrower) -> Thrown:
    lines = tuple((f"none-{t.random.randrange(500)}-{n}", 1) for n in range(t.random.randint(20, 60)))
    return t.order(t.sound_order(lines=lines))


@kind("good, too wide or too large", 0.002)
def _too_wide(t: Thrower) -> Thrown:
    wide = tuple((f"{n}", 1) for n in range(10_001))
    large = tuple((f"{n}".ljust(200, "x"), 1) for n in range(3_000))
    return t.order(t.sound_order(lines=t.random.choice((wide, large))))


@kind("good, files beside it", 0.008)
def _files(t: Thrower) -> Thrown:
    return t.order(t.sound_order(files=(t.random.randbytes(t.random.choice((0, 10, 300_000))),)))


@kind("good, an empty fingerprint", 0.5)
def _no_fingerprint(t: Thrower) -> Thrown:
    made = t.good()
    return t.random.choice(
        (with_header(made, "schema-fingerprint", b""), without(made, "schema-fingerprint"))
    )


@kind("good, at times of any clock", 2)
def _clock(t: Thrower) -> Thrown:
    now = int(time.time() * 1000)
    at = t.random.choice((0, -1, 1, now - 400 * 86_400_000, now + 3_000_000))
    return replace(t.good(), timestamp=at)


@kind("good, of an old clock", 2)
def _old(t: Thrower) -> Thrown:
    """As a client stamps that counts in seconds, and a mirror of years ago."""
    now = int(time.time())
    return replace(t.good(), timestamp=t.random.choice((now, (now - 3 * 365 * 86_400) * 1000)))


@kind("good, in another partition", 2)
def _elsewhere(t: Thrower) -> Thrown:
    made = t.good()
    where = (made.partition + t.random.randint(1, PARTITIONS - 1)) % PARTITIONS
    return replace(made, partition=where, home=made.partition)


@kind("good, by reference", 0.1)
def _referring(t: Thrower) -> Thrown:
    return by_reference(t.order(), t)


@kind("good, with the id of a dead letter", 1)
def _reborn(t: Thrower) -> Thrown | list[Thrown]:
    """What no handler has seen leaves no id."""
    if not t.buried:
        return []
    dead = t.buried.pop(t.random.randrange(len(t.buried)))
    said = dict(dead.headers)
    own, source = said.get(b"ce_id"), said.get(b"ce_source") or b""
    if not own or len(own) > 1024 or len(source) > 1024:
        return []
    order = t.sound_order()
    while LAYOUT.partition_of(str(order.order_id).encode()) != dead.partition:  # ids are known by partition
        order = replace(order, order_id=t.id())
    return t.order(order, ce_id=own, ce_source=source)


# Repeated ones


@kind("repeated as it was", 3)
def _repeated(t: Thrower) -> Thrown | list[Thrown]:
    if not t.known:
        return []
    return replace(t.random.choice(t.known), fate=Fate.DUPLICATE, order=None, stock=None, timestamp=None)


@kind("repeated with another value", 1)
def _changed(t: Thrower) -> Thrown | list[Thrown]:
    orders = [each for each in t.known if each.order is not None]
    if not orders:
        return []
    first = t.random.choice(orders)
    assert first.key is not None
    value = Order(first.key, cents=t.random.randrange(1000)).encoded()
    headers = [pair for pair in first.headers if pair[0] not in (b"ce_dataref", b"schema-fingerprint")]
    # `ce_id` stays where it was.
    return replace(
        first, value=value, headers=headers, fate=Fate.DUPLICATE, order=None, timestamp=None, upload=None
    )
