"""Checks the invariants of a run against topics and stores, not against the lanes' memory."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol

from streams.engine.life.positions.review import is_changelog
from streams.engine.life.recovery import changelog_partitions
from streams.engine.staging.changes import (
    COPY_OF,
    DEAD_LETTERS_BY_AGE,
    LOG_MARKS,
    QUEUES_BY_DUE,
    TIMERS_BY_DUE,
    Writes,
)
from streams.engine.staging.inbox import bucket_length
from streams.engine.staging.keys import POSITION, position_of
from streams.engine.waiting.dead_letters.row import Letter, decode_letter
from streams.model.application import Application
from streams.model.layout import dead_letter_topic
from streams.model.row_keys import split_row_key
from streams.ports import TP, Record
from streams.testing.cluster import FakeCluster
from streams.testing.simulation.group import Group
from streams.testing.simulation.machines import Machine
from streams.testing.simulation.plan import Finding, Plan
from streams.testing.simulation.workers import SimulatedWorker

#: Tables without a changelog, or with entries that may be stale, which lanes recognise when they read them.
_STALE = {TIMERS_BY_DUE, QUEUES_BY_DUE, DEAD_LETTERS_BY_AGE, COPY_OF, LOG_MARKS}


#: Headers of a dead letter with the position of its message and the handler that failed.
_PLACE = ("dlq-source-topic", "dlq-source-partition", "dlq-source-offset", "dlq-handler")
_Place = tuple[str, int, int, str]


class Removed(NamedTuple):
    """A record that was truncated or deleted with its topic. `unread` means that no lane had passed it."""

    record: Record
    unread: bool


class Subject(Protocol):
    """The methods of a part of a run that the judgement uses."""

    def missing(self) -> list[str]:
        """Descriptions of remaining work; empty when all is settled."""

    def judge(self) -> list[Finding]:
        """The invariants that do not hold once all is settled."""


class Judged(Protocol):
    """The parts of a run that the judgement uses."""

    plan: Plan
    app: Application
    cluster: FakeCluster
    group: Group
    machines: list[Machine]
    workers: list[SimulatedWorker | None]
    lanes: int
    owned: list[list[int]]
    app_tables: set[str]
    removed: list[Removed]
    #: Loop time at which each topic was last deleted, or an operator last accepted it as it is.
    deleted: dict[str, float]

    @property
    def parts(self) -> Sequence[Subject]:
        """The parts with messages."""

    @property
    def beside(self) -> Sequence[Subject]:
        """The parts without messages."""


def rows(run: Judged, table: str) -> dict[tuple[str, str], bytes]:
    """The present rows in a table's changelog, as JSON, by key and subkey."""
    found: dict[tuple[str, str], bytes] = {}
    for record in run.cluster.visible(run.app.layout.changelog(table)):
        key, subkey = (part.decode() for part in split_row_key(record.key or b""))
        found.pop((key, subkey), None)
        if record.value is not None:
            found[key, subkey] = record.value[8:]
    return found


def written(run: Judged, topic: str) -> list[Record]:
    """All records ever committed to a topic, including removed ones, in order within each partition."""
    return [each.record for each in run.removed if each.record.topic == topic] + run.cluster.visible(topic)


def in_log(run: Judged, topic: str, name: str = "id") -> dict[str, list[str]]:
    """The distinct ids of messages of each key: first those in the key's own partition, in order, then those
    that were forwarded to it. `name` is the message field with the id.
    """
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for record in [*written(run, topic), *sent_on(run, topic)]:
        key = (record.key or b"").decode()
        if run.app.layout.partition_of(key.encode()) == record.partition:
            found[key].setdefault(json.loads(record.value or b"")[name])
    return {key: list(ids) for key, ids in found.items()}


def sent_on(run: Judged, topic: str) -> list[Record]:
    """Records of misrouted messages, on the topic that forwards them to the right partition."""
    through = run.app.layout.repartition(topic)
    return written(run, through) if through in run.app.repartitions else []


def letters_in(run: Judged) -> dict[tuple[int, bytes], Letter]:
    """The present dead letters, by partition and key of their rows."""
    found: dict[tuple[int, bytes], Letter] = {}
    for record in run.cluster.visible(run.app.layout.changelog("dead_letters")):
        place = record.partition, record.key or b""
        if record.value is None:
            found.pop(place, None)
        else:
            found[place] = decode_letter(record.value)
    return found


def missing(run: Judged) -> list[str]:
    """Descriptions of remaining work; empty when all is settled."""
    lanes: dict[int, str] = {}
    for worker in run.workers:
        if worker is not None:
            lanes |= {
                number: f"busy with {lane.backlog}" if lane.backlog else lane.state.value
                for number, lane in worker.host.lanes.items()
            }
            if not run.group.is_settled(worker):
                return [f"{worker.name} has not heard of the last assignment"]
            if worker.not_its_own:
                return [f"{worker.name} still ends lanes that others have: {worker.not_its_own}"]
    left = [f"lane {n} is {lanes.get(n, 'nowhere')}" for n in range(run.lanes) if lanes.get(n) != "open"]
    positions = run.cluster.groups.get(run.app.layout.app_id, {})
    for topic in run.app.sources:
        if topic not in run.cluster.ids:
            return [f"{topic} is gone"]
        lasts = {record.partition: record.offset for record in run.cluster.visible(topic)}
        for partition, last in lasts.items():
            tp = TP(topic, partition)
            if positions.get(tp, 0) <= last:
                left.append(f"{topic}[{partition}] stands at {positions.get(tp, 0)} of {last + 1}")
    return left or [each for part in (*run.beside, *run.parts) for each in part.missing()]


def judge(run: Judged) -> list[Finding]:
    """The invariants that do not hold once all is settled."""
    found = [each for part in run.parts for each in part.judge()]
    return [*found, *_positions(run), *_stores(run), *_dead_letters(run)]


def _positions(run: Judged) -> list[Finding]:
    """Check that the group's offsets match the positions in the lane changelog."""
    recorded: dict[TP, int] = {}
    for record in run.cluster.visible(run.app.layout.changelog("lane")):
        key = record.key or b""
        if key[:1] == POSITION:
            tp = position_of(key[1:], record.partition)
            recorded.pop(tp, None)
            if record.value is not None:
                recorded[tp] = int(record.value.split()[0])
    positions = run.cluster.groups.get(run.app.layout.app_id, {})
    # Ignore offsets in partitions that no longer exist, because a topic was created again with fewer. Also
    # ignore changelogs, whose ends the group stores, including those of another version.
    group = {
        tp: at
        for tp, at in positions.items()
        if run.cluster.log_if_there(tp) is not None and not is_changelog(run.app.layout, tp.topic)
    }
    if run.app.layout.changelog("lane") in run.deleted:
        # For topics that this version does not read, only the group still has positions.
        group = {tp: at for tp, at in group.items() if tp in recorded or tp.topic in run.app.sources}
    # Brokers forget offsets in a deleted topic; the changelog keeps its positions if no version reads it.
    unread = run.deleted.keys() - set(run.app.sources)
    recorded = {tp: at for tp, at in recorded.items() if tp in group or tp.topic not in unread}
    if group != recorded:
        return [Finding("positions agree", f"group {group}, changelog {recorded}")]
    return []


def _dead_letters(run: Judged) -> list[Finding]:
    """Check that each time a handler dead-lettered a message, exactly one record was written."""
    if run.deleted:
        return []  # in topics that were created again, offsets refer to other messages
    given_up: Counter[_Place] = Counter()
    for topic in sorted(run.cluster.ids):
        for record in run.cluster.visible(topic) if topic.endswith(dead_letter_topic("")) else ():
            headers = {name: value.decode() for name, value in record.headers if name in _PLACE}
            topic_of, partition, offset, handler = (headers[name] for name in _PLACE)
            given_up[topic_of, int(partition), int(offset), handler] += 1
    wanted: Counter[_Place] = Counter(dict.fromkeys(given_up, 1))
    for letter in letters_in(run).values():
        wanted[letter.topic, letter.partition, letter.offset, letter.handler] = 1
    for record in run.cluster.visible(run.app.layout.operations_log):
        entry = json.loads(record.value or b"")
        if entry["operation"] == "replayed" and entry["result"] != "succeeded":
            wanted[entry["topic"], entry["partition"], entry["offset"], entry["handler"]] += 1
    return [
        Finding("what is given up is one dead letter", f"{place}: {given_up[place]} of {number}")
        for place, number in wanted.items()
        if given_up[place] != number
    ]


def _stores(run: Judged) -> list[Finding]:
    """Check that each owner's store matches its changelogs. If an operator has fenced the owner and it has
    had nothing to commit since, compare only up to the store's positions.
    """
    found = []
    writes = Writes(bucket_length(run.app.lane_options.inbox_retention))
    for machine, worker, lanes in zip(run.machines, run.workers, run.owned, strict=True):
        for lane in lanes:
            rebuilt: dict[str, dict[bytes, bytes]] = {}
            others: set[tuple[str, bytes]] = set()
            store = machine.directory(run.app.layout.lanes).open(lane)
            producer = worker and worker.process.producers.get(run.app.layout.transactional_id(lane))
            is_fenced = bool(run.deleted) and not (producer and producer.is_current)
            for tp, table in changelog_partitions(run.app, lane).items():
                end = store.position(tp) if is_fenced else inf
                records = [r for r in run.cluster.visible(tp.topic) if r.partition == tp.partition]
                own = [(r.key or b"", r.value) for r in records if r.offset < end]
                for name, key, value in writes.of(table, tp.partition, own):
                    kept = rebuilt.setdefault(name, {})
                    if value is None:
                        kept.pop(key, None)
                    else:
                        kept[key] = value
                # For these keys, compaction may have left only what an operator has written since.
                since = [(r.key or b"", r.value) for r in records if r.offset >= end]
                others |= {(name, key) for name, key, _ in writes.of(table, tp.partition, since)}
            copy = {table: dict(store.scan(table)) for table in store.tables()}
            store.close()
            for name, key in others:
                rebuilt.get(name, {}).pop(key, None)
                copy.get(name, {}).pop(key, None)
            former = set(run.app_tables) - set(run.app.changelogs.values())
            names = (rebuilt.keys() | copy.keys()) - _STALE - former
            found += [
                Finding("stores are what changelogs say", f"{machine.name} lane {lane}: {table}")
                for table in sorted(names)
                if copy.get(table, {}) != rebuilt.get(table, {})
            ]
    return found
