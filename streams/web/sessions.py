"""What a browser shows after a login: a role and until when, signed with the token of all workers."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from hashlib import sha256
from hmac import compare_digest, digest

#: The cookie.
SESSION = "steadfaust_session"
#: Seconds that a login lasts.
LASTS = 12 * 3600.0
_PURPOSE = b"session of the web view\0"


def sealed(token: str, role: str, until: float) -> str:
    """A session as text. It ends when the token is another one, too."""
    said = f"{role}:{int(until)}".encode()
    return f"{urlsafe_b64encode(said).decode()}.{_signature(token, said)}"


def opened(token: str, text: str, now: float) -> str:
    """The role of a session; empty for one that is over, or that nobody with the token has made."""
    said_as_text, _, signature = text.partition(".")
    try:
        said = urlsafe_b64decode(said_as_text.encode())
    except (Error, ValueError):
        return ""
    if not token or not compare_digest(
        signature.encode("utf-8", "replace"), _signature(token, said).encode()
    ):
        return ""
    role, _, until = said.decode().partition(":")
    return role if now < float(until) else ""


def _signature(token: str, said: bytes) -> str:
    key = sha256(_PURPOSE + token.encode()).digest()
    return urlsafe_b64encode(digest(key, said, "sha256")).decode()
