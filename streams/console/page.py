"""Addresses of pages, and of their forms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hmac import compare_digest
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from streams.control.api.web_request import Answer, WebRequest
from streams.control.base.view import Problem

T = TypeVar("T")

#: The field of a form, and the cookie, that a page of another origin does not know.
CSRF = "csrf"
_FORM = "application/x-www-form-urlencoded"


def csrf_of(request: WebRequest) -> str:
    """The token of this visitor's forms; empty: it has none yet."""
    return request.cookies.get(CSRF, "")


def form_of(request: WebRequest) -> dict[str, str]:
    """The fields of a page's own form. Raises Problem 400, and 403 for a form of another page.

    The token alone would do against pages of other hosts. Cookies do not tell the ports of a host apart,
    though, so that a page of another port can set one: what a browser says of the origin counts, too.
    """
    if request.content_type != _FORM:
        raise Problem(400, "not_a_form", f"this address takes a form ({_FORM}), as its page sends it")
    fields = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
    origin = request.headers.get("Origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    csrf, shown = csrf_of(request), fields.pop(CSRF, "")
    if foreign or not csrf or not compare_digest(shown.encode(), csrf.encode()):
        raise Problem(
            403,
            "foreign_form",
            "this form does not come from a page of this worker, or the page is too old: open the page"
            " again and send it from there, with cookies allowed",
        )
    if request.visitor.name:
        fields["who"] = request.visitor.name  # a proxy knows better than a form
    return fields


def from_form(fields: Mapping[str, str], kind: type[T], *names: str) -> T:
    """A struct with these fields of a form. Raises Problem 400."""
    try:
        return msgspec.convert({name: fields.get(name, "") for name in names}, kind)
    except msgspec.ValidationError as error:
        raise Problem(400, "bad_request", str(error)) from error


class FormPage(NamedTuple):
    """A page to show instead of leading to another one: a form that goes on."""

    template: str
    answer: msgspec.Struct


class LoginRedirect(NamedTuple):
    """Where a login or its end leads, and what the browser shows from then on: its session, nothing after the
    end; and, after a login, what tells it from others that have not logged in.
    """

    path: str
    session: str
    browser: str = ""


#: Does what a form's fields ask for, and returns the address of the page to show then.
Act = Callable[[WebRequest, dict[str, str]], Awaitable[str | FormPage | LoginRedirect]]


class Page(NamedTuple):
    """An answer as a page.

    Attributes:
        onward: the address to which the page leads straight on, for an answer; empty: it shows the answer.
        unasked: the template for a query without `q`.
    """

    path: str
    answer: Answer
    template: str
    onward: Callable[[Any], str] | None = None
    unasked: str = ""


class Form(NamedTuple):
    """Something that is changed by a page's form, which then leads to the address that `act` returns."""

    path: str
    act: Act
