"""`steadfaust logs`: find the log lines about an order in the log files of workers.

Exit status: 0 found; 1 an error; 3 no line is about the order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from streams.cli.options import NOTHING, Json, json_line, say
from streams.errors import SteadfaustError
from streams.settings import Settings

#: Fields of a line that say what it is about.
IDS = ("correlation_id", "key", "message_id", "order_id", "saga_id")
#: What a line begins with; the rest follows as it was written.
_FIRST = ("timestamp", "level", "event")

Line = Mapping[str, Any]


class NoLog(SteadfaustError):
    """There is no log file, or one cannot be read; the message says which."""


def logs(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Log files; - reads standard input. Default: *.log under STEADFAUST_VAR."),
    ] = None,
    order: Annotated[str, typer.Option(help="Id of an order, a saga or a message.")] = "",
    *,
    as_json: Json = False,
) -> None:
    """Print the log lines about an order, in order of time across all files."""
    if not order:
        raise typer.BadParameter("say which order: --order ID")
    found = sorted(of_order(lines(files or _own()), order), key=_time)
    for line in found:
        for text in [json_line(line)] if as_json else shown(line):
            say(text)
    raise typer.Exit(0 if found else NOTHING)


def _own() -> list[str]:
    var = Settings.read().var
    found = sorted(str(path) for path in var.rglob("*.log"))
    if not found:
        raise NoLog(f"there is no *.log under {var}: name the files, such as worker-*.log")
    return found


def lines(files: Sequence[str]) -> Iterator[Line]:
    """The lines that structlog wrote; others are skipped. Raises NoLog for a file that cannot be read."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for name in files:
        try:
            with sys.stdin.buffer if name == "-" else Path(name).open("rb") as file:
                for raw in file:
                    if raw.startswith(b"{"):
                        try:
                            yield decode(raw)
                        except msgspec.DecodeError:
                            continue  # written by another program, or truncated by a kill
        except OSError as error:
            raise NoLog(f"{name} cannot be read: {error}") from error


def of_order(found: Iterable[Line], order: str) -> Iterator[Line]:
    """Lines about an order, by its own id or as the key in a saga's id `<name>:<key>`."""
    for line in found:
        ids = [line[name] for name in IDS if isinstance(line.get(name), str)]
        if any(each == order or each.partition(":")[2] == order for each in ids):
            yield line


def shown(line: Line) -> list[str]:
    """A line in readable form, followed by its traceback, if any."""
    fields = [f"{name}={value}" for name, value in line.items() if name not in (*_FIRST, "exception")]
    begin = f"{_time(line):27} {line.get('level', ''):8} {line.get('event', '')}"
    return ["  ".join([begin, *fields]), *str(line.get("exception", "")).splitlines()]


def _time(line: Line) -> str:
    return str(line.get("timestamp", ""))
