"""Looking after the connector, while PostgreSQL, Connect or Kafka do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from streams.errors import ClusterUnavailable, TransientError
from streams.postgres.errors import DatabaseUnavailable
from streams.postgres.relay import RelayCounts
from streams.runtime import cdc


class Connector:
    """Answers each look with the next of these, then stops whoever looks."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.stop = lambda: None
        self.told: list[str] = []

    async def step(self) -> Any:
        answer = self.answers.pop(0)
        if not self.answers:
            self.stop()
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(problem=answer)

    async def schemas(self, announced: set[str]) -> dict[str, str]:
        return {} if "f" in announced else {"f": "schema"}

    def tell(self, problem: str) -> None:
        self.told.append(problem)


class Kafka:
    """Is away for so many announcements."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.announced: list[Mapping[str, str]] = []

    async def announce(self, schemas: Mapping[str, str]) -> None:
        if self.away:
            self.away -= 1
            raise ClusterUnavailable("there is no topic yet")
        self.announced.append(dict(schemas))

    async def close(self) -> None:
        pass


class Connect:
    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


async def looks(monkeypatch: pytest.MonkeyPatch, connector: Connector, kafka: Kafka) -> RelayCounts:
    monkeypatch.setattr(cdc, "CdcRelay", lambda *_: connector)
    monkeypatch.setattr(cdc, "STEP", 0.01)
    counts = RelayCounts()
    relaying: Any = cdc.CdcRelaying(None, Connect(), kafka, counts=counts)  # type: ignore[arg-type]
    connector.stop = relaying.stop
    async with asyncio.timeout(10):
        await relaying.run()
    return counts


async def test_schemas_are_announced_when_kafka_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, kafka = Connector("", "", "", ""), Kafka(away=2)
    await looks(monkeypatch, connector, kafka)
    assert kafka.announced == [{"f": "schema"}], "once"
    assert connector.told == ["there is no topic yet", "there is no topic yet", "", ""]


@pytest.mark.parametrize("error", [TransientError("Connect is away"), DatabaseUnavailable("it starts")])
async def test_what_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    kafka = Kafka(away=0)
    await looks(monkeypatch, Connector(error, ""), kafka)
    assert kafka.announced == [{"f": "schema"}]
