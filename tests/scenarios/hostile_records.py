"""Records as hostile clients write them, among good ones, each with what is to become of it.

The kinds of them are in `hostile_good` and `hostile_bad`. The same seed makes the same records.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from agents.commands import OrderSubmitted
from agents.gateway import cards
from agents.messages import OrderPlaced, StockReceived
from schemas import latest
from streams.model.codecs import fingerprint_of
from streams.model.layout import Layout
from streams.testing.batches import record
from tests.scenarios.hostile_orders import Order, long, text
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
        return replace(
            self, kind=kind, fate=Fate.DEAD, error=errors, handlers=tuple(handlers), order=None, stock=None
        )

    @property
    def is_damaged(self) -> bool:
        """Whether no client library reads it."""
        return self.error == ("Unreadable",)

    def raw(self, delta: int) -> bytes:
        return record(delta + self.lie, self.key, self.value, self.headers)


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
        well = [each for each in records if each.home is None and each.topic in HANDLERS]
        self.known = [each for each in well if each.fate is Fate.HANDLED and each.whole is None][:500]
        self.buried = [each for each in well if each.handlers == DOOR and not each.is_damaged][:500]

    def id(self) -> str:
        self.number += 1
        return f"o{self.seed}-{self.number}"

    def bytes(self, most: int) -> bytes:
        return self.random.randbytes(self.random.randint(0, most))

    def headers(self, topic: str, key: bytes, **changed: bytes | None) -> list[Header]:
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
        order = order or self.sound_order()
        topic = SUBMITTED if self.random.random() < 0.3 else PLACED
        assert isinstance(order.order_id, str)
        key = order.order_id.encode()
        settled = order.order_id, order.outcome(), order.cents
        said = self.headers(topic, key, **headers)
        return Thrown("", topic, LAYOUT.partition_of(key), key, order.encoded(), said, order=settled)

    def stock(self) -> Thrown:
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
    return replace(thrown, headers=[(n, value if n == name.encode() else v) for n, v in thrown.headers])


def without(thrown: Thrown, name: str) -> Thrown:
    return replace(thrown, headers=[pair for pair in thrown.headers if pair[0] != name.encode()])


def by_reference(made: Thrown, t: Thrower, data: bytes | None = None) -> Thrown:
    data = made.value if data is None else data
    assert data is not None
    digest = hashlib.sha256(data).hexdigest()
    name = f"events/hostile/{t.seed}-{t.number}-{digest}"
    said: list[Header] = [
        (b"ce_dataref", f"s3://{BUCKET}/{name}".encode()), (b"claim-sha256", digest.encode()),
        (b"claim-size", b"%d" % len(data)), (b"content-type", b"application/avro"),
    ]  # fmt: skip
    return replace(made, value=b"", headers=[*made.headers, *said], upload=(name, data))


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
