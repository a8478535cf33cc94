"""A lane's dead letters with all that writes them, and no lane."""

from types import SimpleNamespace
from typing import Any

from streams.dead_letters.bursts import Bursts
from streams.dead_letters.table import DeadLetters
from streams.model.layout import Layout
from streams.staging.area import Overlay
from streams.staging.arrival import Counters
from streams.staging.changelog import Staged, writes_of
from streams.staging.changes import Writes
from streams.staging.commit_order import CommitOrder
from streams.staging.outcomes import OutcomeWriter
from streams.staging.unreadable import Unreadable
from streams.testing.store import MemoryStores


class Kept:
    def __init__(self, **options: Any) -> None:
        layout = SimpleNamespace(operations_log="log", app_id="post", partitions=4)
        self.app: Any = SimpleNamespace(
            lane_options=SimpleNamespace(max_replays=3, **options), layout=layout, claims=None
        )
        self.store, self.overlay = MemoryStores().open(0), Overlay()
        self.sequences = CommitOrder(Layout("post", 2, 1))
        self.writer = OutcomeWriter(self.app, self.overlay, self.sequences, Counters())
        self.letters = DeadLetters(self.app, self.store, self.overlay, self.writer, Bursts(), Unreadable())

    def commit_staged(self) -> Staged:
        staged = self.sequences.take(1 << 30)
        self.store.apply(list(writes_of(staged, Writes(60.0))), {})
        self.overlay.forget(staged)
        return staged
