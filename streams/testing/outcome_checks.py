"""Checks a handler's outcome with the lane's own code, for runs without lanes."""

from __future__ import annotations

from typing import Any

from streams.engine.staging.area import StagingArea
from streams.engine.staging.arrival import Counters, Fresh
from streams.engine.staging.changes import Writes
from streams.engine.staging.entry import Entry
from streams.engine.staging.outcomes import Outcomes
from streams.engine.staging.refusals import Refusals
from streams.errors import Unencodable, WiringError
from streams.model.application import Application, LaneOptions
from streams.model.choreography import AnyHandler, Choreography
from streams.model.codecs import Codec, json_without_schema
from streams.model.envelope import Envelope
from streams.model.layout import Layout
from streams.model.message import Message
from streams.testing.store import MemoryStores
from streams.units import DAY

#: Size limit of messages in bytes: never reached, as the real one depends on settings and the object store.
_ANY_SIZE = 1 << 30


class OutcomeChecks:
    """Stages outcomes as a lane does, then drops them."""

    def __init__(self, choreography: Choreography) -> None:
        needed = {name: None for handler in choreography.handlers() for name in handler.resources}
        self._app = Application(
            Layout("run", 1, 1),
            choreography,
            _codec,
            resources=needed,
            lane_options=LaneOptions(max_message_bytes=_ANY_SIZE),
        )
        store = MemoryStores().open(0)
        self._staging = StagingArea(self._app, store, Writes(DAY), Counters(), Refusals())
        self._outcomes = Outcomes(self._staging)

    def check(self, outcome: object, handler: AnyHandler, message: Message, envelope: Envelope) -> None:
        """Raises Unencodable for a refused outcome, and WiringError for an undeclared row or message."""
        route, entry = self._app.routes[message.TOPIC], Entry(0, None, 0, 0, message.key.encode())
        arrival = Fresh(entry, route, envelope.record, envelope, message)
        mark = self._staging.begin_trial(entry)
        try:
            self._outcomes.stage(arrival, self._app.handlers[handler.name], outcome, None, 0.0, ())
        except Unencodable as error:
            raise error.__cause__ if isinstance(error.__cause__, WiringError) else error from None
        finally:
            self._staging.take_back(entry, mark)
            self._staging.end_trial()


class _Unchecked:
    """Codec of a class that JSON cannot represent. Values are not checked."""

    content_type, fingerprint, schema = "", b"0" * 16, ""

    def encode(self, value: Any) -> bytes:
        del value
        return b""

    def decode(self, data: bytes, fingerprint: bytes | None) -> Any:
        raise NotImplementedError

    def require(self, fingerprint: bytes | None) -> None:
        del fingerprint


def _codec(kind: type[Any], subject: str) -> Codec[Any]:
    try:
        return json_without_schema(kind, subject)
    except (TypeError, WiringError):
        return _Unchecked()
