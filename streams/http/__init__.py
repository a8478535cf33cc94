"""What every HTTP interface needs: its server, health and metrics, problem answers, request ids.

Litestar and uvicorn are met here and in the application's own interface alone.
"""

from __future__ import annotations

from streams.errors import missing_extra

try:
    from streams.http.health import Check, Health, Report
    from streams.http.operations import metrics_handler, operations_app
    from streams.http.problems import problem, problem_body, problem_handlers
    from streams.http.requests import Requests, request_id
    from streams.http.rules import RequestRules
    from streams.http.server import HttpServer
except ModuleNotFoundError as error:
    raise missing_extra("web", "A worker's pages and operations", error) from error

__all__ = [
    "Check",
    "Health",
    "HttpServer",
    "Report",
    "RequestRules",
    "Requests",
    "metrics_handler",
    "operations_app",
    "problem",
    "problem_body",
    "problem_handlers",
    "request_id",
]
