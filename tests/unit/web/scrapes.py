"""Scrapes of workers, and what the page of metrics says of them."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[3] / "docs" / "telemetry.md"
#: A row of a table: name, kind, labels.
ROW = re.compile(r"^\| `(steadfaust_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)

Value = dict[tuple[str, ...], float]


def on_the_page() -> dict[str, tuple[str, frozenset[str]]]:
    """Kind and labels of each metric that the page explains."""
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(PAGE.read_text())
    }


def told(scrape: bytes) -> dict[str, tuple[str, frozenset[str]]]:
    """The same of what a worker has told, as far as it has samples."""
    found = {}
    for family in text_string_to_metric_families(scrape.decode()):
        if family.name.startswith("steadfaust_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = family.type, frozenset(labels)
    return found


def values(scrape: bytes, name: str) -> Value:
    """The samples of a name, by the values of their labels in order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(scrape.decode())
        for sample in family.samples
        if sample.name == name
    }
