"""A queue of work in PostgreSQL: enqueued with the caller's writes, done with the handler's."""

from __future__ import annotations

from streams.postgres.queue.job import Job
from streams.postgres.queue.metrics import QueueMetrics
from streams.postgres.queue.options import QueueOptions
from streams.postgres.queue.queue import HANDLE, NewJob, Queue
from streams.postgres.queue.worker import JobHandler, QueueWorker

__all__ = ["HANDLE", "Job", "JobHandler", "NewJob", "Queue", "QueueMetrics", "QueueOptions", "QueueWorker"]
