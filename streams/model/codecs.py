"""Bytes to values and back. Avro with the writer's schema found by fingerprint; JSON where that is enough.

Parsed schemas are kept: parsing is the slow part of fastavro.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from hashlib import blake2b
from io import BytesIO
from typing import Any, Generic, Protocol, TypeVar

import fastavro
import msgspec

from streams.errors import NewerSchema, Undecodable, Unencodable, WiringError, ends_process, shown
from streams.model.announced import Schemas as Schemas
from streams.model.announced import fingerprint_of as fingerprint_of
from streams.model.avro_ranges import Ranges
from streams.model.avro_types import NoAvro, derived_schema
from streams.model.byte_kinds import JSON, is_json, is_other, look_of
from streams.model.plain_avro import plain_avro
from streams.model.read_back import require_defaults, require_same, why_not
from streams.model.schema_changes import differences
from streams.model.schema_versions import schema_for
from streams.model.sure_fields import SureFields

T = TypeVar("T", bound=msgspec.Struct)

#: Size in bytes of the prefix of a stored row: the fingerprint of its writer's schema, in binary.
FINGERPRINT_SIZE = 8
#: Errors that msgspec raises for bytes that are not JSON, do not fit the type, or are nested too deeply.
NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: Keeps bytes as they are for Avro; msgspec would encode them in base64.
_BYTES = (bytes,)
_FINGERPRINT = re.compile(rb"[0-9a-f]{16}")
#: The fingerprint of messages and rows that are JSON.
_OF_JSON = b"0" * 16
#: Stands for the writer's schema of values that are JSON.
_JSON = object()


class Codec(Protocol[T]):
    """Encodes values of one type, as bytes of a media type. `fingerprint` names the schema it writes, 16
    hexadecimal digits.
    """

    content_type: str
    fingerprint: bytes
    schema: str

    def encode(self, value: T) -> bytes:
        """The value's bytes, without the fingerprint. Raises Unencodable."""

    def decode(self, data: bytes, fingerprint: bytes | None) -> T:
        """The value. Raises Undecodable, or UnknownSchema when the writer's schema is not known yet."""

    def require(self, fingerprint: bytes | None) -> None:
        """The error that `decode` would raise for this fingerprint; None: it would not."""


class AvroCodec(Generic[T]):
    """Avro by fastavro's schemaless form. What older and newer writers wrote is resolved to our schema.

    What is JSON by its fingerprint is read as that: services that publish by SQL alone write it.
    """

    content_type = "application/avro"

    def __init__(self, kind: type[T], schema: str, schemas: Schemas, subject: str = "") -> None:
        """`subject` is the topic or table of the values."""
        self.schema = schema
        self._subject = subject
        self.fingerprint = schemas.add(schema).encode()
        self._kind = kind
        self._schemas = schemas
        self._parsed = fastavro.parse_schema(json.loads(schema))
        self._ranges = Ranges(self._parsed)
        #: Reader and writer for our own schema; None if fastavro has to read and write.
        self._plain = plain_avro(kind, self._parsed)
        self._is_sure = self._plain is not None and self._plain.sure
        # One parsed schema per writer is enough, because fastavro keeps no state between calls.
        self._writers: dict[bytes, tuple[Any, Ranges]] = {
            self.fingerprint: (None, self._ranges),
            _OF_JSON: (_JSON, self._ranges),
        }

    def encode(self, value: T) -> bytes:
        """Raises Unencodable if the value does not fit its own schema, or would not read back as the same."""
        try:
            data = None if self._plain is None else self._plain.write(value)
            if data is None or not self._is_sure:
                data = self._write(value) if data is None else data
                back = self.decode(data, None)
                if back != value:
                    require_same(value, back)
        except BaseException as error:  # a bad value can raise any error
            if ends_process(error):
                raise
            why = why_not(value, error)
            raise Unencodable(f"{type(value).__name__} does not fit its schema: {why}") from error
        return data

    def _write(self, value: T) -> bytes:
        out, plain = BytesIO(), msgspec.to_builtins(value, builtin_types=_BYTES)
        # Write a tuple as an array, not as a pair of a type name and a value.
        fastavro.schemaless_writer(out, self._parsed, plain, disable_tuple_notation=True)
        return out.getvalue()

    def _read_plain(self, data: bytes) -> T | None:
        """A value of our own schema, or None if fastavro has to read it."""
        return None if self._plain is None else self._plain.read(data)

    def decode(self, data: bytes, fingerprint: bytes | None) -> T:
        """Without a fingerprint, the bytes are read with our own schema."""
        known = self._writers.get(fingerprint or self.fingerprint)
        writer, ranges = known or self._writer(fingerprint or self.fingerprint)
        if writer is _JSON:
            return self._decode_json(data)
        try:
            if writer is None and (plain := self._read_plain(data)) is not None:
                return plain
            source = BytesIO(data)
            if writer is None:
                fields = fastavro.schemaless_reader(source, self._parsed, None)
            else:
                fields = fastavro.schemaless_reader(source, writer, self._parsed)
            ranges.check(data)
            value = msgspec.convert(fields, self._kind)
        except BaseException as error:  # damaged bytes can raise any error
            if ends_process(error):
                raise
            why = shown(error)
            theirs = (fingerprint or b"").decode()
            if writer is not None and self._is_version(theirs, writer) and _is_of(writer, data):
                raise self._of_another_version(theirs, why) from error
            if isinstance(error, msgspec.ValidationError) and not is_other(data):
                raise Undecodable(f"{self._kind.__name__}: {why}") from error  # Avro with other values
            raise Undecodable(self._why_not(data, why)) from error
        if source.tell() != len(data):
            raise Undecodable(self._why_not(data, f"{len(data) - source.tell()} bytes too many at the end"))
        return value

    def _decode_json(self, data: bytes) -> T:
        try:
            value: T = _json_of(self._kind).decode(data, None)
        except Undecodable as error:
            own = self.fingerprint.decode()
            raise _or_newer(error, data, self._kind, self._schemas, self._subject, own) from error
        try:
            self.encode(value)  # a value that Avro cannot hold could not be written into a row
        except Unencodable as error:
            raise Undecodable(f"{self._kind.__name__}: it is JSON by its fingerprint: {error}") from error
        return value

    def _why_not(self, data: bytes, why: str) -> str:
        return f"{self._kind.__name__}: it {look_of(data)}; it cannot be read by its Avro schema ({why})"

    def _is_version(self, theirs: str, writer: Any) -> bool:
        """Whether a schema is a version of the same class, rather than of another topic's class."""
        if self._schemas.knows_version(self._subject, theirs):
            return True
        return isinstance(writer, dict) and writer.get("name") == self._parsed.get("name")

    def _of_another_version(self, theirs: str, why: str) -> Undecodable | NewerSchema:
        """The error for an intact value of another version of the class that does not fit this one."""
        ours = self.fingerprint.decode()
        changes = "; ".join(differences(self.schema, self._schemas.get(theirs)))
        age = self._schemas.compare(theirs, ours)
        version = "a newer" if age > 0 else "an earlier" if age < 0 else "another"
        text = (
            f"{self._kind.__name__}: {version} version of the application wrote it, with schema {theirs}, in"
            f" which {changes}. This version has schema {ours} and cannot read it ({why})"
        )
        return NewerSchema(theirs, text) if age > 0 else Undecodable(text)

    def require(self, fingerprint: bytes | None) -> None:
        """Raises Undecodable or UnknownSchema."""
        self._writer(fingerprint or self.fingerprint)

    def _writer(self, fingerprint: bytes) -> tuple[Any, Ranges]:
        if fingerprint not in self._writers:
            if not _FINGERPRINT.fullmatch(fingerprint):  # it can never be announced: do not wait
                raise Undecodable(f"{self._kind.__name__}: {fingerprint!r} is not a schema fingerprint")
            text = self._schemas.get(fingerprint.decode())
            try:
                parsed = fastavro.parse_schema(json.loads(text))
                self._writers[fingerprint] = parsed, Ranges(parsed)
            except Exception as error:  # recursion: the stack is deeper here than when the schema was added
                raise Undecodable(
                    f"{self._kind.__name__}: schema {fingerprint.decode()} cannot be used: {error!r}"
                ) from error
        return self._writers[fingerprint]


class JsonCodec(Generic[T]):
    """JSON by msgspec, checked against the type. There is no writer's schema, so a value that does
    not fit raises NewerSchema if a newer version of the class is announced (`follow`).
    """

    content_type = "application/json"
    schema = ""
    fingerprint = _OF_JSON

    def __init__(self, kind: type[T]) -> None:
        """Raises WiringError if JSON cannot represent a default of the class."""
        require_defaults(kind)
        self._kind = kind
        self._sure = SureFields(kind)
        self._schemas, self._subject, self._version = Schemas(), "", ""
        self._encode: Callable[[T], bytes] = msgspec.json.Encoder().encode
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode

    def encode(self, value: T) -> bytes:
        """Raises Unencodable if JSON cannot represent the value, or it does not read back as the same."""
        try:
            data = self._encode(value)
            if not self._sure.has(value):
                back = self._decode(data)
                if back != value:
                    require_same(value, back)
        except BaseException as error:  # as above
            if ends_process(error):
                raise
            raise Unencodable(f"{type(value).__name__} cannot be JSON: {why_not(value, error)}") from error
        return data

    def follow(self, schemas: Schemas, subject: str, version: str) -> None:
        """Use the announcements for a topic or table to recognize newer versions. `version` is the
        fingerprint of this version of its class.
        """
        self._schemas, self._subject, self._version = schemas, subject, version

    def decode(self, data: bytes, fingerprint: bytes | None) -> T:  # noqa: ARG002 - JSON needs none
        """Raises Undecodable, or NewerSchema if a newer version of the class may be able to read the data."""
        try:
            return self._decode(data)
        except NO_JSON as error:
            if isinstance(error, msgspec.ValidationError) or (look := look_of(data)) == JSON:
                why = Undecodable(f"{self._kind.__name__}: {error}")
                raise _or_newer(why, data, self._kind, self._schemas, self._subject, self._version) from error
            raise Undecodable(f"{self._kind.__name__}: it {look}; it is not JSON ({error})") from error
        except BaseException as error:  # what the class raises
            if ends_process(error):
                raise
            raise Undecodable(f"{self._kind.__name__}: {shown(error)}") from error

    def require(self, fingerprint: bytes | None) -> None:
        """Does nothing: JSON needs no writer's schema."""


def _is_of(writer: Any, data: bytes) -> bool:
    """Whether bytes are a value of the schema that their fingerprint names."""
    source = BytesIO(data)
    try:
        fastavro.schemaless_reader(source, writer, None)
    except Exception:  # noqa: BLE001 - fastavro raises whatever damaged bytes lead it into
        return False
    return source.tell() == len(data)


def _or_newer(
    error: Undecodable, data: bytes, kind: type[Any], schemas: Schemas, subject: str, version: str
) -> Undecodable | NewerSchema:
    """The error for JSON that does not fit a class: NewerSchema if a newer version is announced, since JSON
    does not say which version wrote it; `error` otherwise.
    """
    newer = schemas.newer_version(subject, version)
    if not newer or not is_json(data):
        return error
    return NewerSchema(
        newer,
        f"{kind.__name__}: this version of the application cannot read it ({error}), and a newer one is"
        f" announced for {subject}: version {newer}; this is version {version}",
    )


#: Makes the codec of a message or row class. The second argument is its topic's or table's name.
MakeCodec = Callable[[type[Any], str], Codec[Any]]


def avro(frozen: Callable[[str], str], schemas: Schemas) -> MakeCodec:
    """Make Avro codecs from the frozen schema of each topic and table, or from the schema derived from the
    class if `frozen` raises LookupError.

    Making a codec raises ClassAndSchemaDiffer when class and frozen schema have different fields, and NoAvro.
    """
    return lambda kind, subject: AvroCodec(kind, schema_for(kind, subject, frozen), schemas, subject)


def version_of(kind: type[Any], codec: Codec[Any]) -> tuple[str, str] | None:
    """Fingerprint and schema of the class version that a codec writes; None if the codec is not ours."""
    if isinstance(codec, AvroCodec):
        return codec.fingerprint.decode(), codec.schema
    if not isinstance(codec, JsonCodec):
        return None
    try:
        text = derived_schema(kind)
    except NoAvro:
        text = json.dumps(msgspec.json.schema(kind), sort_keys=True)
        return blake2b(text.encode(), digest_size=FINGERPRINT_SIZE).hexdigest(), text
    return fingerprint_of(text), text


def json_without_schema(kind: type[Any], subject: str) -> Codec[Any]:
    """A JSON codec for a class, without a schema, such as for `Outbox(json_without_schema, ...)`."""
    del subject
    return JsonCodec(kind)


def check_types(kind: type[Any]) -> None:
    """Raises WiringError if JSON cannot represent a field of the class."""
    try:
        for other in _custom_types(msgspec.inspect.type_info(kind), set()):
            raise WiringError(
                f"{kind.__name__} cannot be JSON: {other.__name__} in it is not a type of JSON; use str,"
                " int, float, bytes, a tuple, a dict or a Struct"
            )
    except TypeError as error:
        raise WiringError(f"{kind.__name__} cannot be JSON: {error}") from error


def _custom_types(info: Any, seen: set[Any]) -> Iterator[type[Any]]:
    if isinstance(info, msgspec.inspect.CustomType):
        if info.cls is not object:
            yield info.cls
    elif isinstance(info, tuple | list):
        for part in info:
            yield from _custom_types(part, seen)
    elif isinstance(info, msgspec.Struct) and not isinstance(info, msgspec.inspect.Metadata):
        of = getattr(info, "cls", None)
        if of is None or of not in seen:
            seen.add(of)
            for name in info.__struct_fields__:
                yield from _custom_types(getattr(info, name), seen)


def row_prefix(codec: Codec[Any]) -> bytes:
    """What a stored row begins with: the fingerprint of its writer's schema (docs/adr/0005)."""
    return bytes.fromhex(codec.fingerprint.decode())


@lru_cache(maxsize=1024)  # bounded, because damaged rows can begin with anything
def _named(stored: bytes) -> bytes:
    return stored.hex().encode()


def encode_row(codec: Codec[Any], row: Any) -> bytes:
    """A row's stored form. Raises Unencodable."""
    return row_prefix(codec) + codec.encode(row)


def decode_row(codec: Codec[Any], data: bytes) -> Any:
    """The row that `encode_row` made. Raises Undecodable or UnknownSchema."""
    return codec.decode(data[FINGERPRINT_SIZE:], _named(data[:FINGERPRINT_SIZE]))


@cache
def _json_of(kind: type[Any]) -> JsonCodec[Any]:
    return JsonCodec(kind)


def encode_json(value: msgspec.Struct) -> bytes:
    """Encode a nested value as JSON. Raises Unencodable if it does not read back as the same."""
    return _json_of(type(value)).encode(value)


def describe(value: Any) -> Mapping[str, Any]:
    """A decoded value as plain data, for pages and logs."""
    plain: Mapping[str, Any] = msgspec.to_builtins(value)
    return plain
