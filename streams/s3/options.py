"""Where a bucket is, and how long to wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach a bucket. Times in seconds.

    Attributes:
        bucket: its name.
        endpoint: URL of a store that is not Amazon's; empty: Amazon's.
        access_key: with `secret_key` what requests are signed with; empty: what boto3 finds by itself.
        region: empty: what boto3 finds by itself, or us-east-1 when there is an endpoint.
        connect_timeout: for a connection to come about.
        read_timeout: for the next bytes of an answer.
        timeout: for a whole request, waiting for a free thread included.
        threads: requests at a time.
    """

    bucket: str
    endpoint: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    region: str = ""
    connect_timeout: float = 2.0
    read_timeout: float = 5.0
    timeout: float = 30.0
    threads: int = 8

    def client(self) -> Any:
        """A boto3 client, which threads may share."""
        config = Config(
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            # A lane decides what is tried again, and when; retries in here would only hide an outage from it.
            retries={"total_max_attempts": 1},
            max_pool_connections=self.threads,
            # Stores of others refuse or miss the checksums that boto3 adds of itself; we verify digests.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # A bucket in the host name needs a wildcard in DNS, which few stores of one's own have.
            s3={"addressing_style": "path"} if self.endpoint else {},
        )
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint or None,
            aws_access_key_id=self.access_key or None,
            aws_secret_access_key=self.secret_key or None,
            region_name=self.region or ("us-east-1" if self.endpoint else None),
            config=config,
        )
