"""`steadfaust up | down | status`: Kafka, S3, PostgreSQL and the companions of the application."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from streams.cli.options import json_line, say
from streams.local import Stack, declared, declared_buckets, declared_databases, running, start, stop
from streams.local.parts import StackSpec
from streams.local.supervisor import supervise

Var = Annotated[Path, typer.Option("--var", help="The stack's directory: data, logs and stack.json.")]

DOWN = 3
"""Exit status of `status` when the stack is down, as in init scripts."""


def up(
    var: Var = Path("var"),
    brokers: Annotated[int, typer.Option(help="1, or 3 for topics with three replicas; 0: no Kafka.")] = 1,
    port: Annotated[int | None, typer.Option(help="The first broker's port; free ones unless given.")] = None,
    *,
    cdc: Annotated[
        bool, typer.Option("--cdc", help="Kafka Connect with Debezium too, for STEADFAUST_OUTBOX=cdc.")
    ] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in front until Ctrl-C.")] = False,
    tiered: Annotated[bool, typer.Option("--tiered", help="Optimise Kafka's code, for benchmarks.")] = False,
) -> None:
    """Start the stack, wait until everything answers, and print the addresses."""
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
    """Stop the stack and wait until nothing of it runs; its data stays."""
    say("stopped" if stop(var, typer.echo) else "already down")


def status(
    var: Var = Path("var"),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print what stack.json says.")] = False,
) -> None:
    """Say whether the stack is up, and where; exit status 3 when it is down."""
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
