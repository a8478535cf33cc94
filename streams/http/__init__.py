"""Parts of every HTTP interface of an application: problem answers, request ids, limits, health, its server.

Litestar and uvicorn are met here and in the application's own interface alone.
"""

from __future__ import annotations

from streams.errors import missing_extra

try:
    from streams.http.bodies import StrictJson
    from streams.http.health import Check, Health, Report
    from streams.http.limits import RateLimit
    from streams.http.operations import metrics_handler, operations_app
    from streams.http.page import PlainPage, describe_structs
    from streams.http.problems import problem, problem_body, problem_handlers
    from streams.http.requests import Requests, request_id, traceparent
    from streams.http.rules import RequestRules
    from streams.http.server import HttpServer
    from streams.http.traced import Publishing, Traced, publishing
except ModuleNotFoundError as error:
    raise missing_extra("web", "A worker's pages and operations", error) from error

__all__ = [
    "Check",
    "Health",
    "HttpServer",
    "PlainPage",
    "Publishing",
    "RateLimit",
    "Report",
    "RequestRules",
    "Requests",
    "StrictJson",
    "Traced",
    "describe_structs",
    "metrics_handler",
    "operations_app",
    "problem",
    "problem_body",
    "problem_handlers",
    "publishing",
    "request_id",
    "traceparent",
]
