"""Turn records into messages, whose payloads may travel by reference.

A payload is fetched before a handler runs, and written before its outcome is staged. Handlers do not see the
difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, NamedTuple

from streams.engine.staging.arrival import Arrival
from streams.engine.staging.changes import Change, Pair
from streams.errors import BlobsUnavailable, KeyMismatch, MissingHeader, TooLarge, ends_process, shown
from streams.model.bound import BoundRoute
from streams.model.claim import DATAREF, PREFIX, BadReference, Claim, claim_in
from streams.model.claim_checks import ClaimChecks
from streams.model.envelope import Envelope
from streams.model.layout import CLAIMS
from streams.model.message import Message
from streams.model.row_keys import MAX_KEY_BYTES
from streams.ports import TP, Record, Sendable


class NeedsUpload(Exception):
    """An outcome cannot be staged at once, because a payload of `size` bytes must be written first."""

    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(f"a payload of {size} bytes is to be checked in")


class Upload(NamedTuple):
    """A payload to write, and when it is needed, in epoch seconds: for a timer, when that is due."""

    claim: Claim
    data: bytes
    needed: float


#: For messages without a payload in the object store.
NO_ROOM_NEEDED: Final = nullcontext()
#: Payloads to write before an outcome is staged; None if the attempt cannot write any.
Uploads = tuple[Upload, ...] | None


class Prepared(NamedTuple):
    """An outcome, encoded and checked, which may be staged once its payloads are written."""

    changes: list[Change]
    ids: list[Pair]
    sends: list[tuple[TP, Sendable]]
    uploads: tuple[Upload, ...]


class Payloads:
    """The claim checks of a lane. Without them, a payload that comes by reference cannot be fetched."""

    def __init__(self, claims: ClaimChecks | None) -> None:
        self._claims = claims

    def room(self, arrival: Arrival) -> AbstractAsyncContextManager[object]:
        """A context that reserves memory for a payload: the message's, or the one that its handler sends."""
        if self._claims is None or (arrival.message is not None and not arrival.attempt.upload):
            return NO_ROOM_NEEDED
        claim = None if arrival.attempt.upload else claim_in(arrival.envelope.headers)
        return self._claims.held.of(arrival.attempt.upload if claim is None else claim.size)

    async def fetch(self, arrival: Arrival) -> None:
        """Give a message its payload.

        Raises BadReference, BlobMissing, BlobAltered, Undecodable or KeyMismatch, which are permanent, or
        BlobsUnavailable.
        """
        claim = claim_in(arrival.envelope.headers)
        if self._claims is None:
            where = claim.reference if claim else "an object"
            raise BlobsUnavailable(
                f"the payload is {where}, and this worker has no object store: set STEADFAUST_S3_BUCKET"
            )
        data = await self._claims.check_out(arrival.envelope.headers)
        message = arrival.route.codec.decode(data, arrival.envelope.fingerprint)
        if arrival.route.outside:
            require_key(message, arrival.record.key)
        arrival.message = message

    async def write(self, uploads: Sequence[Upload]) -> None:
        """Write the payloads of an outcome. Raises BlobsUnavailable."""
        assert self._claims is not None
        await self._claims.check_in_all([(upload.claim, upload.data) for upload in uploads])


def refers(route: BoundRoute | None, record: Record) -> bool:
    """Whether a record's payload travels by reference. In a source, that header may mean anything."""
    if record.value or (route is not None and route.source is not None):
        return False
    return dict(record.headers).get(DATAREF) is not None


def require_reference(route: BoundRoute, envelope: Envelope) -> None:
    """Check what can be checked without the payload. Raises BadReference, Undecodable or UnknownSchema."""
    claim_in(envelope.headers)
    route.codec.require(envelope.fingerprint)


def require_key(message: Message, key: bytes | None) -> None:
    """Raises KeyMismatch if the message's own key differs from the key of its record."""
    try:
        own = message.key.encode()
    except BaseException as error:
        if ends_process(error):
            raise
        raise KeyMismatch(f"its key cannot be read: {shown(error)}") from error
    if own != key:
        raise KeyMismatch(f"it is about {own!r}, its key is {key!r}")


def reference(name: str, needed: float) -> Change:
    """The row of an object. Its retention begins when it is `needed`, in epoch seconds."""
    return Change(CLAIMS, name.encode(), int(needed * 1000).to_bytes(8, "big"))


def reference_in(headers: Mapping[str, bytes], bucket: str, now: float) -> Change | None:
    """The row for the object that headers refer to; None if there is none in `bucket` for us to keep."""
    try:
        claim = claim_in(headers)
    except BadReference:
        return None
    if claim is None or claim.bucket != bucket or not claim.name.startswith(PREFIX):
        return None
    return reference(claim.name, now)


def identified_anew(route: BoundRoute, record: Record, handler: str) -> Record:
    """The record of a dead letter. Where the handler of the source had not seen it, its id is read by the
    function of today. Raises PermanentError.
    """
    if route.source is None or handler == route.source.handler.name:
        return record
    return route.source.identified(route.source.as_it_came(record))


def checked(route: BoundRoute, record: Record) -> Envelope:
    """The envelope of a record that has an id, a key and a value, none too long. Records of a source need no
    key and no value. Raises PermanentError.
    """
    envelope = route.envelope(record)
    key = record.key
    if route.source is None and (key is None or record.value is None):
        missing = "key" if key is None else "value"
        raise MissingHeader(f"{record.topic} offset {record.offset} has no {missing}")
    if key is not None and len(key) > MAX_KEY_BYTES:
        raise TooLarge(f"its key has {len(key)} bytes, the limit is {MAX_KEY_BYTES}")
    return envelope


def decoded(route: BoundRoute, record: Record, envelope: Envelope) -> Any:
    """The message of a record that was checked. Raises PermanentError, or UnknownSchema."""
    if route.source is not None:
        return route.source.message(record=route.source.seen(record))
    message = route.codec.decode(record.value or b"", envelope.fingerprint)
    if route.outside:
        require_key(message, record.key)
    return message


def unpacked(route: BoundRoute, record: Record, envelope: Envelope) -> Any:
    """The message of a record that was checked. None: its payload must be fetched, and all that can be
    checked before that is valid. Raises PermanentError, or UnknownSchema.
    """
    if refers(route, record):
        require_reference(route, envelope)
        return None
    return decoded(route, record, envelope)
