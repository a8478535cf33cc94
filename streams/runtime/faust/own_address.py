"""At which address of this machine other workers reach this one."""

from __future__ import annotations

import socket

from streams.brokers import FIND, Brokers, Peers
from streams.errors import SettingsError
from streams.runtime.faust.slots import LOOPBACK as LOOPBACK
from streams.web.base.loopback import is_loopback


def reached_at(peers: Peers, brokers: Brokers) -> str:
    """The name or address that a worker tells the others; loopback's unless a setting says otherwise.

    Raises SettingsError when it is to be found and no way leads to any broker, or it is none of this machine.
    """
    if not peers.host:
        return LOOPBACK
    if peers.host == FIND:
        return _towards(brokers)
    if why := _unreachable(peers.host):
        raise SettingsError(
            f"STEADFAUST_WEB_HOST is {peers.host}, where this machine cannot be reached ({why}): give a name"
            f" or an address of its own, or {FIND}"
        )
    return peers.host


def _unreachable(host: str) -> str:
    """Why a name or an address is not one to reach this machine at; empty when it is."""
    try:
        for family, *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family) as probe:
                probe.bind(address)
            if is_loopback(str(address[0])) and not is_loopback(host):  # as Debian has it in /etc/hosts
                return f"it leads to {address[0]}"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _towards(brokers: Brokers) -> str:
    """The address of the interface from which packets to a broker leave. None is sent."""
    reasons = []
    for broker in brokers.addresses.split(","):
        host, _, port = broker.strip().rpartition(":")
        try:
            for family, kind, *_, address in socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_DGRAM
            ):
                with socket.socket(family, kind) as probe:
                    probe.connect(address)
                    return str(probe.getsockname()[0])
        except (OSError, ValueError) as error:
            reasons.append(f"{broker}: {error}")
    raise SettingsError(
        f"STEADFAUST_WEB_HOST is {FIND}, and no way leads to a broker ({'; '.join(reasons)}): give an address"
    )


def url_of(host: str, port: int) -> str:
    """The address of a worker's pages."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
