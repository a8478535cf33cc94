"""Kafka, S3 and PostgreSQL on this machine from packages, for the demo, the tests and the benchmarks."""

from streams.local.errors import StackError
from streams.local.processes import Companion, declared, declared_buckets, declared_databases
from streams.local.stack import Stack, local_stack, running, start, stop

__all__ = [
    "Companion",
    "Stack",
    "StackError",
    "declared",
    "declared_buckets",
    "declared_databases",
    "local_stack",
    "running",
    "start",
    "stop",
]
