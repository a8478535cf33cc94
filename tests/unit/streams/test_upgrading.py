"""Fields of messages and rows that come, go and get another name, from one deploy to the next."""

import pytest

from streams.errors import Undecodable
from streams.model.codecs import Schemas, avro
from streams.model.message import Row
from streams.model.schema_versions import nothing_frozen


class Before:
    class Order(Row, frozen=True):
        order: str
        total: int = 0


class Both:
    class Order(Row, frozen=True):
        order: str
        total: int = 0
        total_cents: int = 0


class After:
    class Order(Row, frozen=True):
        order: str
        total_cents: int = 0


class Required:
    class Order(Row, frozen=True):
        order: str
        country: str


class Renamed(Row, frozen=True):
    order: str
    total: int = 0


def read_as(kind: type[Row], row: Row) -> Row:
    """A row that a worker of one version has written, as a worker of another one reads it."""
    make = avro(nothing_frozen, Schemas())
    writer, reader = make(type(row), "orders"), make(kind, "orders")
    return reader.decode(writer.encode(row), writer.fingerprint)


def test_a_field_with_a_default_comes_and_goes() -> None:
    assert read_as(Both.Order, Before.Order("o", 5)) == Both.Order("o", 5, 0)
    assert read_as(Before.Order, Both.Order("o", 5, 500)) == Before.Order("o", 5)


def test_a_field_without_a_default_cannot_be_added() -> None:
    with pytest.raises(Undecodable, match="country"):
        read_as(Required.Order, Before.Order("o", 5))


def test_a_field_is_renamed_in_three_deploys() -> None:
    """Each deploy reads what its neighbours write; the one in the middle writes both names."""
    assert read_as(Both.Order, Before.Order("o", 5)).total == 5
    written = Both.Order("o", 5, 500)
    assert read_as(Before.Order, written) == Before.Order("o", 5)
    assert read_as(After.Order, written) == After.Order("o", 500)
    assert read_as(Both.Order, After.Order("o", 500)) == Both.Order("o", 0, 500)


def test_a_field_renamed_in_one_deploy_loses_its_value() -> None:
    assert read_as(After.Order, Before.Order("o", 5)) == After.Order("o", 0)


def test_a_class_that_is_renamed_cannot_read_what_there_is() -> None:
    with pytest.raises(Undecodable, match="Renamed"):
        read_as(Renamed, Before.Order("o", 5))
