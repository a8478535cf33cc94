"""A message's trace goes on through handlers, retries, timers and compensation; each attempt is a span that
says what became of it. Without traces nothing of it is there.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lane_checker import dead_letters
from lane_desk import Broken, letter_ids, operated, operation
from lane_failing import QUICK, all_count, started
from lane_sagas import TripReply, TripWanted, trips
from lane_scenes import counter, failing_counter, opened, operated_on, retrying_counter, stopped
from lane_workloads import Workload, asking
from lane_worlds import FakeWorld, Post, World
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from test_lane_measures import Captured, of
from test_lane_sagas import ended, post

from streams.errors import PermanentError
from streams.model.operations import LetterCommand
from streams.model.policy.retry import RetryPolicy
from streams.testing.broker import Fault
from streams.tracing.export import SpanExport
from streams.tracing.tracer import Tracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CALLER}-01".encode()
UNSAMPLED = f"00-{TRACE}-{CALLER}-00".encode()


class Traced:
    def __init__(self, tracer: Tracer, export: SpanExport, memory: InMemorySpanExporter) -> None:
        self.tracer = tracer
        self._export = export
        self._memory = memory

    def spans(self) -> list[ReadableSpan]:
        """All that have ended, in the order in which they began. No more come after it."""
        self._export.close()
        return sorted(self._memory.get_finished_spans(), key=lambda span: span.start_time or 0)


@asynccontextmanager
async def traced(*, ratio: float = 1.0, limit: float = 0.0) -> AsyncIterator[Traced]:
    memory = InMemorySpanExporter()
    async with SpanExport(memory, group="shop") as export:
        yield Traced(Tracer(export.report, ratio=ratio, limit=limit), export, memory)


def with_trace(post: Post, header: bytes, state: bytes | None = None) -> Post:
    more = [("traceparent", header), *([("tracestate", state)] if state is not None else [])]
    return post._replace(headers=[*post.headers, *more])


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def id_of(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str:
    return f"{span.parent.span_id:016x}" if span.parent is not None else ""


def told(span: ReadableSpan, *names: str) -> tuple[Any, ...]:
    """Some of its attributes, without the prefix of those that are ours."""
    attributes = span.attributes or {}
    return tuple(attributes.get(f"steadfaust.{name}") for name in names)


def handler_of(span: ReadableSpan) -> str:
    return str((span.attributes or {})["messaging.operation.name"])


def header_of(record: Any) -> str | None:
    value = dict(record.headers).get("traceparent")
    return None if value is None else value.decode()


def tree(spans: list[ReadableSpan]) -> dict[str, set[str]]:
    """The handlers by what has caused them: a handler, or the caller."""
    names = {id_of(span): handler_of(span) for span in spans} | {CALLER: "caller"}
    found: dict[str, set[str]] = {}
    for span in spans:
        found.setdefault(names[parent_of(span)], set()).add(handler_of(span))
    return found


@pytest.fixture
async def traces() -> AsyncIterator[Traced]:
    async with traced() as traces:
        yield traces


async def handled(
    world: World, work: Workload, *posts: Post, traced: Traced | None = None, tries: int = 0
) -> Any:
    """Messages that a lane has handled to their end, in so many tries; the lane, ended."""
    lane = await opened(world, *posts, tracer=None if traced is None else traced.tracer)
    await world.until(lambda: len(work.hooks.calls) >= tries)
    await all_count(world, lane, len(posts))
    await stopped(world, lane, work.source)
    return lane


async def test_a_span_says_who_handled_which_message(world: World, traces: Traced) -> None:
    work = await counter(world)
    event = with_trace(world.event(work, "a", 0), SAMPLED, b"vendor=1")
    longest = with_trace(world.event(work, "a", 1), SAMPLED, b"v" * 513)
    unrecorded = with_trace(world.event(work, "a", 2), UNSAMPLED, b"vendor=1")
    await handled(world, work, event, longest, unrecorded, traced=traces)
    span, other = traces.spans()
    assert dict(span.context.trace_state) == {"vendor": "1"}
    assert (trace_of(span), parent_of(span), span.parent.is_remote) == (TRACE, CALLER, True)
    assert (span.kind, span.name) == (SpanKind.CONSUMER, f"bench.count {work.source}")
    assert (span.status.status_code, span.end_time >= span.start_time) == (StatusCode.UNSET, True)
    assert span.resource.attributes["service.name"] == "bench"
    attributes = dict(span.attributes)
    assert attributes.pop("steadfaust.committed_after_ms") >= 0
    assert attributes == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "bench.count",
        "messaging.consumer.group.name": world.name,
        "messaging.destination.name": work.source,
        "messaging.destination.partition.id": str(event.partition),
        "messaging.kafka.offset": 0,
        "messaging.message.id": "a-0",
        "messaging.message.conversation_id": "a-0",
        "steadfaust.service": "bench",
        "steadfaust.lane": 0,
        "steadfaust.attempt": 1,
        "steadfaust.outcome": "succeeded",
        "steadfaust.transaction": "committed",
    }
    sent = await world.records(work.output)
    recorded = [f"00-{TRACE}-{id_of(each)}-01" for each in (span, other)]
    assert [header_of(record) for record in sent] == [*recorded, UNSAMPLED.decode()]
    assert [dict(record.headers).get("tracestate") for record in sent] == [b"vendor=1", None, b"vendor=1"]


async def test_all_tries_are_spans_of_one_trace(world: World, traces: Traced) -> None:
    work, _ = await failing_counter(world, {("a", 0): 4}, retry=QUICK)
    await handled(world, work, with_trace(world.event(work, "a", 0), SAMPLED), traced=traces, tries=5)
    spans = traces.spans()
    assert {trace_of(span) for span in spans} == {TRACE}
    assert {parent_of(span) for span in spans} == {CALLER}
    assert len({id_of(span) for span in spans}) == 5
    assert [told(span, "attempt", "outcome", "decision", "transaction") for span in spans] == [
        (1, "failed", "TryAgain", "committed"),
        (2, "failed", "TryAgain", "committed"),
        (3, "failed", "Later", "committed"),
        (4, "failed", "Later", "committed"),
        (5, "succeeded", None, "committed"),
    ]
    assert {(span.status.status_code, span.status.description) for span in spans[:4]} == {
        (StatusCode.ERROR, "TransientError: busy")
    }
    (sent,) = await world.records(work.output)
    assert header_of(sent) == f"00-{TRACE}-{id_of(spans[4])}-01"


async def test_what_async_handlers_cause_is_in_their_own_spans(fake: FakeWorld, traces: Traced) -> None:
    async def ask(key: str, i: int) -> None:
        await fake.clock.sleep(0.2)

    work = asking(fake.name, ask)
    await fake.start(work)
    events = [with_trace(fake.event(work, key, 0), SAMPLED) for key in "ab"]
    await handled(fake, work, *events, traced=traces)
    spans = traces.spans()
    assert [told(span, "outcome") for span in spans] == [("succeeded",)] * 2
    sent = await fake.records(work.output)
    assert {header_of(record) for record in sent} == {f"00-{TRACE}-{id_of(span)}-01" for span in spans}


async def test_a_saga_with_its_compensation_is_one_trace(fake: FakeWorld, traces: Traced) -> None:
    work = trips(fake.clock)
    await started(fake, work, retry=RetryPolicy(immediate=0, delays=(0.3,)))
    work.till.closed = True
    await fake.post(with_trace(post(fake, TripWanted(k="a", to="home")), SAMPLED))
    lane = await fake.open(tracer=traces.tracer)
    await ended(fake, lane, {"a": "compensated"})
    spans = traces.spans()
    assert {trace_of(span) for span in spans} == {TRACE}
    steps = ("seats.take_seat", "money.take_money", "money.return_money", "seats.leave_seat")
    caused = {"caller": {"trips.trip_saga"}, "trips.trip_saga": set(steps)}
    assert tree(spans) == caused | {step: {"trips.trip_saga"} for step in steps}
    tries = [told(span, "attempt", "outcome") for span in spans if handler_of(span) == "money.take_money"]
    assert tries == [(1, "failed"), (2, "failed")]
    assert {span.resource.attributes["service.name"] for span in spans} == {"trips", "seats", "money"}


async def test_a_timer_rings_in_the_trace_of_who_set_it(fake: FakeWorld, traces: Traced) -> None:
    await fake.start(trips(fake.clock, participants=False))
    await fake.post(with_trace(post(fake, TripWanted(k="a", to="home")), SAMPLED))
    lane = await fake.open(tracer=traces.tracer)
    await fake.until(lambda: lane.lane.counters.timers == 1 and lane.handled == 2)
    await stopped(fake, lane, TripReply.TOPIC)
    begun, rung = traces.spans()
    assert (trace_of(rung), parent_of(rung)) == (TRACE, id_of(begun))
    assert (rung.attributes or {})["messaging.destination.name"] == TripReply.TOPIC


async def test_a_replay_is_a_trace_that_links_the_first(world: World, traces: Traced) -> None:
    work = await retrying_counter(world)
    work.hooks.before = broken = Broken(("a", 0))
    lane = await opened(world, with_trace(world.event(work, "a", 0), SAMPLED), tracer=traces.tracer)
    await world.until(lambda: lane.lane.counters.dead_letters == 1)
    await world.settled(work.source)
    broken.mend()
    await operated_on(world, lane, LetterCommand.REPLAY)
    await world.until(lambda: lane.lane.counters.replayed == 1 and not lane.lane.backlog)
    await lane.stop()
    first, replayed = traces.spans()
    assert told(first, "outcome", "decision", "replay") == ("failed", "GiveUp", None)
    assert told(replayed, "outcome", "replay", "replay.of_trace") == ("succeeded", True, TRACE)
    assert (trace_of(first), first.links) == (TRACE, ())
    assert trace_of(replayed) != TRACE
    assert replayed.parent is None
    (link,) = replayed.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, CALLER)
    (sent,) = await world.records(work.output)
    assert header_of(sent) == f"00-{trace_of(replayed)}-{id_of(replayed)}-01"
    (letter,) = await dead_letters(world, work.source)
    assert header_of(letter) == SAMPLED.decode()  # as it came


async def test_an_edited_message_is_a_replay_too(fake: FakeWorld, traces: Traced) -> None:
    work = await retrying_counter(fake, edit_dead_letters=True)
    event = with_trace(fake.event(work, "a", 0), SAMPLED)
    lane = await opened(fake, event._replace(value=b"junk"), tracer=traces.tracer)
    await fake.until(lambda: lane.lane.counters.dead_letters == 1)
    await fake.settled(work.source)
    (ident,) = await letter_ids(fake)
    await operated(fake, lane, operation(fake, LetterCommand.EDIT, ident, value=event.value))
    await all_count(fake, lane, 1)
    await lane.stop()
    (span,) = traces.spans()
    assert told(span, "outcome", "replay", "replay.of_trace") == ("succeeded", True, TRACE)
    (link,) = span.links
    assert (f"{link.context.trace_id:032x}", trace_of(span) != TRACE) == (TRACE, True)


@pytest.mark.parametrize("fault", [Fault.COMMIT_LOST, Fault.COMMIT_DONE, Fault.SEND_REFUSED])
async def test_an_attempt_maybe_committed_says_so(fake: FakeWorld, fault: Fault, traces: Traced) -> None:
    work = await counter(fake)
    lane = await fake.open(tracer=traces.tracer)
    fake.cluster.inject(fault)
    await fake.post(with_trace(fake.event(work, "a", 0), SAMPLED))
    await fake.until(lambda: lane.lane.reopened == 1 and lane.lane.state == "open")
    await stopped(fake, lane, work.source)
    assert fake.cluster.happened == {fault: 1}
    spans = traces.spans()
    again = [] if fault is Fault.COMMIT_DONE else [("succeeded", "committed")]
    assert [told(span, "outcome", "transaction") for span in spans] == [("succeeded", "unknown"), *again]
    assert {(trace_of(span), parent_of(span)) for span in spans} == {(TRACE, CALLER)}
    (sent,) = await fake.records(work.output)
    assert header_of(sent) == f"00-{TRACE}-{id_of(spans[-1])}-01"


async def test_a_call_whose_lane_ends_is_told_as_cancelled(fake: FakeWorld, traces: Traced) -> None:
    asked: list[str] = []

    async def ask(key: str, i: int) -> None:
        asked.append(key)
        await fake.clock.sleep(1e6)

    work = asking(fake.name, ask)
    await fake.start(work)
    await fake.post(with_trace(fake.event(work, "a", 0), SAMPLED))
    lane = await fake.open(tracer=traces.tracer)
    await fake.until(lambda: asked)
    await lane.stop()
    (span,) = traces.spans()
    assert told(span, "outcome", "transaction") == ("cancelled", "discarded")
    assert span.status.status_code is StatusCode.ERROR


async def test_a_message_without_a_trace_begins_one(fake: FakeWorld, traces: Traced) -> None:
    work, _ = await failing_counter(fake, {("a", 0): 1}, tallied=True, settled=True)
    lane = await opened(fake, fake.event(work, "a", 0), fake.event(work, "b", 0), tracer=traces.tracer)
    await all_count(fake, lane, 4)
    await stopped(fake, lane, work.source, work.output)
    of_a = [s for s in traces.spans() if s.attributes["messaging.message.conversation_id"] == "a-0"]
    handlers = sorted(handler_of(span).removeprefix("bench.") for span in of_a)
    assert handlers == ["count", "count", "settle", "tally"]
    assert len({trace_of(span) for span in of_a}) == 1
    assert len({trace_of(span) for span in traces.spans()}) == 2
    (settled,) = [span for span in of_a if handler_of(span) == "bench.settle"]
    counted = [span for span in of_a if told(span, "outcome") == ("succeeded",)]
    assert parent_of(settled) in {id_of(span) for span in counted if handler_of(span) == "bench.count"}
    assert all(span.parent is None for span in of_a if span is not settled)


async def test_a_part_is_recorded_and_the_rest_unmarked(fake: FakeWorld) -> None:
    work = await counter(fake, settled=True, partitions=1)
    events = [fake.event(work, f"key-{i}", 0) for i in range(200)]
    async with traced(ratio=0.25) as traces:
        lane = await opened(fake, *events, tracer=traces.tracer)
        await all_count(fake, lane, 400)
        await stopped(fake, lane, work.source, work.output)
    spans, sent = traces.spans(), await fake.records(work.output)
    recorded = [record for record in sent if header_of(record) is not None]
    assert 20 <= len(recorded) <= 80
    assert len(spans) == 2 * len(recorded)  # of each trace both handlers
    assert {header_of(record)[3:35] for record in recorded} == {trace_of(span) for span in spans}


async def test_no_more_traces_begin_than_the_limit(fake: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.tracing.tracer.monotonic", lambda: 1000.0)
    work = await counter(fake, settled=True, partitions=1)
    async with traced(limit=2) as traces:
        lane = await opened(fake, *(fake.event(work, f"key-{i}", 0) for i in range(5)), tracer=traces.tracer)
        await all_count(fake, lane, 10)
        await stopped(fake, lane, work.source, work.output)
    assert sorted(map(handler_of, traces.spans())) == ["bench.count"] * 2 + ["bench.settle"] * 2
    flags = [header_of(record)[-2:] for record in await fake.records(work.output)]
    assert sorted(flags) == ["00", "00", "00", "01", "01"]


async def test_without_traces_no_header_is_added(fake: FakeWorld) -> None:
    work = await counter(fake)
    await handled(fake, work, fake.event(work, "a", 0))
    (sent,) = await fake.records(work.output)
    names = ["ce_id", "ce_subject", "ce_time", "ce_type", "ce_source", "schema-fingerprint", "ce_specversion"]
    assert [name for name, _ in sent.headers] == [*names, "ce_correlationid", "ce_causationid"]


async def test_lines_of_the_log_name_their_span(fake: FakeWorld) -> None:
    work, _ = await failing_counter(fake, {("a", 0): 9}, error=PermanentError("no such card"))
    events = [with_trace(fake.event(work, "a", 0), SAMPLED), with_trace(fake.event(work, "b", 0), UNSAMPLED)]
    work.hooks.text = lambda event: ""
    with Captured() as lines:
        async with traced() as traces:
            await handled(fake, work, *events, traced=traces)
    (failed,), (letter,) = of(lines, "handler_failed"), of(lines, "dead_letter")
    (span,) = traces.spans()
    for line in (failed, letter):
        assert (line["trace_id"], line["span_id"]) == (TRACE, id_of(span))
        assert re.fullmatch("[0-9a-f]{16}", line["span_id"])
    assert not any("trace_id" in line for line in of(lines, "lane_opened"))
