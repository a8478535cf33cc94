"""Looking after the connector, while PostgreSQL, Connect or Kafka do not answer."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from streams.errors import ClusterUnavailable, TransientError
from streams.postgres import relay_service as relay
from streams.postgres.errors import DatabaseUnavailable, StatementRefused
from streams.postgres.relay import RelayCounts


class Connector:
    """Answers each look with the next of these, then stops whoever looks."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.stop = lambda: None
        self.told: list[str] = []
        self.ages: list[float] = []
        self.standstill: str | None = None
        """Of each answer; None: the answer itself."""
        self.unmarked = ""

    async def step(self) -> Any:
        answer = self.answers.pop(0)
        if not self.answers:
            self.stop()
        if isinstance(answer, Exception):
            raise answer
        standstill = answer if self.standstill is None else self.standstill
        return SimpleNamespace(problem=answer, standstill=standstill, unmarked=self.unmarked)

    def marked(self) -> list[float]:
        ages, self.ages = self.ages, []
        return ages

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


class Counts(RelayCounts):
    """Keeps what it is told of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.ages: list[float] = []

    def relayed(self, ages: Sequence[float]) -> None:
        self.ages += ages


async def looks(monkeypatch: pytest.MonkeyPatch, connector: Connector, kafka: Kafka) -> Counts:
    monkeypatch.setattr(relay, "CdcRelay", lambda *_, **__: connector)
    monkeypatch.setattr(relay, "STEP", 0.01)
    counts = Counts()
    relaying: Any = relay.CdcRelaying(None, Connect(), kafka, counts=counts)  # type: ignore[arg-type]
    connector.stop = relaying.stop
    await relaying.run()
    return counts


async def test_schemas_are_announced_when_kafka_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connector, kafka = Connector("", "", "", ""), Kafka(away=2)
    await looks(monkeypatch, connector, kafka)
    assert kafka.announced == [{"f": "schema"}], "once"
    assert connector.told == ["there is no topic yet", "there is no topic yet", "", ""]


@pytest.mark.parametrize(
    "error",
    [TransientError("Connect is away"), DatabaseUnavailable("it starts"), StatementRefused("marking waits")],
)
async def test_what_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    kafka = Kafka(away=0)
    await looks(monkeypatch, Connector(error, ""), kafka)
    assert kafka.announced == [{"f": "schema"}]


async def test_schemas_are_announced_while_postgresql_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(away=0)
    await looks(monkeypatch, Connector(StatementRefused("a lock")), kafka)
    assert kafka.announced == [{"f": "schema"}]


async def test_marking_that_waits_is_no_outage_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    connector = Connector("marking waits")
    connector.standstill, connector.unmarked = "", "marking waits"
    counts = await looks(monkeypatch, connector, Kafka(away=0))
    assert (counts.waiting, counts.no_kafka) == ("marking waits", "")


async def test_a_slot_that_warns_is_told_and_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are relayed meanwhile: health calls it DEGRADED, not DOWN."""
    connector = Connector("the slot keeps 300 MiB", "")
    connector.standstill = ""
    counts = await looks(monkeypatch, connector, Kafka(away=0))
    assert connector.told[0] == "the slot keeps 300 MiB"
    assert counts.no_kafka == ""


async def test_a_connector_that_stands_still_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = await looks(monkeypatch, Connector("", "task 0 has failed"), Kafka(away=0))
    assert counts.no_kafka == "task 0 has failed"


async def test_what_was_marked_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    connector = Connector("", "")
    connector.ages = [0.5, 1.5]
    assert (await looks(monkeypatch, connector, Kafka(away=0))).ages == [0.5, 1.5]


@pytest.mark.parametrize(
    "error", [TransientError("Connect is away"), StatementRefused("a lock"), ClusterUnavailable("no broker")]
)
async def test_postgresql_that_answers_again_is_up(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    seen: list[str] = []
    connector = Connector(DatabaseUnavailable("it starts"), error, error)
    monkeypatch.setattr(RelayCounts, "stopped", lambda counts: seen.append(counts.no_database))
    await looks(monkeypatch, connector, Kafka(away=0))
    assert seen == [""]
