"""How much lanes may have taken and not yet committed: each for itself, and all of a worker together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streams.model.application import LaneOptions
from streams.staging.sequences import Sequences


class BacklogLimit:
    """One for the lanes of a worker. While others leave room, a lane may fill its own bound; when all hold as
    much as a worker may, each may still hold its share, so that a busy lane cannot starve the others. So they
    hold twice as much at the very most, and only until those with more than their share have committed.
    """

    def __init__(self, lane_options: LaneOptions) -> None:
        self._options = lane_options
        self._held: list[Sequences] = []

    @contextmanager
    def counting(self, sequences: Sequences) -> Iterator[None]:
        """For as long as a lane works: what it holds counts for all."""
        self._held.append(sequences)
        try:
            yield
        finally:
            self._held = [each for each in self._held if each is not sequences]

    def room(self, sequences: Sequences, waiting: int) -> int:
        """How many messages more a lane may take; 0 when it has to commit first. `waiting` are messages that
        it has read and could not take yet.
        """
        lane_options, messages, size = self._options, sequences.held + waiting, sequences.held_bytes
        if size >= lane_options.max_backlog_bytes:
            return 0
        lanes = max(1, len(self._held))
        share = lane_options.max_worker_backlog // lanes - messages
        if size >= lane_options.max_worker_backlog_bytes // lanes:
            share = 0
        left = lane_options.max_worker_backlog - waiting - sum(each.held for each in self._held)
        if sum(each.held_bytes for each in self._held) >= lane_options.max_worker_backlog_bytes:
            left = 0
        return max(0, min(lane_options.max_backlog - messages, max(share, left)))
