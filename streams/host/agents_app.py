"""Faust's own app inside a worker: it runs plain `@app.agent`s beside the lanes, as Faust runs them.

It has a consumer, a producer, tables and a group of its own, so lanes and their membership know nothing of it
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
    """An unchanged Faust app, but for its defaults: they are the worker's, and it serves no pages."""

    #: Whether something was declared that only the leader runs.
    _leads = False

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
        self._may_lead = "topic_disable_leader" not in options
        self._has_own_partitions = "topic_partitions" in options
        super().__init__(settings.agents_group(), **{**defaults, **options, "web_enabled": False})

    def follow_cut(self, partitions: int) -> None:
        """Topics get as many partitions as the worker's, unless another number was given."""
        if not self._has_own_partitions:
            self.conf.topic_partitions = partitions

    def agent(self, *arguments: Any, concurrency: int = 1, **options: Any) -> Any:
        """As Faust has it, one event of a topic after the other. Raises WiringError for a `concurrency`.

        Faust 0.15.3 commits the highest offset that was acknowledged, also where an earlier one of its
        partition was not: of several events at a time, those under way at a crash are not read again.
        """
        if concurrency > 1:
            raise WiringError(
                f"@app.agent(concurrency={concurrency}): Faust commits past events that are still under way,"
                " so a crash loses them. Leave concurrency out and run more workers, or write an async"
                " handler: a lane runs many keys at a time (docs/faust.md)"
            )
        return super().agent(*arguments, concurrency=concurrency, **options)

    def timer(self, *arguments: Any, on_leader: bool = False, **options: Any) -> Any:
        """As Faust has it."""
        self._needs_leader(on_leader)
        return super().timer(*arguments, on_leader=on_leader, **options)

    def crontab(self, *arguments: Any, on_leader: bool = False, **options: Any) -> Any:
        """As Faust has it."""
        self._needs_leader(on_leader)
        return super().crontab(*arguments, on_leader=on_leader, **options)

    def task(self, *arguments: Any, on_leader: bool = False, **options: Any) -> Any:
        """As Faust has it."""
        self._needs_leader(on_leader)
        return super().task(*arguments, on_leader=on_leader, **options)

    def _needs_leader(self, on_leader: bool) -> None:  # noqa: FBT001 - as Faust passes it
        """The leader is the worker with the one partition of a topic of its own, which is made only where it
        is needed. Raises WiringError where options of the app forbid it: no worker would ever run this.
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
        """As Faust has it, with a leader where one is needed."""
        self.allow_leader()
        await super().on_start()

    @property
    def wanted(self) -> bool:
        """Whether anything was declared that it has to run."""
        return bool(self.agents or self._app_tasks or self._extra_services)


def credentials(security: Security) -> Any:
    """The credentials as Faust has them; None: without any. Raises SettingsError, see `tls_context`."""
    context = tls_context(security) if security.encrypted else None
    if security.authenticated:
        return faust.SASLCredentials(
            username=security.username,
            password=security.password,
            ssl_context=context,
            mechanism=security.mechanism,
        )
    return context and faust.SSLCredentials(context)
