"""What a worker answers Prometheus: the metrics that the page of them has, with the numbers of its lanes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from scrapes import Value, on_the_page, told, values
from test_web_sagas import VisitReply, VisitWanted, visit
from web_workers import NOW, Browser, FakeStandby, FakeWorker, ParcelSeen, note

from streams.control.metrics.metrics import WorkerMetrics
from streams.control.overview.samples import LaneSample, Sampler, age_group
from streams.engine.life.state import LaneState
from streams.engine.staging.measures import HandlerMeasures
from streams.engine.waiting.queue import Reason
from streams.model.application import Application
from streams.model.choreography import choreography, on
from streams.model.claim_checks import ClaimChecks
from streams.model.codecs import json_without_schema
from streams.model.envelope import rfc3339
from streams.model.layout import Layout
from streams.testing.blobs import MemoryBlobs
from streams.testing.clock import ManualClock
from streams.units import DAY


@pytest.fixture
def worker(monkeypatch) -> FakeWorker:
    monkeypatch.setattr("streams.control.overview.samples.SHARE", 1.0)
    wiring = choreography(on(ParcelSeen, note), on(VisitWanted, visit), on(VisitReply, visit))
    claims = ClaimChecks(MemoryBlobs(), bucket="b")
    resources = {"clock": ManualClock(NOW)}
    app = Application(Layout("post", 8, 4), wiring, json_without_schema, resources=resources, claims=claims)
    worker = FakeWorker.with_lanes(0, 1, 2, 3, app=app)
    worker.measured = True
    worker.handlers = {"post.note": HandlerMeasures()}
    return worker


async def scraped(worker: FakeWorker) -> Callable[[str], Value]:
    metrics = WorkerMetrics(worker)
    await metrics.sampler.round()
    scrape = metrics.scrape()
    return lambda name: values(scrape, f"steadfaust_{name}")


async def test_the_page_explains_each_metric_and_no_other(worker):
    worker.put_letter("a")
    worker.wait("b")
    measured = worker.handlers["post.note"]
    measured.retries[0] += 1
    measured.failures["transient", "TryAgain"] += 1
    worker.gate(0)
    worker.standbys = {5: FakeStandby(5)}
    worker.throttled = {"fetch": 2.5}
    worker.lanes[0].measures.intake = SimpleNamespace(lag=5, oldest=int((NOW - 3) * 1000))
    metrics = WorkerMetrics(worker)
    await metrics.sampler.round()
    sagas = LaneSample(NOW)
    sagas.sagas["order", "orchestrated", "failed"] += 1
    sagas.stalled["order"] += 1
    metrics.sampler.lanes[3] = sagas
    found, explained = told(metrics.scrape()), on_the_page()
    assert found == explained


async def test_lanes_tell_their_counts_state_and_transactions(worker):
    lane = worker.lanes[1]
    lane.state, lane.counters.duplicates, lane.backlog = LaneState.QUARANTINED, 3, 9
    for messages in (1, 60, 60):
        with lane.measures.transaction(messages):
            pass
    tells = await scraped(worker)
    assert tells("lane_messages_total")["1",] == 41
    assert tells("lane_inbox_duplicates_total") == {("0",): 0, ("1",): 3, ("2",): 0, ("3",): 0}
    assert tells("lane_backlog_messages")["1",] == 9
    states = tells("lane_state")
    assert [state for (number, state), is_so in states.items() if is_so and number == "1"] == ["quarantined"]
    batches = tells("lane_batch_messages_bucket")
    assert [batches["1", bound] for bound in ("1.0", "50.0", "100.0", "+Inf")] == [1, 1, 3, 3]
    assert tells("lane_batch_messages_sum")["1",] == 121
    assert tells("lane_commit_duration_seconds_count")["1",] == 3
    assert tells("lane_progress_age_seconds")["1",] == 2


async def test_handlers_tell_how_long_they_took_and_how_they_failed(worker):
    measured = worker.handlers["post.note"]
    measured.succeeded.add(0.002)
    measured.failed.add(7.0)
    measured.failures["transient", "Later"] += 2
    measured.retries[2] += 2
    for lane in worker.lanes:
        worker.gate(lane).add(b"queue")
    tells = await scraped(worker)
    name = "handler_duration_seconds"
    assert tells(f"{name}_count") == {("post.note", "succeeded"): 1, ("post.note", "failed"): 1}
    assert tells(f"{name}_sum")["post.note", "failed"] == 7
    assert tells(f"{name}_bucket")["post.note", "0.0025", "succeeded"] == 1
    assert tells("handler_failures_total") == {("Later", "post.note", "transient"): 2}
    assert tells("handler_retries_total") == {("post.note", "2"): 2}
    assert tells("handler_waiting_keys") == {("post.note",): 4}
    assert tells("handler_breaker_open_lanes") == {("post.note",): 0}


async def test_dead_letters_are_counted_by_handler_state_and_age(worker):
    for key in "abcdefgh":
        worker.put_letter(key, failed_at_ms=int((NOW - 60) * 1000))
    worker.put_letter("a", 1, failed_at_ms=int((NOW - 2 * DAY) * 1000), state="parked")
    tells = await scraped(worker)
    assert tells("dead_letters") == {("1h", "post.note", "dead"): 8, ("7d", "post.note", "parked"): 1}
    assert tells("dead_letters_oldest_age_seconds") == {("post.note",): 2 * DAY}


async def test_dead_letters_are_grouped_by_their_own_error(worker):
    for i in range(3):
        worker.put_letter("a", i, why="the till is closed")
    worker.put_letter("a", 3, why="another", place="b.py:2 g")
    sampler = Sampler(worker)
    await sampler.round()
    found = {error: each for sample in sampler.lanes.values() for error, each in sample.letter_errors.items()}
    assert sorted(found.values()) == [(1, "another"), (3, "the till is closed")]
    assert {handler for handler, *_ in found} == {"post.note"}


async def test_a_discarded_letter_needs_no_decision(worker, browser):
    worker.put_letter("a", why="an old error", state="discarded", failed_at_ms=int((NOW - 90) * 1000))
    await browser.sampler.round()
    assert (await browser.found("/api/overview"))["warnings"] == []
    worker.put_letter("a", 1, why="the till is closed", failed_at_ms=int((NOW - 60) * 1000))
    await browser.sampler.round()
    (warned,) = (await browser.found("/api/overview"))["warnings"]
    assert (warned["text"], warned["why"]) == (
        "1 message failed for good in post.note",
        "ValueError: the till is closed",
    )
    assert warned["since"] == rfc3339(NOW - 60)


async def test_what_waits_and_timers_are_counted(worker):
    worker.wait("a", since=NOW - 90)
    worker.wait("b", since=NOW - 5, reason=Reason.BREAKER)
    worker.ring("k", NOW - 1, NOW + 10, NOW + 20)
    tells = await scraped(worker)
    assert tells("waiting_messages") == {("post.note", "retry"): 1, ("post.note", "breaker"): 1}
    assert tells("waiting_oldest_age_seconds") == {("post.note",): 90}
    assert tells("timers_pending") == {(): 3}
    assert tells("timers_overdue") == {(): 1}


@pytest.mark.parametrize(
    ("age", "group"), [(0, "1h"), (3600, "1h"), (3601, "1d"), (DAY + 1, "7d"), (8 * DAY, "older")]
)
def test_ages_have_a_few_groups(age, group):
    assert age_group(age) == group


async def test_lanes_that_have_gone_or_open_are_not_counted(worker):
    worker.put_letter("a")
    sampler = Sampler(worker)
    await sampler.round()
    assert sampler.lanes.keys() == {0, 1, 2, 3}
    worker.lanes[1].state = LaneState.OPENING
    del worker.lanes[2]
    await sampler.round()
    assert sampler.lanes.keys() == {0, 3}


async def test_counting_goes_on_after_an_error(worker, monkeypatch):
    monkeypatch.setattr("streams.control.overview.samples.INTERVAL", 0.0)
    sampler, again = Sampler(worker), asyncio.Event()
    errors = [ValueError("a row of a later version")]

    async def round_of() -> None:
        if errors:
            raise errors.pop()
        again.set()

    monkeypatch.setattr(sampler, "round", round_of)
    async with sampler.running():
        await again.wait()


async def test_counting_takes_its_share_of_the_loop_and_no_more(worker, monkeypatch):
    monkeypatch.setattr("streams.control.overview.samples.SHARE", 0.5)
    for n in range(300):
        worker.put_letter("a", n)
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr("streams.control.overview.samples.asyncio.sleep", sleep)
    await Sampler(worker).round()
    assert len(paused) >= 3
    assert sum(paused) > 0


async def test_a_worker_answers_prometheus_over_http(worker):
    async with Browser.of(worker) as browser, browser.get("/metrics") as response:
        assert (response.status, response.content_type) == (200, "text/plain")
        assert values(await response.read(), "steadfaust_worker_info") == {("post", "0"): 1}


async def test_an_unmeasured_worker_says_so_and_counts_nothing(worker):
    worker.measured = False
    async with Browser.of(worker) as browser:
        assert await browser.refusal("/metrics") == (404, "not_measured")
        assert "sampler" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_lane_may_go_while_it_is_counted(worker, monkeypatch):
    worker.put_letter("k1")
    sampler = Sampler(worker)

    async def pause(share: float = 0.0) -> None:
        worker.lanes.clear()

    monkeypatch.setattr(sampler, "_pause", pause)
    monkeypatch.setattr("streams.control.overview.samples.catch_up", lambda *_: pause())
    await sampler.round()
    assert sampler.lanes == {}
