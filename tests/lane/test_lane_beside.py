"""A second application that reads the topics of a live one from their beginning, into a table of its own."""

from lane_checker import counts
from lane_workloads import Count, counting, deployed
from lane_worlds import FakeWorld

from streams.engine.life.positions.declared import declare
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.codecs import json_without_schema
from streams.model.envelope import Envelope, rfc3339
from streams.model.handlers import Service
from streams.model.layout import Layout
from streams.model.outcome import Outcome, nothing, outcome
from streams.model.table import Table


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
    await fake.make_topics(beside, [spec.name for spec in declare(beside, replication=1)])
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


async def test_a_new_table_begins_at_a_time(fake: FakeWorld) -> None:
    work, since = counting(fake.name), rfc3339(1.5e9)
    await fake.start(work, partitions=2)
    made = work.made

    @Service("beside").handler(count=Table("counts", Count))
    def recent(event: made, count: Count | None, *, envelope: Envelope) -> Outcome:
        if envelope.time < since:
            return nothing("before the table begins")
        return outcome(count=Count(n=1 if count is None else count.n + 1))

    former = [fake.event(work, key, number) for number, key in enumerate("aab")]
    time = ("ce_time", rfc3339(1.6e9).encode())
    later = [
        post._replace(headers=[time if header[0] == "ce_time" else header for header in post.headers])
        for post in (fake.event(work, key, 10) for key in "ac")
    ]
    await fake.post(*former, *later)
    layout = Layout(f"{fake.name}-2", 2, 1)
    beside = Application(
        layout, choreography(on(made, recent)), json_without_schema, lane_options=fake.app.lane_options
    )
    await fake.make_topics(beside, [spec.name for spec in declare(beside, replication=1)])
    lane = await fake.open(app=beside)
    await fake.until(lambda: lane.lane.counters.handled == len(former + later))
    await lane.stop()
    fake.app = beside
    assert await counts(fake) == {"a": 1, "c": 1}
