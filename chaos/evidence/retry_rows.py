"""Whether each message that was postponed was postponed once for each attempt, and came to its end: pure.

A record of a retry topic shows a message that waits. It is written in the transaction in which the message
begins to wait, so a hop that is there twice was made twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from chaos.evidence.consequences import SentMessage
from chaos.evidence.decoding import ID, Origin, origin_in
from chaos.evidence.stores import Rows
from demo.findings import Finding, finding

if TYPE_CHECKING:
    from streams.ports import Record

MARK = ".retry-"
WAITING = "_waiting"
_PREFIX = 2  # bytes of a local key that are its partition


class Retried(NamedTuple):
    """A hop: a message's attempt by a handler has failed, and it waits in this tier for the next one."""

    origin: Origin
    message_id: str
    handler: str
    tier: int
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt} of {self.handler} at {self.origin}"


class _WaitingMessage(msgspec.Struct, array_like=True, frozen=True):
    """A row of a message that waits, as far as it is looked at."""

    topic: str
    partition: int
    offset: int


_read_waiting = msgspec.msgpack.Decoder(_WaitingMessage).decode


def retried(record: Record) -> Retried:
    """A record of a retry topic; of no message when it does not say of which."""
    headers = dict(record.headers)
    topic, _, tier = record.topic.rpartition(MARK)
    return Retried(
        origin_in(headers, topic, "retry"),
        headers.get(ID, b"").decode(),
        headers.get("retry-handler", b"").decode(),
        int(tier),
        int(headers.get("retry-attempt", 0)),
    )


def waiting_in(tables: Iterable[Mapping[str, Rows]]) -> Iterator[tuple[str, Origin]]:
    """Who waits for which handler, by the state of every lane."""
    for lane in tables:
        for key, value in lane.get(WAITING, {}).items():
            row = _read_waiting(value)
            handler = key[_PREFIX:].partition(b"\0")[0].decode()
            yield handler, Origin(row.topic, row.partition, row.offset)


def judge_retries(
    hops: Sequence[Retried],
    messages: Iterable[SentMessage],
    *,
    waiting: Set[tuple[str, Origin]],
    amiss: Set[str],
) -> Finding:
    """`amiss` are the ids of messages that led to too little or too much."""
    ids = {Origin(each.topic, each.partition, each.offset): each.message_id for each in messages}
    attempts = Counter((each.handler, each.message_id, each.attempt) for each in hops)
    tiers: dict[tuple[str, Origin], list[int]] = defaultdict(list)
    for each in hops:
        tiers[each.handler, each.origin].append(each.tier)
    ended = [each for each in hops if (each.handler, each.origin) not in waiting]
    wrong = {
        "of no message that is there": [str(e) for e in hops if ids.get(e.origin) != e.message_id],
        "postponed twice after one attempt": [
            f"attempt {attempt} of {handler} at {message_id}"
            for (handler, message_id, attempt), times in attempts.items()
            if times > 1
        ],
        "through tiers out of turn": [
            f"{handler} at {origin}: {sorted(each)}"
            for (handler, origin), each in tiers.items()
            if set(each) != set(range(1, max(each) + 1))
        ],
        "neither waiting nor done once": [str(each) for each in ended if each.message_id in amiss],
    }
    by_tier = Counter(each.tier for each in hops)
    counts = ", ".join(f"{count:,} in tier {tier}" for tier, count in sorted(by_tier.items())) or "none"
    return finding("every retry of a message that came to its end once", wrong, counts)
