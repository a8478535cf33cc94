"""Kafka and S3 on this machine from packages alone, for the demo, the tests and the benchmarks."""

from streams.local.errors import StackError
from streams.local.processes import Companion, declared, declared_buckets
from streams.local.stack import Stack, local_stack, running, start, stop

__all__ = [
    "Companion",
    "Stack",
    "StackError",
    "declared",
    "declared_buckets",
    "local_stack",
    "running",
    "start",
    "stop",
]
