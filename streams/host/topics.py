"""An application's topics in the cluster: whose they are, how they differ, and which are missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from streams.brokers import Bootstrap
from streams.engine.life.positions.declared import declare, differences
from streams.errors import TopicMismatch
from streams.kafka.clients import KafkaOptions
from streams.kafka.topics import Description, KafkaTopics
from streams.model.application import Application
from streams.model.layout import LANE, dead_letter_topic, retry_topic
from streams.model.policy.retry import RETRY_TOPICS
from streams.ports import TopicSpec


async def ensure_topics(
    app: Application,
    bootstrap: Bootstrap,
    names: Collection[str] | None = None,
    replication: int = 0,
    options: KafkaOptions | None = None,
    before: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Check the application's topics that exist, or those named, and create those that are missing. Nothing
    is created before everything was compared, and the cluster has said that it would create all of it.

    `replication` 0 means what the application was first started with; then three, or as many as there are
    brokers. `before` is called first where the application has announced something. Raises TopicMismatch
    naming every difference, or ClusterUnavailable.
    """
    async with KafkaTopics(bootstrap, options) as topics:
        first = (await topics.describe([app.layout.announcements])).get(app.layout.announcements)
        if first is not None and before is not None:
            await before()
        # Not by the brokers that happen to be up: one that is down must not lower it.
        brokers = max(await topics.brokers(), len(str(bootstrap).split(",")))
        factor = replication or (first.replication if first else min(3, brokers))
        await _require_sources(app, topics)
        await name_beside(app, topics, factor)
        declared = declare(app, replication=factor)
        specs = {spec.name: spec for spec in declared if names is None or spec.name in names}
        existing = await topics.describe(specs)
        if names is None and app.layout.changelog(LANE) not in existing:
            _require_partitions(specs, existing)
        _require_no_difference(specs, existing)
        missing = [spec for name, spec in specs.items() if name not in existing]
        await topics.try_out(missing)
        for some in _in_order(app, missing):
            await topics.create(some)
        _require_no_difference(specs, await topics.describe(spec.name for spec in missing))


async def _require_sources(app: Application, topics: KafkaTopics) -> None:
    """Raises TopicMismatch for a source that is not there."""
    sources = app.wiring.sources()
    if missing := sorted(sources.keys() - await topics.existing(sources)):
        raise TopicMismatch(
            f"the cluster has no topic {', '.join(missing)}: a source is read as its owner has it, and never"
            " created. Check the name and the brokers, or ask the owner for it"
        )


def _require_no_difference(specs: Mapping[str, TopicSpec], found: Mapping[str, Description]) -> None:
    wrong = [
        difference
        for name, actual in sorted(found.items())
        for difference in differences(
            specs[name],
            partitions=actual.partitions,
            replication=actual.replication,
            config=actual.config,
        )
    ]
    if wrong:
        raise TopicMismatch(". ".join(wrong) + ".")


def _require_partitions(specs: Mapping[str, TopicSpec], existing: Mapping[str, Description]) -> None:
    """Before an application's first start its number of partitions can still be chosen: it is to be that of
    the topics that there are. Raises TopicMismatch, before anything is made.
    """
    other = {
        name: actual.partitions
        for name, actual in sorted(existing.items())
        if actual.partitions != specs[name].partitions
    }
    if other:
        found = ", ".join(f"{name} has {number} partitions" for name, number in other.items())
        wanted = specs[next(iter(other))].partitions
        raise TopicMismatch(
            f"{found}, and the application is to start with {wanted}. Set STEADFAUST_PARTITIONS to theirs:"
            " it cannot be changed after the first start"
        )


# -- whose topic one is ------------------------------------------------------------------------------------


async def name_beside(app: Application, topics: KafkaTopics, replication: int) -> None:
    """Tell an application which of the topics that it handles are not its own (docs/adr/0076): retries and
    dead letters of those go to topics with its id, so that two applications never share one.

    A topic that was there before the application is another's. Which it was stays so: at the first start the
    repartition topic of each is created after dead letter topics of others, and before topics of its own.
    """
    layout, sources = app.layout, app.repartitions
    beside = {topic: _names_beside(topic) for topic in sources.values()}
    by_id = {topic: dead_letter_topic(topic, layout.app_id) for topic in sources.values()}
    asked = {
        *sources,
        *sources.values(),
        *by_id.values(),
        *(name for each in beside.values() for name in each),
    }
    found = await topics.describe(asked)
    specs = {spec.name: spec for spec in declare(app, replication=replication)}
    others = set()
    for marker, topic in sources.items():
        if marker in found:
            is_own = by_id[topic] not in found
        elif topic not in found:
            is_own = True
        else:  # an earlier version may have made it, with all that it declares
            made = specs[topic].config.keys() <= found[topic].own and dead_letter_topic(topic) in found
            is_own = made and await topics.handled(layout.app_id, topic)
        if not is_own:
            others.add(topic)
    former = {name: topic for topic in others for name in beside[topic] if name in found}
    app.name_beside(frozenset(others), former)


def _names_beside(topic: str) -> list[str]:
    """The topics of retries and dead letters beside a topic of an application's own."""
    return [dead_letter_topic(topic), *(retry_topic(topic, tier) for tier in range(1, RETRY_TOPICS + 1))]


def _in_order(app: Application, specs: Iterable[TopicSpec]) -> list[list[TopicSpec]]:
    """What is created first, then, and last, so that a start that is killed or has company in between decides
    nothing else about whose a topic is.
    """
    first = {app.routes[topic].dead_letters for topic in app.others}
    steps: list[list[TopicSpec]] = [[], [], []]
    for spec in specs:
        steps[0 if spec.name in first else 1 if spec.name in app.repartitions else 2].append(spec)
    return steps
