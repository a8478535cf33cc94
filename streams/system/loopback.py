"""Addresses of this machine and of others: the pages have no login for people, so they are for this one."""

from __future__ import annotations

from ipaddress import ip_address

from yarl import URL


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address can only mean this machine."""
    if not host:
        return False
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(host_header: str | None) -> bool:
    """Whether a Host header names this machine. Any other name may be a web site's that was made to resolve
    to this machine (DNS rebinding), so that its scripts can read what is served here.
    """
    try:
        return is_loopback(URL(f"http://{host_header}").host)
    except ValueError:
        return False


def peer_origin(url: str, own: str) -> str | None:
    """The origin of another worker, as the one at `own` can reach it; None where it cannot: loopback leads
    nowhere but to one's own machine, and a worker that listens there alone has no token for others.
    """
    try:
        parsed, here = URL(url), URL(own)
        if parsed.scheme == "http" and parsed.host and is_loopback(parsed.host) is is_loopback(here.host):
            return str(parsed.origin())
    except ValueError:
        pass
    return None


def loopback_origin(url: str) -> str | None:
    """The origin of an http address on this machine; None for any other address."""
    try:
        parsed = URL(url)
        if parsed.scheme == "http" and is_loopback(parsed.host):
            return str(parsed.origin())
    except ValueError:
        pass
    return None
