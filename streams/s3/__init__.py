"""Objects in S3, or in what answers as S3 does. Only this package knows boto3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streams.s3.checks import blobs_of, claim_checks

if TYPE_CHECKING:
    from streams.s3.blobs import S3Blobs, S3Options
else:

    def __getattr__(name: str) -> Any:
        """Import boto3 when a bucket is used: a worker without one does without. Raises MissingExtra."""
        if name in __all__:
            from streams.s3 import blobs

            return getattr(blobs, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["S3Blobs", "S3Options", "blobs_of", "claim_checks"]
