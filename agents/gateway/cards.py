"""The test cards: what each one makes the gateway do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

ACCEPTED = "tok_accepted"
DECLINED = "tok_declined"
CHARGED_BUT_TIMED_OUT = "tok_charged_but_timed_out"

_SLOW = re.compile(r"tok_slow_(\d{1,5})")
_UNAVAILABLE = re.compile(r"tok_unavailable_(\d{1,4})")


def slow(milliseconds: int) -> str:
    """The card of which every charge is answered after so long, up to 99,999."""
    return f"tok_slow_{milliseconds}"


def unavailable(times: int) -> str:
    """The card that makes the gateway unavailable the first `times` (up to 9,999) of each operation."""
    return f"tok_unavailable_{times}"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the gateway behaves with a card.

    Attributes:
        decline: the reason for which it is declined; empty when it is accepted.
        outages: how often an operation is turned away (503) before it is done.
        answer_lost: the charge is made, and the first request gets no answer.
        delay: seconds until the charge is answered.
    """

    decline: str = ""
    outages: int = 0
    answer_lost: bool = False
    delay: float = 0.0


@lru_cache(maxsize=1024)
def behaviour(card: str) -> Behaviour:
    """Return how the gateway behaves with `card`; a card that it does not know is declined."""
    if card == ACCEPTED:
        return Behaviour()
    if card == DECLINED:
        return Behaviour(decline="card_declined")
    if card == CHARGED_BUT_TIMED_OUT:
        return Behaviour(answer_lost=True)
    if match := _SLOW.fullmatch(card):
        return Behaviour(delay=int(match[1]) / 1000)
    if match := _UNAVAILABLE.fullmatch(card):
        return Behaviour(outages=int(match[1]))
    return Behaviour(decline="unknown_card")
