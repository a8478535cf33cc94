"""Values of any struct, for hypothesis, by what msgspec knows of its fields."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

LONG_MAX = 2**63 - 1


def values_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    return _values(inspect.type_info(kind))


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _values(field.type) for field in fields})
        case inspect.IntType(ge=ge, le=le):
            return st.integers(-LONG_MAX if ge is None else ge, LONG_MAX if le is None else le)
        case inspect.StrType(min_length=shortest, max_length=longest):
            return st.text(min_size=shortest or 0, max_size=longest)
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType():
            return st.binary()
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=4).map(tuple)
        case inspect.Metadata(type=inner):
            return _values(inner)
    raise NotImplementedError(f"no values for {kind}: {msgspec.to_builtins(type(kind).__name__)}")
