import json
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

from streams.claims.claim import PREFIX
from streams.s3 import S3Options
from streams.settings import Settings

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
