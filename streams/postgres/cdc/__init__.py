"""Change data capture: Kafka Connect and Debezium read the outbox from the database's log."""

from __future__ import annotations

from streams.postgres.cdc.connect import Connect, ConnectorStatus, TaskStatus
from streams.postgres.cdc.relay import CdcRelay, CdcStatus, cdc_status
from streams.postgres.outbox_owner import RelayKind, claim_outbox, hand_over, outbox_owner
from streams.postgres.replication_slot import SlotLag, slot_lag

__all__ = [
    "CdcRelay",
    "CdcStatus",
    "Connect",
    "ConnectorStatus",
    "RelayKind",
    "SlotLag",
    "TaskStatus",
    "cdc_status",
    "claim_outbox",
    "hand_over",
    "outbox_owner",
    "slot_lag",
]
