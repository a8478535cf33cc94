"""What a handler decides is read back the same, or refused with the name of its field."""

import enum
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_float
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams.errors import Unencodable, WiringError
from streams.model.avro_types import derived_schema
from streams.model.codecs import AvroCodec, JsonCodec, Schemas, decode_row, encode_row

pytestmark = pytest.mark.promise("read-back")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, frozen=True):
    n: int = 0
    name: str = ""
    weight: float = 0.0


TYPES: dict[str, Any] = {
    "text": str,
    "number": int,
    "real": float,
    "maybe": float | None,
    "data": bytes,
    "flag": bool,
    "word": Literal["a", "b"],
    "colour": Colour,
    "units": Annotated[int, msgspec.Meta(ge=1, le=10**9)],
    "inner": Inner,
    "lines": tuple[Inner, ...],
    "names": dict[str, list[float]],
}
JSON_ONLY: dict[str, Any] = {
    "at": datetime,
    "day": date,
    "hour": time,
    "length": timedelta,
    "price": Decimal,
    "id": UUID,
    "many": set[str],
    "fixed": frozenset[int],
    "by_number": dict[int, str],
    "by_day": dict[date, int],
    "pair": tuple[int, str],
    "either": int | str | None,
    "anything": Any,
}


def made(types: dict[str, Any]) -> Any:
    defaults = [(name, kind | None if kind is not Any else kind, None) for name, kind in types.items()]
    return msgspec.defstruct("Made", defaults, frozen=True, namespace={"__doc__": "One of each."})


BOTH, WIDE = made(TYPES), made(TYPES | JSON_ONLY)
AVRO, JSON = AvroCodec(BOTH, derived_schema(BOTH), Schemas()), JsonCodec(WIDE)

ZONES = (
    st.none()
    | st.just(UTC)
    | st.builds(
        lambda minutes, seconds: timezone(timedelta(minutes=minutes, seconds=seconds)),
        st.integers(-1438, 1438),
        st.sampled_from([0, 0, 30]),
    )
)
TEXTS = st.text() | st.text(st.characters(categories=["Cs"]) | st.characters())
LARGE = st.sampled_from([2**63, 2**64, 2**53 + 1, -(2**63) - 1, 10**400])
NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | LARGE
INNERS = st.builds(Inner, NUMBERS, TEXTS, st.floats() | NUMBERS)
#: Right and wrong ones alike: a Struct takes them all.
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.floats(),
    TEXTS,
    st.binary(),
    st.builds(bytearray, st.binary()),
    st.sampled_from([*Colour, "a", "b", "c", "red"]),
    INNERS,
    st.lists(INNERS),
    st.lists(INNERS).map(tuple),
    st.dictionaries(TEXTS | NUMBERS, st.lists(st.floats() | st.none())),
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.times(timezones=ZONES),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.sets(TEXTS),
    st.frozensets(NUMBERS),
    st.dictionaries(NUMBERS, TEXTS),
    st.dictionaries(st.dates(), NUMBERS),
    st.tuples(NUMBERS, TEXTS),
    st.sampled_from([object(), 1j, range(3), Decimal("sNaN")]),
)


PLAIN = msgspec.defstruct("Plain", [("text", str), ("number", int), ("flag", bool)], frozen=True)
PLAIN_JSON = JsonCodec(PLAIN)


def same(left: Any, right: Any) -> bool:
    """Equal, where nan is itself, a list a tuple and a byte array bytes."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, Decimal) and isinstance(right, Decimal) and left.is_nan():
        return str(left) == str(right)
    if isinstance(left, msgspec.Struct) and isinstance(right, msgspec.Struct):
        return all(same(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("name", TYPES)
@given(value=ANYTHING)
def test_avro_reads_back_all_that_it_writes(name: str, value: Any) -> None:
    row = BOTH(**{name: value})
    with suppress(Unencodable):
        assert same(getattr(decode_row(AVRO, encode_row(AVRO, row)), name), value)


@pytest.mark.parametrize("name", TYPES | JSON_ONLY)
@given(value=ANYTHING)
def test_json_reads_back_all_that_it_writes(name: str, value: Any) -> None:
    row = WIDE(**{name: value})
    with suppress(Unencodable):
        back = getattr(decode_row(JSON, encode_row(JSON, row)), name)
        if name != "anything":  # of which there is no type to come back to
            assert same(back, value)
        else:
            assert same(msgspec.to_builtins(back), msgspec.json.decode(msgspec.json.encode(value)))


@example("", -(10**4299), False)
@given(TEXTS | ANYTHING, NUMBERS | ANYTHING, st.booleans() | ANYTHING)
def test_json_of_plain_fields_reads_back_all_that_it_writes(text: Any, number: Any, flag: Any) -> None:
    value = PLAIN(text, number, flag)
    with suppress(Unencodable):
        back = PLAIN_JSON.decode(PLAIN_JSON.encode(value), None)
        assert same(back, value)
        assert [type(back.text), type(back.number), type(back.flag)] == [str, int, bool]


HALF = "half \ud800"
LONE = "inner.name is a text with half of a surrogate pair"
REFUSED: list[tuple[str, Any, str]] = [
    ("real", "1.5", "real"),
    ("maybe", "x", "maybe"),
    ("number", 1.5, "number"),
    ("number", True, "number"),
    ("units", 0, "units"),
    ("word", "c", "word"),
    ("colour", "red", "colour is a str, and comes back as a Colour"),
    ("text", Colour.RED, "text is a Colour, and comes back as a str"),
    ("text", UUID(int=7), "text is a UUID, and comes back as a str"),
    ("text", HALF, "text is a text with half of a surrogate pair"),
    ("inner", Inner(name=HALF), LONE),
    ("real", 2**53 + 1, "real is a int, and comes back as a float"),
    ("lines", (Inner(), Inner(weight="heavy")), "lines"),  # type: ignore[arg-type]
    ("names", {"a": [1.0, None]}, "names"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
@pytest.mark.parametrize(("codec", "kind"), [(AVRO, BOTH), (JSON, WIDE)], ids=["avro", "json"])
def test_what_would_be_lost_is_refused_with_its_field(
    codec: Any, kind: Any, name: str, value: Any, words: str
) -> None:
    with pytest.raises(Unencodable, match=words) as raised:
        codec.encode(kind(**{name: value}))
    assert str(raised.value).startswith("Made ")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lines", (Inner(), Inner(weight=math.nan)), r"lines\[1\].weight is nan"),
        ("names", {"a": [1.0, -math.inf]}, r"names.a\[1\] is -inf"),
        ("maybe", math.inf, "maybe is inf: infinite, or not a number"),
        ("real", math.nan, "real is nan: infinite, or not a number"),
        ("anything", {"deep": [{"er": -math.inf}]}, r"anything.deep\[0\].er is -inf"),
        ("anything", {"when": datetime(2026, 1, 31)}, "anything.when is a datetime, and comes back as a str"),  # noqa: DTZ001 - naive is meant
        ("anything", {1: "a"}, "anything does not come back with the same keys: '1', 1"),
        ("at", datetime(1, 1, 1, tzinfo=timezone(timedelta(seconds=30))), "at"),
    ],
)
def test_what_json_alone_would_lose_is_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(Unencodable, match=words):
        JSON.encode(WIDE(**{name: value}))


class Small(msgspec.Struct, frozen=True):
    """What a schema written by hand has as `float`, deep in it too."""

    x: float = 0.0
    parts: tuple[float, ...] = ()
    names: dict[str, float] = {}
    some: frozenset[float] = frozenset()
    maybe: float | None = None


def small() -> AvroCodec[Small]:
    return AvroCodec(Small, AVRO_SMALL, Schemas())


AVRO_SMALL = json.dumps(
    {
        "type": "record",
        "name": "Small",
        "fields": [
            {"name": "x", "type": "float"},
            {"name": "parts", "type": {"type": "array", "items": "float"}},
            {"name": "names", "type": {"type": "map", "values": "float"}},
            {"name": "some", "type": {"type": "array", "items": "float"}},
            {"name": "maybe", "type": ["null", "float"]},
        ],
    }
)


@given(st.floats(-1e38, 1e38) | st.integers(-(2**53), 2**53))
def test_a_float_of_32_bits_is_rounded(number: float) -> None:
    codec, rounded = small(), c_float(number).value
    value = Small(number, (0.5, number), {"a": number}, frozenset((0.5, number)), number)
    back = Small(rounded, (0.5, rounded), {"a": rounded}, frozenset((0.5, rounded)), rounded)
    assert codec.decode(codec.encode(value), None) == back


@pytest.mark.parametrize("number", [1e39, -1e39, sys.float_info.max])
def test_a_number_beyond_32_bits_is_refused(number: float) -> None:
    for value in (Small(number), Small(parts=(number,)), Small(some=frozenset((number,)))):
        with pytest.raises(Unencodable, match="comes back as"):
            small().encode(value)


class Priced(msgspec.Struct, frozen=True):
    price: float = 0.0
    prices: tuple[float, ...] = ()
    count: int = 0


@pytest.mark.parametrize("whole", ["int", "long"])
@pytest.mark.parametrize("value", [Priced(1.5), Priced(prices=(2.0, 2.5)), Priced(-0.25)])
def test_no_float_is_cut_by_a_schema_written_by_hand(whole: str, value: Priced) -> None:
    """fastavro writes 1.5 as 1 where a schema written by hand has a whole number."""
    fields = [
        {"name": "price", "type": whole},
        {"name": "prices", "type": {"type": "array", "items": whole}},
        {"name": "count", "type": whole},
    ]
    schema = json.dumps({"type": "record", "name": "Priced", "fields": fields})
    codec = AvroCodec(Priced, schema, Schemas())
    good = Priced(2.0, (3.0,), 4)
    assert codec.decode(codec.encode(good), None) == good
    with pytest.raises(Unencodable, match="price"):
        codec.encode(value)


@pytest.mark.parametrize("value", [{"text": "a"}, Inner(), None, "text"])
@pytest.mark.parametrize("make", [lambda kind: AvroCodec(kind, derived_schema(kind), Schemas()), JsonCodec])
def test_a_value_of_another_class_is_refused(make: Callable[[Any], Any], value: Any) -> None:
    class Text(msgspec.Struct, frozen=True):
        text: str = ""

    with pytest.raises(Unencodable):
        make(Text).encode(value)


class Deep(msgspec.Struct, frozen=True):
    parts: tuple[float, ...] = (1.0, math.nan)


@pytest.mark.parametrize(
    "default", [math.inf, -math.inf, math.nan, Inner(weight=math.inf), (1.0, math.inf), 2**64]
)
@pytest.mark.parametrize("make", [derived_schema, JsonCodec], ids=["avro", "json"])
def test_a_default_that_json_has_not_is_refused_with_advice(make: Callable[[Any], Any], default: Any) -> None:
    kind = msgspec.defstruct("Limits", [("most", Any if make is JsonCodec else type(default), default)])
    if isinstance(default, tuple):
        kind = msgspec.defstruct("Limits", [("most", tuple[float, ...], default)])
    with pytest.raises(WiringError, match=r"Limits.most has a default that no schema can say.*: use "):
        make(kind)


@pytest.mark.parametrize("make", [derived_schema, JsonCodec], ids=["avro", "json"])
def test_a_default_deep_in_a_class_is_refused_too(make: Callable[[Any], Any]) -> None:
    kind = msgspec.defstruct(
        "Outer", [("inner", Deep), ("more", dict[str, float], msgspec.field(default_factory=dict))]
    )
    with pytest.raises(WiringError, match=r"Deep.parts has a default|Outer.inner.parts has a default"):
        make(kind)
