from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from benchmarks.kafka import OutputCheck, Rate
from benchmarks.micro import FULL, section
from benchmarks.peers import workload
from benchmarks.peers.catalog import Peer
from benchmarks.peers.workload import COUNTED, KEYS, Format, PeerRun, count_of, decoder, encoder
from benchmarks.sections import NotMeasured
from streams.host import loop

PEERS = [
    Peer("lane", "the lane", "", []),
    Peer("faust_at_least_once", "stock Faust", "no inbox", [], slow=True),
]


def rates(*per_second: float) -> list[Rate]:
    return [Rate(each, cpu=2.0) for each in per_second]


def test_a_table_has_the_medians_of_each_peer() -> None:
    found = {"lane": rates(30_000, 50_000, 40_000), "faust_at_least_once": rates(3000, 1000, 2000)}
    for table in section(PEERS, {Format.JSON: found, Format.AVRO: found}, FULL).tables:
        medians = [row[:2] for row in table.rows]
        assert medians == [["the lane", "40,000"], ["stock Faust (no inbox)", "2,000"]]


def test_a_peer_on_two_cores_does_less_with_each() -> None:
    lane = [Rate(30_000, cpu=3.0), Rate(60_000, cpu=1.5), Rate(40_000, cpu=2.0)]
    faster = [Rate(60_000, cpu=3.0), Rate(80_000, cpu=3.0), Rate(80_000, cpu=3.0)]
    found = section(PEERS, {Format.JSON: {"lane": lane, "faust_at_least_once": faster}}, FULL)
    assert found.tables[0].columns[-1] == "events per CPU second, lane / this"
    assert found.tables[0].rows[0] == ["stock Faust (no inbox)", "80,000", "0.50", "3.0", "1.50"]
    assert found.tables[0].rows[1] == ["the lane", "40,000", "1.00", "2.0", "1.00"]


def test_python_peers_collect_garbage_as_a_lane_does() -> None:
    assert workload.GC_THRESHOLD == loop.GC_THRESHOLD


def test_a_program_is_told_its_run_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PeerRun("lane-json-0", "127.0.0.1:1", "made", "counted", "somewhere", Format.AVRO)
    for name, value in run.environment().items():
        monkeypatch.setenv(name, value)
    assert workload.run_from_environment() == run


def test_both_formats_give_back_what_was_written() -> None:
    event = {"k": "k1", "i": 7, "n": 2}
    for form in Format:
        assert decoder(form, COUNTED)(encoder(form, COUNTED)(event)) == event


@dataclass(frozen=True)
class Came:
    key: bytes
    value: bytes


def came(i: int, n: int | None = None, key: str | None = None) -> Came:
    """An event as it must come out, but for what is given."""
    name = workload.name_of(i)
    value = {"k": name, "i": i, "n": count_of(i) if n is None else n}
    return Came((key or name).encode(), encoder(Format.JSON, COUNTED)(value))


def checked(records: Sequence[Came], *, counted: bool = True) -> None:
    check = OutputCheck(Format.JSON, len(records), counted=counted)
    check.take(records)
    check.conclude()


def test_an_output_with_each_keys_counts_is_right() -> None:
    checked([came(i) for i in range(3 * KEYS)])


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({KEYS: came(KEYS, n=1)}, id="the count began again"),
        pytest.param({KEYS: came(KEYS, n=3)}, id="the count is too high"),
        pytest.param({KEYS: came(KEYS, key="k1")}, id="of another key"),
        pytest.param({0: came(KEYS), KEYS: came(0)}, id="a key's events in another order"),
        pytest.param({0: came(KEYS, n=1), KEYS: came(0, n=2)}, id="counted in another order"),
    ],
)
def test_a_wrong_state_is_noticed_though_every_event_came_once(wrong: dict[int, Came]) -> None:
    records = [wrong.get(i) or came(i) for i in range(2 * KEYS)]
    with pytest.raises(NotMeasured, match=rf"{len(wrong)} came out with a key or a count that is not theirs"):
        checked(records)


def test_of_a_program_without_state_the_events_alone_are_checked() -> None:
    checked([came(i, n=0) for i in range(2 * KEYS)], counted=False)
