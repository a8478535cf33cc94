"""The evidence of a small run in which all went well, made order by order, for tests to spoil."""

from collections.abc import Callable
from hashlib import blake2b, sha256

import msgspec
from good_post import PARTITIONS, Post, Written
from good_rows import charge_of, rows_of
from good_sagas import GoodSaga

from agents.gateway.wire import Charged, Refunded
from agents.messages import OrderDocumented, OrderPlaced, ReserveLine, StockReceived
from chaos.evidence.consequences import SentMessage
from chaos.evidence.decoding import Origin
from chaos.evidence.evidence import Evidence
from chaos.evidence.in_postgres import SOURCE, OrderRow, OutboxRecord, tracked
from chaos.evidence.letters import content_of, letter
from chaos.evidence.objects import StoredObject, referred_in
from chaos.evidence.plain import Counting
from chaos.evidence.rebuilt import Compared, Place, Rebuilt
from chaos.evidence.retry_rows import retried
from chaos.judges.findings import HANDLERS, findings
from chaos.rig.records import LARGEST, CommitTimes, Happened, ProcessEnd, Request, RunRecords, Way
from demo import evidence as books
from demo.purchases import (
    ExpectedOutcome,
    Purchase,
    attachments,
    orchestrated,
    order,
    outcome,
    purchases,
    receipts,
    units_by_sku,
)
from demo.trouble import POISON_EVERY, poison
from streams.engine.staging.changes import Change, pack_ids
from streams.engine.waiting.dead_letters.record import dead_letter
from streams.engine.waiting.dead_letters.row import encode_letter, key_of, new_letter
from streams.model.claim import claim_of, with_claim
from streams.model.layout import INBOX, partition_of
from tables.stock import StockLevel

#: What is done to evidence that is whole.
Spoil = Callable[[Evidence], object]

BOUGHT = purchases(200)
LANES = 2
ATTACHED = 0.1
BEGAN = 1_000.0
#: How the steps of a saga end.
ENDS = {
    ExpectedOutcome.CONFIRMED: ["success"] * 3,
    ExpectedOutcome.OUT_OF_STOCK: ["refused"],
    ExpectedOutcome.DECLINED: ["success", "refused"],
    ExpectedOutcome.NOWHERE: ["success", "success", "refused"],
}
#: How a participant answers a question that comes too late: work outside may be done or not.
ANSWERS = {"reserve_inventory": "cancelled", "process_payment": "expired", "schedule_shipping": "cancelled"}
LATE_STEPS = {step: number for number, step in enumerate(ANSWERS)}


def good_books(late: str, at: str) -> books.DemoEvidence:
    """What the demo's check looks at; the order `late` was cancelled because the step `at` was late, if its
    card was charged by then.
    """
    found = books.DemoEvidence()
    for number, purchase in enumerate(BOUGHT):
        what, name = outcome(purchase), purchase.order_id
        ends = late_end(at) if name == late else what.value
        found.settlements.append(books.Settlement(f"s-{number}", order(purchase), ends))
        charge = Charged(charge_of(purchase), f"capture:{name}", "captured", "", purchase.cents, "tok", "")
        if what is ExpectedOutcome.DECLINED:
            found.ledger.append(msgspec.structs.replace(charge, status="declined", reason=what.value))
        charged = what in (ExpectedOutcome.CONFIRMED, ExpectedOutcome.NOWHERE) and (name, at) != (
            late,
            "reserve_inventory",
        )
        if purchase.cents and charged:
            found.ledger.append(charge)
            if what is ExpectedOutcome.NOWHERE or name == late:
                back = Refunded(f"r-{name}", f"refund:{name}", charge.operation, "refunded", charge.cents, "")
                found.ledger.append(back)
    leaves = (p for p in BOUGHT if outcome(p) is ExpectedOutcome.CONFIRMED and p.order_id != late)
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


def late_end(at: str) -> str:
    """How an order is settled of which this step was late."""
    return "timed_out" if ANSWERS[at] == "cancelled" else ANSWERS[at]


def good_run(*, gateway_down: bool = False) -> RunRecords:
    """One fault, confirmed, or two, and one worker that ended in order."""
    when = {"began": BEGAN + 30, "ended": BEGAN + 36}
    kill = Happened(kind="kill_worker", target="worker-0", confirmed="SIGKILL", **when)
    down = Happened(kind="gateway_down", target="it", confirmed="cut", **when)
    ended = [
        ProcessEnd(worker="worker-0", pid=1, exit_code=-9, expected=True, hung=False),
        ProcessEnd(worker="worker-0", pid=2, exit_code=0, expected=True, hung=False),
    ]
    return RunRecords(
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
        postgres="postgresql://any",
    )


def good(late: str = "", at: str = "process_payment", begins: float = 20.0, behind: str = "") -> Evidence:
    """All of it. The order `late` was cancelled because the step `at` was late, which began so many seconds
    after the run, and the gateway was down; of the order `behind` that step only got a question.
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
            began = BEGAN + (begins if name == late else 0)
            questioned = at if name == behind else ""
            post.conduct(name, skus, ends, began=began, with_files=bool(files), questioned=questioned)
        else:
            post.settle(name, skus, wanted, with_files=bool(files))
        if (spoiled := poison(purchase)) is not None:
            post.spoil(spoiled)
    steady = [BEGAN + tenth / 10 for tenth in range(600)]
    evidence = Evidence(
        good_run(gateway_down=bool(late)),
        CommitTimes(seen=dict.fromkeys(range(LANES), steady)),
        ends=dict(post.ends),
        books=good_books(late, at),
        messages=post.messages,
        compensations=post.compensations,
        committed=dict(post.ends),
        rebuilt=Rebuilt(LANES),
        copies=[Compared(f"slot-0/lane-{lane}", lane, Place.AT_END, rows=10) for lane in range(LANES)],
    )
    for number, (tp, offset) in enumerate(post.ends.items()):
        position = b"p" + tp.topic.encode(), b"%d" % offset
        evidence.rebuilt.add("lane", Written("app-lane-changelog", tp.partition, number, *position))
    counting = Counting()
    for message in post.messages:
        counting.add(message.topic, [("ce_id", message.message_id.encode())])
        if message.topic == OrderDocumented.TOPIC:
            refer(evidence, message)
        for handler in HANDLERS.get(message.topic, ()):
            remember(evidence, message, handler)
    evidence.counts, evidence.counts_again = counting.counts(), counting.counts()
    for saga in post.sagas:
        remember_saga(evidence, saga)
    for purchase in BOUGHT:
        end = late_end(at) if purchase.order_id == late else ""
        keep(evidence, purchase, late=end, charged=at != "reserve_inventory")
    for record in post.poison:
        bury(evidence, record, spoiled_how(record))
    put_off(evidence, [each for each in post.messages if each.topic == ReserveLine.TOPIC][-1])
    order_over_http(evidence)
    return evidence


def red(evidence: Evidence) -> set[str]:
    return {finding.name for finding in findings(BOUGHT, evidence) if not finding.passed}


def says_of(evidence: Evidence, name: str) -> str:
    return next(finding.says for finding in findings(BOUGHT, evidence) if finding.name == name)


def order_over_http(evidence: Evidence) -> None:
    """Each order came by the orders API, and PostgreSQL says of it what the table on Kafka says."""
    on_kafka = tracked(evidence.rebuilt.tables.values())
    for each in evidence.messages:
        if each.source == SOURCE:
            way: Way = "placed" if each.topic == OrderPlaced.TOPIC else "submitted"
            evidence.requests.append(Request(order_id=each.key, way=way, placed=202))
            evidence.database.orders.append(OrderRow(each.key, way, *on_kafka[each.key], "none"))
            evidence.database.outbox.append(
                OutboxRecord(each.message_id, each.key, each.topic, published=True)
            )


def keep(evidence: Evidence, purchase: Purchase, *, late: str = "", charged: bool = True) -> None:
    commanded = orchestrated(purchase)
    for table, key, local, value in rows_of(purchase, commanded=commanded, late=late, charged=charged):
        partition = partition_of(key.encode(), PARTITIONS)
        evidence.rebuilt.add(table, Written(f"app-{table}-changelog", partition, 0, local, value))


def remember_saga(evidence: Evidence, saga: GoodSaga) -> None:
    assert evidence.books is not None
    evidence.sagas.by_order[saga.order_id] = saga.messages
    evidence.books.sagas[saga.order_id] = saga.row()
    partition = partition_of(saga.order_id.encode(), PARTITIONS)
    for table, (key, value) in saga.rows.items():
        evidence.rebuilt.add(table, Written(f"app-{table}-changelog", partition, 0, key, value))


def spoiled_how(record: Written) -> str:
    return next(e.error for e in map(poison, BOUGHT) if e is not None and e.record.value == record.value)


def bury(evidence: Evidence, record: Written, error: str, handler: str = "") -> None:
    origin = Origin(record.topic, record.partition, record.offset)
    evidence.poison[origin] = content_of(record)
    why = type(error, (Exception,), {})("spoiled")
    key, value, headers = dead_letter(record, why, group="app", handler=handler, now=BEGAN, limit=10**6)
    dead = Written(f"{record.topic}.dlq", 0, len(evidence.letters), key, value, headers=headers)
    evidence.letters.append(letter(dead))
    row = new_letter(record, why, handler=handler, attempts=1, now_ms=int(BEGAN * 1000), limit=10**6)
    kept = key_of(row), encode_letter(row, 10**6)
    evidence.rebuilt.add("dead_letters", Written("app-dead_letters-changelog", record.partition, 0, *kept))


def refer(evidence: Evidence, message: SentMessage) -> None:
    """A message has its payload in the object store, and a row names it."""
    claim = claim_of("bucket", message.topic, message.message_id, b"payload")
    record = Written(*message[:3], message.key.encode(), b"", headers=with_claim([], claim))
    referred = referred_in(record)
    assert referred is not None
    evidence.referred.setdefault(*referred)
    evidence.objects[claim.name] = StoredObject(claim.size, claim.sha256)
    named = Written("app-claims-changelog", message.partition, 0, claim.name.encode(), bytes(8))
    evidence.rebuilt.add("claims", named)


def put_off(evidence: Evidence, message: SentMessage, *tiers: int) -> None:
    """A message has waited in these retry tiers, of the first two unless given."""
    for tier in tiers or (1, 2):
        headers = {
            "ce_id": message.message_id,
            "retry-handler": "inventory.reserve",
            "retry-attempt": f"{tier + 2}",
            "retry-source-partition": f"{message.partition}",
            "retry-source-offset": f"{message.offset}",
        }
        encoded = [(name, text.encode()) for name, text in headers.items()]
        hop = Written(f"{message.topic}.retry-{tier}", 0, 0, message.key.encode(), b"", headers=encoded)
        evidence.retried.append(retried(hop))


def remember(evidence: Evidence, message: SentMessage, handler: str) -> None:
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
