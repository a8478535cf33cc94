"""An operator at the command line brings a failed saga to its end, with a real worker on real Kafka."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from streams.cli.main import app
from streams.model.envelope import new_headers
from tests.integration.worker_process import environment_of, working
from tests.waiting import eventually

TOPIC = "errands.errand.wanted.v1"


async def produce(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        headers = new_headers(TOPIC, "one", source="test", time=time.time(), message_id="one")
        await producer.send_and_wait(TOPIC, b'{"errand":"one"}', key=b"one", headers=headers)


def test_a_failed_saga_is_retried(kafka: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = tmp_path / "paper"
    environment = environment_of("errands", kafka.bootstrap, tmp_path, STANDBYS=0, PAPER=paper)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def steadfaust(*words: str) -> list[Any]:
        result = CliRunner().invoke(app, ["saga", *words, "--json"])
        return [json.loads(line) for line in result.stdout.splitlines()]

    def statuses() -> list[str]:
        return [saga["status"] for saga in steadfaust("list")]

    with working("tests.integration.errand_worker", environment) as log:
        eventually(lambda: (tmp_path / "workers").exists(), f"a worker; see {log}")
        eventually(lambda: CliRunner().invoke(app, ["saga", "list"]).exit_code == 3, "all lanes answer")
        asyncio.run(produce(kafka.bootstrap))
        eventually(lambda: statuses() == ["failed"], "a saga that waits for an operator")
        (shown,) = steadfaust("show", "errand:one")
        assert shown["steps"][0]["error"] == "error: PermanentError: no paper for one"
        paper.touch()
        (retried,) = steadfaust("retry", "errand:one", "--why", "paper is in", "--who", "ann")
        assert retried["settled"]["detail"] == "ticket retried: paper is in (ann)"
        eventually(lambda: statuses() == ["completed"], "the saga has ended")
