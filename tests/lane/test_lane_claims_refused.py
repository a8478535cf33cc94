"""An object store that refuses: what waits for it is named in health, and goes on when it takes it again."""

from typing import Any

import pytest
from lane_parcels import THRESHOLD
from lane_worlds import FakeWorld, Running
from test_lane_desk_claims import begun, given_up, replayed

from streams.control.overview.health import unavailable_payloads
from streams.model.policy.retry import RetryPolicy

pytestmark = pytest.mark.promise("object-store-refusals")

LARGE = 2 * THRESHOLD
RETRY = RetryPolicy(immediate=1, delays=(30.0, 60.0))


def warnings(lane: Running) -> list[str]:
    return unavailable_payloads(lane.lane.gates.values())


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied", "NoSuchBucket"])
async def test_health_names_a_refusal_while_messages_wait(fake: FakeWorld, code: str) -> None:
    parcels = await begun(fake, retry=RETRY, outage_patience=3600.0)
    for key in "ab":
        await parcels.post(key, 0, LARGE)
    parcels.blobs.refuses = code
    lane, began = await fake.open(), fake.clock.now()
    await fake.until(lambda: warnings(lane) and "2 messages" in warnings(lane)[0])
    assert fake.clock.now() - began < 60.0
    (warning,) = warnings(lane)
    assert warning.startswith(
        "2 messages wait for the object store (bench.keep): cannot read an object in bucket"
    )
    assert warning.endswith(f": {code}")
    parcels.blobs.refuses = ""
    await fake.until(lambda: len(parcels.work.hooks.calls) == 2)
    assert warnings(lane) == []
    await parcels.finish(lane)


async def test_a_payload_not_written_is_not_named_as_unread(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=RETRY, outage_patience=3600.0)
    parcels.work.hooks.passed = lambda event: "x" * LARGE
    await parcels.post("a", 0)
    parcels.blobs.refuses = "AccessDenied"
    lane = await fake.open()
    await fake.until(lambda: warnings(lane))
    assert "cannot write an object in bucket event-payloads: AccessDenied" in warnings(lane)[0]
    parcels.blobs.refuses = ""
    await fake.until(lambda: not warnings(lane))


async def test_a_message_given_up_leaves_no_warning(fake: FakeWorld) -> None:
    parcels = await begun(fake, retry=RetryPolicy(immediate=0, delays=(1.0,)))
    await parcels.post("a", 0, LARGE)
    parcels.blobs.refuses = "AccessDenied"
    lane, _ = await given_up(parcels)
    assert warnings(lane) == []


async def test_an_archived_payload_is_a_letter_that_replays(fake: FakeWorld) -> None:
    parcels: Any = await begun(fake, retry=RETRY)
    await parcels.post("a", 0, LARGE)
    (name,) = parcels.blobs.names
    parcels.blobs.archive(name)
    lane, ident = await given_up(parcels)
    assert warnings(lane) == []
    parcels.blobs.archive(name, restored=True)
    await replayed(parcels, lane, ident)
    assert parcels.work.hooks.calls == [("a", 0)]
