"""How pages are rendered, and the files that they load."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import PurePath
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar.datastructures import Cookie
from litestar.response.base import ASGIResponse
from markupsafe import Markup

from streams.console.flow_columns import flow_columns
from streams.console.formatting import (
    age_text,
    ago,
    bytes_text,
    dump,
    leaves,
    marked,
    previewed,
    rate_text,
    seconds_text,
    wanted_bytes,
    with_times,
)
from streams.console.story import story
from streams.console.swimlanes import saga_lanes, swimlanes
from streams.control.api.writing import encode
from streams.control.base.asked import address_of, as_asked
from streams.control.base.refused import refused
from streams.control.base.view import Problem
from streams.control.base.visible import visible

#: Media types of the files by their ending. Python's own table reads files of the machine, and differs from
#: one version to the next.
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: Characters of a file's hash in its address.
_DIGEST = 12


class Asset(NamedTuple):
    """A file that pages load, with a hash by which its address changes when it does."""

    content: bytes
    kind: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """The files, by name."""
    found = {}
    for each in files("streams.console").joinpath("static").iterdir():
        kind = _KINDS.get(PurePath(each.name).suffix)
        if kind is not None:
            content = each.read_bytes()
            found[each.name] = Asset(content, kind, sha256(content).hexdigest()[:_DIGEST])
    return found


def asset_url(name: str) -> str:
    """The address of a file, for ever the same content."""
    return f"/static/{name}?v={assets()[name].digest}"


def _seen(value: Any) -> Any:
    """A value as a page shows it: text from outside without what the eye cannot see."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("streams.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["json"] = lambda value: encode(value).decode()
    templates.filters["pretty"] = lambda value: msgspec.json.format(encode(value)).decode()
    templates.filters.update(rate=rate_text, seconds=seconds_text, age=age_text)
    templates.filters["asked"] = as_asked
    templates.globals["saga_address"] = partial(address_of, "/sagas", "saga")
    templates.globals.update(asset=asset_url, flow_columns=flow_columns)
    templates.globals.update(story=story, swimlanes=swimlanes, saga_lanes=saga_lanes)
    # Of what a form sends back: it is to come back as it is.
    templates.filters["refused"] = refused
    templates.filters["exact"] = Markup.escape
    templates.filters["dump"] = dump
    templates.filters.update(leaves=leaves, bytes=bytes_text, ago=ago, marked=marked, previewed=previewed)
    templates.filters.update(with_times=with_times, wanted_bytes=wanted_bytes)
    return templates


def render(template: str, **values: Any) -> str:
    """Render a template with `values`."""
    return _templates().get_template(template).render(**values)


def page_response(
    template: str,
    cookies: Sequence[Cookie] = (),
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **values: Any,
) -> ASGIResponse:
    """A page of a template, which is given `values`."""
    return ASGIResponse(
        body=render(template, **values),
        cookies=cookies,
        media_type="text/html",
        status_code=status,
        headers=headers,
    )


def asset_response(name: str) -> ASGIResponse:
    """A file. Raises Problem 404."""
    if (asset := assets().get(name)) is None:
        raise Problem(404, "no_file", f"the pages have no file {name}")
    kept = {"Cache-Control": "public, max-age=31536000, immutable"}
    return ASGIResponse(body=asset.content, media_type=asset.kind, headers=kept)
