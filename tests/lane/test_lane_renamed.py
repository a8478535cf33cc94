"""A handler whose function was renamed, and which keeps its name: nothing of its past is lost or repeated."""

from typing import Any

import pytest
from lane_checker import counts
from lane_desk import letter_ids, operated, operation
from lane_failing import LATER, nothing_waits, started
from lane_scenes import cleared, opened, stopped_empty
from lane_workloads import Count, Workload, counting
from lane_worlds import FakeWorld

from streams.errors import PermanentError, TransientError
from streams.model.choreography import choreography, on
from streams.model.handlers import Service
from streams.model.operations import LetterCommand
from streams.model.outcome import Outcome, outcome
from streams.model.table import Table


def renamed(work: Workload, named: str) -> Workload:
    """The next version of `counting`: another service, another function, and the name that is given."""
    event, passed = work.made, work.counted

    @Service("desk").handler(sends=(passed,), named=named, count=Table("counts", Count))
    def enumerate_(message: event, count: Count | None) -> Outcome:
        work.hooks.calls.append((message.k, message.i))
        n = 1 if count is None else count.n + 1
        k, i = message.k, message.i
        return outcome(count=Count(n=n), send=[passed(k=k, i=i, n=n)])

    return Workload(choreography(on(event, enumerate_)), event, passed, work.hooks)


async def ids_of(world: FakeWorld, topic: str) -> list[Any]:
    return [dict(record.headers)["ce_id"] for record in await world.records(topic)]


async def test_what_waits_for_a_renamed_handler_goes_on(fake: FakeWorld) -> None:
    work, errors = counting(fake.name), {"a": TransientError("busy"), "c": PermanentError("never")}

    def before(event: Any) -> None:
        if event.k in errors:
            raise errors[event.k]

    await started(fake, work, retry=LATER)
    work.hooks.before = before
    lane = await opened(fake, *(fake.event(work, key, i) for i, key in enumerate("aabc")))
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    await stopped_empty(fake, work, lane)
    del work.hooks.calls[:]
    (ident,) = await letter_ids(fake)
    lane = await fake.open(app=fake.cut_into(renamed(work, "bench.count"), lanes=1))
    await operated(fake, lane, operation(fake, LetterCommand.REPLAY, ident))
    await cleared(fake, lane, lambda: len(work.hooks.calls) == 3)
    assert [call for call in work.hooks.calls if call != ("c", 3)] == [("a", 0), ("a", 1)]
    assert await counts(fake) == {"a": 2, "b": 1, "c": 1}
    assert await letter_ids(fake) == []
    await nothing_waits(fake)


@pytest.mark.parametrize(("named", "counted"), [("bench.count", 1), ("desk.enumerate_", 2)])
async def test_only_the_former_name_knows_duplicates(fake: FakeWorld, named: str, counted: int) -> None:
    work = counting(fake.name)
    await started(fake, work)
    event = fake.event(work, "a", 0)
    lane = await opened(fake, event)
    await fake.settled(work.source)
    await lane.stop()
    lane = await fake.open(app=fake.cut_into(renamed(work, named), lanes=1))
    await fake.post(event)
    await fake.settled(work.source)
    await lane.stop()
    assert await counts(fake) == {"a": counted}
    assert len(set(await ids_of(fake, work.output))) == counted
