"""Objects in S3, or in what answers as S3 does. Only this package knows boto3."""

from streams.s3.blobs import S3Blobs
from streams.s3.checks import blobs_of, claim_checks
from streams.s3.options import S3Options

__all__ = ["S3Blobs", "S3Options", "blobs_of", "claim_checks"]
