"""Slots: each worker of a machine takes the lowest free number, by a file lock that dies with the process.

The slot gives the worker its static member id, its directory and its port (docs/adr/0003).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import structlog

from streams.brokers import FIND, Brokers, Peers
from streams.errors import SettingsError, SteadfaustError
from streams.system.listening import bind
from streams.system.loopback import is_loopback

log = structlog.get_logger(__name__)

LOOPBACK = "127.0.0.1"
MOST = 1024
#: The files of a directory's identity, and of the inode and the birth that the first has.
PLACE, INODE, BORN = "place", "place.inode", "place.born"
#: statx(2), which Python does not have: its answer begins with a mask of what it has; the birth is at 80.
_AT_FDCWD, _STATX_BTIME, _STATX_SIZE = -100, 0x800, 256
_STATX = struct.Struct("=I76xqI")
#: Ports by chance of which one is free at two addresses.
_TRIES = 20
#: Seconds that a worker waits for a way to a broker: while brokers start again, containers have no names.
PATIENCE = 300.0
#: Seconds between attempts, and between lines that say that it waits.
_LOOK_AGAIN, _SAY_AGAIN = 0.5, 10.0


class Slot:
    """A slot held by this process until it ends or `release` is called.

    Attributes:
        place: tells the directory of slots from any other, on whatever machine.
    """

    def __init__(self, number: int, directory: Path, lock: IO[str], place: str) -> None:
        self.number = number
        self.place = place
        self.directory = directory
        self._lock = lock

    def announce(self, url: str) -> None:
        """Write down where the worker's pages are, for commands that look for one. Nobody sees a part."""
        made = self.directory / "url.new"
        made.write_text(url)
        made.replace(self.directory / "url")

    def renew(self) -> None:
        """Give the directory another identity from the next start of a worker on."""
        for name in (PLACE, INODE, BORN):
            (self.directory.parent / name).unlink(missing_ok=True)

    def release(self) -> None:
        """Let another worker take it."""
        self._lock.close()


def take_slot(root: Path) -> Slot:
    """Take the lowest free slot under `root`. Raises SteadfaustError when none of them is free."""
    root.mkdir(parents=True, exist_ok=True)
    with _looking(root, fcntl.LOCK_EX):  # a reader's look must not make a free slot seem taken
        return _lowest_free(root)


def _lowest_free(root: Path) -> Slot:
    for number in range(MOST):
        directory = root / f"slot-{number}"
        directory.mkdir(exist_ok=True)
        lock = (directory / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return Slot(number, directory, lock, _place(root))
    raise SteadfaustError(
        f"all {MOST} slots under {root} are taken: stop workers, or use another var directory"
    )


def _place(root: Path) -> str:
    """The identity of a directory, made by chance once: names of hosts, and ids of machines, are alike where
    these are copies of one image. A copy of the directory gets one of its own: beside the file are its inode
    and its birth, neither of which a copy of it has. One of them is enough: overlay file systems, which
    containers have, may give a file another inode each time they are mounted. The caller holds the lock on
    the directory.

    `place` has the identity alone, for versions that know no inode read all of it, and `place.inode` the
    inode alone.
    """
    file, beside, birth = root / PLACE, root / INODE, root / BORN
    place, _, more = _text(file).partition(" ")
    inode, born = _text(beside), _text(birth)
    if more:  # the inode, as it was written here for some days
        _write(file, place)
    is_known = bool(inode or born)
    if place and is_known and inode != str(file.stat().st_ino) and born != born_at(file):
        log.warning("identity_renewed", directory=str(root), why="it is a copy of another directory")
        place = ""
    if not place:
        for each in (beside, birth):
            each.unlink(
                missing_ok=True
            )  # first: they are of the file before, and not to be compared with this
        place = secrets.token_hex(8)
        _write(file, place)
    for each, now in ((beside, str(file.stat().st_ino)), (birth, born_at(file))):
        if _text(each) != now:
            _write(each, now)
    return place


def born_at(file: Path) -> str:
    """When a file was made, in nanoseconds since the epoch; where its file system does not tell, when it was
    changed last. No copy has it: neither `cp -a` nor an archive can set it.
    """
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    try:
        failed: int = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(file), 0, _STATX_BTIME, answer)
    except AttributeError:  # a C library without it
        failed = -1
    mask, seconds, nanoseconds = _STATX.unpack_from(answer)
    if failed or not mask & _STATX_BTIME:
        return str(file.stat().st_ctime_ns)
    return f"{seconds}{nanoseconds:09}"


def _text(file: Path) -> str:
    """The text of a file; empty where there is none."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _write(file: Path, text: str) -> None:
    made = file.with_name(f"{file.name}.new")
    made.write_text(text)
    made.rename(file)  # whole, or not there


def addresses(root: Path) -> list[str]:
    """Where the pages of the workers are that hold a slot under `root` now, by slot."""
    slots = sorted(root.glob("slot-*"), key=lambda path: int(path.name.removeprefix("slot-")))
    if not slots:
        return []
    with _looking(root, fcntl.LOCK_SH):
        files = [directory / "url" for directory in slots if _is_held(directory / "lock")]
    return [file.read_text().strip() for file in files if file.exists()]


@contextmanager
def _looking(root: Path, how: int) -> Iterator[None]:
    """While slots are looked at, which takes their locks for a moment, none is taken, and the reverse."""
    with (root / "lock").open("a") as file:
        fcntl.flock(file, how)
        yield


def _is_held(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def take_port(preferred: int, host: str = LOOPBACK) -> list[socket.socket]:
    """Bind the preferred port when it is free on loopback and at `host`, else any free one; 0 prefers none.

    The sockets, one for each address, keep the port until the server listens on them, a minute later on a
    busy machine: only then are requests accepted. Raises SteadfaustError.
    """
    # While connections of an ended worker linger, its port can be bound only with `reuse`. A program that
    # also sets it may still take the port first.
    for port, reuse in ((preferred, False), (preferred, True), *[(0, False)] * _TRIES):
        with ExitStack() as closing:
            try:
                sockets = bind(LOOPBACK, port, reuse=reuse)[:1]
                closing.callback(sockets[0].close)
                if host != LOOPBACK:
                    sockets += bind(host, sockets[0].getsockname()[1], reuse=reuse)
            except OSError:
                continue
            closing.pop_all()
            return sockets
    raise SteadfaustError(f"no port is free on {LOOPBACK} and {host}: close something that listens there")


def reached_at(peers: Peers, brokers: Brokers, patience: float = PATIENCE) -> str:
    """The name or address that a worker tells the others; loopback's unless a setting says otherwise.

    Where it is to be found, it waits up to `patience` seconds for a broker that can be found itself. Raises
    SettingsError when none is, or a given host is none of this machine.
    """
    if not peers.host:
        return LOOPBACK
    if peers.host == FIND:
        return _towards(brokers, patience)
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


def _towards(brokers: Brokers, patience: float) -> str:
    """The address of the interface from which packets to a broker leave. None is sent."""
    addresses = [_host_and_port(each.strip()) for each in brokers.addresses.split(",")]
    began = say_at = time.monotonic()
    while True:
        reasons = []
        for host, port in addresses:
            try:
                return _local_address(host, port)
            except OSError as error:
                reasons.append(f"{host}:{port}: {error}")
        now, why = time.monotonic(), "; ".join(reasons)
        if now >= began + patience:
            raise SettingsError(
                f"STEADFAUST_WEB_HOST is {FIND}, and no way leads to a broker ({why}), for {patience:g} s:"
                " give an address, or brokers that can be found"
            )
        if now >= say_at:
            log.warning("waits_for_a_way_to_brokers", why=why, gives_up_after=patience)
            say_at = now + _SAY_AGAIN
        time.sleep(_LOOK_AGAIN)


def _host_and_port(broker: str) -> tuple[str, int]:
    host, _, port = broker.rpartition(":")
    if not port.isdecimal():
        raise SettingsError(f"STEADFAUST_BOOTSTRAP has {broker!r}: expected host:port")
    return host.strip("[]"), int(port)


def _local_address(host: str, port: int) -> str:
    """Raises OSError when the name is unknown, or no interface leads to its addresses."""
    problem = OSError("it has no address")
    for family, kind, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            problem = error
    raise problem


def url_of(host: str, port: int) -> str:
    """The address of a worker's pages."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
