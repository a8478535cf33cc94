"""The ids of the topics that positions and rows belong to.

A topic that was deleted and created again keeps its name, but an offset now means another message, or none.
So each lane partition records the ids of its topics in the lane changelog, with its positions. A local store
notes the ids of the changelogs that it is a copy of. When a lane opens, it compares both with the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from streams.engine.staging.changes import COPY_OF
from streams.errors import ChangelogDamaged, TopicRecreated
from streams.ports import TP, Identity, Store, Write


class Recorded(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ids of topics, and of the cluster that has them. `begins` has the changelogs that have lost their first
    rows, each with the offset below which an operator has given them up.
    """

    cluster: str
    topics: dict[str, str]
    begins: dict[str, int] = {}

    def also(self, actual: Identity) -> Recorded:
        """A copy that also has the topics of the cluster."""
        return Recorded(actual.cluster, {**self.topics, **actual.topics}, self.begins)

    def without_rows(self, changelog: str, begin: int) -> Recorded:
        """A copy that gives up the rows of a changelog below an offset; with 0, none of its rows."""
        others = {topic: each for topic, each in self.begins.items() if topic != changelog}
        return Recorded(self.cluster, self.topics, {**others, **({changelog: begin} if begin else {})})


NOTHING = Recorded("", {})
NOT_READ: Mapping[TP, int] = {}
_decode = msgspec.msgpack.Decoder(Recorded).decode
_encode = msgspec.msgpack.Encoder().encode


def encode(recorded: Recorded) -> bytes:
    """Encode an identity for storage. The same topics always give the same bytes."""
    topics, begins = dict(sorted(recorded.topics.items())), dict(sorted(recorded.begins.items()))
    return _encode(Recorded(recorded.cluster, topics, begins))


def decode(data: bytes | None) -> Recorded:
    """Read a stored identity; NOTHING for None. Raises ChangelogDamaged."""
    try:
        return NOTHING if data is None else _decode(data)
    except ValueError as error:
        raise ChangelogDamaged(
            f"which topics a partition's rows belong to cannot be read: {error}. See docs/operating.md,"
            ' "A changelog is damaged".'
        ) from error


def made_anew(recorded: Recorded, actual: Identity, topics: Iterable[str]) -> list[str]:
    """The topics, sorted, that were created again: their ids differ from the recorded ones.

    A topic without a recorded id is new. Other code reports topics that the cluster does not have.
    """
    return sorted(
        topic
        for topic in set(topics)
        if topic in recorded.topics
        and topic in actual.topics
        and recorded.topics[topic] != actual.topics[topic]
    )


def refusal(
    recorded: Recorded,
    actual: Identity,
    topics: list[str],
    where: str,
    handled: Mapping[TP, int] = NOT_READ,
) -> TopicRecreated:
    """The error for topics that were created again.

    Args:
        where: what the lane still has of the former topics, such as "the local store".
        handled: the offset up to which each of their partitions was handled.
    """
    if recorded.cluster != actual.cluster:
        what = (
            f"this is another cluster, {actual.cluster}: {where} is of {recorded.cluster}, and"
            f" {', '.join(topics)} are others here. Check STEADFAUST_BOOTSTRAP"
        )
    else:
        ids = [f"{topic} (was {recorded.topics[topic]}, is {actual.topics[topic]})" for topic in topics]
        what = f"created again since, so {where} means nothing in it: {', '.join(ids)}"
    return TopicRecreated(
        f"{what}. {_handled(handled)} If this is meant, see `steadfaust positions list`, and"
        f" `steadfaust positions accept --topic {topics[0]}` goes on with what is there now;"
        ' see docs/operating.md, "A topic was created again".'
    )


def _handled(handled: Mapping[TP, int]) -> str:
    if not any(handled.values()):
        return "Nothing of it was handled."
    changed = ", ".join(
        f"{tp.topic}[{tp.partition}] is handled up to {at}" for tp, at in sorted(handled.items())
    )
    return (
        f"{changed}, all of it of the former topic where readers know topics by their ids (Kafka 3.1 or"
        " later); before that some of it may be of the new one."
    )


def copy_of(store: Store) -> Recorded:
    """The ids of the changelogs that a store is a copy of; NOTHING for a new store."""
    return decode(store.get(COPY_OF, b""))


def note_of(recorded: Recorded) -> Write:
    """The write that notes in a store which changelogs it is a copy of."""
    return (COPY_OF, b"", encode(recorded))
