"""The exact path and query of a request: the framework decodes a path before it looks for its parts."""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote

from litestar import Request
from litestar.exceptions import HTTPException

AnyRequest: TypeAlias = Request[Any, Any, Any]


def allowed(error: HTTPException) -> dict[str, str]:
    """The header that a refused method is answered with."""
    methods = {each.strip() for each in (error.headers or {}).get("allow", "").split(",")} - {"OPTIONS"}
    return {"Allow": ",".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))}


def query_of(request: AnyRequest) -> dict[str, str]:
    """The query. Of a name that is given twice, the first."""
    text = request.scope["query_string"].decode("latin-1")
    pairs = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
    return dict(reversed(pairs))


def router_path(raw: bytes) -> str:
    """The path for the router: with each slash that is part of a name still quoted, and each percent sign, so
    that a name is read back exactly.
    """
    text = raw.decode("latin-1").replace("%25", "%2525")
    return unquote(text.replace("%2F", "%252F").replace("%2f", "%252F"))


def shown_path(request: AnyRequest) -> str:
    """The path of the request, decoded."""
    return unquote(request.scope["path"])


def address_of(request: AnyRequest) -> str:
    """The path and the query as they came."""
    path, query = request.scope["raw_path"].decode("ascii"), request.scope["query_string"].decode("ascii")
    return f"{path}?{query}" if query else path
