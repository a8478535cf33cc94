"""What operators ask of a process that has no pages: its health and its metrics."""

from __future__ import annotations

from litestar import Litestar, Response, get
from litestar.status_codes import HTTP_200_OK, HTTP_503_SERVICE_UNAVAILABLE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from streams.http.health import Health, Report


def operations_app(health: Health, registry: CollectorRegistry) -> Litestar:
    """`/health`, which answers 503 when it is DOWN, and `/metrics` for Prometheus."""

    @get("/health")
    async def get_health() -> Response[Report]:
        report = await health.report()
        is_down = report.status == "DOWN"
        return Response(report, status_code=HTTP_503_SERVICE_UNAVAILABLE if is_down else HTTP_200_OK)

    @get("/metrics")
    async def get_metrics() -> Response[bytes]:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Litestar([get_health, get_metrics], openapi_config=None, logging_config=None)
