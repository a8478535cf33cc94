"""`steadfaust up | down | status`: Kafka, S3, PostgreSQL and the application's own processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from streams.cli.options import json_line, say
from streams.local import Stack, declared, declared_buckets, declared_databases, running, start, stop
from streams.local.parts import StackSpec
from streams.local.supervisor import supervise

Var = Annotated[Path, typer.Option("--var", help="Folder of the local stack: data, logs and stack.json.")]

DOWN = 3
"""Exit status of `status` when the stack is down, as in init scripts."""


def up(
    var: Var = Path("var"),
    brokers: Annotated[
        int, typer.Option(help="Number of brokers: 1, 3 (three replicas), or 0 for no Kafka.")
    ] = 1,
    port: Annotated[
        int | None, typer.Option(help="Port of the first broker. Default: any free ports.")
    ] = None,
    *,
    cdc: Annotated[
        bool, typer.Option("--cdc", help="Also start Kafka Connect with Debezium, for STEADFAUST_OUTBOX=cdc.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in the foreground until Ctrl-C.")
    ] = False,
    tiered: Annotated[
        bool,
        typer.Option("--tiered", help="Use all compilers of the JVM, for benchmarks. Starts more slowly."),
    ] = False,
) -> None:
    """Start the local stack, wait until everything answers, and print the addresses."""
    if (stack := running(var)) is not None:
        say("already up")
        _print_addresses(stack)
        return
    project = Path("pyproject.toml")
    spec = StackSpec(
        str(var),
        brokers=brokers,
        port=port,
        processes=declared(project),
        buckets=declared_buckets(project),
        databases=declared_databases(project),
        cdc=cdc,
        tiered=tiered,
    )
    if foreground:
        supervise(spec, typer.echo, ready=lambda: _print_addresses(Stack(var)))
        say("stopped")
    else:
        _print_addresses(start(spec, typer.echo))


def down(var: Var = Path("var")) -> None:
    """Stop the local stack and wait until all of its processes have ended. Its data is kept."""
    say("stopped" if stop(var, typer.echo) else "already down")


def status(
    var: Var = Path("var"),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the contents of stack.json.")] = False,
) -> None:
    """Show whether the local stack is running, and its addresses. Exit status 3 if it is down."""
    stack = running(var)
    if as_json:
        found = {} if stack is None else msgspec.to_builtins(stack.state)
        say(json_line({"up": stack is not None, **found}))
    elif stack is None:
        say("down")
    else:
        _print_addresses(stack)
    raise typer.Exit(DOWN if stack is None else 0)


def _print_addresses(stack: Stack) -> None:
    state = stack.state
    if state.brokers:
        say(f"kafka    {state.bootstrap}")
    for name, process in state.processes.items():
        say(f"{name:<8} {process.url}")
    say(f"logs     {stack.var.log}")
