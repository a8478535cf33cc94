"""The alert rules that the repository ships: what they ask for is what the code tells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from streams.postgres.outbox.desk import OutboxStatus
from streams.postgres.relay import RelayMetrics
from streams.postgres.relay.options import SHARDS

RULES = Path(__file__).parents[3] / "ops" / "outbox-alerts.yml"
_METRIC = re.compile(r"\boutbox_[a-z_]+\b")


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def told() -> str:
    """A scrape of a relay's metrics."""
    registry = CollectorRegistry()
    metrics = RelayMetrics(registry)
    metrics.sampled(OutboxStatus(unpublished=7, failed=1, oldest_seconds=2.5, table_bytes=8192))
    metrics.shares(SHARDS, 1)
    return generate_latest(registry).decode()


def test_the_bounds_are_those_that_operators_were_told() -> None:
    found = rules()
    assert {name: rule["for"] for name, rule in found.items()} == dict.fromkeys(found, "5m")
    assert found["OutboxLag"]["expr"].endswith("> 1000")
    assert found["OutboxLatency"]["expr"].endswith("> 30")
    assert found["OutboxPublishErrors"]["expr"].endswith("> 0.01")
    assert f"< {SHARDS}" in found["OutboxNotRelayed"]["expr"]


@pytest.mark.parametrize("alert", ["OutboxLag", "OutboxLatency", "OutboxPublishErrors", "OutboxNotRelayed"])
def test_an_alert_asks_for_metrics_that_a_relay_tells(alert: str) -> None:
    rule = rules()[alert]
    names = set(_METRIC.findall(rule["expr"]))
    assert names
    scrape = told()
    assert not [name for name in names if f"\n{name} " not in scrape]
    assert {"summary", "description"} <= rule["annotations"].keys()


def test_a_scrape_has_how_the_table_stands() -> None:
    assert "\noutbox_unpublished_rows 7.0\n" in told()
    assert "\noutbox_oldest_unpublished_seconds 2.5\n" in told()
    assert "\noutbox_failed_rows 1.0\n" in told()
    assert "\noutbox_table_bytes 8192.0\n" in told()
