"""How many wrong tokens a client may show: a limit that comes before the comparison with the right one.

Each client has a limit of its own, so that a stranger locks out no other client. A client is an address, an
operator's browser that has logged in before, or those of viewers at one address: they stay free where a
stranger shares it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from ipaddress import IPv6Address, ip_address

from streams.http.limits import TokenBuckets
from streams.web.base.view import Problem

#: Wrong tokens of one client at once, and seconds until it may try one more.
AT_ONCE = 10
EVERY = 6.0
#: The part of an IPv6 address that a customer of a provider does not choose.
_NETWORK_BITS = 64


class LoginThrottle:
    """Counts wrong tokens by client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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
    """What is counted as one client: an address, or the network of an IPv6 one."""
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
