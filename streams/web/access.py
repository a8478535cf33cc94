"""Who may ask a worker: this machine by its own names, other machines by the token of the application."""

from __future__ import annotations

from dataclasses import dataclass, field
from hmac import compare_digest

from aiohttp import web

from streams.web.loopback import is_loopback, names_loopback
from streams.web.view import Problem

#: For supervisors and load balancers, which have no token.
OPEN = frozenset({"/health/live", "/health/ready"})
_SCHEME = "Bearer "


@dataclass(frozen=True, slots=True)
class Access:
    """What is asked of whoever asks. Without a token nobody is answered but this machine."""

    token: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """With what this worker asks others."""
        return {"Authorization": f"{_SCHEME}{self.token}"} if self.token else {}

    def check(self, request: web.Request) -> None:
        """Raise Problem 401 or 403 for what is not to be answered."""
        address = request.transport.get_extra_info("sockname") if request.transport is not None else None
        if address is None or is_loopback(address[0]):
            # The socket cannot be reached from elsewhere; a web site's name that was made to lead here can.
            if not names_loopback(request.headers.get("Host")):
                raise Problem(
                    403, "foreign_host", "these pages are served to this machine by its own names only"
                )
        elif request.path not in OPEN:
            self._check_token(request.headers.get("Authorization", ""))

    def _check_token(self, shown: str) -> None:
        # Compared in a time that does not tell how much of it is right.
        known = f"{_SCHEME}{self.token}".encode()
        if not self.token or not compare_digest(shown.encode("utf-8", "surrogateescape"), known):
            raise Problem(
                401,
                "wrong_token" if shown else "no_token",
                f"the token is {'another one' if shown else 'missing'}: whoever asks from another machine"
                " sends `Authorization: Bearer TOKEN`, with the STEADFAUST_WEB_TOKEN of its workers",
            )
