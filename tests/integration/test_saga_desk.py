"""An operator at the command line brings a failed saga to its end, with a real worker on real Kafka."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from streams.cli.main import app
from streams.model.envelope import new_headers
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
TOPIC = "errands.errand.wanted.v1"


async def produce(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        headers = new_headers(TOPIC, "one", source="test", time=time.time(), message_id="one")
        await producer.send_and_wait(TOPIC, b'{"errand":"one"}', key=b"one", headers=headers)


def test_a_failed_saga_is_retried_to_its_end(
    kafka: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = tmp_path / "paper"
    settings = {
        "STEADFAUST_APP_ID": "errands",
        "STEADFAUST_BOOTSTRAP": kafka.bootstrap,
        "STEADFAUST_VAR": str(tmp_path),
        "STEADFAUST_PARTITIONS": "2",
        "STEADFAUST_LANES": "2",
        "STEADFAUST_STANDBYS": "0",
        "STEADFAUST_WEB_PORT": "0",
        "STEADFAUST_PAPER": str(paper),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def steadfaust(*words: str) -> list[Any]:
        result = CliRunner().invoke(app, ["saga", *words, "--json"])
        return [json.loads(line) for line in result.stdout.splitlines()]

    def statuses() -> list[str]:
        return [saga["status"] for saga in steadfaust("list")]

    faust = [str(Path(sys.executable).parent / "faust"), "-A", "tests.integration.errand_worker", "worker"]
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*faust, "-l", "warn"], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
        )
    try:
        eventually(lambda: (tmp_path / "workers").exists(), f"a worker; its log is in {tmp_path}")
        eventually(lambda: CliRunner().invoke(app, ["saga", "list"]).exit_code == 3, "all lanes answer")
        asyncio.run(produce(kafka.bootstrap))
        eventually(lambda: statuses() == ["failed"], "a saga that waits for an operator")
        (shown,) = steadfaust("show", "errand:one")
        assert shown["steps"][0]["error"] == "error: PermanentError: no paper for one"
        paper.touch()
        (retried,) = steadfaust("retry", "errand:one", "--why", "paper is in", "--who", "ann")
        assert retried["settled"]["detail"] == "ticket retried: paper is in (ann)"
        eventually(lambda: statuses() == ["completed"], "the saga has ended")
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(45) == 0
