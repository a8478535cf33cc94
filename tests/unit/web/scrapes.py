"""Scrapes of workers, and what tests of metrics put into their lanes."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from web_workers import FakeWorker, ParcelSeen

from streams.ports import Outgoing
from streams.retry.queue import Reason, begin, message_of, queue_name, set_message, set_queue
from streams.staging.changes import Writes
from streams.staging.keys import store_key
from streams.staging.timers import set_timer, timer_name
from streams.testing.log import FakeRecord

PAGE = Path(__file__).parents[3] / "docs" / "telemetry.md"
#: A row of a table: name, kind, labels.
ROW = re.compile(r"^\| `(steadfaust_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)

Value = dict[tuple[str, ...], float]


def on_the_page() -> dict[str, tuple[str, frozenset[str]]]:
    """Kind and labels of each metric that the page explains."""
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(PAGE.read_text())
    }


def told(scrape: bytes) -> dict[str, tuple[str, frozenset[str]]]:
    """The same of what a worker has told, as far as it has samples."""
    found = {}
    for family in text_string_to_metric_families(scrape.decode()):
        if family.name.startswith("steadfaust_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = family.type, frozenset(labels)
    return found


def values(scrape: bytes, name: str) -> Value:
    """The samples of a name, by the values of their labels in order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(scrape.decode())
        for sample in family.samples
        if sample.name == name
    }


def wait(worker: FakeWorker, key: str, *, since: float, reason: Reason) -> None:
    """A message waits for the handler."""
    partition = worker.partition(key)
    record = FakeRecord(ParcelSeen.TOPIC, partition, 0, 1, key.encode(), b"{}", [])
    name = queue_name(b"post.note", key.encode())
    queue = begin(reason, due_ms=0, attempts=1, size=10)
    changes = [set_queue(name, queue), set_message(name, 0, message_of(record, int(since * 1000)))]
    rows = [(store_key(partition, change.key), change.value) for change in changes]
    store = worker.lanes[worker.lane(key)].store
    store.apply(Writes(1).local("lane", rows), {})


def set_timers(worker: FakeWorker, *dues: float) -> None:
    for number, due in enumerate(dues):
        change = set_timer(timer_name(b"post.note", b"k", f"t{number}"), due, "t", Outgoing(b"k", b"", []))
        store = worker.lanes[0].store
        store.apply(Writes(1).local("lane", [(store_key(0, change.key), change.value)]), {})
