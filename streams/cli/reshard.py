"""`steadfaust reshard`: give an application a multiple of its partitions (docs/upgrading.md).

Exit status: 0 done, 1 an error or a refusal, 4 not finished: run the same command again to continue.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from streams.cli.options import UNFINISHED, Json, json_line, say
from streams.cli.schema_files import wired
from streams.cli.schemas import Of
from streams.errors import ClusterUnavailable, Fenced, ReshardRefused, TransactionFailed
from streams.settings import Settings


def reshard(
    to: Annotated[str, typer.Argument(help="New application id, for STEADFAUST_APP_ID.")],
    partitions: Annotated[
        int, typer.Option(min=2, help="New number of partitions: a multiple of the current number.")
    ],
    of: Of = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Go back to the old application. Refused once everything is copied."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Give an application more partitions, under a new application id.

    It copies all rows into topics of the new id, compares them, and adds partitions to the message topics.
    First stop all clients, let the workers handle every message, and stop the workers. If the command is
    killed, run it again to continue.
    """
    found = wired(of)
    sources = sorted({topic for wiring in found for topic in wiring.routes})
    messages = sorted({topic for wiring in found for topic in wiring.messages()})
    if read := sorted({topic for wiring in found for topic in wiring.sources()}):
        raise ReshardRefused(f"the application reads the sources {', '.join(read)}, which are not moved yet")
    from streams.host.resharding import Resharding  # takes a second to load

    settings = Settings.read()
    layout = settings.layout()
    run = Resharding(
        settings.brokers(),
        layout,
        replace(layout, app_id=to, partitions=partitions),
        sources,
        messages,
        max_record=settings.max_message_bytes,
    )
    if cancel:
        asyncio.run(run.cancel())
        say(f"workers of {layout.app_id} may start again; delete the topics of {to}")
        return
    plan = asyncio.run(run.plan())
    if not as_json:
        say(f"{layout.app_id} -> {to}, {layout.partitions} -> {partitions} partitions: {plan.progress}")
        say(f"  tables  {', '.join(plan.tables)}")
        say(f"  message topics that get partitions  {', '.join(plan.topics) or '-'}")
    elif dry_run:
        say(json_line(plan))
    if dry_run:
        return
    if not yes:
        typer.confirm(f"workers of {layout.app_id} can no longer start after this; continue?", abort=True)
    try:
        counts = asyncio.run(run.run(lambda text: None if as_json else say(text, err=True)))
    except (Fenced, TransactionFailed, ClusterUnavailable) as error:
        problem = "another reshard has started" if isinstance(error, Fenced) else str(error)
        say(f"error: {problem}; run the same command again to continue", err=True)
        raise typer.Exit(UNFINISHED) from error
    if as_json:
        say(json_line({"app_id": to, "partitions": partitions, "rows": counts}))
        return
    for table, count in counts.items():
        say(f"{count:>12,}  {table}")
    say(f"done: set STEADFAUST_APP_ID={to} and STEADFAUST_PARTITIONS={partitions}")
    say("then start workers, and after them clients")
