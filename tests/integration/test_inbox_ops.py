"""What `ops/` has for the consumer inbox fits what there is."""

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from streams.postgres import Database, InboxMetrics

OPS = Path(__file__).parents[2] / "ops"


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    registry = CollectorRegistry()
    metrics = InboxMetrics(registry)
    metrics.processed("projection", "OrderPlaced", 0.1)
    metrics.duplicate("projection", "OrderPlaced")
    told = set(re.findall(r"^(\w+)\{", generate_latest(registry).decode(), re.MULTILINE))
    board = json.loads((OPS / "grafana-consumer-inbox.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"consumer_inbox_\w+", target["expr"])
    }
    assert asked <= told
    assert {panel["title"] for panel in board["panels"]} >= {
        "Duplicate rate by consumer",
        "Mean processing time by consumer",
        "p99 processing time by consumer",
    }


async def test_the_statements_for_size_growth_and_the_oldest_row_run(postgres_url: str) -> None:
    async with Database(postgres_url) as database:
        await database.pool.execute((OPS / "consumer-inbox.sql").read_text())
