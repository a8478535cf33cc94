"""The application's topics: all of them, a page of one's records, and one record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from streams.control.base.asked import asked_text
from streams.control.base.claims import with_claims
from streams.control.base.lane_rows import Query
from streams.control.base.view import Kept, Problem, WorkerView
from streams.control.base.windows import LogRange, ReadPage, TopicFacts, Window
from streams.control.history.record_values import record_answer
from streams.control.history.timeline import topics_of
from streams.control.history.topic_answers import LogAnswer, PageAnswer, RecordPage, TopicAnswer, TopicsAnswer
from streams.errors import TopicMismatch
from streams.model.application import Application
from streams.model.envelope import rfc3339
from streams.model.layout import DEAD_LETTERS, INBOX, LANE
from streams.ports import TP
from streams.units import DAY

#: Records on a page by default, and at most.
RECORDS = 25
MOST_RECORDS = 100
_CURSOR = re.compile(r"(\d{1,9})-(\d{1,18})", re.ASCII)
_MOST_MS = 253_402_300_799_999
_ABOUT_TABLES = {
    INBOX: "ids of messages that were handled",
    LANE: "what lanes keep for themselves: positions, timers, messages that wait",
    DEAD_LETTERS: "dead letters of lanes, as they stand",
}


def declared_topics(app: Application) -> dict[str, TopicAnswer]:
    """Kinds of the application's topics, in the order that people look for them."""
    found = []
    for topic, source in topics_of(app).items():
        if source.kind in ("retry", "dead letter"):
            words = {"retry": "retries", "dead letter": "dead letters"}[source.kind]
            found.append(TopicAnswer(name=topic, kind=words, about=f"of {source.topic}"))
        else:
            route = app.routes.get(source.topic)
            taken = ", ".join(handler.name for handler in route.handlers) if route is not None else ""
            about = f"{app.wiring.messages()[source.topic].__name__}, handled by {taken or 'none here'}"
            if topic in app.repartitions:
                about += f": records of {source.topic} on their way to the partition of their key"
            found.append(TopicAnswer(name=topic, kind="messages", about=about))
    for topic, each in app.wiring.sources().items():
        about = f"a source, mapped by {each.handler.name}"
        found.append(TopicAnswer(name=topic, kind="messages", about=about))
    for topic, table in app.changelogs.items():
        about = _ABOUT_TABLES.get(table, f"rows of {table}")
        found.append(TopicAnswer(name=topic, kind="changelog", about=about))
    layout = app.layout
    about_others = {
        layout.operations: ("operations", "what operators ask lanes for"),
        layout.operations_log: ("operations", "who did what, and what came of it"),
        layout.announcements: ("announcements", "schemas, and how the application is cut"),
    }
    found += [TopicAnswer(name=name, kind=kind, about=about) for name, (kind, about) in about_others.items()]
    order = ("messages", "retries", "dead letters", "changelog", "operations", "announcements")
    return {each.name: each for each in sorted(found, key=lambda each: (order.index(each.kind), each.name))}


# -- questions --------------------------------------------------------------------------------------------


async def list_topics(view: WorkerView) -> TopicsAnswer:
    """All topics, as the cluster has them."""
    declared = declared_topics(view.application)
    facts = await view.topic_facts(declared)
    try:
        logs = await view.logs(_partitions(facts))
    except TopicMismatch:  # one was deleted since it was looked at
        facts = await view.topic_facts(declared, anew=True)
        logs = await view.logs(_partitions(facts))
    by_topic: dict[str, list[LogRange]] = {name: [] for name in declared}
    for tp, log in logs.items():
        by_topic[tp.topic].append(log)
    return TopicsAnswer(
        topics=[_standing(each, facts.get(each.name), by_topic[each.name]) for each in declared.values()]
    )


def known_topics(app: Application, kept: Kept | None, why: str) -> TopicsAnswer:
    """All topics while the cluster does not answer: as they were last, or their names alone."""
    if kept is None:
        note = f"Kafka does not answer, so of these topics only the names are known: {why}"
        return TopicsAnswer(topics=list(declared_topics(app).values()), note=note)
    at = rfc3339(kept.at)
    answer: TopicsAnswer = kept.answer
    return replace(answer, note=f"Kafka does not answer. These are the topics as they were at {at}: {why}")


def _partitions(facts: Mapping[str, TopicFacts]) -> list[TP]:
    return [TP(name, n) for name, each in facts.items() for n in range(each.partitions)]


async def browse_topic(view: WorkerView, name: str, query: Query) -> PageAnswer:
    """A page of a topic's records: the newest, unless a time, a place or a cursor is named.

    Raises Problem.
    """
    topic, facts = await _topic(view, name)
    window = window_of(view.application, name, facts, query)
    seen = await _browse(view, name, window)
    logs = [seen.logs[tp] for tp in sorted(seen.logs)]
    older = {tp: span[0] for tp, span in seen.spans.items() if span[0] > seen.logs[tp].begin}
    newer = {tp: span[1] for tp, span in seen.spans.items() if span[1] < seen.logs[tp].stable}
    tail = window.backwards and not window.places
    return PageAnswer(
        topic=_standing(topic, facts, logs),
        logs=[
            LogAnswer(
                partition=tp.partition,
                begin=at.begin,
                stable=at.stable,
                end=at.end,
                recent=at.end - at.recent,
            )
            for tp, at in sorted(seen.logs.items())
        ],
        records=[record_answer(view.application, record) for record in seen.records],
        way="newest" if window.backwards else "oldest",
        older=cursor_of_page(seen, 0) if older else "",
        newer=cursor_of_page(seen, 1) if newer and not tail else "",
        looked=seen.looked,
        notes=_notes(seen, window),
        stopped=seen.stopped,
        tail=tail,
    )


async def show_record(view: WorkerView, name: str, partition: str, offset: str) -> RecordPage:
    """A record in full. Raises Problem 404 with the reason why there is none."""
    topic, facts = await _topic(view, name)
    tp = TP(name, _number("partition", partition, facts.partitions - 1))
    at = _number("offset", offset, 1 << 62)
    seen = await _browse(view, name, Window((tp,), {tp: at}, backwards=False, limit=1))
    log = seen.logs[tp]
    found = seen.records[0] if seen.records else None
    if found is None or found.offset != at:
        if seen.stopped and not seen.records and log.begin <= at < log.stable:
            raise Problem(503, "not_read", f"{name}[{partition}] was not read at {at}: {seen.stopped}")
        raise Problem(
            404, "no_record", f"{name}[{partition}] has no record at {at}: {_why_none(at, log, seen)}"
        )
    record = record_answer(view.application, found, full=True)
    return RecordPage(
        topic=_standing(topic, facts, [log]),
        record=(await with_claims(view.application, [record]))[0],
        begin=log.begin,
        stable=log.stable,
    )


# -- how --------------------------------------------------------------------------------------------------


def window_of(app: Application, name: str, facts: TopicFacts, query: Query) -> Window:
    """The page that a query names. Raises Problem 400."""
    limit = _number("limit", query["limit"], MOST_RECORDS) if query.get("limit") else RECORDS
    if limit == 0:
        raise Problem(400, "bad_limit", f"limit is 0: give 1 to {MOST_RECORDS}")
    tps = tuple(TP(name, n) for n in range(facts.partitions))
    key = None
    if (text := asked_text(query.get("key", ""))) is not None:
        key = text.encode("utf-8", "surrogateescape")
        is_ours = facts.partitions == app.layout.partitions and not app.wiring.is_source(name)
        tps = (tps[app.layout.partition_of(key)],) if is_ours else tps
    if query.get("partition"):
        tps = (TP(name, _number("partition", query["partition"], facts.partitions - 1)),)
    places, backwards, since = dict[TP, int](), True, None
    if query.get("before") or query.get("after"):
        backwards = bool(query.get("before"))
        places = _places(name, query["before" if backwards else "after"])
    elif query.get("offset"):
        if len(tps) != 1:
            raise Problem(400, "no_partition", "an offset is of one partition: say which")
        places, backwards = {tps[0]: _number("offset", query["offset"], 1 << 62)}, False
    elif query.get("time"):
        since, backwards = _time(query["time"]), False
    elif query.get("oldest"):
        backwards = False
    rows = app.changelogs.get(name) in app.tables
    return Window(tps, places, backwards, limit, since, key, rows)


async def _browse(view: WorkerView, name: str, window: Window) -> ReadPage:
    try:
        return await view.browse(window)
    except TopicMismatch:  # it may have been deleted since it was looked at
        await _topic(view, name, anew=True)
        raise


async def _topic(view: WorkerView, name: str, *, anew: bool = False) -> tuple[TopicAnswer, TopicFacts]:
    topic = declared_topics(view.application).get(name)
    if topic is None:
        raise Problem(
            404, "no_topic", f"{name!r} is no topic of this application: /topics lists those it has"
        )
    facts = (await view.topic_facts([name], anew=anew)).get(name)
    if facts is None:
        raise Problem(404, "no_topic", f"the cluster has no topic {name}: a worker that starts creates it")
    return topic, facts


def _standing(topic: TopicAnswer, facts: TopicFacts | None, logs: list[LogRange]) -> TopicAnswer:
    """A topic and its state."""
    return TopicAnswer(
        name=topic.name,
        kind=topic.kind,
        about=topic.about,
        exists=facts is not None,
        partitions=facts.partitions if facts is not None else 0,
        replication=facts.replication if facts is not None else 0,
        kept=_kept(facts.config) if facts is not None else "",
        offsets=sum(log.end - log.begin for log in logs),
        recent=sum(log.end - log.recent for log in logs),
        open=sum(log.end - log.stable for log in logs),
    )


def _kept(config: Mapping[str, str]) -> str:
    """How long records are kept, in words."""
    if "compact" in config.get("cleanup.policy", ""):
        return "the newest of each key"
    ms = int(config.get("retention.ms", "-1"))
    if ms < 0:
        return "for ever"
    return f"{ms / 1000 / DAY:g} days" if ms >= DAY * 1000 else f"{ms / 3_600_000:g} hours"


def _notes(seen: ReadPage, window: Window) -> list[str]:
    notes = []
    for tp, log in sorted(seen.logs.items()):
        if log.end > log.stable:
            notes.append(
                f"Partition {tp.partition}: a transaction is open at offset {log.stable}. The records there"
                f" and behind, {log.end - log.stable} offsets, are shown once that is decided."
            )
        place = window.places.get(tp)
        if place is not None and place > log.end:
            notes.append(f"Partition {tp.partition} ends at offset {log.end}, before {place}.")
        if place is not None and place < log.begin:
            notes.append(
                f"Partition {tp.partition} begins at offset {log.begin}: what was before has expired."
            )
    return notes


def _why_none(at: int, log: LogRange, seen: ReadPage) -> str:
    if at < log.begin:
        return f"the log begins at {log.begin}; what was before has expired"
    if at >= log.end:
        return f"the log ends at {log.end}"
    if at >= log.stable:
        return f"a transaction is open since {log.stable}; it is to be seen once that is committed"
    there = f"; the next record is at {seen.records[0].offset}" if seen.records else ""
    return f"a transaction's marker, an aborted record, or one that compaction has removed{there}"


def cursor_of_page(seen: ReadPage, end: int) -> str:
    """The cursor of what is before a page (end 0) or behind it (1)."""
    return ".".join(f"{tp.partition}-{span[end]}" for tp, span in sorted(seen.spans.items()))


def _places(name: str, cursor: str) -> dict[TP, int]:
    places = {}
    for part in cursor.split("."):
        if (match := _CURSOR.fullmatch(part)) is None:
            raise Problem(400, "bad_cursor", f"{cursor[:40]!r} is no cursor of a page: open the topic again")
        places[TP(name, int(match[1]))] = int(match[2])
    return places


def _number(name: str, text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:20]) > most:
        raise Problem(400, f"bad_{name}", f"{name} is {text[:40]!r}: give a number from 0 to {most}")
    return int(text)


def _time(text: str) -> int:
    """A time in epoch milliseconds: RFC 3339, or as a form has it, then in UTC."""
    try:
        at = datetime.fromisoformat(text)
        ms = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        example = rfc3339(0)
        raise Problem(400, "bad_time", f"time is {text[:40]!r}: give one like {example}") from None
    return min(max(ms, 0), _MOST_MS)
