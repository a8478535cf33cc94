"""JSON bodies, decoded straight into their msgspec struct: strictly, with every bound of its fields."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any, TypeVar

import msgspec
from litestar.dto import MsgspecDTO
from litestar.openapi.spec import Reference, Schema
from litestar.plugins.problem_details import ProblemDetailsException

from streams.http.problems import problem

T = TypeVar("T", bound=msgspec.Struct)
#: JSON is UTF-8, and ASCII is a part of it.
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


class StrictJson(MsgspecDTO[T]):
    """Litestar's `dto=` of a handler whose `data` is the struct.

    Without it, Litestar decodes JSON without its type and converts what it got: "12" passes for a number.
    Raises problems: 415 for another media type, charset or content coding, 400 for what is no JSON, 422 for
    what is not of the type, or has a member twice.
    """

    def decode_bytes(self, value: bytes) -> Any:
        """The struct."""
        headers = self.asgi_connection.headers
        _require_json(headers.get("content-type", ""))
        _require_plain(headers.getall("content-encoding", []))
        try:
            found = _decoder(self.model_type).decode(value)
            _MEMBERS.decode(value.decode())
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `")
            errors = [{"detail": what, "pointer": where.rstrip("`") or "$"}]
            raise problem(422, "invalid", str(error), errors=errors) from error
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise problem(400, "malformed", f"the body is not JSON: {error}") from error
        return found

    @classmethod
    def create_openapi_schema(
        cls, field_definition: Any, handler_id: str, schema_creator: Any
    ) -> Reference | Schema:
        """Return the schema of the struct itself."""
        del handler_id
        schema: Reference | Schema = schema_creator.for_field_definition(field_definition)
        return schema


def _require_json(content_type: str) -> None:
    media_type, *parameters = (each.strip().lower() for each in content_type.split(";"))
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise _unsupported(f"the body is {media_type or 'of no type'}, send application/json")
    for parameter in filter(None, parameters):
        name, _, value = (each.strip() for each in parameter.partition("="))
        if name == "charset" and value.strip('"') not in _CHARSETS:
            raise _unsupported(f"the body's charset is {value or 'missing'}: JSON is UTF-8 (RFC 8259)")


def _require_plain(codings: list[str]) -> None:
    for coding in (each.strip().lower() for line in codings for each in line.split(",")):
        if coding not in ("", "identity"):
            raise _unsupported(
                f"the body is coded as {coding}: send it as it is", {"Accept-Encoding": "identity"}
            )


def _unsupported(why: str, headers: dict[str, str] | None = None) -> ProblemDetailsException:
    return problem(415, "unsupported-media-type", why, headers=headers)


def _require_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers choose differently between two members of one name (RFC 8259)."""
    found = dict(members)
    if len(found) < len(members):
        name = next(name for name, times in Counter(name for name, _ in members).items() if times > 1)
        raise msgspec.ValidationError(f"Object has the member `{name}` twice")
    return found


#: Looks at the names of members, and at nothing else.
_MEMBERS = json.JSONDecoder(object_pairs_hook=_require_once, parse_int=str, parse_float=str)


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
