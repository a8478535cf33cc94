"""Every schema is sound on its own, agrees with its class, and versions can read each other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import avro.schema
import fastavro
import pytest

import schemas
from agents.choreographies import payment_first, stock_first
from agents.order_saga import orchestrated
from streams.cli.schema_files import classes_of, declared, review
from streams.model.avro_types import derived_schema
from streams.model.choreography import choreography
from streams.model.codecs import fingerprint_of
from streams.model.schema_versions import FrozenSchemas

FOLDER = Path(schemas.__file__).parent
FILES = sorted(FOLDER.glob("*/*/*.avsc"))
SUBJECTS = sorted({file.parent.name for file in FILES})
WIRINGS = (stock_first, payment_first, choreography(*stock_first.routes.values(), *orchestrated))
CLASSES: dict[str, type[Any]] = {
    **{topic: kind for wiring in WIRINGS for topic, kind in wiring.messages().items()},
    **{name: table.row for wiring in WIRINGS for name, table in wiring.tables().items()},
}


def named(file: Path) -> str:
    return str(file.relative_to(FOLDER))


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema: its types and fields, nested ones too."""
    if isinstance(schema, dict):
        yield schema
        for part in schema.values():
            yield from parts(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from parts(part)


@pytest.mark.parametrize("file", FILES, ids=named)
def test_both_avro_libraries_accept_the_file(file: Path) -> None:
    fastavro.parse_schema(json.loads(file.read_text()))
    avro.schema.parse(file.read_text())


TEXTS = {named(file): file.read_text() for file in FILES}
TEXTS |= {subject: derived_schema(kind) for subject, kind in CLASSES.items()}


@pytest.mark.parametrize("schema", TEXTS.values(), ids=TEXTS.keys())
def test_every_record_enum_and_field_says_what_it_means(schema: str) -> None:
    for part in parts(json.loads(schema)):
        if "name" in part:
            assert part.get("doc"), f"{part['name']} has no doc"


FINDINGS = {finding.subject: finding for finding in review(CLASSES, FOLDER)}


@pytest.mark.parametrize("subject", sorted({*SUBJECTS, *CLASSES}))
def test_class_and_newest_version_say_the_same(subject: str) -> None:
    found = FINDINGS[subject]
    assert found.state == "frozen", found.differences
    assert not found.unexplained
    assert found.fingerprint == fingerprint_of(schemas.latest(subject)), "records in topics name this one"


def test_only_versions_that_cannot_read_each_other_have_reasons() -> None:
    for found in FINDINGS.values():
        assert set(found.reasons) == set(found.unreadable), found.subject


def test_the_commands_know_the_same_classes() -> None:
    assert classes_of(declared(FOLDER.parent / "pyproject.toml").of) == CLASSES


def test_a_nested_type_is_the_same_in_all_schemas() -> None:
    seen: dict[str, Any] = {}
    for subject in SUBJECTS:
        for part in parts(json.loads(schemas.latest(subject))):
            if part.get("type") in ("record", "enum"):
                meaning = {key: part[key] for key in ("fields", "symbols") if key in part}
                assert seen.setdefault(part["name"], meaning) == meaning, part["name"]


def test_versions_are_numbered_from_one_without_a_gap() -> None:
    for folder in {file.parent for file in FILES}:
        numbers = sorted(int(file.stem) for file in folder.glob("*.avsc"))
        assert numbers == list(range(1, len(numbers) + 1)), folder


def test_the_highest_version_is_current_by_number_not_by_spelling(tmp_path: Path) -> None:
    folder = tmp_path / "events" / "some.topic.v1"
    folder.mkdir(parents=True)
    for number in (1, 2, 10):
        (folder / f"{number}.avsc").write_text(f"schema {number}")
    (folder / "2.reason.txt").write_text("It had to be.")
    frozen = FrozenSchemas(tmp_path)
    assert frozen.versions("some.topic.v1") == ["schema 1", "schema 2", "schema 10"]
    assert frozen.latest("some.topic.v1") == "schema 10"


def test_a_missing_schema_is_an_error_that_names_the_command() -> None:
    with pytest.raises(LookupError, match=r"orders\.order\.lost\.v1 has no .*steadfaust schemas write"):
        schemas.latest("orders.order.lost.v1")
