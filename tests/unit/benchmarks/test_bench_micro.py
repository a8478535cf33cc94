from __future__ import annotations

import pytest

from benchmarks.micro import FULL, section
from benchmarks.peers.catalog import Peer
from benchmarks.peers.workload import COUNTED, Format, Run, decoder, encoder, run_from_environment
from benchmarks.rate import Rate

PEERS = [
    Peer("lane", "the lane", "", []),
    Peer("faust_at_least_once", "stock Faust", "no inbox", [], slow=True),
]


def rates(*per_second: float) -> list[Rate]:
    return [Rate(each, cpu=2.0) for each in per_second]


def test_the_report_has_medians_under_the_names_of_the_peers() -> None:
    found = {"lane": rates(30_000, 50_000, 40_000), "faust_at_least_once": rates(3000, 1000, 2000)}
    numbers = section(PEERS, {Format.JSON: found, Format.AVRO: found}, FULL).numbers
    assert numbers["micro"] == {"lane": 40_000, "faust_at_least_once": 2000}
    assert numbers["micro_avro"] == numbers["micro"]
    assert numbers["micro_runs"]["micro"]["lane"][0] == {"events_per_second": 30_000, "cpu": 2.0}


def test_a_ratio_is_of_runs_of_one_round_since_the_machine_changes_between_rounds() -> None:
    found = {"lane": rates(40_000, 20_000, 60_000), "faust_at_least_once": rates(4000, 1000, 3000)}
    table = section(PEERS, {Format.JSON: found}, FULL).tables[0]
    assert table.rows == [
        ["the lane", "40,000", "1.00", "2.0"],
        ["stock Faust (no inbox)", "3,000", "20.00", "2.0"],
    ]


def test_a_program_is_told_its_run_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("lane-json-0", "127.0.0.1:1", "made", "counted", "somewhere", Format.AVRO)
    for name, value in run.environment().items():
        monkeypatch.setenv(name, value)
    assert run_from_environment() == run


def test_both_formats_give_back_what_was_written() -> None:
    event = {"k": "k1", "i": 7, "n": 2}
    for form in Format:
        assert decoder(form, COUNTED)(encoder(form, COUNTED)(event)) == event
