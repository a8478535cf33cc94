"""Spans leave in the background: nobody waits for an exporter, and the log says what is lost."""

import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

import streams.tracing.export
from streams.settings import Settings
from streams.tracing.export import SpanExport
from streams.tracing.span import Span, SpanKind
from streams.tracing.tracer import Tracer
from tests.waiting import BOUND


def spans(report: Any, count: int) -> None:
    for n in range(count):
        Span(
            SpanKind.CONSUMER, f"span {n}", service=f"service-{n % 2}", trace_id=1, parent=None,
            attributes={"n": n}, report=report,
        ).end()  # fmt: skip


class Standing(SpanExporter):
    """Does not come back until it is let go."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.set()
        self.go_on.wait(BOUND)
        return SpanExportResult.SUCCESS


class Failing(SpanExporter):
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return SpanExportResult.FAILURE


async def test_what_waits_is_delivered_at_the_end_by_service() -> None:
    memory = InMemorySpanExporter()
    async with SpanExport(memory, group="shop") as export:
        spans(export.report, 5)
    found = memory.get_finished_spans()
    assert [span.name for span in found] == [f"span {n}" for n in range(5)]
    named = [
        (s.resource.attributes["service.name"], s.resource.attributes["service.namespace"]) for s in found
    ]
    assert named == [(f"service-{n % 2}", "shop") for n in range(5)]


async def test_a_name_in_the_environment_is_that_of_all_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "all of it")
    memory = InMemorySpanExporter()
    async with SpanExport(memory, group="shop") as export:
        spans(export.report, 2)
    assert {span.resource.attributes["service.name"] for span in memory.get_finished_spans()} == {"all of it"}


async def test_a_full_queue_takes_no_more_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.tracing.export, "MOST_WAITING", 10)
    monkeypatch.setattr(streams.tracing.export, "BATCH", 4)
    standing = Standing()
    with capture_logs() as logs:
        async with SpanExport(standing, group="shop") as export:
            spans(export.report, 4)
            assert standing.began.wait(BOUND)
            spans(export.report, 25)  # while four are under way
            standing.go_on.set()
    (line,) = [line for line in logs if line["event"] == "spans_lost"]
    assert (line["spans"], line["why"]) == (15, "over 10 waited")


@pytest.mark.parametrize("error", [None, OSError("no route"), ValueError("a mistake of its own")])
async def test_a_failing_exporter_is_told_of_seldom(error: Exception | None) -> None:
    failing = Failing(error)
    with capture_logs() as logs:
        async with SpanExport(failing, group="shop") as export:
            spans(export.report, 200)
    first, last = (line for line in logs if line["event"] == "spans_lost")  # the others within the minute
    assert first["spans"] + last["spans"] == 200
    assert failing.asked == 4
    assert (str(error) if error else "could not deliver") in first["why"]


async def test_an_exporter_that_stands_does_not_hold_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.tracing.export, "LAST", 0.1)
    standing = Standing()
    with capture_logs() as logs:
        async with SpanExport(standing, group="shop") as export:
            spans(export.report, 100)
            assert standing.began.wait(BOUND)
    standing.go_on.set()
    assert [(line["event"], line["spans"]) for line in logs] == [("spans_lost", 36)]


async def test_off_there_is_no_tracer() -> None:
    async with Settings(_env_file=None).tracing("shop") as tracer:  # type: ignore[call-arg]
        assert tracer is None


def test_a_missing_exporter_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setenv("STEADFAUST_TRACES", "otlp")
    with pytest.raises(SystemExit, match=r"STEADFAUST_TRACES is otlp.*pip install 'steadfaust\[otlp\]'"):
        Settings.read_or_exit()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRACES", "jaeger"),
        ("TRACE_RATIO", "1.1"),
        ("TRACE_LIMIT", "-1"),
        ("TRACE_URL", "javascript:alert('{trace_id}')"),
        ("TRACE_URL", "traces/{trace_id}"),
        ("TRACE_URL", "https://traces.example"),
        ("TRACE_URL", "https://traces.example/\"onclick='{trace_id}"),
        ("TRACE_URL", "data:text/html,{trace_id}"),
    ],
)
def test_a_wrong_value_is_said_at_the_start(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"STEADFAUST_{name}", value)
    with pytest.raises(SystemExit, match=f"STEADFAUST_{name}"):
        Settings.read_or_exit()


async def test_the_console_gets_a_line_for_each_span(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADFAUST_TRACES", "console")
    monkeypatch.setenv("STEADFAUST_TRACE_RATIO", "1")
    async with Settings().tracing("shop") as tracer:
        span = tracer.request(None, None, "GET", "api")
        span.end()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{span.context.trace_id:032x}" in line


def test_a_limit_lets_so_many_traces_begin_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("streams.tracing.tracer.monotonic", lambda: now)
    tracer = Tracer(lambda _: None, ratio=1.0, limit=2)
    assert [tracer.has_room() for _ in range(4)] == [True, True, False, False]
    now += 0.5
    assert [tracer.has_room() for _ in range(2)] == [True, False]
    now += 60.0
    assert [tracer.has_room() for _ in range(3)] == [True, True, False]
