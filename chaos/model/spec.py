"""What is modelled: the input, and the protocol with each of its rules as a switch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Opening(Enum):
    """The steps by which a lane opens."""

    FENCE = "InitProducerId"
    RECOVER = "recovery to the high watermark"
    RECOVER_TO_STABLE = "recovery to the last stable offset"
    POSITIONS = "the group's committed position"


@dataclass(frozen=True, slots=True)
class Spec:
    """The protocol as `streams/` has it; every switch away from its default is a negative control."""

    #: Ids of the messages in the source partition, in order: one that occurs twice was sent twice.
    messages: tuple[int, ...] = (1, 2, 1)
    #: The most messages in a transaction.
    max_batch: int = 1
    #: A message may be handled before one of another key that came before it
    #: (docs/adr/0044-only-keys-wait.md).
    overtakes: bool = False
    #: What was handled so is noted with the position, in the same transaction.
    notes_ahead: bool = True
    #: Each message sends one to its own lane, which may handle it in the same transaction
    #: (docs/adr/0046-loopback.md).
    loops: bool = False
    #: Those that were handled so are marked in their topic.
    marks_looped: bool = True
    #: The order of `Lane._open`.
    opening: tuple[Opening, ...] = (Opening.FENCE, Opening.RECOVER, Opening.POSITIONS)
    #: What was handled before is dropped (`streams/engine/staging/inbox.py`).
    inbox: bool = True
    #: All owners of a lane use one transactional id.
    fixed_id: bool = True
    #: RocksDB is written after the commit.
    store_after_commit: bool = True
    #: Offsets are part of the transaction.
    offsets_in_transaction: bool = True
    #: Every record's answer is awaited before the commit.
    awaits_sends: bool = True
    #: After an unknown outcome the producer is discarded and the lane opens again.
    reopens_after_doubt: bool = True
    #: The group's position is compared with the changelog's.
    compares_positions: bool = True
    #: Positions that disagree are read once more, after another fence, before the lane stops for good.
    asks_again: bool = True
    #: A standby may copy the changelogs into the store of a worker that has not got the lane.
    standby: bool = True
    #: Brokers before KAFKA-17507 answer InitProducerId before the group's positions are in place.
    late_positions: bool = False
