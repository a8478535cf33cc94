"""What is counted: events over keys, each with an id; for each a row by key, and an output with the count."""

from __future__ import annotations

import os

import msgspec

PARTITIONS = 4
KEYS = 2000
TABLE = "counts"

#: Where a worker finds the name of its input topic.
TOPIC = "COUNTING_TOPIC"
#: Where a worker of stock Faust finds which of Faust's guarantees it is to give.
GUARANTEE = "COUNTING_GUARANTEE"
#: Where it finds its own directory, the same after a restart.
DIRECTORY = "COUNTING_DIRECTORY"


class CountedEvent(msgspec.Struct, frozen=True):
    """An event in the input topic: its key, and the id that its output carries on."""

    k: str
    i: int


def event(number: int) -> CountedEvent:
    """The event of this number."""
    return CountedEvent(k=f"k{number % KEYS}", i=number)


def input_topic() -> str:
    """The topic that this worker counts."""
    return os.environ[TOPIC]


def output_topic(topic: str) -> str:
    """Where the outputs of an input topic go."""
    return f"{topic}.counted"
