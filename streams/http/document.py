"""The OpenAPI document as the API is: what a body may have is what msgspec takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from litestar import Litestar
from litestar.openapi.spec import Components, Schema


class _AsIs(Schema):
    """A schema that is JSON Schema already."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        super().__init__()
        self._schema = dict(schema)

    def to_schema(self) -> dict[str, Any]:
        """The schema."""
        return self._schema


def describe_structs(app: Litestar, kinds: Iterable[type[msgspec.Struct]]) -> None:
    """Have the document of an application describe structs, and those in them, as msgspec decodes them.

    Litestar's own schemas lack what msgspec refuses: further fields, bytes that are no base64. They allow any
    value in a tuple with bounds.
    """
    _, found = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components = app.openapi_schema.components or Components()
    components.schemas = {**(components.schemas or {}), **{name: _AsIs(each) for name, each in found.items()}}
    app.openapi_schema.components = components
