"""What all peers do: the events, their two formats, how a program gets its run, and how its
collector is set.

Programs run in environments of their own, so this needs nothing but orjson and fastavro.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import Any

import fastavro
import orjson

PARTITIONS = 4
KEYS = 2000
#: That of a lane's process, which programs in other environments cannot import.
GC_THRESHOLD = (300_000, 20, 100)


class Format(StrEnum):
    """How events are written."""

    JSON = "json"
    AVRO = "avro"


def _record(name: str, **fields: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


#: An event: its key and its number.
MADE = _record("EventMade", k="string", i="long")
#: The event passed on, with how many its key has had.
COUNTED = _record("EventCounted", k="string", i="long", n="long")
COUNT = _record("Count", n="long")


def encoder(form: Format, schema: Mapping[str, Any]) -> Callable[[Any], bytes]:
    """Encodes values of a schema as plain fastavro or orjson do."""
    if form is Format.JSON:
        return orjson.dumps
    parsed = fastavro.parse_schema(dict(schema))

    def encode(value: Any) -> bytes:
        out = BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    return encode


def decoder(form: Format, schema: Mapping[str, Any]) -> Callable[[bytes], Any]:
    """Decodes what `encoder` has encoded."""
    if form is Format.JSON:
        return orjson.loads
    parsed = fastavro.parse_schema(dict(schema))
    return lambda data: fastavro.schemaless_reader(BytesIO(data), parsed, None)


def name_of(event: int) -> str:
    """The key of an event, by its number."""
    return f"k{event % KEYS}"


def count_of(event: int) -> int:
    """How many events its key has had with this one: keys take turns, and a key's events stay in order."""
    return event // KEYS + 1


def tune_collector() -> None:
    """Let the garbage collector run as seldom as in a lane's process. Call it when all is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


@dataclass(frozen=True, slots=True)
class PeerRun:
    """The run of a program.

    Attributes:
        name: names its group, its state and its transactional ids; another one for each run.
        bootstrap: host:port of the broker.
        source: the topic with the events.
        output: the topic for the events passed on; both exist.
        var: a directory for its state.
        form: the events' format.
    """

    name: str
    bootstrap: str
    source: str
    output: str
    var: str
    form: Format

    def environment(self) -> dict[str, str]:
        """For the program's process; `run_from_environment` reads it there."""
        return {
            "BENCH_NAME": self.name,
            "BENCH_BOOTSTRAP": self.bootstrap,
            "BENCH_SOURCE": self.source,
            "BENCH_OUTPUT": self.output,
            "BENCH_VAR": self.var,
            "BENCH_FORMAT": self.form.value,
        }


def run_from_environment() -> PeerRun:
    """The run that this process is to do."""
    get = os.environ.__getitem__
    return PeerRun(
        name=get("BENCH_NAME"),
        bootstrap=get("BENCH_BOOTSTRAP"),
        source=get("BENCH_SOURCE"),
        output=get("BENCH_OUTPUT"),
        var=get("BENCH_VAR"),
        form=Format(get("BENCH_FORMAT")),
    )
