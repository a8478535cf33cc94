"""Options that several commands share, and how commands print."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from getpass import getuser
from inspect import Parameter, signature
from socket import gethostname
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from streams.control.base.visible import visible

#: Exit statuses. The docstring of each group of commands says what they mean there.
REFUSED, NOTHING, UNFINISHED = 1, 3, 4

At = Annotated[str, typer.Option("--worker", help="URL of a worker. Default: the first one on this machine.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Why = Annotated[str, typer.Option("--why", help="Reason, recorded in the log of operations.")]
Who = Annotated[str, typer.Option("--who", help="Name of the operator. Default: your user and host name.")]
Timeout = Annotated[float, typer.Option(min=0, help="Maximum seconds to wait.")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number of results.")]

#: Options of operations by parameter name: the type with its help, and the default.
OPTIONS: dict[str, tuple[Any, Any]] = {
    "worker": (At, ""),
    "why": (Why, Parameter.empty),
    "who": (Who, ""),
    "timeout": (Timeout, 30.0),
    "as_json": (Json, False),
}

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., None])


def takes(
    names: str, options: Mapping[str, tuple[Any, Any]] = OPTIONS, **defaults: Any
) -> Callable[[Command], Command]:
    """Replace a command's `**given` by these options of a table, in this order."""

    def with_options(command: Command) -> Command:
        own = signature(command, eval_str=True)
        given = [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=defaults.get(name, default))
            for name, (kind, default) in ((name, options[name]) for name in names.split())
        ]
        *before, _ = own.parameters.values()
        vars(command)["__signature__"] = own.replace(parameters=[*before, *given])  # which typer reads
        return command

    return with_options


def by_whom(who: str) -> str:
    """The operator's name: as given, or the user who runs this command."""
    return who or f"{_user()}@{gethostname()}"


def _user() -> str:
    """The user's name; a container may run by a number that has none."""
    try:
        return getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        return f"uid:{os.getuid()}"


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print one line. Control characters are escaped, because the text may come from a message: it cannot
    start a new line or control the terminal. Line breaks pass on standard error.
    """
    typer.echo(visible(str(text), "\n\t\r" if err else "\t"), err=err, nl=nl)


def json_line(value: object) -> str:
    """The value as one line of JSON."""
    return msgspec.json.encode(value).decode()


def echo(value: T, line: Callable[[T], str], *, as_json: bool) -> None:
    say(json_line(value) if as_json else line(value))


def echo_pages(
    pages: Iterable[Any], name: str, line: Callable[[Any], str], *, limit: int, as_json: bool
) -> tuple[int, dict[str, str]]:
    """Print up to `limit` of the values under `name` in the pages. Returns how many were printed, and for
    each lane that a page is missing the reason.
    """
    printed = 0
    left_out: dict[str, str] = {}
    for page in pages:
        left_out |= page.get("left_out", {})
        for each in page[name][: limit - printed]:
            printed += 1
            echo(each, line, as_json=as_json)
        if printed >= limit:
            break
    return printed, left_out
