"""Slots: each worker of a machine takes the lowest free number, with a file lock that ends with the process.

The slot decides the worker's static member id, directory and port (docs/adr/0003).
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
#: Names of the files with a directory's identity, and with the inode and the creation time of the first file.
PLACE, INODE, BORN = "place", "place.inode", "place.born"
#: For statx(2), which Python lacks. Its answer begins with a mask of the fields that are set; the creation
#: time is at byte 80.
_AT_FDCWD, _STATX_BTIME, _STATX_SIZE = -100, 0x800, 256
_STATX = struct.Struct("=I76xqI")
#: Attempts to find a port that is free at both addresses.
_TRIES = 20
#: Seconds that a worker waits for a route to a broker. While brokers restart, names of containers may not
#: resolve.
PATIENCE = 300.0
#: Seconds between attempts, and between log lines about the wait.
_LOOK_AGAIN, _SAY_AGAIN = 0.5, 10.0


class Slot:
    """A slot held by this process until it ends or `release` is called.

    Attributes:
        place: identity of the directory of slots, unique on all machines.
    """

    def __init__(self, number: int, directory: Path, lock: IO[str], place: str) -> None:
        self.number = number
        self.place = place
        self.directory = directory
        self._lock = lock

    def announce(self, url: str) -> None:
        """Write the address of the worker's pages to a file, for commands that look for a worker. Readers
        never see a part of it.
        """
        made = self.directory / "url.new"
        made.write_text(url)
        made.replace(self.directory / "url")

    def renew(self) -> None:
        """Remove the directory's identity. The next start of a worker makes a new one."""
        for name in (PLACE, INODE, BORN):
            (self.directory.parent / name).unlink(missing_ok=True)

    def release(self) -> None:
        """Let another worker take the slot."""
        self._lock.close()


def take_slot(root: Path) -> Slot:
    """Take the lowest free slot under `root`. Raises SteadfaustError if none is free."""
    root.mkdir(parents=True, exist_ok=True)
    with _looking(root, fcntl.LOCK_EX):  # a reader's check must not make a free slot seem taken
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
    """The identity of a directory, a random text that is made once. Host names and machine ids do not serve,
    because machines from one image may share them. The caller holds the lock on the directory.

    A copy of the directory gets an identity of its own. Two more files have the inode and the creation time
    of the identity file, and a copy of that has neither. One match proves the original, because overlay file
    systems of containers may change inodes at each mount.

    `place` has only the identity, because earlier versions read the whole file. `place.inode` has only the
    inode.
    """
    file, beside, birth = root / PLACE, root / INODE, root / BORN
    place, _, more = _text(file).partition(" ")
    inode, born = _text(beside), _text(birth)
    if more:  # the inode, which an earlier version wrote here
        _write(file, place)
    is_known = bool(inode or born)
    if place and is_known and inode != str(file.stat().st_ino) and born != born_at(file):
        log.warning("identity_renewed", directory=str(root), why="it is a copy of another directory")
        place = ""
    if not place:
        for each in (beside, birth):
            # First, because they belong to the former file and must not be compared with the new one.
            each.unlink(missing_ok=True)
        place = secrets.token_hex(8)
        _write(file, place)
    for each, now in ((beside, str(file.stat().st_ino)), (birth, born_at(file))):
        if _text(each) != now:
            _write(each, now)
    return place


def born_at(file: Path) -> str:
    """When a file was created, in nanoseconds since the epoch; its ctime if the file system does not tell.
    A copy has another value, because neither `cp -a` nor an archive can set it.
    """
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    try:
        failed: int = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(file), 0, _STATX_BTIME, answer)
    except AttributeError:  # the C library lacks statx
        failed = -1
    mask, seconds, nanoseconds = _STATX.unpack_from(answer)
    if failed or not mask & _STATX_BTIME:
        return str(file.stat().st_ctime_ns)
    return f"{seconds}{nanoseconds:09}"


def _text(file: Path) -> str:
    """The text of a file; empty if it does not exist."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _write(file: Path, text: str) -> None:
    made = file.with_name(f"{file.name}.new")
    made.write_text(text)
    made.rename(file)  # so that readers see all of it or none


def addresses(root: Path) -> list[str]:
    """Addresses of the pages of all workers that hold a slot under `root` now, in order of slots."""
    slots = sorted(root.glob("slot-*"), key=lambda path: int(path.name.removeprefix("slot-")))
    if not slots:
        return []
    with _looking(root, fcntl.LOCK_SH):
        files = [directory / "url" for directory in slots if _is_held(directory / "lock")]
    return [file.read_text().strip() for file in files if file.exists()]


@contextmanager
def _looking(root: Path, how: int) -> Iterator[None]:
    """Lock the directory. A check of slots holds their locks for a moment, so no slot is taken meanwhile."""
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
    """Bind the preferred port if it is free on loopback and at `host`, else any free one; 0 prefers none.

    Returns a socket for each address. They reserve the port until the server listens on them, which may be a
    minute later on a busy machine. Only then are requests accepted. Raises SteadfaustError.
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
    """The name or address that a worker gives to the others; loopback's unless a setting says otherwise.

    If the setting is FIND, waits up to `patience` seconds for a route to a broker. Raises SettingsError if
    there is none, or if a given host does not lead to this machine.
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
    """Why this machine cannot be reached at a name or an address; empty if it can."""
    try:
        for family, *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family) as probe:
                probe.bind(address)
            if is_loopback(str(address[0])) and not is_loopback(host):  # as in /etc/hosts of Debian
                return f"it leads to {address[0]}"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _towards(brokers: Brokers, patience: float) -> str:
    """The address of the interface through which packets to a broker would leave. Sends none."""
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
    """Raises OSError if the name is unknown, or no interface leads to its addresses."""
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
