"""`steadfaust reshard`: give an application a multiple of its partitions (docs/upgrading.md).

Exit status: 0 done, 1 an error or a refusal, 4 it did not come to its end: the same command goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from streams.cli.options import UNFINISHED, Json, json_line, say
from streams.cli.schema_files import wired
from streams.cli.schemas import Of
from streams.errors import ClusterUnavailable, Fenced, TransactionFailed
from streams.settings import Settings


def reshard(
    to: Annotated[str, typer.Argument(help="The new application id, as in STEADFAUST_APP_ID.")],
    partitions: Annotated[int, typer.Option(min=2, help="The new number: a multiple of the present one.")],
    of: Of = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Go back to the old application; not once all is copied.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before.")] = False,
    as_json: Json = False,
) -> None:
    """Give the application more partitions: copy its rows into the topics of another application id, compare
    them, and add partitions to its message topics. All workers and clients are stopped, nothing is left to
    handle. A command that was killed is given again and goes on.
    """
    found = wired(of)
    sources = sorted({topic for wiring in found for topic in wiring.routes})
    messages = sorted({topic for wiring in found for topic in wiring.messages()})
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
        say(f"{layout.app_id} may start again; delete the topics of {to}")
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
        typer.confirm(f"workers of {layout.app_id} will not start any more; go on?", abort=True)
    try:
        counts = asyncio.run(run.run(lambda text: None if as_json else say(text, err=True)))
    except (Fenced, TransactionFailed, ClusterUnavailable) as error:
        problem = "another reshard has begun" if isinstance(error, Fenced) else str(error)
        say(f"error: {problem}; to go on, give the same command again", err=True)
        raise typer.Exit(UNFINISHED) from error
    if as_json:
        say(json_line({"app_id": to, "partitions": partitions, "rows": counts}))
        return
    for table, count in counts.items():
        say(f"{count:>12,}  {table}")
    say(f"done: STEADFAUST_APP_ID={to} STEADFAUST_PARTITIONS={partitions}: start workers, then clients")
