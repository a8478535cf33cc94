"""Who is compared: a worker module each, its environment, and how the rows in its changelog read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from chaos.counting.schedule import SESSION_TIMEOUT
from chaos.counting.workload import DIRECTORY, GUARANTEE, PARTITIONS, TOPIC
from streams.model.codecs import FINGERPRINT_SIZE
from streams.model.row_keys import split_row_key

#: A changelog record's key and value -> the key of the workload and its count.
ReadRow = Callable[[bytes, bytes], tuple[str, int]]


def _row_of_a_lane(key: bytes, value: bytes) -> tuple[str, int]:
    row = msgspec.json.decode(value[FINGERPRINT_SIZE:], type=dict[str, int])
    return split_row_key(key)[0].decode(), row["n"]


def _row_of_faust(key: bytes, value: bytes) -> tuple[str, int]:
    return msgspec.json.decode(key, type=str), msgspec.json.decode(value, type=int)


@dataclass(frozen=True)
class Contestant:
    """One of those compared. `ours` must be right; of the others it is reported what they did."""

    name: str
    says: str
    module: str
    read_row: ReadRow
    own: Mapping[str, str] = field(default_factory=dict)
    ours: bool = False

    def environment(self, app_id: str, topic: str, bootstrap: str, var: Path, worker: int) -> dict[str, str]:
        """What a worker of this contestant finds in its environment, beside ours."""
        return {
            **self.own,
            TOPIC: topic,
            DIRECTORY: str(var / "workers" / f"{app_id}-{worker}"),
            "STEADFAUST_APP_ID": app_id,
            "STEADFAUST_BOOTSTRAP": bootstrap,
            "STEADFAUST_VAR": str(var),
            "STEADFAUST_PARTITIONS": str(PARTITIONS),
            "STEADFAUST_LANES": str(PARTITIONS),
            "STEADFAUST_SESSION_TIMEOUT": str(SESSION_TIMEOUT),
            "STEADFAUST_HEARTBEAT": str(SESSION_TIMEOUT / 3),
        }


CONTESTANTS = (
    Contestant("lane", "the lane", "chaos.counting.on_lane", _row_of_a_lane, ours=True),
    *(
        Contestant(
            f"faust_{guarantee}",
            f"stock Faust, {guarantee}",
            "chaos.counting.on_stock_faust",
            _row_of_faust,
            {GUARANTEE: guarantee},
        )
        for guarantee in ("at_least_once", "exactly_once")
    ),
)
