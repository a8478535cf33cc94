"""How the commands tell of the replication slot of change data capture."""

from __future__ import annotations

from streams.postgres.replication_slot import SlotLag
from streams.units import MIB


def slot_line(slot: SlotLag) -> str:
    """Its state, how far it is behind, and how much log it keeps."""
    room = "no limit" if slot.room is None else f"{slot.room / MIB:.0f} MiB more at most"
    return f"{slot.status}, {slot.behind / MIB:.1f} MiB behind, keeps {slot.retained / MIB:.1f} MiB, {room}"


def slot_json(slot: SlotLag | None) -> dict[str, object] | None:
    """The same for machines, with its warning; None: there is no slot."""
    return slot and {**slot._asdict(), "warning": slot.warning}
