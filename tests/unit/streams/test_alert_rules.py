"""The alert rules that the repository ships: what they ask for is what the code tells."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from streams.postgres.outbox.operations import OutboxStatus
from streams.postgres.queue.metrics import QueueGauges, QueueMetrics
from streams.postgres.queue.operations import QueueStatus
from streams.postgres.relay import RelayMetrics
from streams.postgres.relay.options import SHARDS
from streams.postgres.replication_slot import SlotLag
from streams.postgres.watch import OLDEST, OutboxGauges, SlotGauges
from streams.units import MIB

OPS = Path(__file__).parents[3] / "ops"
_METRIC = re.compile(r"\b(?:outbox|queue)_[a-z0-9_]+\b")
SLOT = SlotLag(active=True, status="extended", behind=MIB, retained=300 * MIB, room=212 * MIB)


def rules(file: str = "outbox-alerts.yml") -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((OPS / file).read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def told() -> str:
    registry = CollectorRegistry()
    metrics = RelayMetrics(registry)
    OutboxGauges(registry).sampled(
        OutboxStatus(unpublished=7, failed=1, oldest_seconds=2.5, table_bytes=8192)
    )
    metrics.shares(SHARDS, 1)
    SlotGauges(registry).sampled(SLOT, 3)
    QueueGauges(registry).sampled([QueueStatus("emails", {"ready": 3, "failed": 2}, 1.5)])
    work = QueueMetrics(registry)
    for each in (work.done, work.retried, work.failed):
        each.labels("emails").inc()
    work.latency.labels("emails").observe(1)
    return generate_latest(registry).decode()


def untold(expression: str) -> list[str]:
    """Metrics that are asked for, and that nobody tells."""
    names = set(_METRIC.findall(expression))
    assert names
    scrape = told()
    return [name for name in names if f"\n{name} " not in scrape and f"\n{name}{{" not in scrape]


def test_the_bounds_are_those_that_operators_were_told() -> None:
    found = rules()
    assert {name: rule["for"] for name, rule in found.items()} == dict.fromkeys(found, "5m")
    assert found["OutboxLag"]["expr"].endswith("> 1000")
    assert found["OutboxLatency"]["expr"].endswith("> 30")
    assert found["OutboxPublishErrors"]["expr"].endswith("> 0.01")
    assert f"< {SHARDS}" in found["OutboxNotRelayed"]["expr"]
    kept = "max(outbox_slot_retained_bytes >= outbox_slot_warn_bytes) > 0"
    assert found["OutboxSlotKeepsLog"]["expr"] == kept


@pytest.mark.parametrize("file", ["outbox-alerts.yml", "queue-alerts.yml"])
def test_an_alert_asks_for_metrics_that_are_told(file: str) -> None:
    for rule in rules(file).values():
        assert not untold(rule["expr"])
        assert {"summary", "description"} <= rule["annotations"].keys()


def test_failed_jobs_and_jobs_that_nobody_takes_are_alerts() -> None:
    found = rules("queue-alerts.yml")
    assert found["QueueJobsFailed"]["expr"].endswith("> 0")
    assert found["QueueNotWorkedOff"]["expr"].endswith(f"> {OLDEST:.0f}")


def test_the_dashboard_asks_for_metrics_that_are_told() -> None:
    for panel in json.loads((OPS / "grafana-outbox-and-queues.json").read_text())["panels"]:
        for target in panel["targets"]:
            assert not untold(target["expr"])


def test_a_scrape_has_how_the_table_stands() -> None:
    lines = told().splitlines()
    assert {
        "outbox_unpublished_rows 7.0",
        "outbox_oldest_unpublished_seconds 2.5",
        "outbox_failed_rows 1.0",
        "outbox_table_bytes 8192.0",
        'queue_jobs{queue="emails",state="failed"} 2.0',
        'queue_oldest_ready_seconds{queue="emails"} 1.5',
    } <= set(lines)


def test_a_queue_that_is_gone_is_told_no_more() -> None:
    registry = CollectorRegistry()
    gauges = QueueGauges(registry)
    gauges.sampled([QueueStatus("emails", {"failed": 2}, 1.5)])
    gauges.sampled([])
    assert "emails" not in generate_latest(registry).decode()


def test_a_scrape_has_how_the_replication_slot_stands() -> None:
    scrape = told()
    assert "\noutbox_slot_beginnings 3.0\n" in scrape
    sizes = {"behind_bytes": MIB, "retained_bytes": 300 * MIB, "warn_bytes": 256 * MIB}
    for name, figure in {"active": 1, "lost": 0, **sizes}.items():
        assert float(re.search(rf"\noutbox_slot_{name} (\S+)\n", scrape)[1]) == figure  # type: ignore[index]


@pytest.mark.parametrize("slot", [None, SLOT._replace(status="lost", retained=0, active=False)])
def test_without_a_slot_that_works_no_log_is_kept(slot: SlotLag | None) -> None:
    registry = CollectorRegistry()
    gauges = SlotGauges(registry)
    gauges.sampled(SLOT, 1)
    gauges.sampled(slot, 1)
    assert registry.get_sample_value("outbox_slot_retained_bytes") == 0
    assert registry.get_sample_value("outbox_slot_active") == 0
    assert registry.get_sample_value("outbox_slot_lost") == (slot is not None)


def test_what_a_connector_has_relayed_counts_as_published() -> None:
    registry = CollectorRegistry()
    RelayMetrics(registry).relayed([0.2, 0.4])
    assert registry.get_sample_value("outbox_published_total") == 2
    assert registry.get_sample_value("outbox_publish_latency_seconds_sum") == pytest.approx(0.6)
