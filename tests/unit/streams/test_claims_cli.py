import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streams.claims.claim import object_name
from streams.cli import claims
from streams.cli.main import app
from streams.errors import ClusterUnavailable, SettingsError
from streams.local import s3
from streams.settings import LOCAL_KEYS, Bucket, Settings
from streams.testing.blobs import MemoryBlobs

KEPT, ORPHAN = (object_name("orders.order.placed.v1", f"o-{n}", f"{n:064x}") for n in (1, 2))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> MemoryBlobs:
    """A bucket with an object that a row names and one that none does, both written long ago."""
    blobs = MemoryBlobs(now=lambda: 1e9)
    for name in (KEPT, ORPHAN):
        asyncio.run(blobs.put(name, b"x" * 1000, "image/png"))
    monkeypatch.setattr("streams.s3.blobs_of", lambda settings: blobs)
    monkeypatch.setattr(claims, "referenced", rows)
    return blobs


async def rows(settings: Settings) -> AsyncIterator[str]:
    yield KEPT


def test_a_sweep_deletes_only_when_told_to(bucket: MemoryBlobs) -> None:
    dry = CliRunner().invoke(app, ["claims", "sweep"])
    assert dry.exit_code == 0, dry.output
    assert "nothing was deleted" in dry.output
    assert bucket.names == sorted([KEPT, ORPHAN])
    real = CliRunner().invoke(app, ["claims", "sweep", "--delete", "--json"])
    assert real.exit_code == 0, real.output
    report = json.loads(real.stdout)
    assert report["deleted"] == {"objects": 1, "bytes": 1000}
    assert report["found"]["referenced"] == {"objects": 1, "bytes": 1000}
    assert bucket.names == [KEPT]


def test_an_outage_says_what_did_not_answer(bucket: MemoryBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unanswered(settings: Settings) -> AsyncIterator[str]:
        raise ClusterUnavailable("Kafka did not answer")
        yield ""

    monkeypatch.setattr(claims, "referenced", unanswered)
    result = CliRunner().invoke(app, ["claims", "sweep", "--delete"])
    assert result.exit_code == claims.UNFINISHED
    assert "Kafka did not answer" in result.output
    assert bucket.names == sorted([KEPT, ORPHAN])


def test_a_grace_period_under_the_retention_of_messages_is_refused() -> None:
    settings = Settings(message_retention_days=7)
    assert claims.grace_of(settings, None) == claims.grace_of(settings, 7) == 7 * 86400
    with pytest.raises(SettingsError, match="STEADFAUST_MESSAGE_RETENTION_DAYS"):
        claims.grace_of(settings, 6.9)


def test_the_bucket_is_of_settings_local_stack_or_none(tmp_path: Path) -> None:
    assert Settings(var=tmp_path).bucket() is None
    (tmp_path / "stack.json").write_text(json.dumps({"processes": {}}))
    assert Settings(var=tmp_path).bucket() is None
    state = {"processes": {"s3": {"url": "http://127.0.0.1:9000"}}}
    (tmp_path / "stack.json").write_text(json.dumps(state))
    found = Settings(var=tmp_path).bucket()
    assert found == Bucket("event-payloads", "http://127.0.0.1:9000", *LOCAL_KEYS, "")
    said = Settings(var=tmp_path, s3_bucket="ours", s3_region="eu-central-1", s3_secret_key="hush")
    assert said.bucket() == Bucket("ours", "http://127.0.0.1:9000", *LOCAL_KEYS, "eu-central-1")
    assert "hush" not in repr(said)


@pytest.mark.parametrize("state", [None, {"processes": {}}])
def test_without_a_local_s3_the_bucket_is_as_set(tmp_path: Path, state: Any) -> None:
    if state is not None:
        (tmp_path / "stack.json").write_text(json.dumps(state))
    said = Settings(var=tmp_path, s3_bucket="ours", s3_secret_key="hush")
    assert said.bucket() == Bucket("ours", "", "", "hush", "")


def test_a_named_endpoint_goes_before_that_of_the_local_stack(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text(json.dumps({"processes": {"s3": {"url": "http://127.0.0.1:9000"}}}))
    said = Settings(var=tmp_path, s3_bucket="ours", s3_endpoint="https://s3.example.com", s3_access_key="a")
    assert said.bucket() == Bucket("ours", "https://s3.example.com", "a", "", "")
    with pytest.raises(SettingsError, match="set STEADFAUST_S3_BUCKET"):
        Settings(var=tmp_path, s3_endpoint="https://s3.example.com").bucket()


def test_the_local_stacks_keys_are_those_that_its_s3_takes() -> None:
    assert (s3.ACCESS_KEY, s3.SECRET_KEY) == LOCAL_KEYS
