"""Objects in S3, or in what answers as S3 does. Only this package knows boto3."""

from streams.s3.blobs import S3Blobs, S3Options, blobs_of, claim_checks

__all__ = ["S3Blobs", "S3Options", "blobs_of", "claim_checks"]
