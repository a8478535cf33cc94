"""Who may ask a worker, and who may change something: this machine, other machines by a token, people by a
login or by the word of a reverse proxy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from streams.control.base.sessions import (
    KNOWN_LASTS,
    LASTS,
    SESSION,
    LoginSession,
    browser_of,
    known_browser,
    new_session,
    opened,
    role_said,
    sealed,
)
from streams.control.base.view import Problem
from streams.host.ended_sessions import EndedSessions
from streams.system.loopback import is_loopback, names_loopback

#: For supervisors and load balancers, which have no token.
OPEN = frozenset({"/health/live", "/health/ready"})
LOGIN, LOGOUT, _FILES = "/login", "/logout", "/static/"
_SCHEME = "Bearer "
#: Wrong tokens of one client at once, and seconds until it may try one more.
AT_ONCE = 10
EVERY = 6.0
#: The part of an IPv6 address that a customer of a provider does not choose.
_NETWORK_BITS = 64


class LoginThrottle:
    """Counts wrong tokens by client, before a token is compared with the right one.

    Each client has a limit of its own, so that a stranger locks out no other client. A client is an address,
    an operator's browser that has logged in before, or those of viewers at one address: they stay free where
    a stranger shares it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        from streams.http.limits import TokenBuckets  # with Litestar, which commands and clients do without

        self._left = TokenBuckets(1 / EVERY, AT_ONCE, clock)

    def check(self, client: str) -> None:
        """Raise Problem 429 for a client that has shown too many wrong tokens; nothing is compared then."""
        if wait := self._left.wait(client):
            raise Problem(
                429,
                "too_many_tries",
                f"too many wrong tokens came from here: wait {math.ceil(wait)} s, then show the right one",
                headers={"Retry-After": str(math.ceil(wait))},
            )

    def wrong(self, client: str) -> None:
        """Count a wrong token."""
        self._left.take(client)


class Role(StrEnum):
    """The role of a visitor: viewers look, operators change."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. The name is what a proxy says, and empty otherwise; the session is of a login."""

    role: Role
    name: str = ""
    session: LoginSession | None = None

    @property
    def operates(self) -> bool:
        """Whether it may change something."""
        return self.role is Role.OPERATOR

    def require_operator(self) -> None:
        """Raises Problem 403 for a visitor who may only look."""
        if not self.operates:
            raise Problem(
                403, "read_only", "you may look, and change nothing: that takes the operators' token"
            )


class Incoming(NamedTuple):
    """A request as it comes.

    Attributes:
        address: the socket's that took the request: a client that reaches loopback is on this machine.
        client: the asker's.
    """

    address: str | None
    client: str
    path: str
    headers: Mapping[str, str]
    cookies: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Access:
    """Access check. Without a token, requests of this machine alone are answered.

    Attributes:
        token: of operators, and of the workers themselves.
        viewer_token: of those who may only look.
        login: this machine has to log in, too.
        user_header: the header in which a proxy names the user; only `proxies` (addresses) are believed.
        operators: of these names; `*` for all. The others may look.
        ended: sessions that are over before their time.
        tries: wrong tokens, by client.
    """

    token: str = field(default="", repr=False)
    viewer_token: str = field(default="", repr=False)
    login: bool = False
    user_header: str = ""
    proxies: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    now: Callable[[], float] = time.time
    ended: EndedSessions = field(default_factory=EndedSessions, repr=False)
    tries: LoginThrottle = field(default_factory=LoginThrottle, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """With what this worker asks others."""
        return {"Authorization": f"{_SCHEME}{self.token}"} if self.token else {}

    def visitor(self, incoming: Incoming) -> Visitor:
        """Who it is. Raises Problem 401 or 403 for what is not to be answered."""
        if (by_proxy := self._by_proxy(incoming)) is not None:
            return by_proxy
        is_here = incoming.address is None or is_loopback(incoming.address)
        # The socket cannot be reached from elsewhere; a web site's name that was made to lead here can.
        if is_here and not names_loopback(incoming.headers.get("Host")):
            raise Problem(403, "foreign_host", "these pages are served to this machine by its own names only")
        if is_here and not self.login:
            return Visitor(Role.OPERATOR)
        path = incoming.path
        if path in OPEN or path == LOGIN or path.startswith(_FILES):
            return Visitor(Role.VIEWER)
        if session := self._by_session(incoming.cookies.get(SESSION, "")):
            return session
        return self._by_token(incoming.headers.get("Authorization", ""), self.client(incoming))

    def client(self, incoming: Incoming) -> str:
        """The address that a request comes from, also by a proxy that is believed."""
        return client_of(incoming.client, incoming.headers.get("X-Forwarded-For", ""), self.proxies)

    def role_of(self, token: str, client: str) -> Role | None:
        """The role that a token gives; None for a wrong one. Raises Problem 429 for too many of these,
        without a look at the token.
        """
        self.tries.check(client)
        # Compared in a time that does not tell how much of it is right.
        shown, found = token.encode("utf-8", "surrogateescape"), None
        for known, role in ((self.viewer_token, Role.VIEWER), (self.token, Role.OPERATOR)):
            if known and compare_digest(shown, known.encode()):
                found = role
        if found is None:
            self.tries.wrong(client)
        return found

    def log_in(self, token: str, client: str, browser: str) -> tuple[str, str] | None:
        """The session that a token gives, and what its browser shows when it logs in again; None for a
        wrong token. Raises Problem 429.

        Args:
            browser: what it shows now, if it has logged in before.
        """
        known = browser_of(self.token, browser, self.now()) if browser else None
        counted = network_of(client)
        if known is not None:
            # A viewer could make any number of browsers known: they have one limit together.
            # Who has the operators' token has nothing to guess.
            counted = f"{known.ident if known.role == Role.OPERATOR else counted} {known.role}"
        role = self.role_of(token, counted)
        if role is None:
            return None
        session = new_session(role.value, self.now() + LASTS)
        again = browser
        if known is None or (role is Role.OPERATOR and known.role != role):
            again = known_browser(self.token, role.value, self.now() + KNOWN_LASTS)
        return sealed(self._key(role.value), session), again

    def _key(self, role: str) -> str:
        """The key that signs sessions of a role: they are over when one of the tokens is another one."""
        return f"{self.token}\0{self.viewer_token if role == Role.VIEWER else ''}"

    def _by_proxy(self, incoming: Incoming) -> Visitor | None:
        name = incoming.headers.get(self.user_header, "") if self.user_header else ""
        if not name or incoming.client not in self.proxies:
            return None
        operates = name in self.operators or "*" in self.operators
        return Visitor(Role.OPERATOR if operates else Role.VIEWER, name)

    def _by_session(self, shown: str) -> Visitor | None:
        session = opened(self._key(role_said(shown)), shown, self.now()) if shown and self.token else None
        if session is None or session.ident in self.ended:
            return None
        if not self.ended.is_complete:
            raise Problem(503, "not_now", "the worker is starting: it does not know yet who has logged out")
        return Visitor(Role(session.role), session=session)

    def _by_token(self, shown: str, client: str) -> Visitor:
        # Another scheme is for another program, such as a proxy before this worker: it is no attempt.
        bearer = shown.removeprefix(_SCHEME) if shown.startswith(_SCHEME) else ""
        role = self.role_of(bearer, network_of(client)) if bearer else None
        if role is None:
            raise Problem(
                401,
                "wrong_token" if shown else "no_token",
                f"the token is {'another one' if shown else 'missing'}: people log in with it, programs send"
                " `Authorization: Bearer TOKEN`, with the STEADFAUST_WEB_TOKEN of the workers",
            )
        return Visitor(role)


def client_of(peer: str, forwarded: str, proxies: Collection[str]) -> str:
    """The address that a request comes from: the last one in `X-Forwarded-For` that is none of our proxies,
    where one of them has sent the request. Others may write there what they like.
    """
    for each in (peer, *reversed(forwarded.split(","))):
        address = each.strip()
        if address not in proxies:
            return address if _is_address(address) else peer
    return peer


def network_of(client: str) -> str:
    """The client of a limit: an address, or the network of an IPv6 one."""
    try:
        address = ip_address(client)
    except ValueError:
        return client
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS))
    return client


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
