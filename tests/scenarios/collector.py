"""A collector of traces: it takes what workers export over OTLP, as any collector would."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected(NamedTuple):
    """A span, as it was exported. Ids are hexadecimal; `parent` is empty for one that begins a trace."""

    trace: str
    span: str
    parent: str
    service: str
    name: str
    kind: int
    attributes: dict[str, Any]


class Collector:
    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._spans: list[Collected] = []

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        found = [
            Collected(
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                _attributes(of.resource.attributes)["service.name"],
                span.name,
                span.kind,
                _attributes(span.attributes),
            )
            for of in request.resource_spans
            for scope in of.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += found

    def of_trace(self, trace: str) -> list[Collected]:
        """Its spans; all there are, without a trace."""
        with self._lock:
            return [span for span in self._spans if trace in ("", span.trace)]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join(10)
