"""A lane's staging area and dead letters, and no lane."""

from types import SimpleNamespace
from typing import Any

from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Counters
from streams.engine.staging.changelog import Staged, writes_of
from streams.engine.staging.changes import Writes
from streams.engine.staging.outcomes import Outcomes
from streams.engine.staging.refusals import Refusals
from streams.engine.waiting.dead_letters.bursts import Bursts
from streams.engine.waiting.dead_letters.table import DeadLetters
from streams.model.layout import Layout
from streams.ports import Store
from streams.testing.store import MemoryStores


def staging_over(store: Store, **options: Any) -> StagingArea:
    given = {"max_replays": 3, "max_message_bytes": 400000, "max_ahead": 0, "claim_retention": 0.0, **options}
    app: Any = SimpleNamespace(
        lane_options=SimpleNamespace(**given), layout=Layout("post", 4, 1), claims=None, changelogs=()
    )
    app.timer_names = {}
    return StagingArea(app, store, Writes(60.0), Counters(), Refusals())


class Kept:
    def __init__(self, **options: Any) -> None:
        self.store = MemoryStores().open(0)
        self.staging = staging_over(self.store, **options)
        self.outcomes = Outcomes(self.staging)
        self.letters = DeadLetters(self.staging, Bursts())

    def commit_staged(self) -> Staged:
        staged = self.staging.order.take(1 << 30)
        self.store.apply(list(writes_of(staged, Writes(60.0))), {})
        self.staging.forget(staged)
        return staged
