"""Negative controls: the protocol with one of its rules taken away, and what goes wrong then.

Each has the smallest input that shows it. Where another rule would catch the mistake (the inbox a repetition,
the comparison of positions a wrong one), that one is off too: otherwise the lane would stop, and do no harm.
"""

from __future__ import annotations

from typing import NamedTuple

from chaos.model import rules
from chaos.model.explorer import DEAD_END
from chaos.model.spec import Opening, Spec


class BrokenSpec(NamedTuple):
    """A spec that must break a rule."""

    name: str
    about: str
    spec: Spec
    breaks: str


CONTROLS = (
    BrokenSpec(
        "no-inbox",
        "a message that was sent twice, without an inbox",
        Spec(messages=(1, 1), inbox=False),
        rules.ONCE,
    ),
    BrokenSpec(
        "no-fencing",
        "every worker has a transactional id of its own",
        Spec(messages=(1,), fixed_id=False),
        rules.ONCE,
    ),
    BrokenSpec(
        "unnoted-ahead",
        "what was handled before a slow neighbour is not noted with the position (a topic without inbox)",
        Spec(messages=(1, 2), inbox=False, overtakes=True, notes_ahead=False),
        rules.ONCE,
    ),
    BrokenSpec(
        "unmarked-loop",
        "what a lane has sent to itself and handled at once is not marked",
        Spec(messages=(1,), inbox=False, loops=True, marks_looped=False),
        rules.ONCE,
    ),
    BrokenSpec(
        "store-before-commit",
        "RocksDB is written before the transaction is committed",
        Spec(messages=(1,), store_after_commit=False),
        rules.STORE,
    ),
    BrokenSpec(
        "positions-before-fencing",
        "positions are read first, the old owner is fenced after it (a topic without inbox)",
        Spec(
            messages=(1,),
            inbox=False,
            compares_positions=False,
            opening=(Opening.POSITIONS, Opening.FENCE, Opening.RECOVER),
        ),
        rules.ONCE,
    ),
    BrokenSpec(
        "recovery-before-fencing",
        "recovery goes to the last stable offset, below an open transaction; its owner is fenced after it",
        Spec(
            messages=(1, 2),
            compares_positions=False,
            opening=(Opening.RECOVER_TO_STABLE, Opening.FENCE, Opening.POSITIONS),
        ),
        rules.NOTHING_LOST,
    ),
    BrokenSpec(
        "reuse-after-doubt",
        "a commit without an answer is taken for aborted, and its producer used again",
        Spec(messages=(1,), reopens_after_doubt=False),
        rules.ONCE,
    ),
    BrokenSpec(
        "offsets-outside",
        "offsets are committed beside the transaction",
        Spec(messages=(1,), offsets_in_transaction=False),
        rules.NOTHING_LOST,
    ),
    BrokenSpec(
        "unawaited-sends",
        "the commit does not wait for the answers to what was sent",
        Spec(messages=(1,), awaits_sends=False),
        rules.AGREE,
    ),
    BrokenSpec(
        "stop-at-first-disagreement",
        "positions that disagree once count as lost, although another owner may have committed meanwhile",
        Spec(messages=(1,), asks_again=False),
        DEAD_END,
    ),
    BrokenSpec(
        "old-brokers",
        "brokers before KAFKA-17507: InitProducerId is answered before the group's positions are in place",
        Spec(messages=(1,), late_positions=True),
        rules.NEVER_STOPS,
    ),
)
