"""`steadfaust rows`: look at rows, and mend one that cannot be read.

Exit status: 0 done, 1 an error or a refusal, 3 there is no such row, 4 it was asked and is not settled yet.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from streams.cli.workers import At, Json, NoAnswer, Who, Why, WorkerAddress, by_whom, find_worker, json_line
from streams.model.operations import RowCommand

app = typer.Typer(
    help="Rows of tables: show, and replace or delete what cannot be read.", no_args_is_help=True
)

REFUSED, NOTHING, UNFINISHED = 1, 3, 4
#: Between looks at whether an operation is settled, in seconds.
PAUSE = 0.2

Table = Annotated[str, typer.Argument(help="The table, as /tables lists it.")]
Key = Annotated[str, typer.Argument(help="The row's key: that of its messages.")]
Subkey = Annotated[str, typer.Option("--subkey", help="Of several rows of a key, which one.")]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")]


@app.command()
def show(
    table: Table,
    key: Key,
    subkey: Annotated[str | None, typer.Option("--subkey", help="Only this one of the key's rows.")] = None,
    worker: At = "",
    *,
    as_json: Json = False,
) -> None:
    """Show the rows of a key; of one that cannot be read, why, and its bytes in hexadecimal."""
    found = _rows(find_worker(worker), table, key, subkey)
    for row in found:
        if as_json:
            typer.echo(json_line(row))
            continue
        name = f"{row['key']}  {row['subkey']}".rstrip()
        typer.echo(
            f"{name}  unreadable: {row['error']}" if row["error"] else f"{name}  {json_line(row['value'])}"
        )
        if row["error"]:
            typer.echo(f"  bytes  {row['hex'] or '-'}")
    if not found:
        typer.echo(f"{table} has no such row", err=True)
    raise typer.Exit(0 if found else NOTHING)


@app.command()
def replace(
    table: Table,
    key: Key,
    row: Annotated[Path, typer.Option("--row", exists=True, help="A file with the row as JSON.")],
    why: Why,
    subkey: Subkey = "",
    who: Who = "",
    worker: At = "",
    timeout: Timeout = 30.0,
) -> None:
    """Put another row in the place of one that cannot be read. Then replay the dead letters of its key."""
    try:
        fields = msgspec.json.decode(row.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{row} is no JSON object: {error}") from error
    body = {"operation": str(RowCommand.REPLACE), "row": fields, "who": by_whom(who), "why": why}
    _mend(find_worker(worker), table, key, subkey, body, timeout)


@app.command()
def delete(
    table: Table,
    key: Key,
    why: Why,
    subkey: Subkey = "",
    who: Who = "",
    worker: At = "",
    timeout: Timeout = 30.0,
) -> None:
    """Delete a row that cannot be read. Its handlers then find no row."""
    body = {"operation": str(RowCommand.DELETE), "who": by_whom(who), "why": why}
    _mend(find_worker(worker), table, key, subkey, body, timeout)


def _mend(
    asked: WorkerAddress, table: str, key: str, subkey: str, body: dict[str, Any], timeout: float
) -> None:
    """Ask for it, and wait until the row is no more what it was; Ctrl-C ends the waiting alone."""
    before = _rows(asked, table, key, subkey)
    if not before:
        typer.echo(f"{table} has no such row", err=True)
        raise typer.Exit(NOTHING)
    if not before[0]["error"]:
        typer.echo("refused: the row can be read, so it is for handlers to change", err=True)
        raise typer.Exit(REFUSED)
    asked.post(f"/api/tables/{quote(table, safe='')}/rows/operations", {**body, "key": key, "subkey": subkey})
    until = time.monotonic() + timeout
    while (now := _rows(asked, table, key, subkey)) and now[0]["error"]:
        if time.monotonic() >= until:
            typer.echo(f"asked, and not done after {timeout:g} s: see the log of operations", err=True)
            raise typer.Exit(UNFINISHED)
        time.sleep(PAUSE)
    done = f"replaced: {json_line(now[0]['value'])}" if now else "deleted"
    typer.echo(f"{done}. Now replay the dead letters of its key: steadfaust dlq replay --where key={key}")


def _rows(asked: WorkerAddress, table: str, key: str, subkey: str | None) -> list[Any]:
    """The rows of a key, or the one with this subkey. Empty if there is no such row."""
    query = {"key": key} if subkey is None else {"key": key, "subkey": subkey}
    rows: list[Any] = []
    try:
        for page in asked.pages(f"/api/tables/{quote(table, safe='')}/rows", query):
            rows += page["rows"]
    except NoAnswer as error:
        if f"{table} has no row with key" not in str(error):
            raise
    return rows
