"""Records as hostile clients write them, among good ones, each with what is to become of it.

What a good order comes to, and which records are no messages, is said here from the messages' schemas and
`tables/values.py` alone: nothing is asked of the code that is tested. The same seed makes the same records.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from agents.commands import OrderSubmitted
from agents.gateway import cards
from agents.messages import OrderPlaced, StockReceived
from schemas import latest
from streams.changes import store_key
from streams.codecs import fingerprint_of
from streams.layout import Layout
from streams.letter_rows import letter_id
from streams.testing.batches import CODECS, batch, record
from tests.scenarios.world import APP, LANES, PARTITIONS, SCARCE, SKUS

Header = tuple[bytes, bytes | None]
PLACED, SUBMITTED, RECEIVED = OrderPlaced.TOPIC, OrderSubmitted.TOPIC, StockReceived.TOPIC
LAYOUT = Layout(APP, PARTITIONS, LANES)
OPERATIONS, ANNOUNCEMENTS = LAYOUT.operations, LAYOUT.announcements
#: Who gives up what cannot be told at the door.
HANDLERS = {
    PLACED: ("orders.open", "inventory.split_order"),
    SUBMITTED: ("orders.open", "orders.order_saga"),
    RECEIVED: ("inventory.receive",),
}
DOOR = ("",)
FINGERPRINTS = {topic: fingerprint_of(latest(topic)).encode() for topic in HANDLERS}
BUCKET = "event-payloads"


class Fate(Enum):
    """What is to become of a record."""

    HANDLED = auto()
    DUPLICATE = auto()  # dropped: its id is known
    DEAD = auto()  # a dead letter of each of its handlers
    PASSED_BY = auto()  # told in the log: an operation or an announcement that cannot be read
    REFUSED = auto()  # an operation about a letter that there is not


@dataclass
class Thrown:
    """A record, and what is to become of it.

    Attributes:
        kind: of hostility.
        timestamp: epoch milliseconds; None: the client's own.
        home: where it is sent on to, if that is elsewhere.
        error, handlers: of its dead letters.
        order: id, outcome and cents of a good order.
        stock: SKU and pieces of a good delivery.
        lie: the offset within its batch is told to be so much more than it is.
        whole: the batch that it is, alone; or None.
        upload: an object's name and bytes, to be there before it.
        letter: which an operation is about.
    """

    kind: str
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    fate: Fate = Fate.HANDLED
    timestamp: int | None = None
    home: int | None = None
    error: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    order: tuple[str, str, int] | None = None
    stock: tuple[str, int] | None = None
    lie: int = 0
    whole: bytes | None = None
    upload: tuple[str, bytes] | None = None
    letter: str = ""

    def dead(self, kind: str, *errors: str, handlers: Sequence[str] = DOOR) -> Thrown:
        """The same as what becomes a dead letter."""
        return replace(
            self, kind=kind, fate=Fate.DEAD, error=errors, handlers=tuple(handlers), order=None, stock=None
        )

    @property
    def is_damaged(self) -> bool:
        """Whether no client library reads it."""
        return self.error == ("Unreadable",)

    def raw(self, delta: int) -> bytes:
        """The record at a place in a batch."""
        return record(delta + self.lie, self.key, self.value, self.headers)


# -- Avro by hand -----------------------------------------------------------------------------------------


def long(number: int) -> bytes:
    """A number of any size, as a zigzag."""
    left, out = (number << 1) if number >= 0 else (-number << 1) - 1, bytearray()
    while left > 0x7F:
        out.append(0x80 | (left & 0x7F))
        left >>= 7
    return bytes([*out, left])


def text(data: str | bytes) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return long(len(raw)) + raw


def array(items: Sequence[bytes]) -> bytes:
    return (long(len(items)) + b"".join(items) if items else b"") + b"\0"


@dataclass(frozen=True)
class Order:
    """An order as its client has it: any text may be any bytes."""

    order_id: str | bytes
    lines: tuple[tuple[str, int], ...] = (("sku-1", 1),)
    cents: int = 100
    card: str = cards.ACCEPTED
    country: str = "US"
    customer: str | bytes = "customer"
    files: tuple[bytes, ...] = ()

    def encoded(self) -> bytes:
        lines = array([text(sku) + long(units) for sku, units in self.lines])
        files = array([text("file") + text("image/png") + text(data) for data in self.files])
        said = text(self.order_id), text(self.customer), lines, long(self.cents)
        return b"".join((*said, text(self.card), text(self.country), files))

    def outcome(self) -> str:
        """What it comes to."""
        if not self.lines:
            return "no_lines"
        if len(self.lines) > 10_000:
            return "too_many_lines"
        if sum(len(sku) for sku, _ in self.lines) > 500_000:
            return "order_too_large"
        asked: dict[str, int] = {}
        for sku, units in self.lines:
            asked[sku] = asked.get(sku, 0) + units
        if any(sku not in STOCKED or units > 90_000 for sku, units in asked.items()):
            return "out_of_stock"
        if self.cents and (refusal := self._charged()):
            return refusal
        return "confirmed" if self.country == "US" else "unsupported_destination"

    def _charged(self) -> str:
        assert isinstance(self.order_id, str)
        operation = f"capture:{self.order_id}"
        is_name = len(operation) <= 200 and not any(c < " " or c == "\x7f" for c in operation)
        is_card = self.card.startswith("tok_") and self.card[4:].isascii() and self.card[4:].isalnum()
        known = {cards.ACCEPTED: "", cards.DECLINED: "card_declined"}
        if not is_name or not (is_card or self.card in known):
            return "invalid_charge"
        return known.get(self.card, "unknown_card")


STOCKED = frozenset(f"sku-{n}" for n in range(SKUS))


def _reads(topic: str, data: bytes) -> bool:
    """Whether bytes are of a message's schema, to the last of them; a careful reader of its own."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if value >> 64:
            raise ValueError("too long")
        return (value >> 1) ^ -(value & 1)

    def sized() -> bytes:
        nonlocal at
        size = number()
        if size < 0 or at + size > len(data):
            raise ValueError("cut off")
        at += size
        return data[at - size : at]

    def each(item: Callable[[], object]) -> None:
        while count := number():
            if count < 0:
                number()
            if abs(count) > len(data):
                raise ValueError("cut off")
            for _ in range(abs(count)):
                item()

    def word() -> str:
        return sized().decode()

    try:
        word()
        if topic == RECEIVED:
            number()
        else:
            word()
            each(lambda: (word(), number()))
            number(), word(), word()
            each(lambda: (word(), word(), sized()))
    except (ValueError, IndexError):
        return False
    return at == len(data)


# -- the kinds --------------------------------------------------------------------------------------------

Make = Callable[["Thrower"], "Thrown | list[Thrown]"]
KINDS: dict[str, tuple[float, Make]] = {}


def kind(name: str, weight: float = 1.0) -> Callable[[Make], Make]:
    """Declares a kind of record. Kinds that weigh less than 0.01 are large: there are few of them."""

    def declare(make: Make) -> Make:
        KINDS[name] = weight, make
        return make

    return declare


@dataclass
class Thrower:
    """Makes records, `seed` says which."""

    seed: int
    known: list[Thrown] = field(default_factory=list)  # good ones that the broker has already
    buried: list[Thrown] = field(default_factory=list)  # dead letters, the same

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.number = 0

    def some(self, count: int) -> list[Thrown]:
        """So many records, about, of all kinds; what is made later may repeat what was made before."""
        names = list(KINDS)
        weights = [KINDS[name][0] for name in names]
        found: list[Thrown] = []
        while len(found) < count:
            (name,) = self.random.choices(names, weights)
            found += self.make(name)
        return found

    def make(self, name: str) -> list[Thrown]:
        """What a kind comes to this time; may be nothing."""
        made = KINDS[name][1](self)
        records = made if isinstance(made, list) else [made]
        for each in records:
            each.kind = name
        return records

    def learn(self, records: Sequence[Thrown]) -> None:
        """The broker has all of these."""
        well = [each for each in records if each.home is None and each.topic in HANDLERS]
        self.known = [each for each in well if each.fate is Fate.HANDLED and each.whole is None][:500]
        self.buried = [each for each in well if each.handlers == DOOR and not each.is_damaged][:500]

    def id(self) -> str:
        self.number += 1
        return f"o{self.seed}-{self.number}"

    def bytes(self, most: int) -> bytes:
        return self.random.randbytes(self.random.randint(0, most))

    def headers(self, topic: str, key: bytes, **changed: bytes | None) -> list[Header]:
        """Those of a good client."""
        said: dict[str, bytes | None] = {
            "ce_specversion": b"1.0", "ce_id": f"m-{self.seed}-{self.number}".encode(), "ce_source": b"shop",
            "ce_type": topic.encode(), "ce_time": b"2026-01-01T00:00:00Z", "ce_subject": key[:50],
            "schema-fingerprint": FINGERPRINTS[topic], **changed,
        }  # fmt: skip
        return [(name.encode(), value) for name, value in said.items()]

    def sound_order(self, **changed: object) -> Order:
        n = self.random.randrange(10_000)
        lines: tuple[tuple[str, int], ...] = ((f"sku-{n % SKUS}", 1 + n % 3),)
        if n % 2:
            lines += ((f"sku-{(n + 3) % SKUS}", 1),)
        if n % 11 == 0:
            lines += ((SCARCE, 5),)
        card = cards.DECLINED if n % 13 == 0 else cards.ACCEPTED
        whole = Order(self.id(), lines, 0 if n % 17 == 0 else n, card, "AQ" if n % 19 == 0 else "US")
        return replace(whole, **changed)  # type: ignore[arg-type]

    def order(self, order: Order | None = None, /, **headers: bytes | None) -> Thrown:
        """An order, placed or submitted, that is to be settled."""
        order = order or self.sound_order()
        topic = SUBMITTED if self.random.random() < 0.3 else PLACED
        assert isinstance(order.order_id, str)
        key = order.order_id.encode()
        settled = order.order_id, order.outcome(), order.cents
        said = self.headers(topic, key, **headers)
        return Thrown("", topic, LAYOUT.partition_of(key), key, order.encoded(), said, order=settled)

    def stock(self) -> Thrown:
        """A delivery."""
        return self.delivery(f"sku-{self.random.randrange(SKUS)}", self.random.randint(1, 9))

    def delivery(self, sku: str, units: int) -> Thrown:
        self.number += 1
        key, value = sku.encode(), text(sku) + long(units)
        said = self.headers(RECEIVED, key)
        return Thrown("", RECEIVED, LAYOUT.partition_of(key), key, value, said, stock=(sku, units))

    def good(self) -> Thrown:
        return self.stock() if self.random.random() < 0.4 else self.order()

    def any_order_value(self, order: Order, error: str = "Undecodable") -> Thrown:
        """An order that is none; its key is what it says, as far as that can be one."""
        raw = order.order_id.encode() if isinstance(order.order_id, str) else order.order_id
        topic = self.random.choice((PLACED, SUBMITTED))
        made = Thrown("", topic, LAYOUT.partition_of(raw), raw, order.encoded(), self.headers(topic, raw))
        return made.dead("", error)


def with_header(thrown: Thrown, name: str, value: bytes | None) -> Thrown:
    """With another value of a header."""
    return replace(thrown, headers=[(n, value if n == name.encode() else v) for n, v in thrown.headers])


def without(thrown: Thrown, name: str) -> Thrown:
    return replace(thrown, headers=[pair for pair in thrown.headers if pair[0] != name.encode()])


# Good ones, plain and odd


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


@kind("good, in another partition", 2)
def _elsewhere(t: Thrower) -> Thrown:
    made = t.good()
    where = (made.partition + t.random.randint(1, PARTITIONS - 1)) % PARTITIONS
    return replace(made, partition=where, home=made.partition)


@kind("good, by reference", 0.1)
def _referring(t: Thrower) -> Thrown:
    return _by_reference(t.order(), t)


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


# No messages


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
        if not _reads(made.topic, bytes(data)):
            return replace(made, value=bytes(data))


@kind("random bytes", 1)
def _random(t: Thrower) -> Thrown:
    while True:
        made = t.good().dead("", "Undecodable")
        data = t.random.choice((t.bytes(3), t.bytes(400), b"\xff" * 400, b"\x80" * 4_000, b"{}", b"\0"))
        if not _reads(made.topic, data):
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
        b"0" * 15,
        b"0" * 17,
        b"X" * 16,
        b"\xff" * 16,
        b"\0" * 16,
        b"ABCDEF0123456789",
        b" " * 16,
        b"f" * 9_000,
    )
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


def _by_reference(made: Thrown, t: Thrower, data: bytes | None = None) -> Thrown:
    """What has its value in the object store."""
    data = made.value if data is None else data
    assert data is not None
    digest = hashlib.sha256(data).hexdigest()
    name = f"events/hostile/{t.seed}-{t.number}-{digest}"
    said: list[Header] = [
        (b"ce_dataref", f"s3://{BUCKET}/{name}".encode()), (b"claim-sha256", digest.encode()),
        (b"claim-size", b"%d" % len(data)), (b"content-type", b"application/avro"),
    ]  # fmt: skip
    return replace(made, value=b"", headers=[*made.headers, *said], upload=(name, data))


@kind("a reference that does not read", 1)
def _bad_reference(t: Thrower) -> Thrown:
    order = t.order()
    made = replace(_by_reference(order.dead("", "BadReference"), t), upload=None)
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
    made = replace(_by_reference(order, t), upload=None)
    handlers = HANDLERS[made.topic]
    if t.random.random() < 0.4:
        where = t.random.choice((b"s3://another-bucket/events/x", b"s3://event-payloads/private/x"))
        return with_header(made, "ce_dataref", where).dead("", "BadReference", handlers=handlers)
    size = t.random.choice((b"0", b"5", b"999999999999999"))
    return with_header(made, "claim-size", size).dead("", "BlobMissing", handlers=handlers)


@kind("a reference to what was altered", 0.1)
def _altered(t: Thrower) -> Thrown:
    order = t.order()
    made = _by_reference(order.dead("", "BlobAltered", handlers=HANDLERS[order.topic]), t)
    assert made.upload
    name, data = made.upload
    return replace(made, upload=(name, t.random.choice((data[:-1], data + b"x", bytes(len(data)), b""))))


@kind("a reference to what cannot be read", 0.1)
def _referred_rubbish(t: Thrower) -> Thrown:
    order = t.order()
    return _by_reference(order.dead("", "Undecodable", handlers=HANDLERS[order.topic]), t, b"\xff" * 30)


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
        {"letter": letter_id(store_key(PARTITIONS + 5, b"k"))},
    )  # fmt: skip
    data, partition, _ = _operation(t, **t.random.choice(ways))
    data = t.random.choice((data, data, data, b"", b"{", b"\xff", b"[" * 5_000, t.bytes(99), b"null"))
    made = _to_lanes(t, data, partition=partition)
    return t.random.choice((made, made, made, replace(made, value=None), without(made, "ce_id")))


@kind("an operation in a record that does not read", 0.3)
def _damaged_operation(t: Thrower) -> Thrown:
    made = _to_lanes(t, _operation(t)[0])
    return replace(made, headers=[*made.headers, (b"\xff", b"")], error=("Unreadable",))


@kind("an operation on a handler that does not read", 0.3)
def _bad_wish(t: Thrower) -> Thrown:
    made = _to_lanes(t, t.random.choice((b"{}", b'{"kind": "stop"}', b"", b"\xff")))
    return replace(made, headers=[*made.headers, (b"ce_type", b"steadfaust.handler.operation")])


@kind("an operation on no letter", 0.5)
def _operation_on_nothing(t: Thrower) -> Thrown:
    data, partition, letter = _operation(t, kind=t.random.choice(("discard", "replay", "restore", "edit")))
    return replace(_to_lanes(t, data, partition=partition), fate=Fate.REFUSED, letter=letter)


@kind("an announcement that is no schema", 0.1)
def _announcement(t: Thrower) -> Thrown:
    values = (
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[" * 5_000,
        b'"nothing"',
        b'{"type": "record"}',
        b"1" * 900,
        None,
        b'{"x":' * 9_000,
    )
    key = t.random.choice((b"schema:", b"schema:\xff", b"schema:0123456789abcdef", b"layout"))
    return Thrown("", ANNOUNCEMENTS, 0, key, t.random.choice(values), [], Fate.PASSED_BY)


@kind("an announcement in a record that does not read", 0.05)
def _damaged_announcement(t: Thrower) -> Thrown:
    headers: list[Header] = [(b"\xff", b"")]
    return Thrown("", ANNOUNCEMENTS, 0, b"schema:x", b"{}", headers, Fate.PASSED_BY, error=("Unreadable",))


def thrown(thrower: Thrower, count: int, at_once: int) -> Iterator[list[Thrown]]:
    """So many records, some at a time, with one of each kind at least: whoever is given them has the broker
    take all before the next ones.
    """
    left = count
    while left > 0:
        some = thrower.some(min(at_once, left))
        left -= len(some)
        if left <= 0:
            some += [each for name in KINDS for each in thrower.make(name)]
        thrower.random.shuffle(some)
        yield some
        thrower.learn(some)
