"""The evidence of a small run in which all went well, made order by order, for tests to spoil."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from itertools import count

from good_sagas import GoodSaga, submit

from agents.gateway.wire import Charged, Refunded
from agents.messages import (
    DocumentsPacked,
    LineRefused,
    LineReleased,
    LineReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderDocumented,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    ReleaseLine,
    ReserveLine,
    ShipLine,
    ShipmentFailed,
    ShipmentScheduled,
    StockReceived,
    StockReleased,
    StockReservationFailed,
    StockReserved,
)
from chaos.consequences import Sent
from chaos.evidence import Evidence
from chaos.findings import HANDLERS
from chaos.letters import content_of, letter
from chaos.objects import referred_in
from chaos.origins import Origin
from chaos.payloads import LARGEST
from chaos.rebuilt import Compared, Place, Rebuilt
from chaos.records import Commits, Ended, Happened, Run
from chaos.retried import retried
from demo import evidence as books
from demo.purchases import (
    SHORT,
    SOLD_OUT,
    Outcome,
    attachments,
    orchestrated,
    order,
    outcome,
    purchases,
    receipts,
    units_by_sku,
)
from demo.trouble import POISON_EVERY, Poison, poison
from streams.claims.claim import claim_of, with_claim
from streams.dead_letters.record import dead_letter
from streams.dead_letters.row import encode_letter, key_of, new_letter
from streams.model.layout import INBOX, partition_of
from streams.model.message import Message
from streams.ports import TP, Headers
from streams.staging.changes import Change, pack_ids
from tables.stock import StockLevel

BOUGHT = purchases(200)
PARTITIONS, LANES = 4, 2
ATTACHED = 0.1
BEGAN = 1_000.0
SCARCE = {*SHORT, *SOLD_OUT}
#: How the steps of a saga end.
ENDS = {
    Outcome.CONFIRMED: ["success"] * 3,
    Outcome.OUT_OF_STOCK: ["refused"],
    Outcome.DECLINED: ["success", "refused"],
    Outcome.NOWHERE: ["success", "success", "refused"],
}
LATE_STEPS = {"reserve_inventory": 0, "process_payment": 1, "schedule_shipping": 2}
#: How a participant answers that is asked after a step too late: of what is outside nobody can be sure.
ANSWERS = {"reserve_inventory": "cancelled", "process_payment": "expired", "schedule_shipping": "cancelled"}


@dataclass
class Written:
    """A record of a changelog."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: Headers = ()


@dataclass
class Post:
    """Topics that are written to one message after the other."""

    messages: list[Sent] = field(default_factory=list)
    compensations: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[TP] = field(default_factory=Counter)
    poison: list[Written] = field(default_factory=list)
    sagas: list[GoodSaga] = field(default_factory=list)
    _ids: count[int] = field(default_factory=count)

    def send(self, kind: type[Message], key: str, cause: Sent | None = None, name: str = "") -> Sent:
        tp = TP(kind.TOPIC, partition_of(key.encode(), PARTITIONS))
        source, because = ("demo", "") if cause is None else ("app/service", cause.message_id)
        sent = Sent(*tp, self.ends[tp], key, name or f"m-{next(self._ids)}", source, because)
        self.messages.append(sent)
        self.ends[tp] += 1
        return sent

    def release(self, order_id: str, skus: list[str], cause: Sent) -> None:
        released = []
        for sku in skus:
            command = self.send(ReleaseLine, sku, cause)
            released.append(self.send(LineReleased, order_id, command))
            for topic in (ReleaseLine.TOPIC, LineReleased.TOPIC):
                self.compensations[topic, f"{sku} in {order_id}"] += 1
        if released:
            self.send(StockReleased, order_id, released[-1])
            self.compensations[StockReleased.TOPIC, order_id] += 1

    def spoil(self, poison: Poison) -> None:
        key, value, headers = poison.record
        tp = TP(poison.topic, partition_of(key or b"", PARTITIONS))
        self.poison.append(Written(*tp, self.ends[tp], key, value, headers=headers))
        self.ends[tp] += 1

    def pack(self, order_id: str, placed: Sent) -> None:
        documented = self.send(OrderDocumented, order_id, placed)
        self.send(DocumentsPacked, order_id, documented)

    def conduct(
        self,
        order_id: str,
        skus: list[str],
        outcomes: list[str],
        *,
        began: float,
        with_files: bool,
        asked_after: str = "",
    ) -> None:
        submitted, saga = submit(self, order_id, skus, SCARCE, outcomes, began, asked_after)
        self.sagas.append(saga)
        if with_files:
            self.pack(order_id, submitted)

    def settle(self, order_id: str, skus: list[str], wanted: Outcome, *, with_files: bool) -> None:
        placed = self.send(OrderPlaced, order_id, name=f"placed-{order_id}")
        if with_files:
            self.pack(order_id, placed)
        asked = [self.send(ReserveLine, sku, placed) for sku in skus]
        answers = [self.send(LineRefused if a.key in SCARCE else LineReserved, order_id, a) for a in asked]
        if wanted is Outcome.OUT_OF_STOCK:
            failed = self.send(StockReservationFailed, order_id, answers[-1])
            self.release(order_id, [sku for sku in skus if sku not in SCARCE], answers[-1])
            self.send(OrderCancelled, order_id, failed)
            return
        reserved = self.send(StockReserved, order_id, answers[-1])
        if wanted is Outcome.DECLINED:
            failed = self.send(PaymentFailed, order_id, reserved)
            self.send(OrderCancelled, order_id, failed)
            self.release(order_id, skus, failed)
            return
        captured = self.send(PaymentCaptured, order_id, reserved)
        if wanted is Outcome.NOWHERE:
            failed = self.send(ShipmentFailed, order_id, captured)
            self.send(OrderCancelled, order_id, failed)
            self.send(PaymentRefunded, order_id, failed)
            self.compensations[PaymentRefunded.TOPIC, order_id] += 1
            self.release(order_id, skus, failed)
            return
        scheduled = self.send(ShipmentScheduled, order_id, captured)
        self.send(OrderConfirmed, order_id, scheduled)
        for sku in skus:
            self.send(ShipLine, sku, scheduled)


def good_books(late: str, at: str) -> books.Evidence:
    """What the demo's check looks at; the order `late` was cancelled because the step `at` was late, if its
    card was charged by then.
    """
    found = books.Evidence()
    for number, purchase in enumerate(BOUGHT):
        what, name = outcome(purchase), purchase.order_id
        ends = what.value
        if name == late:
            ends = "timed_out" if ANSWERS[at] == "cancelled" else ANSWERS[at]
        found.settlements.append(books.Settlement(f"s-{number}", order(purchase), ends))
        charged = what in (Outcome.CONFIRMED, Outcome.NOWHERE) and (name, at) != (late, "reserve_inventory")
        if purchase.cents and charged:
            found.ledger.append(
                Charged(f"c-{name}", f"capture:{name}", "captured", "", purchase.cents, "tok", "")
            )
            if what is Outcome.NOWHERE or name == late:
                refunded = Refunded(
                    f"r-{name}", f"refund:{name}", f"capture:{name}", "refunded", purchase.cents, ""
                )
                found.ledger.append(refunded)
    leaves = (p for p in BOUGHT if outcome(p) is Outcome.CONFIRMED and p.order_id != late)
    found.shipped = units_by_sku(map(order, leaves))
    for purchase in BOUGHT:
        if files := attachments(purchase, ATTACHED, LARGEST):
            found.packed[purchase.order_id] = [(each.name, sha256(each.data).hexdigest()) for each in files]
    for receipt in receipts():
        shipped = found.shipped[receipt.sku]
        found.received[receipt.sku] = receipt.units
        found.stock[receipt.sku] = StockLevel(
            received=receipt.units, on_hand=receipt.units - shipped, shipped=shipped
        )
    return found


def good_run(*, gateway_down: bool = False) -> Run:
    """One fault, confirmed, or two, and one worker that ended in order."""
    kill = Happened(
        kind="kill_worker", target="worker-0", began=BEGAN + 30, ended=BEGAN + 36, confirmed="SIGKILL"
    )
    down = Happened(kind="gateway_down", target="it", began=BEGAN + 30, ended=BEGAN + 36, confirmed="cut")
    ended = [
        Ended(worker="worker-0", pid=1, exit_code=-9, told=True, hung=False),
        Ended(worker="worker-0", pid=2, exit_code=0, told=True, hung=False),
    ]
    return Run(
        seed=1,
        app_id="app",
        bootstrap="",
        gateway="",
        partitions=PARTITIONS,
        lanes=LANES,
        session_timeout=6.0,
        orders=len(BOUGHT),
        load=(BEGAN, BEGAN + 60),
        faults=[kill, down] if gateway_down else [kill],
        workers=ended,
        s3="http://s3",
        attached=ATTACHED,
        poison_every=POISON_EVERY,
        orchestrated=True,
    )


def good(late: str = "", at: str = "process_payment", asked: float = 20.0, behind: str = "") -> Evidence:
    """All of it. The order `late` was cancelled because the step `at` was late, which began so many seconds
    after the run, and the gateway was down; of the order `behind` that step was only asked after.
    """
    post = Post()
    for receipt in receipts():
        post.send(StockReceived, receipt.sku, name=f"stock-{receipt.sku}")
    for purchase in BOUGHT:
        skus = [line.sku for line in order(purchase).lines]
        files = attachments(purchase, ATTACHED, LARGEST)
        name, wanted = purchase.order_id, outcome(purchase)
        if orchestrated(purchase):
            ends = [*["success"] * LATE_STEPS[at], ANSWERS[at]] if name == late else ENDS[wanted]
            began = BEGAN + (asked if name == late else 0)
            asked_after = at if name == behind else ""
            post.conduct(name, skus, ends, began=began, with_files=bool(files), asked_after=asked_after)
        else:
            post.settle(name, skus, wanted, with_files=bool(files))
        if (spoiled := poison(purchase)) is not None:
            post.spoil(spoiled)
    steady = [BEGAN + tenth / 10 for tenth in range(600)]
    evidence = Evidence(
        good_run(gateway_down=bool(late)),
        Commits(seen=dict.fromkeys(range(LANES), steady)),
        ends=dict(post.ends),
        books=good_books(late, at),
        messages=post.messages,
        compensations=post.compensations,
        committed=dict(post.ends),
        rebuilt=Rebuilt(LANES),
        copies=[Compared(f"slot-0/lane-{lane}", lane, Place.AT_END, rows=10) for lane in range(LANES)],
    )
    for number, (tp, offset) in enumerate(post.ends.items()):
        position = Written(
            "app-lane-changelog", tp.partition, number, b"p" + tp.topic.encode(), b"%d" % offset
        )
        evidence.rebuilt.add("lane", position)
    for message in post.messages:
        for handler in HANDLERS.get(message.topic, ()):
            remember(evidence, message, handler)
    for saga in post.sagas:
        remember_saga(evidence, saga)
    for record in post.poison:
        bury(evidence, record, spoiled_how(record))
    for message in post.messages:
        if message.topic == OrderDocumented.TOPIC:
            refer(evidence, message)
    put_off(evidence, [each for each in post.messages if each.topic == ReserveLine.TOPIC][-1])
    return evidence


def remember_saga(evidence: Evidence, saga: GoodSaga) -> None:
    """What a saga and its participants have said, and their rows."""
    assert evidence.books is not None
    evidence.sagas.by_order[saga.order_id] = saga.said
    evidence.books.sagas[saga.order_id] = saga.row()
    partition = partition_of(saga.order_id.encode(), PARTITIONS)
    for table, (key, value) in saga.rows.items():
        evidence.rebuilt.add(table, Written(f"app-{table}-changelog", partition, 0, key, value))


def spoiled_how(record: Written) -> str:
    """The error that a poisonous record calls for."""
    return next(
        each.error for each in map(poison, BOUGHT) if each is not None and each.record.value == record.value
    )


def bury(evidence: Evidence, record: Written, error: str, handler: str = "") -> None:
    """A record is poison, with a dead letter and a row."""
    origin = Origin(record.topic, record.partition, record.offset)
    evidence.poison[origin] = content_of(record)
    why = type(error, (Exception,), {})("spoiled")
    key, value, headers = dead_letter(record, why, group="app", handler=handler, now=BEGAN, limit=10**6)
    dead = Written(f"{record.topic}.dlq", 0, len(evidence.letters), key, value, headers=headers)
    evidence.letters.append(letter(dead))
    row = new_letter(record, why, handler=handler, attempts=1, now_ms=int(BEGAN * 1000), limit=10**6)
    changelog = Written(
        "app-dead_letters-changelog", record.partition, 0, key_of(row), encode_letter(row, 10**6)
    )
    evidence.rebuilt.add("dead_letters", changelog)


def refer(evidence: Evidence, message: Sent) -> None:
    """A message has its payload in the object store, and a row names it."""
    claim = claim_of("bucket", message.topic, message.message_id, b"payload")
    record = Written(*message[:3], message.key.encode(), b"", headers=with_claim([], claim))
    referred = referred_in(record)
    assert referred is not None
    evidence.referred.setdefault(*referred)
    evidence.objects[claim.name] = claim.size
    named = Written("app-claims-changelog", message.partition, 0, claim.name.encode(), bytes(8))
    evidence.rebuilt.add("claims", named)


def put_off(evidence: Evidence, message: Sent, *tiers: int) -> None:
    """A message has waited in these retry tiers, of the first two unless given."""
    for tier in tiers or (1, 2):
        headers = {
            "ce_id": message.message_id,
            "retry-handler": "inventory.reserve",
            "retry-attempt": f"{tier + 2}",
            "retry-source-partition": f"{message.partition}",
            "retry-source-offset": f"{message.offset}",
        }
        said = [(name, text.encode()) for name, text in headers.items()]
        hop = Written(f"{message.topic}.retry-{tier}", 0, 0, message.key.encode(), b"", headers=said)
        evidence.retried.append(retried(hop))


def remember(evidence: Evidence, message: Sent, handler: str) -> None:
    """An inbox entry, in the partition of the message's key."""
    made_by = f"{handler}\0{message.source}".encode()
    key = blake2b(made_by, digest_size=8).digest() + message.message_id.encode()
    home = partition_of(message.key.encode(), PARTITIONS)
    (packed,) = pack_ids([(key, bytes(8))])
    evidence.rebuilt.add("inbox", Written("app-inbox-changelog", home, 0, b"", packed))


def logged(change: Change) -> tuple[bytes, bytes | None]:
    """Key and value of the changelog record of a change."""
    if change.table != INBOX:
        return change.key, change.value
    (packed,) = pack_ids([(change.key, change.value or b"")])
    return b"", packed
