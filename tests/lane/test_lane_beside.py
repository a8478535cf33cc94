"""A second application that reads the topics of a live one from their beginning, into a table of its own."""

from lane_checker import counts
from lane_workloads import counting, deployed
from lane_worlds import FakeWorld

from streams.model.application import Application
from streams.model.codecs import json_without_schema
from streams.model.layout import Layout
from streams.positions.declared import declare


async def test_a_new_table_is_filled_beside_the_live_one(fake: FakeWorld) -> None:
    work, other = counting(fake.name), deployed(fake.name, 1)
    await fake.start(work, partitions=2)
    live = await fake.open()
    events = [fake.event(work, key, number) for number, key in enumerate("abcabcab")]
    await fake.post(*events[:5])
    await fake.settled(work.source)

    options = fake.app.lane_options
    layout = Layout(f"{fake.name}-2", 2, 1)
    beside = Application(layout, other.wiring, json_without_schema, lane_options=options)
    for spec in declare(beside, replication=1):
        fake.cluster.create_topic(spec.name, spec.partitions)
    filling = await fake.open(app=beside, stores=fake.stores())
    await fake.post(*events[5:])
    await fake.settled(work.source)
    await fake.until(lambda: len(other.hooks.calls) == len(events))
    await filling.stop()
    await live.stop()
    expected = {"a": 3, "b": 3, "c": 2}
    assert await counts(fake) == expected
    assert len(await fake.records(work.output)) == len(events), "the second application sends nothing"
    fake.app = beside
    assert await counts(fake) == expected
