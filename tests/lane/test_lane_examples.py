"""The example of retries and a dead letter, on a lane."""

from types import SimpleNamespace

from lane_checker import dead_letters
from lane_scenes import post, rows_of
from lane_worlds import FakeWorld

from examples.retries_and_dead_letter import LABELS, ParcelReady, ParcelService, wiring


async def test_parcels_are_labelled_later_or_become_a_dead_letter(fake: FakeWorld) -> None:
    parcels = ParcelService()
    await fake.start(SimpleNamespace(wiring=wiring, resources={"parcels": parcels}))
    cities = {"p-1": "Oslo", "p-2": "Atlantis", "p-3": "Rome"}
    await fake.post(*(post(fake, ParcelReady(parcel=each, city=city)) for each, city in cities.items()))
    lane = await fake.open()
    await fake.until(lambda: parcels.calls == {"p-1": 3, "p-2": 1, "p-3": 3})
    await fake.until(lambda: not lane.lane.backlog)
    (letter,) = await dead_letters(fake, ParcelReady.TOPIC)
    assert letter.key == b"p-2"
    assert b"no delivery to Atlantis" in dict(letter.headers)["dlq-error-message"]
    numbers = {key: row.number for key, row in (await rows_of(fake, LABELS)).items()}
    assert numbers == {"p-1": "Oslo-p-1", "p-3": "Rome-p-3"}
