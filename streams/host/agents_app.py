"""Faust's own app inside a worker. It runs plain `@app.agent`s beside the lanes, the way Faust runs them.

It has a consumer, a producer, tables and a group of its own, independent of lanes and their membership
(docs/adr/0022-plain-agents.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faust

from streams.brokers import Security
from streams.errors import WiringError
from streams.kafka.security import tls_context
from streams.settings import Settings


class AgentsApp(faust.App):
    """A Faust app with the worker's settings as defaults. It serves no pages."""

    #: Whether a timer, crontab or task was declared that only the leader runs.
    _leads = False

    def __init__(self, settings: Settings, brokers: list[str] | None, options: Mapping[str, Any]) -> None:
        """`options` are those of `faust.App`. They override the worker's settings."""
        session = settings.session_timeout
        defaults: dict[str, Any] = {
            "broker": brokers,
            # Without usable settings the lanes report the error, because they start before agents.
            "broker_credentials": credentials(settings.security()) if brokers else None,
            "datadir": str(settings.var / "faust" / settings.agents_group()),
            "topic_partitions": settings.partitions,
            "topic_disable_leader": True,
            "broker_session_timeout": session,
            "broker_heartbeat_interval": settings.heartbeat,
            "broker_rebalance_timeout": session,
            "broker_request_timeout": session + 5,  # a join may wait for a whole session
        }
        if settings.replication:
            defaults["topic_replication_factor"] = settings.replication
        self._may_lead = "topic_disable_leader" not in options
        self._has_own_partitions = "topic_partitions" in options
        super().__init__(settings.agents_group(), **{**defaults, **options, "web_enabled": False})

    def follow_cut(self, partitions: int) -> None:
        """Give new topics as many partitions as the worker's, unless the options have another number."""
        if not self._has_own_partitions:
            self.conf.topic_partitions = partitions

    def agent(self, *arguments: Any, concurrency: int = 1, **options: Any) -> Any:
        """Faust's `agent`, for one event of a topic at a time. Raises WiringError for a higher `concurrency`.

        Faust 0.15.3 commits the highest acknowledged offset, even if an earlier event of the partition is
        still under way. After a crash that event would not be read again.
        """
        if concurrency > 1:
            raise WiringError(
                f"@app.agent(concurrency={concurrency}): Faust commits past events that are still under way,"
                " so a crash loses them. Leave concurrency out and run more workers, or write an async"
                " handler: a lane runs many keys at a time (docs/faust.md)"
            )
        return super().agent(*arguments, concurrency=concurrency, **options)

    def timer(self, *arguments: Any, on_leader: bool = False, **options: Any) -> Any:
        """Faust's `timer`. Raises WiringError for `on_leader` if options of the app forbid a leader."""
        self._needs_leader(on_leader)
        return super().timer(*arguments, on_leader=on_leader, **options)

    def crontab(self, *arguments: Any, on_leader: bool = False, **options: Any) -> Any:
        """Faust's `crontab`. Raises WiringError for `on_leader` if options of the app forbid a leader."""
        self._needs_leader(on_leader)
        return super().crontab(*arguments, on_leader=on_leader, **options)

    def task(self, *arguments: Any, on_leader: bool = False, **options: Any) -> Any:
        """Faust's `task`. Raises WiringError for `on_leader` if options of the app forbid a leader."""
        self._needs_leader(on_leader)
        return super().task(*arguments, on_leader=on_leader, **options)

    def _needs_leader(self, on_leader: bool) -> None:  # noqa: FBT001 - as Faust passes it
        """Note whether a leader is needed. Faust elects it through a topic with one partition, which is
        created only if needed. Raises WiringError if options of the app forbid a leader, because no worker
        would ever run this.
        """
        if on_leader and not self._may_lead:
            raise WiringError(
                "on_leader=True never runs with topic_disable_leader in `faust={...}`: take that option out"
            )
        self._leads = self._leads or on_leader

    def allow_leader(self) -> None:
        """Let Faust elect a leader, if something is declared that only the leader runs."""
        if self._leads:
            self.conf.topic_disable_leader = False

    async def on_start(self) -> None:
        """Start the app, with the election of a leader if one is needed."""
        self.allow_leader()
        await super().on_start()

    @property
    def wanted(self) -> bool:
        """Whether anything was declared that this app has to run."""
        return bool(self.agents or self._app_tasks or self._extra_services)


def credentials(security: Security) -> Any:
    """Faust's credentials for these settings; None without TLS and SASL. Raises SettingsError, see
    `tls_context`.
    """
    context = tls_context(security) if security.encrypted else None
    if security.authenticated:
        return faust.SASLCredentials(
            username=security.username,
            password=security.password,
            ssl_context=context,
            mechanism=security.mechanism,
        )
    return context and faust.SSLCredentials(context)
