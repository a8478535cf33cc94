"""Whether messages of one key were handled in their order: pure, by where what they led to lies.

Messages of one key and topic lie in one partition. What each of them leads to is written in the order in
which they are handled: of two of them, all that the first led to lies ahead of all that the second led to,
wherever both wrote to the same partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from agents.commands import OrderSagaReply, OrderSubmitted
from agents.messages import HandleLines, LineRefused, LineReleased, LineReserved
from chaos.evidence.consequences import SentMessage
from demo.findings import Finding, finding

_GATHERED = frozenset({LineReserved.TOPIC, LineRefused.TOPIC, LineReleased.TOPIC})
#: A saga's timers ring when they are due, whatever the saga has handled since.
_SAGA_INPUT = frozenset({OrderSubmitted.TOPIC, OrderSagaReply.TOPIC})


class Effect(NamedTuple):
    """A message, and the one that it was caused by."""

    cause: SentMessage
    sent: SentMessage


def judge_key_order(messages: Iterable[SentMessage], effects: Sequence[Effect]) -> Finding:
    """`effects` are what the messages led to."""
    led = {each.cause.message_id for each in effects}
    compared, swapped = _compare(effects)
    gathered, early = _gathered(messages, led)
    wrong = {
        "handled ahead of one before them": swapped,
        "gathered before the last of them was there": early,
    }
    says = f"{compared:,} pairs of one key, {gathered:,} gatherings"
    return finding("messages of one key handled in their order", wrong, says)


def effects_of(messages: Sequence[SentMessage], questions: Set[str]) -> Iterator[Effect]:
    """What each message led to by being handled. `questions` are the ids of messages
    that pass what waits, on purpose: what they lead to is left out, and so is what timers send.
    """
    first: dict[str, SentMessage] = {}
    for each in messages:
        known = first.setdefault(each.message_id, each)
        if (known.topic, known.partition) == (each.topic, each.partition) and each.offset < known.offset:
            first[each.message_id] = each  # sent more than once, it is handled where it came first
    for each in messages:
        cause = first.get(each.cause)
        if cause is None or cause.topic == HandleLines.TOPIC or cause.message_id in questions:
            continue
        if each.topic != OrderSagaReply.TOPIC or cause.topic not in _SAGA_INPUT:
            yield Effect(cause, each)


def _compare(effects: Iterable[Effect]) -> tuple[int, list[str]]:
    """How many neighbours of one key wrote to the same partition, and which of them did so the wrong way."""
    together: Mapping[tuple[str, int, str, str, int], list[Effect]] = defaultdict(list)
    for each in effects:
        cause, sent = each
        together[cause.topic, cause.partition, cause.key, sent.topic, sent.partition].append(each)
    compared, swapped = 0, []
    for those in together.values():
        those.sort(key=lambda each: (each.cause.offset, each.sent.offset))
        for before, after in pairwise(those):
            if before.cause.offset != after.cause.offset:
                compared += 1
                if after.sent.offset < before.sent.offset:
                    swapped.append(f"{after.cause} ahead of {before.cause}")
    return compared, swapped


def _gathered(messages: Iterable[SentMessage], led: Set[str]) -> tuple[int, list[str]]:
    """Of an order's answers of one kind only the last can lead on: it is handled after the others."""
    answers: Mapping[tuple[str, str], list[SentMessage]] = defaultdict(list)
    for each in {each.message_id: each for each in messages}.values():
        if each.topic in _GATHERED:
            answers[each.topic, each.key].append(each)
    gathered, early = 0, []
    for those in answers.values():
        those.sort(key=lambda each: each.offset)
        leading = [each for each in those if each.message_id in led]
        if len(those) > 1 and leading:
            gathered += 1
            early += [f"{each} of {len(those)}" for each in leading if each != those[-1]]
    return gathered, early
