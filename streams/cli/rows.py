"""`steadfaust rows`: show rows, and replace or delete one that cannot be read.

Exit status: 0 done, 1 an error or a refusal, 3 there is no such row, 4 the operation has no result yet.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from streams.cli.options import (
    NOTHING,
    OPTIONS,
    REFUSED,
    UNFINISHED,
    At,
    Json,
    by_whom,
    json_line,
    say,
    takes,
)
from streams.cli.workers import NoAnswer, WorkerAddress, find_worker
from streams.control.base.asked import EMPTY
from streams.model.operations import RowCommand

app = typer.Typer(
    help="Show rows of tables, and replace or delete rows that cannot be read.", no_args_is_help=True
)

#: Seconds between two checks for the result of an operation.
PAUSE = 0.2

Table = Annotated[str, typer.Argument(help="Name of the table.")]
Key = Annotated[str, typer.Argument(help="Key of the row, which is the key of the messages that change it.")]
Subkey = Annotated[str, typer.Option("--subkey", help="Which row, if the key has several.")]
_OPTIONS = {**OPTIONS, "subkey": (Subkey, "")}


@app.command()
def show(
    table: Table,
    key: Key,
    subkey: Annotated[str | None, typer.Option("--subkey", help="Only the row with this subkey.")] = None,
    worker: At = "",
    *,
    as_json: Json = False,
) -> None:
    """Show the rows of a key. For a row that cannot be read: the reason, and its bytes in hexadecimal."""
    found = _rows(find_worker(worker), table, key, subkey)
    for row in found:
        if as_json:
            say(json_line(row))
            continue
        name = f"{row['key'] or EMPTY}  {row['subkey']}".rstrip()
        say(f"{name}  unreadable: {row['error']}" if row["error"] else f"{name}  {json_line(row['value'])}")
        if row["error"]:
            say(f"  bytes  {row['hex'] or '-'}")
    if not found:
        _say_missing(table, key)
    raise typer.Exit(0 if found else NOTHING)


@app.command()
@takes("why subkey who worker timeout", _OPTIONS)
def replace(
    table: Table,
    key: Key,
    row: Annotated[Path, typer.Option("--row", exists=True, help="File with the new row as JSON.")],
    **given: Any,
) -> None:
    """Replace a row that cannot be read. Afterwards, replay the dead letters of its key."""
    try:
        fields = msgspec.json.decode(row.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{row} is not a JSON object: {error}") from error
    _mend({"operation": str(RowCommand.REPLACE), "row": fields}, table, key, **given)


@app.command()
@takes("why subkey who worker timeout", _OPTIONS)
def delete(table: Table, key: Key, **given: Any) -> None:
    """Delete a row that cannot be read. Handlers then find no row."""
    _mend({"operation": str(RowCommand.DELETE)}, table, key, **given)


def _mend(
    operation: dict[str, Any],
    table: str,
    key: str,
    *,
    why: str,
    subkey: str,
    who: str,
    worker: str,
    timeout: float,
) -> None:
    """Request an operation, and wait until the row has changed. Ctrl-C ends only the wait."""
    address = find_worker(worker)
    body = {**operation, "who": by_whom(who), "why": why}
    before = _rows(address, table, key, subkey)
    if not before:
        _say_missing(table, key)
        raise typer.Exit(NOTHING)
    if not before[0]["error"]:
        say("refused: the row can be read, so only handlers may change it", err=True)
        raise typer.Exit(REFUSED)
    address.post(
        f"/api/tables/{quote(table, safe='')}/rows/operations", {**body, "key": key, "subkey": subkey}
    )
    until = time.monotonic() + timeout
    while (now := _rows(address, table, key, subkey)) and now[0]["error"]:
        if time.monotonic() >= until:
            say(f"sent, but not done after {timeout:g} s: see the log of operations", err=True)
            raise typer.Exit(UNFINISHED)
        time.sleep(PAUSE)
    done = f"replaced: {json_line(now[0]['value'])}" if now else "deleted"
    say(f"{done}. Now replay the dead letters of its key: steadfaust dlq replay --where key={key}")


def _say_missing(table: str, key: str) -> None:
    say(
        f"{table} has no such row: `steadfaust trace {shlex.quote(key)}` shows what happened to the key",
        err=True,
    )


def _rows(address: WorkerAddress, table: str, key: str, subkey: str | None) -> list[Any]:
    """The rows of a key, or the one with this subkey. Empty if there is no such row."""
    query = {"key": key} if subkey is None else {"key": key, "subkey": subkey}
    rows: list[Any] = []
    try:
        for page in address.pages(f"/api/tables/{quote(table, safe='')}/rows", query):
            rows += page["rows"]
    except NoAnswer as error:
        if f"{table} has no row with key" not in str(error):
            raise
    return rows
