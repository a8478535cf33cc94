"""The micro workload on Quix Streams, exactly-once: count events by key, pass each one on.

Quix Streams has nothing to remember ids with but state of the message's key, so there is no inbox.
"""

from __future__ import annotations

import os
from typing import Any

from quixstreams import Application, State
from quixstreams.models import JSONDeserializer, JSONSerializer
from quixstreams.models.serializers.avro import AvroDeserializer, AvroSerializer

from benchmarks.peers.workload import COUNTED, MADE, Format, run_from_environment, tune_collector

RUN = run_from_environment()


def count(event: dict[str, Any], state: State) -> dict[str, Any]:
    """Count and pass on."""
    n = state.get("n", 0) + 1
    state.set("n", n)
    event["n"] = n
    return event


def main() -> None:
    """Run until the process is ended."""
    app = Application(
        broker_address=RUN.bootstrap,
        consumer_group=RUN.name,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        state_dir=RUN.var,
        loglevel="WARNING",
        commit_interval=float(os.environ["BENCH_COMMIT_INTERVAL"]),
        producer_extra_config={"linger.ms": 20},
    )
    is_json = RUN.form is Format.JSON
    source = app.topic(
        RUN.source, value_deserializer=JSONDeserializer() if is_json else AvroDeserializer(MADE)
    )
    output = app.topic(RUN.output, value_serializer=JSONSerializer() if is_json else AvroSerializer(COUNTED))
    app.dataframe(source).apply(count, stateful=True).to_topic(output)
    tune_collector()
    app.run()


if __name__ == "__main__":
    main()
