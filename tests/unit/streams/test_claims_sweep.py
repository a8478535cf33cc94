from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import BlobsUnavailable
from streams.model.claim import object_name
from streams.ports import Blob
from streams.s3.sweep import NameFilter, ObjectTotals, Sweepable, SweepReport, judge, sweep
from streams.testing.blobs import MemoryBlobs

pytestmark = pytest.mark.promise("object-cleanup")

NOW, GRACE = 1_000_000.0, 3600.0
OLD, YOUNG = NOW - GRACE - 1, NOW - GRACE


def name(number: int) -> str:
    return object_name("orders.order.placed.v1", f"o-{number}", f"{number:064x}")


async def of(names: Iterable[str], then: Callable[[], None] = lambda: None) -> AsyncIterator[str]:
    """Names as rows refer to them; `then` happens after the last was read."""
    for each in names:
        yield each
    then()


async def bucket(objects: Iterable[tuple[str, float]], data: bytes = b"x" * 10) -> MemoryBlobs:
    blobs = MemoryBlobs(now=lambda: modified)
    for each, modified in objects:  # noqa: B007 - the clock reads it
        await blobs.put(each, data, "application/avro")
    return blobs


@pytest.mark.parametrize(
    ("blob", "verdict"),
    [
        (Blob(name(1), 1, OLD), Sweepable.REFERENCED),
        (Blob(name(1), 1, YOUNG), Sweepable.YOUNG),
        (Blob(name(2), 1, OLD), Sweepable.ORPHAN),
        (Blob(name(2), 1, YOUNG), Sweepable.YOUNG),
        (Blob("events/t/notes.txt", 1, OLD), Sweepable.FOREIGN),
        (Blob(f"backups/{name(2)}", 1, OLD), Sweepable.FOREIGN),
        (Blob(f"{name(2)}.bak", 1, OLD), Sweepable.FOREIGN),
    ],
)
def test_only_our_old_objects_without_a_row_are_orphans(blob: Blob, verdict: Sweepable) -> None:
    assert judge(blob, {name(1)}, NOW - GRACE) is verdict


async def test_a_sweep_without_being_told_to_delete_only_counts() -> None:
    blobs = await bucket([(name(1), OLD), (name(2), OLD), (name(3), YOUNG), ("events/t/notes.txt", OLD)])
    report = await sweep(blobs, of([name(1), name(1)]), now=lambda: NOW, grace=GRACE)
    assert report.names == 2
    assert report.found == dict.fromkeys(Sweepable, ObjectTotals(1, 10))
    assert (report.deleted, len(blobs.names)) == (ObjectTotals(0, 0), 4)
    assert not blobs.requests["delete"]


@given(
    objects=st.dictionaries(st.integers(0, 400), st.sampled_from([OLD, YOUNG]), max_size=300),
    referenced=st.lists(st.integers(0, 400)),
)
async def test_a_sweep_deletes_orphans_alone(objects: dict[int, float], referenced: list[int]) -> None:
    blobs = await bucket((name(number), modified) for number, modified in objects.items())
    report = await sweep(
        blobs, of(map(name, referenced)), now=lambda: NOW, grace=GRACE, delete=True, filter_bytes=1 << 16
    )
    kept = {n for n, modified in objects.items() if modified == YOUNG or n in referenced}
    assert blobs.names == sorted(map(name, kept))
    orphans = len(objects) - len(kept)
    assert report.deleted == report.found[Sweepable.ORPHAN] == ObjectTotals(orphans, orphans * 10)


async def test_an_orphan_checked_in_again_meanwhile_is_spared() -> None:
    blobs = await bucket([(name(1), OLD), (name(2), OLD), (name(3), OLD)])
    listed = blobs.scan

    async def scan(prefix: str, *, older_than: float | None = None) -> AsyncIterator[Blob]:
        objects = [blob async for blob in listed(prefix)]
        await blobs_now.put(name(1), b"x" * 10, "application/avro")
        blobs.lose(name(3))
        for blob in objects:
            yield blob

    blobs._now = lambda: NOW
    blobs_now, blobs.scan = blobs, scan  # type: ignore[method-assign]
    report = await sweep(blobs, of([]), now=lambda: NOW, grace=GRACE, delete=True)
    assert blobs.names == [name(1)]
    assert (report.deleted.objects, report.spared.objects) == (1, 2)


async def test_what_is_checked_in_and_committed_during_the_sweep_stays() -> None:
    """The time is taken before the names are read, not after."""
    now = NOW

    def pass_an_hour() -> None:
        nonlocal now
        now += GRACE

    blobs = await bucket([(name(1), NOW)])
    await sweep(blobs, of([], then=pass_an_hour), now=lambda: now, grace=GRACE, delete=True)
    assert blobs.names == [name(1)]


async def test_names_that_cannot_be_read_to_their_end_delete_nothing() -> None:
    def fail() -> None:
        raise ConnectionError("the changelog is away")

    blobs = await bucket([(name(1), OLD)])
    with pytest.raises(ConnectionError):
        await sweep(blobs, of([], then=fail), now=lambda: NOW, grace=GRACE, delete=True)
    assert blobs.names == [name(1)]


async def test_a_sweep_goes_on_where_an_outage_ended_one() -> None:
    blobs = await bucket((name(number), OLD) for number in range(250))

    def go_down(report: SweepReport) -> None:
        blobs.down = report.deleted.objects > 0

    with pytest.raises(BlobsUnavailable):
        await sweep(blobs, of([]), now=lambda: NOW, grace=GRACE, delete=True, progress=go_down)
    assert len(blobs.names) == 150
    blobs.down = False
    report = await sweep(blobs, of([]), now=lambda: NOW, grace=GRACE, delete=True)
    assert (report.deleted.objects, blobs.names) == (150, [])


async def test_progress_is_told_on_the_way() -> None:
    blobs = await bucket((name(number), OLD) for number in range(250))
    told: list[tuple[int, int]] = []
    await sweep(
        blobs,
        of(name(number) for number in range(1000, 26_000)),
        now=lambda: NOW,
        grace=GRACE,
        delete=True,
        progress=lambda report: told.append((report.names, report.deleted.objects)),
    )
    assert told == [(10_000, 0), (20_000, 0), (25_000, 100), (25_000, 200), (25_000, 250)]


def test_a_filter_knows_every_name_and_few_others() -> None:
    known = NameFilter(1 << 14, salt=b"salt")
    for number in range(10_000):
        known.add(name(number))
    assert all(name(number) in known for number in range(10_000))
    others = sum(name(number) in known for number in range(10_000, 20_000)) / 10_000
    assert others == pytest.approx(known.chance(), rel=0.5)
    assert known.chance() < 0.01


def test_filters_with_other_salts_err_on_other_names() -> None:
    wrong = []
    for salt in (b"one", b"two"):
        known = NameFilter(512, salt)
        for number in range(1000):
            known.add(name(number))
        wrong.append({number for number in range(1000, 3000) if name(number) in known})
    assert wrong[0]
    assert not wrong[0] <= wrong[1]
