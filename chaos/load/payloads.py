"""The object store of a run, and the files that come with some of its orders."""

from __future__ import annotations

from streams.settings import LOCAL_BUCKET, LOCAL_KEYS, Settings

#: The share of orders that come with a file.
ATTACHED = 0.1
#: Bytes of a payload that still travels in its record: little, so that most files go to the object store.
_THRESHOLD = 1000


def payload_settings(endpoint: str) -> Settings:
    """How to reach the object store at this URL."""
    access_key, secret_key = LOCAL_KEYS
    return Settings(
        s3_bucket=LOCAL_BUCKET,
        s3_endpoint=endpoint,
        s3_access_key=access_key,
        s3_secret_key=secret_key,
        claim_threshold=_THRESHOLD,
    )


def payload_environment(endpoint: str) -> dict[str, str]:
    """The same for a worker's environment."""
    chosen = payload_settings(endpoint).model_dump(exclude_unset=True)
    return {f"STEADFAUST_{name.upper()}": str(value) for name, value in chosen.items()}
