"""How Kafka's requests are written and its answers read: the classic form, and the flexible one of newer
versions (KIP-482), whose lengths are short and whose structures end in tagged fields.

aiokafka describes each message as a schema that it walks; a transaction of 25 partitions has some 300 fields,
and walking them took as long as all the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestStruct, ResponseHeader_v0, ResponseHeader_v1

from streams.kafka.records.writing import unsigned_varint

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


@dataclass(frozen=True)
class WireFormat:
    """One of the two forms.

    Attributes:
        flexible: whether it is the newer one.
        tags: what a structure ends in: no tagged fields.
    """

    flexible: bool
    tags: bytes

    def count(self, number: int) -> bytes:
        """The length of an array, or of bytes."""
        return unsigned_varint(number + 1) if self.flexible else _INT32.pack(number)

    def string(self, text: str) -> bytes:
        """A text with its length."""
        data = text.encode()
        return (unsigned_varint(len(data) + 1) if self.flexible else _INT16.pack(len(data))) + data


CLASSIC = WireFormat(flexible=False, tags=b"")
FLEXIBLE = WireFormat(flexible=True, tags=b"\0")


class ResponseReader:
    """The body of an answer, read from its beginning to its end."""

    __slots__ = ("_at", "_data", "is_flexible", "throttle_ms")

    def __init__(self, data: bytes, form: WireFormat) -> None:
        self._data = data
        self._at = 0
        self.is_flexible = form.flexible
        #: For how long the broker reads the connection no further, by its quotas.
        self.throttle_ms = 0

    def throttle(self) -> None:
        """The field that says for how long the client is held back."""
        (self.throttle_ms,) = self.take(_INT32)

    def take(self, fields: struct.Struct) -> tuple[Any, ...]:
        """Fields of fixed size. Raises struct.error when the answer has ended."""
        found = fields.unpack_from(self._data, self._at)
        self._at += fields.size
        return found

    def count(self) -> int:
        """The length of an array; negative when it is absent."""
        return self.varint() - 1 if self.is_flexible else int(self.take(_INT32)[0])

    def string(self) -> str:
        """A text; empty when it is absent."""
        length = self.varint() - 1 if self.is_flexible else int(self.take(_INT16)[0])
        return self.bytes(length).decode() if length > 0 else ""

    def tags(self) -> list[tuple[int, bytes]]:
        """The tagged fields that a structure of the flexible form ends in: numbers with what they hold."""
        if not self.is_flexible:
            return []
        return [(self.varint(), self.bytes(self.varint())) for _ in range(self.varint())]

    def bytes(self, length: int) -> bytes:
        """So many bytes. Raises ValueError when the answer has ended."""
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise ValueError(f"an answer ends {length - len(found)} bytes early")
        self._at += length
        return found

    def varint(self) -> int:
        """An unsigned number of one to five bytes. Raises IndexError when the answer has ended."""
        found = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7


class VersionedRequest:
    """A request in one version, with what reads its answer: what a connection of aiokafka sends.

    It replaces aiokafka's request, the structure made of it, and the class of the answer.
    `old_header` is for the one kind whose answer has the classic header in each version.
    """

    build_request_header = RequestStruct.build_request_header

    def __init__(
        self,
        api: tuple[int, int],
        form: WireFormat,
        parts: Sequence[bytes | bytearray],
        read: Callable[[ResponseReader], Any],
        *,
        old_header: bool = False,
    ) -> None:
        self.API_KEY, self.API_VERSION = api
        self.FLEXIBLE_VERSION = form.flexible
        self._form = form
        self._parts = parts
        self._read = read
        #: Of the answer, once it is decoded.
        self.throttle_ms = 0
        self._header = ResponseHeader_v1 if form.flexible and not old_header else ResponseHeader_v0

    @property
    def RESPONSE_TYPE(self) -> VersionedRequest:  # noqa: N802 - aiokafka's name
        """In the place of the class of the answer. No attribute: a call that refers to itself, and with it
        all that a transaction has written, would stay in memory until the garbage collector comes.
        """
        return self

    def parse_response_header(self, data: BytesIO) -> Any:
        """Header before the body of the answer."""
        return self._header.decode(data)

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> VersionedRequest:
        """The request for a broker that speaks these versions. Raises IncompatibleBrokerVersion."""
        lowest, highest = versions.get(self.API_KEY, (0, -1))
        if not lowest <= self.API_VERSION <= highest:
            raise IncompatibleBrokerVersion(
                f"the broker speaks versions {lowest} to {highest} of request {self.API_KEY},"
                f" not {self.API_VERSION}"
            )
        return self

    def encode(self) -> bytes:
        """The body."""
        return b"".join(self._parts)

    def decode(self, data: BytesIO) -> Any:
        """The decoded answer."""
        answer = ResponseReader(data.read(), self._form)
        found = self._read(answer)
        self.throttle_ms = answer.throttle_ms
        return found
