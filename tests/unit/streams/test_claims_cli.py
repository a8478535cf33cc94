"""`steadfaust claims`, the lifecycle of its objects, and passwords in files."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from typer.testing import CliRunner

from streams.cli import claims
from streams.cli.main import app
from streams.errors import ClusterUnavailable, SettingsError
from streams.local import s3
from streams.model.claim import PREFIX, object_name
from streams.s3 import S3Options
from streams.settings import LOCAL_KEYS, Bucket, Settings
from streams.testing.blobs import MemoryBlobs

pytestmark = pytest.mark.promise("object-cleanup")

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


KAFKA_RETENTION_DAYS = 7  # of a cluster that sets nothing else


@pytest.fixture
def lifecycle() -> Any:
    return json.loads((Path(__file__).parents[3] / "ops" / "s3-lifecycle.json").read_text())


def test_s3_takes_the_rule_as_it_is_written(lifecycle: Any) -> None:
    client = S3Options("gifts", "http://localhost:1", "key", "secret").client()
    with Stubber(client) as stubber:
        stubber.add_response("put_bucket_lifecycle_configuration", {})
        client.put_bucket_lifecycle_configuration(Bucket="gifts", LifecycleConfiguration=lifecycle)
    client.close()


def test_the_rule_outlives_all_that_may_need_an_object(lifecycle: Any) -> None:
    (rule,) = lifecycle["Rules"]
    settings = Settings()
    needed = KAFKA_RETENTION_DAYS + settings.dead_letter_retention_days + settings.inbox_retention_days
    assert (rule["Status"], rule["Filter"]) == ("Enabled", {"Prefix": PREFIX})
    assert rule["Expiration"]["Days"] > needed


def test_the_password_of_postgresql_comes_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss/word\n")
    settings = Settings(postgres_url="postgresql://shop@db:5432/orders", postgres_password_file=str(file))
    assert settings.postgres() == "postgresql://shop:p%40ss%2Fword@db:5432/orders"


@pytest.mark.parametrize("url", ["", "postgresql://db/orders", "postgresql://shop:other@db/orders"])
def test_a_password_file_without_a_place_for_it_is_refused(tmp_path: Path, url: str) -> None:
    (tmp_path / "password").write_text("word")
    settings = Settings(postgres_url=url, postgres_password_file=str(tmp_path / "password"))
    with pytest.raises(SettingsError, match="STEADFAUST_POSTGRES_URL with a user and without a password"):
        settings.postgres()


def test_the_key_of_s3_comes_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hush\n")
    settings = Settings(var=tmp_path, s3_bucket="ours", s3_secret_key_file=str(file))
    found = settings.bucket()
    assert found is not None
    assert found.secret_key == "hush"
    with pytest.raises(SettingsError, match="STEADFAUST_S3_SECRET_KEY_FILE are both set"):
        settings.model_copy(update={"s3_secret_key": "other"}).bucket()
