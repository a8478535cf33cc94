"""Problem answers (RFC 9457, application/problem+json): every error has this form, from any layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.plugins.problem_details import ProblemDetailsException

from streams.errors import TransientError
from streams.http.requests import request_id

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
#: What `Retry-After` says when nothing better is known, in seconds.
RETRY_AFTER = 1

AnyRequest = Request[Any, Any, Any]


def problem(
    status: int,
    kind: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> ProblemDetailsException:
    """An error to raise. `kind` is a word for programs, in the problem's type; `members` are its own."""
    return ProblemDetailsException(
        status_code=status,
        type_=f"urn:problem:{kind}",
        title=HTTPStatus(status).phrase,
        detail=detail,
        headers=dict(headers or {}),
        extra=members or None,
    )


def problem_body(error: ProblemDetailsException, name: str = "") -> bytes:
    """The problem as JSON; `name` is the id of the request that it answers."""
    members: dict[str, Any] = {
        "type": error.type_ or "about:blank",
        "title": error.title,
        "status": error.status_code,
        "detail": error.detail,
    }
    if name:
        members["request_id"] = name
    return msgspec.json.encode(members | (error.extra if isinstance(error.extra, dict) else {}))


def problem_handlers(shown: Sequence[type[TransientError]] = ()) -> dict[Any, Any]:
    """Litestar's `exception_handlers` of an application whose every error is a problem answer. Clients may
    read the text of errors that are `shown`; of other outages they learn that there is one.
    """
    return dict.fromkeys(shown, _unavailable_for) | {
        ProblemDetailsException: _answer,
        ValidationException: _invalid,
        HTTPException: _of_http,
        TransientError: _unavailable,
        Exception: _broken,
    }


def _answer(request: AnyRequest, error: ProblemDetailsException) -> Response[bytes]:
    return Response(
        problem_body(error, request_id(request.scope)),
        status_code=error.status_code,
        media_type=MEDIA_TYPE,
        headers=error.headers,
    )


def _of_http(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    """Answer an error of the framework: no such path, no such method, a body that is too large."""
    phrase = HTTPStatus(error.status_code).phrase
    found = problem(
        error.status_code,
        phrase.lower().replace(" ", "-"),
        error.detail or phrase,
        headers=error.headers,
    )
    if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _broken(request, error)
    return _answer(request, found)


def _invalid(request: AnyRequest, error: ValidationException) -> Response[bytes]:
    """A parameter that is not as the document says."""
    errors = [
        {"detail": str(each.get("message")), "parameter": str(each.get("key", ""))}
        for each in error.extra or ()
        if isinstance(each, dict)
    ]
    return _answer(request, problem(422, "invalid", error.detail, errors=errors))


def _unavailable(request: AnyRequest, error: TransientError) -> Response[bytes]:
    """Something that this needs does not answer now. The same request may be sent again."""
    return _told_unavailable(request, error, "Something that this needs is not available now.")


def _unavailable_for(request: AnyRequest, error: TransientError) -> Response[bytes]:
    return _told_unavailable(request, error, str(error))


def _told_unavailable(request: AnyRequest, error: TransientError, detail: str) -> Response[bytes]:
    log.warning("request_unavailable", error=f"{type(error).__name__}: {error}")
    headers = {"Retry-After": str(RETRY_AFTER)}
    return _answer(request, problem(503, "unavailable", detail, headers=headers))


def _broken(request: AnyRequest, error: Exception) -> Response[bytes]:
    """A mistake of ours: the log has all of it, the answer has where to look."""
    log.error("request_failed", path=request.scope["path"], exc_info=error)
    return _answer(request, problem(500, "internal", "This failed; the server's log has the reason."))
