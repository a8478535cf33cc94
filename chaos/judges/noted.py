"""The notes that version 2 of the application counts, as the checker knows them: by their published names.

Nothing of `chaos.load.notes` is loaded, which brings the services' handlers with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from chaos.evidence.calls import NOTES_TOPIC
from chaos.evidence.consequences import SentMessage
from chaos.evidence.decoding import decoder, rows_in
from chaos.evidence.stores import Rows
from demo.findings import Finding, finding

TABLE = "notes"
_SCHEMA = '{"type": "record", "name": "Notes", "fields": [{"name": "count", "type": "long"}]}'
_decode = decoder(TABLE, _SCHEMA)


def counted(tables: Iterable[Mapping[str, Rows]]) -> dict[str, int]:
    """The notes about each order, by the table in the state of every lane."""
    return {order_id: row["count"] for order_id, _, row in rows_in(tables, TABLE, _decode)}


def judge_notes(made: int, messages: Sequence[SentMessage], counts: Mapping[str, int]) -> Finding:
    """Whether each of so many notes was counted once, however often it was sent."""
    sent = {(each.key, each.message_id) for each in messages if each.topic == NOTES_TOPIC}
    wanted = Counter(order_id for order_id, _ in sent)
    wrong = {
        "made and in the topic": [f"{made:,} and {len(sent):,}"] if made != len(sent) else [],
        "orders with another number of notes": [
            f"{order_id} has {counts.get(order_id, 0)}, not {wanted[order_id]}"
            for order_id in sorted(wanted.keys() | counts.keys())
            if counts.get(order_id, 0) != wanted[order_id]
        ],
    }
    return finding("every note counted once", wrong, f"{made:,} notes about {len(counts):,} orders")
