"""The OpenAPI document as a page, and its schemas as msgspec reads bodies.

The page loads nothing from elsewhere: no script, no style sheet, no font.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import msgspec
from litestar import Litestar, Request, Router
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import Components, Schema

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h2{border-top:1px solid #ccc;padding-top:1rem}code,pre{font:13px/1.4 ui-monospace,monospace}"
    "pre{background:#f4f4f4;padding:.6rem;overflow:auto}"
    "td,th{text-align:left;vertical-align:top;padding:.1rem 1rem .1rem 0}"
)
_METHODS = ("get", "post", "put", "patch", "delete")


class PlainPage(OpenAPIRenderPlugin):
    """Operations with their parameters, bodies and answers, then the schemas."""

    def receive_router(self, router: Router) -> None:
        """Leave paths that there are not to the application: Litestar answers them in HTML."""
        router.routes[:] = [route for route in router.routes if not route.path.endswith("{path:str}")]

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The page."""
        del request
        info = openapi_schema["info"]
        parts = [f"<h1>{escape(info['title'])}</h1><p>{escape(info.get('description') or '')}</p>"]
        parts.append('<p>The document: <a href="openapi.json">openapi.json</a></p>')
        for path, operations in openapi_schema.get("paths", {}).items():
            found = (method for method in _METHODS if method in operations)
            parts.extend(_operation(method, path, operations[method]) for method in found)
        for name, schema in openapi_schema.get("components", {}).get("schemas", {}).items():
            parts.append(f'<h2 id="{escape(name)}">{escape(name)}</h2><pre>{_json(schema)}</pre>')
        head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        return f"{head}<style>{_STYLE}</style><body>{''.join(parts)}</body></html>".encode()


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<h2><code>{method.upper()} {escape(path)}</code></h2>"]
    parts.append(f"<p>{escape(operation.get('description') or operation.get('summary') or '')}</p>")
    if parameters := operation.get("parameters"):
        rows = [
            (
                f"<code>{escape(each['name'])}</code>",
                f"{each['in']}{', required' if each.get('required') else ''}",
                escape(each.get("description") or ""),
            )
            for each in parameters
        ]
        parts.append(_table(rows))
    if body := operation.get("requestBody"):
        parts.append(f"<h3>Body</h3><p>{_contents(body)}</p>")
    answers = [
        (status, escape(each.get("description") or ""), _contents(each))
        for status, each in operation["responses"].items()
    ]
    parts.append("<h3>Answers</h3>" + _table(answers))
    return "".join(parts)


def _table(rows: list[tuple[str, str, str]]) -> str:
    """Of cells that are HTML already."""
    cells = ("".join(f"<td>{each}</td>" for each in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _contents(holder: dict[str, Any]) -> str:
    """The schemas of a body, by name where they have one."""
    found = []
    for media_type, content in (holder.get("content") or {}).items():
        name = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
        link = f' <a href="#{escape(name)}">{escape(name)}</a>' if name else ""
        found.append(f"<code>{escape(media_type)}</code>{link}")
    return ", ".join(found)


def _json(value: Any) -> str:
    return escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


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
