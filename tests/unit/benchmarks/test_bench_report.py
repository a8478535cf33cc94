import json
from pathlib import Path

from benchmarks.__main__ import README, BenchmarkSection
from benchmarks.report import Circumstances, markdown, merge, put_into, read
from benchmarks.sections import ReportTable, Section

PARTS = "java kafka faust-streaming aiokafka rocksdict fastavro msgspec uvloop"
MACHINE = {"cores": 2, "processor": "a processor", "memory_gb": 16.0, "system": "Linux", "python": "3.11"}
MACHINE |= {"additions_s": 0.61} | dict.fromkeys(PARTS.split(), "1.0")
FULL = Circumstances(MACHINE, "2026-01-31", runs=3, quick=False)
MICRO = Section(
    title="Micro workload",
    tables=[ReportTable("JSON", ["", "events/s"], [["the lane", "40,000"], ["stock Faust", "3,000"]])],
    notes=["Medians."],
)
GROWTH = Section(
    "Growth", [ReportTable("Recovery", ["rows", "rows/s"], [["1 million", "200,000"], ["0", "-"]])]
)


def test_sections_stand_beside_each_other_in_the_report(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    merge(path, "micro", MICRO, FULL)
    merge(path, "growth", GROWTH, FULL)
    found = json.loads(path.read_text())
    assert found["micro"] == {
        "JSON": [{"name": "the lane", "events/s": 40_000}, {"name": "stock Faust", "events/s": 3_000}]
    }
    assert found["growth"] == {
        "Recovery": [{"rows": "1 million", "rows/s": 200_000}, {"rows": 0, "rows/s": "-"}]
    }
    assert set(found["measured"]) == {"micro", "growth"}


def test_a_section_measured_again_replaces_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    merge(path, "micro", MICRO, FULL)
    again = Section("Micro workload", [ReportTable("JSON", ["", "events/s"], [["the lane", "50,000"]])])
    merge(path, "micro", again, Circumstances(MACHINE, "2026-02-01", runs=1, quick=True))
    found = read(path)
    assert found["micro"] == {"JSON": [{"name": "the lane", "events/s": 50_000}]}
    assert found["measured"]["micro"] == {"day": "2026-02-01", "runs": 1, "quick": True, "machine": MACHINE}


def test_only_what_stands_between_its_markers_is_replaced() -> None:
    text = "# Benchmarks\n<!-- micro -->\nold\n<!-- /micro -->\n<!-- growth -->\nkept\n<!-- /growth -->\n"
    once = put_into(text, "micro", "new")
    assert once == text.replace("old", "new")
    assert put_into(once, "micro", "new") == once


def test_the_readme_has_a_place_for_every_section() -> None:
    for part in BenchmarkSection:
        assert put_into(README.read_text(), part, "something new") != README.read_text()


def test_a_section_reads_well_in_the_readme() -> None:
    text = markdown(MICRO, FULL)
    assert text.startswith("## Micro workload\n\n**JSON**\n\n|  | events/s |\n| --- | ---: |\n")
    assert "| the lane | 40,000 |\n| stock Faust | 3,000 |\n\nMedians.\n\n" in text
    assert "Measured 2026-01-31, 3 runs: 2 cores (a processor), 16.0 GB" in text
