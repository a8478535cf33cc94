"""Whether a chaos run held what the guarantee says: pure, from the evidence alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from hashlib import blake2b

from agents.gateway.wire import Charged
from chaos.evidence.calls import OUTSIDE_TOPICS
from chaos.evidence.consequences import Consequences, SagaCalls, SentMessage, consequences
from chaos.evidence.decoding import partition_of
from chaos.evidence.evidence import Evidence
from chaos.evidence.in_postgres import judge_accepted, judge_outbox, judge_status, nowhere, tracked
from chaos.evidence.letters import judge_letters, rows_in
from chaos.evidence.objects import judge_objects
from chaos.evidence.plain import judge_counts
from chaos.evidence.rebuilt import Place
from chaos.evidence.retry_rows import judge_retries, waiting_in
from chaos.evidence.saga_records import participations
from chaos.judges.key_order import effects_of, judge_key_order
from chaos.judges.lateness import judge_given_back, judge_waits, without
from chaos.judges.noted import counted, judge_notes
from chaos.judges.rows import held_in, judge_rows
from chaos.judges.saga_ways import given_up, way_of
from chaos.judges.sagas import calls, judge_ends, judge_participants, judge_timers, judge_transitions, left_in
from chaos.judges.stalls import judge_stalls, stalls
from chaos.load.called_off import is_apart, judge_called_off, without_called_off
from chaos.rig.records import LARGEST, RunRecords, lanes_of
from demo import evidence as books
from demo.findings import Finding, finding
from demo.purchases import Purchase, attached_bytes, orchestrated, order, receipts
from demo.trouble import poison
from demo.verdict import judge, judge_files
from streams.ports import TP

#: The demo's finding about dead letters, which does not know of poison; `judge_letters` has ours.
_LETTERS = "every dead letter is accounted for"
#: Who handles what clients write, and remembers it in the inbox: by the handlers' published names.
HANDLERS: Mapping[str, tuple[str, ...]] = {
    "orders.order.placed.v1": ("orders.open", "inventory.split_order"),
    "orders.order.submitted.v1": ("orders.open", "orders.order_saga"),
    "orders.commands.request-cancellation": ("orders.call_off",),
    "orders.saga.repairs": ("orders.order_saga",),
    "inventory.stock.received.v1": ("inventory.receive",),
    "chaos.note.made.v1": ("notes.count",),
}


def findings(purchases: Sequence[Purchase], evidence: Evidence) -> list[Finding]:
    """All of them. While transactions are open, what is committed is not known, and is not judged."""
    run = evidence.run
    of_the_run = [
        _no_transaction_open(evidence),
        _workers(run),
        _faults(run),
        judge_stalls(stalls(run, evidence.commits)),
    ]
    if evidence.books is None:
        return [Finding("all else", passed=False, says="not looked at: transactions are open"), *of_the_run]
    skus = {each.order_id: {line.sku for line in each.lines} for each in map(order, purchases)}
    with_files = {each.order_id for each in purchases if attached_bytes(each, run.attached, LARGEST)}
    of_file = without_called_off(evidence)
    assert of_file.books is not None
    led = consequences(of_file.messages, skus, with_files, calls(of_file.sagas.by_order))
    late = given_up(of_file.sagas.by_order)
    in_time = [each for each in purchases if each.order_id not in late]
    return [
        *(each for each in judge(in_time, without(late, of_file.books)).findings if each.name != _LETTERS),
        *_sagas(purchases, late, of_file, of_file.books),
        judge_timers(of_file.sagas.by_order, left_in(evidence.rebuilt.tables.values()), run),
        rows_as_called_for(purchases, of_file, of_file.books),
        *_files(purchases, evidence, evidence.books.packed),
        *_called_off(purchases, evidence, evidence.books),
        *_database(evidence),
        *_messages(evidence, calls(evidence.sagas.by_order)),
        _led_on(led),
        _letters(purchases, evidence),
        judge_retries(
            evidence.retried,
            evidence.messages,
            waiting=set(waiting_in(evidence.rebuilt.tables.values())),
            amiss=led.amiss,
        ),
        _compensated_once(evidence.compensations),
        _tables(evidence),
        _positions(evidence),
        judge_notes(run.notes, evidence.messages, counted(evidence.rebuilt.tables.values())),
        *of_the_run,
    ]


def _messages(evidence: Evidence, known: SagaCalls) -> Iterator[Finding]:
    yield _each_message_once(evidence.messages)
    effects = list(effects_of(evidence.messages, known.questions))
    yield judge_key_order(evidence.messages, effects)
    yield judge_waits(effects, evidence.run, evidence.commits)
    yield judge_counts(evidence.counts, evidence.counts_again)


def _sagas(
    purchases: Sequence[Purchase], late: Set[str], evidence: Evidence, found: books.DemoEvidence
) -> Iterator[Finding]:
    by_order = evidence.sagas.by_order
    submitted = {each.order_id for each in purchases if evidence.run.orchestrated and orchestrated(each)}
    settled = {each.order.order_id: each.outcome for each in found.settlements}
    yield judge_transitions(submitted, by_order)
    yield judge_ends(purchases, submitted, by_order, settled, evidence.run)
    parts = participations(evidence.rebuilt.tables.values())
    yield judge_participants(by_order, found.sagas, [each for each in parts if not is_apart(each[0])])
    yield judge_given_back(purchases, late, found)


def rows_as_called_for(
    purchases: Sequence[Purchase], evidence: Evidence, found: books.DemoEvidence
) -> Finding:
    """Whether every row of an order is what it calls for, as its saga's lateness allows."""
    charges = [each for each in found.ledger if isinstance(each, Charged)]
    ways = {order_id: way_of(saga).given_up for order_id, saga in evidence.sagas.by_order.items()}
    return judge_rows(
        [*map(order, purchases)],
        {o: held for o, held in held_in(evidence.rebuilt.tables.values()).items() if not is_apart(o)},
        {receipt.sku: receipt.units for receipt in receipts()},
        {each.operation.partition(":")[2]: each for each in charges},
        by_saga=[e.order_id for e in purchases if evidence.run.orchestrated and orchestrated(e)],
        late={order_id: given_up for order_id, given_up in ways.items() if given_up},
    )


def _each_message_once(messages: Sequence[SentMessage]) -> Finding:
    own = [each for each in messages if each.topic not in OUTSIDE_TOPICS]
    times = Counter(each.message_id for each in own)
    twice = {message_id for message_id, count in times.items() if count > 1}
    wrong = {
        "messages more than once": sorted({str(each) for each in own if each.message_id in twice}),
        "messages without id": [
            f"{each.topic}[{each.partition}] {each.offset}" for each in messages if not each.message_id
        ],
    }
    return finding("every message there once", wrong, f"{len(own):,} messages, {len(times):,} ids")


def _letters(purchases: Sequence[Purchase], evidence: Evidence) -> Finding:
    every = evidence.run.poison_every
    plan = [each for bought in purchases if every and (each := poison(bought, every)) is not None]
    rows = list(rows_in(evidence.rebuilt.tables.values()))
    return judge_letters(plan, evidence.poison, evidence.letters, rows)


def _files(
    purchases: Sequence[Purchase], evidence: Evidence, packed: Mapping[str, list[tuple[str, str]]]
) -> Iterator[Finding]:
    """Where orders came with any."""
    if evidence.run.s3:
        yield judge_files(purchases, packed, evidence.run.attached, LARGEST)
        yield judge_objects(evidence.referred, evidence.objects, evidence.rebuilt.objects())


def _called_off(
    purchases: Sequence[Purchase], evidence: Evidence, found: books.DemoEvidence
) -> Iterator[Finding]:
    """Where clients called any off."""
    if share := evidence.run.called_off:
        missing = nowhere(evidence.requests, evidence.database, evidence.messages)
        requested = {each.order_id for each in evidence.requests}
        yield judge_called_off(purchases, share, found, evidence.messages, missing, requested)


def _database(evidence: Evidence) -> Iterator[Finding]:
    """Where there was an orders API."""
    if evidence.run.postgres:
        yield judge_accepted(evidence.requests, evidence.database, evidence.messages)
        on_kafka = tracked(evidence.rebuilt.tables.values())
        yield judge_status(evidence.database, on_kafka, evidence.messages)
        yield judge_outbox(evidence.database, evidence.messages)


def _led_on(found: Consequences) -> Finding:
    wrong = {
        "led to too little": found.lacking,
        "led to too much": found.too_many,
        "came of nothing that is there": found.without_cause,
    }
    says = f"{found.looked_at:,} messages"
    return finding("every message led to what it calls for, once", wrong, says)


def _compensated_once(compensations: Counter[tuple[str, str]]) -> Finding:
    wrong = {
        "done twice": [f"{kind} of {what}" for (kind, what), count in compensations.items() if count > 1]
    }
    kinds = Counter(kind for kind, _ in compensations.elements())
    says = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items())) or "none was called for"
    return finding("no compensation twice", wrong, says)


def _tables(evidence: Evidence) -> Finding:
    at_end = [copy for copy in evidence.copies if copy.place is Place.AT_END]
    ahead = [copy for copy in evidence.copies if copy.place is Place.AHEAD]
    wrong = {
        "rows other than the changelog's": [
            f"{copy.name}: {each}" for copy in at_end for each in copy.differences
        ],
        "copies ahead of their changelogs": [
            f"{copy.name}: {each}" for copy in ahead for each in copy.differences
        ],
        "copies that cannot be read": evidence.unreadable,
        "lanes without a copy at the end": [
            str(lane) for lane in range(lanes_of(evidence.run)) if lane not in {copy.lane for copy in at_end}
        ],
    }
    behind = len(evidence.copies) - len(at_end) - len(ahead)
    rows = sum(copy.rows for copy in at_end)
    says = f"{len(at_end)} copies compared, {rows:,} rows; {behind} behind"
    return finding("every table as its changelog has it", wrong, says)


def _positions(evidence: Evidence) -> Finding:
    committed, recorded = evidence.committed, evidence.rebuilt.positions()
    wrong = {
        "messages below the position that were not handled": list(_not_handled(evidence)),
        "positions beyond the end": [
            f"{_at(tp)} at {offset}, its end is {evidence.ends[tp]}"
            for tp, offset in committed.items()
            if offset > evidence.ends[tp]
        ],
        "positions that the changelog has otherwise": [
            f"{_at(tp)} at {committed.get(tp)}, in the changelog {recorded.get(tp)}"
            for tp in sorted(committed.keys() | recorded.keys())
            if committed.get(tp) != recorded.get(tp)
        ],
    }
    return finding("no position above an unhandled message", wrong, f"{len(committed)} positions")


def _not_handled(evidence: Evidence) -> Iterator[str]:
    """Of what the inbox covers; all else shows by what it led to."""
    inbox, partitions = evidence.rebuilt.inbox(), evidence.run.partitions
    for each in evidence.messages:
        if each.offset >= evidence.committed.get(TP(each.topic, each.partition), 0):
            continue
        for handler in HANDLERS.get(each.topic, ()):
            home = partition_of(each.key.encode(), partitions)  # from another one it was sent on
            if (home, _inbox_key(handler, each)) not in inbox:
                yield f"{each} by {handler}"


def _inbox_key(handler: str, message: SentMessage) -> bytes:
    made_by = f"{handler}\0{message.source}".encode()
    return blake2b(made_by, digest_size=8).digest() + message.message_id.encode()


def _no_transaction_open(evidence: Evidence) -> Finding:
    wrong = {
        "partitions with one": [
            f"{_at(tp)} is stable up to {stable} of {end}" for tp, (stable, end) in evidence.unstable.items()
        ]
    }
    return finding("no transaction open", wrong, f"{len(evidence.ends):,} partitions")


def _workers(run: RunRecords) -> Finding:
    every = [*run.workers, *run.edge]

    def named(wanted: Sequence[bool]) -> list[str]:
        pairs = zip(every, wanted, strict=True)
        return [f"{each.worker} (pid {each.pid}, status {each.exit_code})" for each, it in pairs if it]

    wrong = {
        "hung": named([each.hung for each in every]),
        "died by themselves": named([not each.expected for each in every]),
        "ended with an error when they were stopped": named(
            [each.expected and each.exit_code > 0 and not each.refused for each in every]
        ),
        "did not refuse to go on": named([each.refused and each.exit_code <= 0 for each in every]),
    }
    says = f"{len(run.workers)} worker processes, {len(run.edge)} of relays and orders APIs"
    return finding("no worker hung or died by itself", wrong, says)


def _faults(run: RunRecords) -> Finding:
    wrong = {
        "not seen to happen": [f"{each.kind} of {each.target}" for each in run.faults if not each.confirmed]
    }
    kinds = Counter(each.kind for each in run.faults)
    says = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    return finding("every fault happened", wrong, says)


def _at(tp: TP) -> str:
    return f"{tp.topic}[{tp.partition}]"
