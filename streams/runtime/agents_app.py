"""Faust's own app inside a worker: it runs plain `@app.agent`s beside the lanes, as Faust runs them.

It has a consumer, a producer, tables and a group of its own, so lanes and their membership know nothing of it
(docs/adr/0022-plain-agents.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faust

from streams.brokers import Security
from streams.runtime.security import tls_context
from streams.settings import Settings


class AgentsApp(faust.App):
    """An unchanged Faust app, but for its defaults: they are the worker's, and it serves no pages."""

    def __init__(self, settings: Settings, brokers: list[str] | None, options: Mapping[str, Any]) -> None:
        """`options` are those of `faust.App`, and go before the worker's."""
        session = settings.session_timeout
        defaults: dict[str, Any] = {
            "broker": brokers,
            # Where nothing says how to get in, the lanes tell when they start, which is before agents do.
            "broker_credentials": credentials(settings.security()) if brokers else None,
            "datadir": str(settings.var / "faust" / settings.agents_group()),
            "topic_partitions": settings.partitions,
            "topic_disable_leader": True,
            "broker_session_timeout": session,
            "broker_heartbeat_interval": settings.heartbeat,
            "broker_rebalance_timeout": session,
            "broker_request_timeout": session + 5,  # a join is held back for so long
        }
        if settings.replication:
            defaults["topic_replication_factor"] = settings.replication
        super().__init__(settings.agents_group(), **{**defaults, **options, "web_enabled": False})

    @property
    def wanted(self) -> bool:
        """Whether anything was declared that it has to run."""
        return bool(self.agents or self._app_tasks or self._extra_services)


def credentials(security: Security) -> Any:
    """What Faust calls them; None for connections without. Raises SettingsError, see `tls_context`."""
    context = tls_context(security) if security.encrypted else None
    if security.authenticated:
        return faust.SASLCredentials(
            username=security.username,
            password=security.password,
            ssl_context=context,
            mechanism=security.mechanism,
        )
    return context and faust.SSLCredentials(context)
