"""Sessions of browsers after a login: an id, a role and until when, signed with the workers' tokens.

A session that was ended before its time is refused by every worker: they tell each other (ADR 36).
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from hashlib import sha256
from hmac import compare_digest, digest
from typing import NamedTuple

#: The cookie.
SESSION = "steadfaust_session"
#: Seconds that a login lasts.
LASTS = 12 * 3600.0
#: The cookie of a browser that has logged in before, and the seconds that it lasts.
KNOWN = "steadfaust_known"
KNOWN_LASTS = 30 * 86400.0
_SESSIONS, _BROWSERS = b"session of the web view\0", b"browser of the web view\0"


class LoginSession(NamedTuple):
    """A login: its id, the role that it gives, and when it ends, in epoch seconds."""

    ident: str
    role: str
    until: float


def new_session(role: str, until: float) -> LoginSession:
    """A session of a login that has just been."""
    return LoginSession(secrets.token_urlsafe(12), role, float(int(until)))


def sealed(key: str, session: LoginSession) -> str:
    """A session as text. It is over when the key is another one, too."""
    return _sealed(_SESSIONS, key, _text(session))


def opened(key: str, text: str, now: float) -> LoginSession | None:
    """A session; None for one that is over, or that was not sealed with the key."""
    return _session(_opened(_SESSIONS, key, text), now)


def role_said(text: str) -> str:
    """The role that a session claims: it says with which key it is to be opened, and nothing more."""
    try:
        return urlsafe_b64decode(text.partition(".")[0].encode()).decode().split(":")[1]
    except (Error, ValueError, IndexError):
        return ""


def known_browser(key: str, role: str, until: float) -> str:
    """The mark of a browser that has logged in with a role before."""
    return _sealed(_BROWSERS, key, _text(new_session(role, until)))


def browser_of(key: str, text: str, now: float) -> LoginSession | None:
    """A browser that has logged in before: its id, and with which role; None for any other."""
    return _session(_opened(_BROWSERS, key, text), now)


def _text(session: LoginSession) -> str:
    return f"{session.ident}:{session.role}:{int(session.until)}"


def _session(text: str, now: float) -> LoginSession | None:
    ident, _, rest = text.partition(":")
    role, _, until = rest.partition(":")
    return LoginSession(ident, role, float(until)) if until and now < float(until) else None


def _sealed(purpose: bytes, key: str, content: str) -> str:
    return f"{urlsafe_b64encode(content.encode()).decode()}.{_signature(purpose, key, content.encode())}"


def _opened(purpose: bytes, key: str, text: str) -> str:
    """The content that was sealed with the key; empty for another text."""
    encoded, _, signature = text.partition(".")
    try:
        content = urlsafe_b64decode(encoded.encode())
    except (Error, ValueError):
        return ""
    right = _signature(purpose, key, content).encode()
    return content.decode() if key and compare_digest(signature.encode("utf-8", "replace"), right) else ""


def _signature(purpose: bytes, key: str, content: bytes) -> str:
    return urlsafe_b64encode(digest(sha256(purpose + key.encode()).digest(), content, "sha256")).decode()
