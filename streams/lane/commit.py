"""The commit protocol: state, inbox, outputs and source positions in one Kafka transaction, then the store.

Any exception on the way leaves the outcome unknown. Nobody retries or aborts here: the lane discards the
producer and its overlay, and opens again from what Kafka says (docs/adr/0002).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from streams.ports import TP, Faults, Transactions
from streams.staging.sequences import Staged


async def commit(producer: Transactions, staged: Staged, group: str, faults: Faults) -> Mapping[TP, int]:
    """Commit what is staged; returns the end of each partition written to.

    Raises Fenced, OutcomeUnknown or Refused.
    """
    await faults.reach("staged")
    await producer.begin()
    await faults.reach("begun")
    # Side by side: the records are on their way while the coordinator is told of the offsets.
    ends, _ = await asyncio.gather(_send(producer, staged, faults), _offsets(producer, staged, group, faults))
    await producer.commit()
    await faults.reach("committed")
    return ends


async def _send(producer: Transactions, staged: Staged, faults: Faults) -> Mapping[TP, int]:
    ends = await producer.send(staged.records)
    await faults.reach("sent")
    return ends


async def _offsets(producer: Transactions, staged: Staged, group: str, faults: Faults) -> None:
    if staged.offsets:
        await producer.send_offsets(staged.offsets, group)
    await faults.reach("offsets_sent")
