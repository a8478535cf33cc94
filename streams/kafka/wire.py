"""Encodes Kafka's requests and decodes its answers, in the classic format and in the flexible format of newer
versions (KIP-482), which has varint lengths and a list of tagged fields at the end of each structure.

aiokafka walks a schema for each message. A transaction of 25 partitions has some 300 fields, and walking them
took as long as everything else.
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
    """One of the two formats.

    Attributes:
        flexible: whether it is the newer one.
        tags: the bytes of an empty list of tagged fields, which end a structure.
    """

    flexible: bool
    tags: bytes

    def count(self, number: int) -> bytes:
        """The encoded length of an array or of bytes."""
        return unsigned_varint(number + 1) if self.flexible else _INT32.pack(number)

    def string(self, text: str) -> bytes:
        """The encoded length and bytes of a text."""
        data = text.encode()
        return (unsigned_varint(len(data) + 1) if self.flexible else _INT16.pack(len(data))) + data


CLASSIC = WireFormat(flexible=False, tags=b"")
FLEXIBLE = WireFormat(flexible=True, tags=b"\0")


class ResponseReader:
    """Reads the body of an answer from beginning to end."""

    __slots__ = ("_at", "_data", "is_flexible", "throttle_ms")

    def __init__(self, data: bytes, form: WireFormat) -> None:
        self._data = data
        self._at = 0
        self.is_flexible = form.flexible
        #: How long the broker will not read the connection because of a quota, in milliseconds.
        self.throttle_ms = 0

    def throttle(self) -> None:
        """Read the throttle time into `throttle_ms`."""
        (self.throttle_ms,) = self.take(_INT32)

    def take(self, fields: struct.Struct) -> tuple[Any, ...]:
        """Read fields of fixed size. Raises struct.error if the answer is too short."""
        found = fields.unpack_from(self._data, self._at)
        self._at += fields.size
        return found

    def count(self) -> int:
        """Read the length of an array; negative if the array is null."""
        return self.varint() - 1 if self.is_flexible else int(self.take(_INT32)[0])

    def string(self) -> str:
        """Read a text; empty if it is null."""
        length = self.varint() - 1 if self.is_flexible else int(self.take(_INT16)[0])
        return self.bytes(length).decode() if length > 0 else ""

    def tags(self) -> list[tuple[int, bytes]]:
        """Read the tagged fields at the end of a structure: tags and values. The classic format has none."""
        if not self.is_flexible:
            return []
        return [(self.varint(), self.bytes(self.varint())) for _ in range(self.varint())]

    def bytes(self, length: int) -> bytes:
        """Read `length` bytes. Raises ValueError if the answer is too short."""
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise ValueError(f"an answer ends {length - len(found)} bytes early")
        self._at += length
        return found

    def varint(self) -> int:
        """Read an unsigned varint. Raises IndexError if the answer is too short."""
        found = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7


class VersionedRequest:
    """A request in one version, and the function that decodes its answer. An aiokafka connection can send it.

    It replaces three of aiokafka's classes: the request, the request structure and the response.
    `old_header` is for ApiVersions, whose answer has the classic header in every version.
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
        #: Throttle time in the answer, in milliseconds; 0 until it is decoded.
        self.throttle_ms = 0
        self._header = ResponseHeader_v1 if form.flexible and not old_header else ResponseHeader_v0

    @property
    def RESPONSE_TYPE(self) -> VersionedRequest:  # noqa: N802 - aiokafka's name
        """This object, in place of a response class. It is a property because an attribute would be a
        reference cycle, which keeps a transaction's bytes in memory until the garbage collector runs.
        """
        return self

    def parse_response_header(self, data: BytesIO) -> Any:
        """Decode the header of the answer."""
        return self._header.decode(data)

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> VersionedRequest:
        """This request, if a broker with these versions supports it. Raises IncompatibleBrokerVersion."""
        lowest, highest = versions.get(self.API_KEY, (0, -1))
        if not lowest <= self.API_VERSION <= highest:
            raise IncompatibleBrokerVersion(
                f"the broker speaks versions {lowest} to {highest} of request {self.API_KEY},"
                f" not {self.API_VERSION}"
            )
        return self

    def encode(self) -> bytes:
        """The bytes of the request's body."""
        return b"".join(self._parts)

    def decode(self, data: BytesIO) -> Any:
        """The decoded answer."""
        answer = ResponseReader(data.read(), self._form)
        found = self._read(answer)
        self.throttle_ms = answer.throttle_ms
        return found
