"""Whatever is announced when, among failures, crashes and fences: what waits for a schema is handled once, in
order, as if it could have been read from the start.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from test_lane_properties import KEYS
from test_lane_retry_properties import AsyncRetryingLanes, FinerRetryingLanes, RetryingLanes

from streams.errors import UnknownSchema
from streams.model.codecs import JsonCodec
from tests.effort import examples

SOONER_OR_LATER = [b"%016x" % number for number in (1, 2)]
AT_THE_END = b"%016x" % 3


def codecs_of(known: set[bytes]) -> Any:
    """JSON that can be read once its schema is among the known ones."""

    class Announced(JsonCodec[Any]):
        def __init__(self, kind: type[Any], subject: str) -> None:
            del subject
            super().__init__(kind)
            self._read = self.decode
            self.decode = self._read_known  # type: ignore[method-assign]

        def require(self, fingerprint: bytes | None) -> None:
            if fingerprint not in (None, self.fingerprint, *known):
                raise UnknownSchema((fingerprint or b"").decode())

        def _read_known(self, data: bytes, fingerprint: bytes | None) -> Any:
            self.require(fingerprint)
            return self._read(data, fingerprint)

    return Announced


def machine(base: Any) -> Any:
    """Such lanes, to which clients write with schemas that are announced at some time, or at the end."""

    class Lanes(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.known: set[bytes] = set()
            self.lane_options = {**base.lane_options, "codecs": codecs_of(self.known)}

        @rule(keys=st.lists(KEYS, min_size=1, max_size=6), schema=st.sampled_from(SOONER_OR_LATER))
        def produce_what_cannot_be_read_yet(self, keys: list[str], schema: bytes) -> None:
            self.run(self._produce(keys, schema))

        async def _produce(self, keys: list[str], schema: bytes) -> None:
            for key in keys:
                post = self.world.event(self.work, key, len(self.posts))
                headers = [header for header in post.headers if header[0] != "schema-fingerprint"]
                post = post._replace(headers=[*headers, ("schema-fingerprint", schema)])
                self.posts[dict(headers)["ce_id"].decode()] = post
                await self.world.post(post)

        @rule(schema=st.sampled_from(SOONER_OR_LATER))
        def announce(self, schema: bytes) -> None:
            self.known.add(schema)

        async def until_done(self) -> None:
            await self._produce(list("abcdefg"), AT_THE_END)
            await self.world.settled(self.work.source)  # all of it waits, or stands behind what does
            self.known.update((*SOONER_OR_LATER, AT_THE_END))
            await super().until_done()

    Lanes.TestCase.settings = settings(
        max_examples=examples(40),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return Lanes.TestCase


TestLanes = machine(RetryingLanes)
TestAsyncLanes = machine(AsyncRetryingLanes)
TestFinerLanes = machine(FinerRetryingLanes)
