"""Addresses of a process without pages: its health and its metrics."""

from __future__ import annotations

from litestar import Litestar, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.status_codes import HTTP_200_OK, HTTP_503_SERVICE_UNAVAILABLE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from streams.http.health import Health, Report
from streams.http.rules import RequestRules

#: Litestar adds the charset.
_MEDIA_TYPE = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")


def metrics_handler(registry: CollectorRegistry) -> HTTPRouteHandler:
    """`GET /metrics` for Prometheus; no part of an API's description, nor of its rate limit (`unlimited`)."""

    @get("/metrics", include_in_schema=False, opt={"unlimited": True})
    async def get_metrics() -> Response[bytes]:
        return Response(generate_latest(registry), media_type=_MEDIA_TYPE)

    return get_metrics


def operations_app(health: Health, registry: CollectorRegistry) -> RequestRules:
    """`/health`, which answers 503 when it is DOWN, and `/metrics` for Prometheus."""

    @get("/health")
    async def get_health() -> Response[Report]:
        report = await health.report()
        is_down = report.status == "DOWN"
        return Response(report, status_code=HTTP_503_SERVICE_UNAVAILABLE if is_down else HTTP_200_OK)

    return RequestRules(
        Litestar([get_health, metrics_handler(registry)], openapi_config=None, logging_config=None)
    )
