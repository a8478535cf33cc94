"""Declared properties of topics, and how the cluster's topics differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streams.engine.staging.inbox import BUCKETS
from streams.engine.waiting.dead_letters.record import ROOM
from streams.engine.way.topics import is_from_outside
from streams.model.application import Application, LaneOptions
from streams.model.envelope import RECORD_OVERHEAD
from streams.model.layout import DEAD_LETTERS, INBOX
from streams.ports import OLDEST, STAMPED, TopicSpec
from streams.units import DAY

#: Bytes by which a dead letter may exceed the largest message, including the overhead of its batch.
DEAD_LETTER_ROOM = ROOM + RECORD_OVERHEAD
#: Settings for which -1 means unlimited.
_ENDLESS = ("retention.ms", "retention.bytes")
_UNBOUNDED = 1 << 63
BY_BROKER = "LogAppendTime"
#: Retention of the log of operations, in seconds.
AUDIT_RETENTION = 365 * DAY


def declare(app: Application, *, replication: int) -> list[TopicSpec]:
    """Every topic of an application, with the settings its guarantees depend on.

    Longer than other functions: it is one list.
    """
    layout, lane_options = app.layout, app.lane_options
    safe = _safe(lane_options, replication)
    messages = _messages(lane_options, replication)
    kept = _kept(lane_options, replication)
    compacted = {
        **safe,
        "cleanup.policy": "compact",
        "delete.retention.ms": _ms(lane_options.delete_retention),
    }
    inbox = {**kept, "retention.ms": _ms(lane_options.inbox_retention * (1 + 1 / BUCKETS))}
    dead = _dead_letters(lane_options, replication)
    # Payloads in the object store are deleted when no message can refer to them any more.
    bounded = frozenset(("retention.ms",)) if app.claims is not None else frozenset()
    # Clients have clocks of their own (docs/adr/0052).
    stamped = {**messages, STAMPED: BY_BROKER}
    specs = []
    for topic in app.message_codecs:
        outside = is_from_outside(app, topic)
        config = stamped if outside else messages
        # Other applications may read it, as a topic from outside.
        made = {STAMPED: BY_BROKER}
        specs.append(
            TopicSpec(topic, layout.partitions, replication, config, bounded, outside=outside, made=made)
        )
    sent_on = {**messages, "max.message.bytes": str(lane_options.max_message_bytes + DEAD_LETTER_ROOM)}
    specs += [
        TopicSpec(topic, layout.partitions, replication, sent_on, bounded) for topic in app.repartitions
    ]
    letters = {**compacted, "max.message.bytes": dead["max.message.bytes"]}
    own = {INBOX: inbox, DEAD_LETTERS: letters}
    specs += [
        TopicSpec(topic, layout.partitions, replication, own.get(table, compacted))
        for topic, table in app.changelogs.items()
    ]
    audit = {**kept, "retention.ms": _ms(AUDIT_RETENTION)}
    operations = {**kept, STAMPED: BY_BROKER}
    specs.append(TopicSpec(layout.operations, layout.partitions, replication, operations))
    specs.append(TopicSpec(layout.operations_log, 1, replication, audit))
    specs += [TopicSpec(name, 1, replication, dead) for name in _beside_sources(app)]
    specs.append(TopicSpec(layout.announcements, 1, replication, compacted))
    return specs


def dead_letter_spec(name: str, lane_options: LaneOptions, *, replication: int) -> TopicSpec:
    """The declaration of a dead letter topic, with the settings that `declare` uses."""
    return TopicSpec(name, 1, replication, _dead_letters(lane_options, replication))


def _safe(lane_options: LaneOptions, replication: int) -> dict[str, str]:
    return {
        "min.insync.replicas": str(max(1, replication - 1)),
        "max.message.bytes": str(lane_options.max_message_bytes),
    }


def _messages(lane_options: LaneOptions, replication: int) -> dict[str, str]:
    return {
        **_safe(lane_options, replication),
        "cleanup.policy": "delete",
        "retention.ms": _ms(lane_options.message_retention),
    }


def _kept(lane_options: LaneOptions, replication: int) -> dict[str, str]:
    """Settings for retention by time only: a cluster's limit in bytes must not shorten it."""
    return {**_messages(lane_options, replication), "retention.bytes": "-1"}


def _dead_letters(lane_options: LaneOptions, replication: int) -> dict[str, str]:
    return {
        **_kept(lane_options, replication),
        "retention.ms": _ms(lane_options.dead_letter_retention),
        "max.message.bytes": str(lane_options.max_message_bytes + DEAD_LETTER_ROOM),
    }


def _beside_sources(app: Application) -> Iterator[str]:
    """The topics of retries and dead letters of each topic that is consumed."""
    for route in app.routes.values():
        yield from route.retries[: max(len(handler.retry.delays) for handler in route.handlers)]
        yield route.dead_letters


def differences(
    spec: TopicSpec, *, partitions: int, replication: int, config: Mapping[str, str | None]
) -> list[str]:
    """The differences between an existing topic and its declaration, as texts; empty if there are none.

    More replicas, larger limits and longer retention than declared are accepted, except for settings that are
    `exact`.
    """
    found = []
    if partitions < spec.partitions or (partitions > spec.partitions and not spec.outside):
        found.append(
            f"{spec.name} has {partitions} partitions, the application was first started with"
            f" {spec.partitions}."
            ' Partitions cannot change in place: see docs/operating.md, "More partitions"'
        )
    if replication < spec.replication:
        found.append(f"{spec.name} has {replication} replicas, declared are {spec.replication}")
    for name, wanted in spec.config.items():
        actual = config.get(name)
        if name == STAMPED:
            found += _stamps(spec.name, config)
        elif not _fits(name, wanted, actual):
            found.append(f"{spec.name} has {name}={actual}, declared is {wanted}")
        elif name in spec.exact and actual != wanted:
            found.append(
                f"{spec.name} has {name}={actual}, declared is {wanted}: payloads by reference are kept no"
                " longer. Set it so, or STEADFAUST_MESSAGE_RETENTION_DAYS to the longest of these topics"
            )
    return found


def _stamps(topic: str, config: Mapping[str, str | None]) -> list[str]:
    """An error text if clients' clocks stamp the records and could make them expire too early."""
    kept, oldest = config.get("retention.ms"), config.get(OLDEST)
    if config.get(STAMPED) == BY_BROKER or kept == "-1":
        return []
    if kept is not None and oldest is not None and int(oldest) < int(kept):
        return []
    difference = (
        f"{topic} has {STAMPED}={config.get(STAMPED)} and {OLDEST}={oldest}: what a client stamps with an old"
        f" time is deleted before it is read. Set {STAMPED}={BY_BROKER} (kafka-configs.sh --alter --topic"
        f" {topic} --add-config {STAMPED}={BY_BROKER}), or {OLDEST} below retention.ms"
    )
    return [difference]


def _fits(name: str, wanted: str, actual: str | None) -> bool:
    if actual is None or name == "cleanup.policy":
        return actual == wanted
    most = _UNBOUNDED if int(actual) == -1 and name in _ENDLESS else int(actual)
    return most >= (_UNBOUNDED if int(wanted) == -1 else int(wanted))


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))
