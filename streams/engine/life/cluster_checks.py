"""A lane asks the cluster now and then whether topics and store are what they were."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from streams.engine.life.housekeeping import HOUSEKEEPING
from streams.engine.life.positions.checks import check_topics
from streams.engine.life.positions.log_cuts import log_mark
from streams.engine.life.recovery import changelog_partitions, touch
from streams.engine.staging.area import StagingArea
from streams.engine.way.changelog_ends import ChangelogEnds
from streams.engine.way.memory import LaneMemory
from streams.engine.way.sources import Sources
from streams.engine.way.topics import TopicLooks, partitions_read
from streams.errors import ClusterUnavailable, PartitionsAdded, TopicMismatch
from streams.ports import Identity, Ports
from streams.units import DAY

log = structlog.get_logger(__name__)

#: Between questions to the cluster, in seconds; of the lanes of a worker one asks for all.
ASK_INTERVAL = 5.0
#: Between commits of the ends of changelogs to which nothing is written, in seconds: Kafka forgets positions
#: in topics that the group is not subscribed to after `offsets.retention.minutes`, 7 days by default.
RENEW_INTERVAL = float(DAY)
#: The same while a broker says that it does not have a topic, and between looks whether one does.
LOOK_INTERVAL = 0.5


class ClusterChecks:
    """Asks for one lane, beside all else: an answer may take long, and the lane goes on without one."""

    def __init__(
        self,
        memory: LaneMemory,
        looks: TopicLooks,
        ports: Ports,
        staging: StagingArea,
        sources: Sources,
        logs: ChangelogEnds,
    ) -> None:
        """`looks` are those of the worker."""
        self._app = app = staging.app
        self._memory = memory
        #: The topics that the lane reads or writes again and again.
        self._watched = frozenset((*memory.topics, *app.changelogs, *app.message_codecs))
        self._looks = looks
        self._store = staging.store
        self._sources = sources
        self._cluster = ports.cluster
        self._clock = ports.clock
        self._touched = 0.0
        self._logs = logs
        self._renewed = ports.clock.now()

    async def run(self, stopping: asyncio.Event) -> None:
        """Ask until the lane stops. Raises TopicRecreated, PartitionsAdded, PositionsDisagree or
        PositionLost.
        """
        looked = self._clock.now()
        while not stopping.is_set():
            await self._clock.sleep(LOOK_INTERVAL)
            is_unknown = bool(self._sources.reader.unknown_topics())
            if not is_unknown and 0 <= self._clock.now() - looked < ASK_INTERVAL:
                continue
            looked = self._clock.now()
            try:
                age = LOOK_INTERVAL if is_unknown else ASK_INTERVAL - LOOK_INTERVAL
                self._compare(await self._looks.look(self._watched, age))
                await self._sources.look(self._cluster)
                await self._touch()
                await self._certify()
            except (ClusterUnavailable, TopicMismatch) as error:
                log.warning(
                    "lane_cannot_ask", lane=self._memory.number, error=str(error), action="asked again"
                )

    def _compare(self, identity: Identity) -> None:
        app, lane, topics = self._app, self._memory.number, self._memory.topics
        self._memory.measures.topics.see(app, self._watched, identity, self._clock.now())
        check_topics(app, lane, self._store, of(identity, [*topics, *app.changelogs]))
        found = partitions_read(app, lane, topics, identity)
        if added := [tp for tp in found if tp not in self._sources.partitions]:
            names = ", ".join(f"{tp.topic}[{tp.partition}]" for tp in added)
            raise PartitionsAdded(
                f"{names} were added to a topic from outside: the lane opens again to read them"
            )

    async def _touch(self) -> None:
        """An idle lane's store is current, too: say so, lest it be rebuilt when it is opened again."""
        interval = min(HOUSEKEEPING, self._app.lane_options.delete_retention / 8)
        now = self._clock.now()
        if now - max(self._store.current_at() or 0.0, self._touched) > interval:
            tables = changelog_partitions(self._app, self._memory.number)
            await touch(self._store, self._cluster, tables, self._clock)
            self._touched = now

    async def _certify(self) -> None:
        """Note in which leader epochs changelogs have what was written to them last: the next transaction
        commits that.
        """
        now = self._clock.now()
        if not 0 <= now - self._renewed < RENEW_INTERVAL:
            self._renewed = now
            self._logs.renew()
        if ends := self._logs.to_certify():
            marks = self._logs.certify(ends, await self._cluster.leader_epochs(ends))
            self._store.apply([log_mark(tp, mark) for tp, mark in marks.items()], {})
        if self._logs.has_news:
            self._memory.signals.work.set()


def of(identity: Identity, topics: Collection[str]) -> Identity:
    """The part of an answer about some topics."""
    wanted = set(topics)
    return Identity(
        identity.cluster,
        {topic: each for topic, each in identity.topics.items() if topic in wanted},
        {topic: each for topic, each in identity.partitions.items() if topic in wanted},
    )
