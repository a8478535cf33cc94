"""Metrics of the replication slot of change data capture, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from streams.postgres.replication_slot import SlotLag


class SlotGauges:
    """Gauges of the slot, which a registry takes once; every process that looks tells them alike.

    `outbox_slot_active`, `_lost`, `_behind_bytes`, `_retained_bytes`, `_warn_bytes`, all 0 without one, and
    `outbox_slot_beginnings`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._active = Gauge("outbox_slot_active", "1: a connector reads the slot.", registry=registry)
        self._lost = Gauge(
            "outbox_slot_lost", "1: the server has dropped log that was not read.", registry=registry
        )
        self._behind = Gauge(
            "outbox_slot_behind_bytes", "Log that the connector has not confirmed.", registry=registry
        )
        self._retained = Gauge(
            "outbox_slot_retained_bytes", "Log that the server keeps for the slot.", registry=registry
        )
        self._warn_at = Gauge(
            "outbox_slot_warn_bytes", "Log kept from which on the slot warns.", registry=registry
        )
        self._beginnings = Gauge(
            "outbox_slot_beginnings",
            "How often change data capture has begun with the table, at a new slot.",
            registry=registry,
        )

    def sampled(self, slot: SlotLag | None, beginnings: int) -> None:
        """The slot's state, None if there is none; and how often it was made anew."""
        self._beginnings.set(beginnings)
        self._active.set(slot is not None and slot.active)
        self._lost.set(slot is not None and slot.is_lost)
        self._behind.set(slot.behind if slot else 0)
        self._retained.set(slot.retained if slot else 0)
        self._warn_at.set(slot.warns_from if slot else 0)
