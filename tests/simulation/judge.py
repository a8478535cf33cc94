"""Invariants of a run, read from the topics and the stores, not from the lanes."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from streams.dead_letters.row import Letter, decode_letter
from streams.lane.recovery import changelog_partitions
from streams.model.layout import dead_letter_topic
from streams.model.row_keys import split_row_key
from streams.ports import TP
from streams.staging.changes import (
    COPY_OF,
    DEAD_LETTERS_BY_AGE,
    QUEUES_BY_DUE,
    TIMERS_BY_DUE,
    Writes,
)
from streams.staging.inbox import bucket_length
from tests.simulation.letters import Counted, Passed, Rang, Written

if TYPE_CHECKING:
    from tests.simulation.run import Run

#: Tables that may have what is recognised as stale when it comes up, or that no changelog has.
_STALE = {TIMERS_BY_DUE, QUEUES_BY_DUE, DEAD_LETTERS_BY_AGE, COPY_OF}


class Finding(NamedTuple):
    """An invariant that does not hold, and where."""

    invariant: str
    where: str


def rows(run: Run, table: str) -> dict[str, tuple[str, ...]]:
    """The ids on each key, as the changelog has them."""
    found: dict[str, tuple[str, ...]] = {}
    for record in run.cluster.visible(run.app.layout.changelog(table)):
        key = split_row_key(record.key)[0].decode()
        found[key] = () if record.value is None else tuple(json.loads(record.value[8:])["ids"])
    return found


def in_log(run: Run, topic: str) -> dict[str, list[str]]:
    """The ids that were written under each key to its own partition, in order, each once."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for record in run.cluster.visible(topic):
        key = (record.key or b"").decode()
        if run.app.layout.partition_of(key.encode()) == record.partition:
            found[key].setdefault(json.loads(record.value or b"")["id"])
    return {key: list(ids) for key, ids in found.items()}


def id_at(run: Run, topic: str, partition: int, offset: int) -> str:
    """The id of the record there: a dead letter that was too large has no content."""
    return next(
        str(json.loads(entry.record.value or b"")["id"])
        for entry in run.cluster.entries(TP(topic, partition))
        if entry.offset == offset and entry.record is not None
    )


def letters_in(run: Run) -> dict[tuple[int, bytes], Letter]:
    """The dead letters that are there now, by partition and key of their rows."""
    found: dict[tuple[int, bytes], Letter] = {}
    for record in run.cluster.visible(run.app.layout.changelog("dead_letters")):
        place = record.partition, record.key or b""
        if record.value is None:
            found.pop(place, None)
        else:
            found[place] = decode_letter(record.value)
    return found


def dead(run: Run) -> dict[str, set[str]]:
    """The ids that each handler has given up, and that nobody has replayed."""
    found: dict[str, set[str]] = defaultdict(set)
    for letter in letters_in(run).values():
        found[letter.handler.partition(".")[2]].add(id_at(run, letter.topic, letter.partition, letter.offset))
    return _by_handler(run, found)


def once_dead(run: Run) -> dict[str, set[str]]:
    """The ids that each handler has ever given up: a replay of them comes out of order."""
    found: dict[str, set[str]] = defaultdict(set)
    for topic in run.app.routes:
        for record in run.cluster.visible(dead_letter_topic(topic)):
            said = {name: value.decode() for name, value in record.headers if name.startswith("dlq-")}
            source = (
                said["dlq-source-topic"],
                int(said["dlq-source-partition"]),
                int(said["dlq-source-offset"]),
            )
            found[said["dlq-handler"].partition(".")[2]].add(id_at(run, *source))
    return _by_handler(run, found)


def _by_handler(run: Run, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """What could not be committed at all is given up for each handler."""
    return {name.partition(".")[2]: found[name.partition(".")[2]] | found[""] for name in run.app.handlers}


def tables(run: Run) -> dict[str, tuple[str, dict[str, list[str]]]]:
    """Of each handler its table, and what it has to have taken in, in this order."""
    shape, written = run.plan.shape, in_log(run, Written.TOPIC)
    found = {"count": ("counts", written)}
    if shape.audited:
        found["audit"] = ("audits", written)
    if shape.settled:
        found["settle"] = ("settled", in_log(run, Counted.TOPIC))
    if shape.passed:
        found["receive"] = ("received", in_log(run, Passed.TOPIC))
    if shape.timed:
        found["ring"] = ("rings", in_log(run, Rang.TOPIC))
    return found


def missing(run: Run) -> list[str]:
    """What is still to be done; empty when all is settled."""
    lanes = {}
    for worker in run.workers:
        if worker is not None:
            lanes |= {number: lane.state.value for number, lane in worker.host.lanes.items()}
            if not run.group.is_settled(worker):
                return [f"{worker.name} has not heard of the last assignment"]
    left = [f"lane {n} is {lanes.get(n, 'nowhere')}" for n in range(run.plan.lanes) if lanes.get(n) != "open"]
    positions = run.cluster.groups.get(run.app.layout.app_id, {})
    for topic in run.app.sources:
        for partition in range(run.plan.partitions):
            tp = TP(topic, partition)
            last = max((r.offset for r in run.cluster.visible(topic) if r.partition == partition), default=-1)
            if positions.get(tp, 0) <= last:
                left.append(f"{topic}[{partition}] stands at {positions.get(tp, 0)} of {last + 1}")
    if left:
        return left
    given_up = dead(run)
    for handler, (table, expected) in tables(run).items():
        has = rows(run, table)
        for key, ids in expected.items():
            gone = set(ids) - set(has.get(key, ())) - given_up[handler]
            if run.plan.shape.holds and given_up[handler] & set(ids):
                continue  # later ones of the key wait until the letter is settled
            left += [f"{handler} has not had {letter} of {key}" for letter in sorted(gone)]
    if run.plan.shape.timed:
        rang = {letter for ids in in_log(run, Rang.TOPIC).values() for letter in ids}
        counted = {letter for ids in rows(run, "counts").values() for letter in ids}
        unheard = (letter for letter in sorted(counted - rang) if run.written[letter].rings)
        left += [f"no timer of {letter} has rung" for letter in unheard]
    return left


def judge(run: Run) -> list[Finding]:
    """What does not hold, when all is settled."""
    found: list[Finding] = []
    given_up, late = dead(run), once_dead(run)
    for handler, (table, expected) in tables(run).items():
        has = rows(run, table)
        for key in sorted(has.keys() | expected.keys()):
            ids, wanted = has.get(key, ()), expected.get(key, [])
            if len(set(ids)) < len(ids):
                found.append(Finding("a message takes effect once", f"{handler} of {key}: {ids}"))
            if unknown := set(ids) - set(wanted):
                found.append(Finding("nothing comes from nowhere", f"{handler} of {key}: {unknown}"))
            if both := set(ids) & given_up[handler]:
                found.append(Finding("what is given up has no effect", f"{handler} of {key}: {both}"))
            in_time = [letter for letter in ids if letter not in late[handler]]
            ordered = [letter for letter in wanted if letter in set(in_time)]
            if not run.plan.shape.ordered and in_time != ordered and not found:
                found.append(Finding("effects are in the order of the log", f"{handler} of {key}: {ids}"))
        for letter in sorted(given_up[handler]):
            message = run.written[letter]
            if any(step.kind == "limit" for step in run.plan.steps):
                continue  # it may have been too large for a topic for a while
            if not message.poison and not (handler == "count" and message.fails >= 5):
                found.append(Finding("nothing good is given up", f"{handler}: {letter}"))
    found += _sent(run)
    found += _positions(run)
    found += _stores(run)
    return found


def _sent(run: Run) -> list[Finding]:
    """What was sent is what was decided."""
    found = []
    counted = {key: list(ids) for key, ids in rows(run, "counts").items() if ids}
    sent = defaultdict(list)
    for record in run.cluster.visible(Counted.TOPIC):
        sent[(record.key or b"").decode()].append(json.loads(record.value or b"")["id"])
    if dict(sent) != counted:
        found.append(Finding("what is sent is what was decided", f"{dict(sent)}, and rows {counted}"))
    return found


def _positions(run: Run) -> list[Finding]:
    """The group's positions are those of the changelog."""
    recorded = {}
    for record in run.cluster.visible(run.app.layout.changelog("lane")):
        key = record.key or b""
        if key[:1] == b"p" and record.value is not None:
            recorded[TP(key[1:].decode(), record.partition)] = int(record.value.split()[0])
    group = run.cluster.groups.get(run.app.layout.app_id, {})
    if group != recorded:
        return [Finding("positions agree", f"group {group}, changelog {recorded}")]
    return []


def _stores(run: Run) -> list[Finding]:
    """An owner's store is what its changelogs say."""
    found = []
    writes = Writes(bucket_length(run.app.lane_options.inbox_retention))
    for machine, worker in zip(run.machines, run.workers, strict=True):
        for lane in run.owned.get(machine.name, ()) if worker is not None else ():
            rebuilt: dict[str, dict[bytes, bytes]] = {}
            for tp, table in changelog_partitions(run.app, lane).items():
                pairs = [
                    (r.key or b"", r.value)
                    for r in run.cluster.visible(tp.topic)
                    if r.partition == tp.partition
                ]
                for write in writes.of(table, tp.partition, pairs):
                    kept = rebuilt.setdefault(write.table, {})
                    if write.value is None:
                        kept.pop(write.key, None)
                    else:
                        kept[write.key] = write.value
            store = machine.stores.open(lane)
            copy = {table: dict(store.scan(table)) for table in store.tables()}
            store.close()
            names = (rebuilt.keys() | copy.keys()) - _STALE
            found += [
                Finding("stores are what changelogs say", f"{machine.name} lane {lane}: {table}")
                for table in sorted(names)
                if copy.get(table, {}) != rebuilt.get(table, {})
            ]
    return found
