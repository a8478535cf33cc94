"""What ops/ has for Prometheus, and what is scraped, by Prometheus' own checker."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from streams.control.metrics.metrics import WorkerMetrics

ROOT = Path(__file__).parents[3]
RULES = sorted((ROOT / "ops").glob("*-alerts.yml"))
PROMTOOL = os.environ.get("STEADFAUST_PROMTOOL") or shutil.which("promtool")

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(
        PROMTOOL is None, reason="no promtool: Debian's package prometheus has it; .ci/run installs it"
    ),
]


def promtool(*arguments: str | Path, text: str = "") -> str:
    assert PROMTOOL is not None
    ran = subprocess.run([PROMTOOL, *arguments], input=text, capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return said


def test_each_file_of_alert_rules_is_one_that_prometheus_takes():
    assert len(RULES) == 3
    assert promtool("check", "rules", *RULES).count("SUCCESS") == len(RULES)


def test_the_configuration_is_one_that_prometheus_takes(tmp_path):
    token = tmp_path / "web-token"
    token.write_text("token")
    for file in RULES:
        (tmp_path / file.name).write_text(file.read_text())
    config = tmp_path / "prometheus.yml"
    config.write_text((ROOT / "ops/prometheus.yml").read_text().replace("/run/secrets/web-token", str(token)))
    assert f"{len(RULES)} rule files found" in promtool("check", "config", config)


def test_a_rule_that_prometheus_does_not_take_is_found(tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text(RULES[0].read_text().replace("max(", "max((", 1))
    with pytest.raises(AssertionError, match="could not parse expression"):
        promtool("check", "rules", broken)


async def test_what_a_worker_tells_is_what_prometheus_takes(worker):
    worker.measured = True
    worker.wait("P-1")
    metrics = WorkerMetrics(worker)
    await metrics.sampler.round()
    promtool("check", "metrics", text=metrics.scrape().decode())


def test_a_metric_without_help_is_found():
    with pytest.raises(AssertionError, match="no help text"):
        promtool("check", "metrics", text="# TYPE messages_total counter\nmessages_total 1\n")
