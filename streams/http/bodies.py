"""JSON bodies, decoded straight into their msgspec struct: strictly, with every bound of its fields."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec
from litestar.dto import MsgspecDTO
from litestar.openapi.spec import Reference, Schema

from streams.http.problems import problem

T = TypeVar("T", bound=msgspec.Struct)


class StrictJson(MsgspecDTO[T]):
    """Litestar's `dto=` of a handler whose `data` is the struct.

    Without it, Litestar decodes JSON without its type and converts what it got: "12" passes for a number.
    Raises problems: 415 for another media type, 400 for what is no JSON, 422 for what is not of the type.
    """

    def decode_bytes(self, value: bytes) -> Any:
        """The struct."""
        media_type = self.asgi_connection.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise problem(
                415,
                "unsupported-media-type",
                f"the body is {media_type or 'of no type'}, send application/json",
            )
        try:
            return _decoder(self.model_type).decode(value)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `")
            errors = [{"detail": what, "pointer": where.rstrip("`") or "$"}]
            raise problem(422, "invalid", str(error), errors=errors) from error
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise problem(400, "malformed", f"the body is no JSON: {error}") from error

    @classmethod
    def create_openapi_schema(
        cls, field_definition: Any, handler_id: str, schema_creator: Any
    ) -> Reference | Schema:
        """That of the struct itself."""
        del handler_id
        schema: Reference | Schema = schema_creator.for_field_definition(field_definition)
        return schema


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
