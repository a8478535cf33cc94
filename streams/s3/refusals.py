"""What S3 refuses, by its error codes, and what an operator can do about it."""

from __future__ import annotations

from typing import Any, Final

_EXPIRED: Final = (
    "the credentials have expired: give new ones (AWS_SESSION_TOKEN, the file or the role), and restart"
)
_KEYS: Final = (
    "the store does not know the access key, or the secret does not fit it: set"
    " STEADFAUST_S3_ACCESS_KEY and STEADFAUST_S3_SECRET_KEY, or what boto3 finds, and restart"
)
_DENIED: Final = (
    "the credentials lack a right: grant s3:GetObject, s3:PutObject and s3:ListBucket on the bucket, and the"
    " KMS key's kms:Decrypt and kms:GenerateDataKey. Without s3:ListBucket a missing object is refused, too"
)
_REGION: Final = "the bucket is in another region: set STEADFAUST_S3_REGION or STEADFAUST_S3_ENDPOINT"
_BUCKET: Final = "the bucket is not there: make it, or set STEADFAUST_S3_BUCKET"
_KMS: Final = "the KMS key of the bucket or object cannot be used: enable it, or cancel its deletion"
_CLOCK: Final = "this machine's clock and the store's differ by more than 15 minutes: set the clock"
_HEAD: Final = "the credentials, their rights or the clock are wrong: the answer to HEAD does not say which"

ADVICE: Final[dict[str, str]] = {
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "InvalidToken": _EXPIRED,
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "InvalidClientTokenId": _KEYS,
    "UnrecognizedClientException": _KEYS,
    "NoCredentialsError": _KEYS,
    "PartialCredentialsError": _KEYS,
    "CredentialRetrievalError": _KEYS,
    "AccessDenied": _DENIED,
    "AccessDeniedException": _DENIED,
    "AllAccessDisabled": _DENIED,
    "AccountProblem": _DENIED,
    "NotSignedUp": _DENIED,
    "401": _HEAD,
    "403": _HEAD,
    "400": _HEAD,
    "RequestTimeTooSkewed": _CLOCK,
    "NoSuchBucket": _BUCKET,
    "InvalidBucketName": _BUCKET,
    "PermanentRedirect": _REGION,
    "TemporaryRedirect": _REGION,
    "Redirect": _REGION,
    "301": _REGION,
    "307": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "IncorrectEndpoint": _REGION,
    "SSLError": "the store's certificate is not trusted: give its authority by AWS_CA_BUNDLE",
    "QuotaExceeded": "the store is full: make room, or raise the quota",
    "XMinioStorageFull": "the store is full: make room",
    "InsufficientStorage": "the store is full: make room",
}
#: Codes of an object that has to be restored before it can be read.
ARCHIVED: Final = frozenset(("InvalidObjectState",))


def code_of(error: Exception) -> str:
    """The code of a refusal, or of what boto3 has found by itself; a status where an answer has no body."""
    return str(_answer(error).get("Code") or type(error).__name__)


def _answer(error: Exception) -> dict[str, Any]:
    found: dict[str, Any] = (getattr(error, "response", None) or {}).get("Error", {})
    return found


def told(error: Exception, *, shortly: bool = False) -> str:
    """A refusal in words: its code, what the store says, and what to do, where that is known. `shortly`:
    without what the store says, which may name an object.
    """
    code = code_of(error)
    said = _answer(error).get("Message") or str(error)
    text = code if shortly else f"{code}: {said}"
    advice = _KMS if code.startswith(("KMS.", "Kms", "KMS")) else ADVICE.get(code, "")
    return f"{text.rstrip('.')}; {advice}" if advice else text
