"""Requests under way in threads, each of which can be ended from outside.

A timeout of boto3 bounds the wait for the next bytes, so a store that sends one byte each second keeps a
thread for as long as it likes. Closing the connection of the request ends its thread at once, wherever it
stands: in the headers of an answer, in a body, or while it sends one.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

T = TypeVar("T")


class TransferEnded(Exception):
    """Nobody waits for this request any more."""


class Transfer:
    """One request in its thread."""

    def __init__(self) -> None:
        self.is_ended = False
        self._connection: Any = None

    def end(self) -> None:
        """End the request: its thread gets an error from its connection, now or when it has one."""
        self.is_ended = True
        sock = getattr(self._connection, "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):  # it may have been closed meanwhile
                # Not that of an SSL socket, which takes away what the other thread reads from.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def uses(self, connection: Any) -> None:
        """The request goes by this connection. Raises TransferEnded."""
        self._connection = connection
        if self.is_ended:
            raise TransferEnded

    def run(self, request: Callable[[], T]) -> T:
        """Make the request in this thread: connections that are used meanwhile belong to it."""
        _here.transfer = self
        try:
            return request()
        finally:
            _here.transfer = None
            self._connection = None  # another request may have it from now on


class _Here(threading.local):
    transfer: Transfer | None = None


_here = _Here()


class _Watched:
    """Mixed into a connection: tells the request of its thread when it is used."""

    def connect(self) -> None:
        """Connect."""
        self._tell()
        super().connect()  # type: ignore[misc]  # of urllib3's connection, into which this is mixed
        self._tell()

    def request(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request."""
        self._tell()
        return super().request(*args, **kwargs)  # type: ignore[misc]  # as above

    def _tell(self) -> None:
        if _here.transfer is not None:
            _here.transfer.uses(self)


# boto3 has no types.
class _Connection(_Watched, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _SecureConnection(_Watched, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _Pool(AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Connection


class _SecurePool(AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _SecureConnection


def watch(client: Any) -> None:
    """Let requests of a boto3 client be ended by their `Transfer`, those by a proxy, too."""
    client._endpoint.http_session._pool_classes_by_scheme.update(http=_Pool, https=_SecurePool)
