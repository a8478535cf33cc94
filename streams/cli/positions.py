"""`steadfaust positions`: show the positions of lanes, and repair those that stop a lane.

Exit status: 0 done, or no problem; 1 an error; 3 nothing matched; 4 a position stops a lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from streams.cli.options import NOTHING, Json, echo, say
from streams.engine.life.positions.review import Accepted, At, Standing, accept, require_partitions, standings
from streams.errors import SettingsError
from streams.model.layout import Layout
from streams.ports import Cluster
from streams.settings import Settings

app = typer.Typer(help="Show the source positions of lanes, and repair them.", no_args_is_help=True)

UNSETTLED = 4
T = TypeVar("T")

Topic = Annotated[str, typer.Option(help="Only this topic.")]


@app.command("list")
def list_(
    topic: Topic = "",
    *,
    problems: Annotated[bool, typer.Option("--problems", help="Only positions that stop a lane.")] = False,
    as_json: Json = False,
) -> None:
    """List the committed position in each partition, and any problem that stops its lane."""
    found = _run(lambda layout, cluster: standings(layout, cluster, [topic] if topic else []))
    for standing in found:
        if standing.problem or not problems:
            echo(standing, _position_line, as_json=as_json)
    if not found:
        raise typer.Exit(NOTHING)
    raise typer.Exit(UNSETTLED if any(standing.problem for standing in found) else 0)


@app.command("accept")
def accept_(
    topic: Annotated[str, typer.Option(help="Topic to accept in its present state.")],
    partition: Annotated[list[int] | None, typer.Option(help="Only this partition; may be repeated.")] = None,
    at: Annotated[
        str,
        typer.Option(
            help="Where to continue: auto, begin, end, recorded (the position that lanes recorded), group"
            " (the consumer group's offset), or an offset."
            " docs/operating.md explains auto."
        ),
    ] = "auto",
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be recorded.")] = False,
    as_json: Json = False,
) -> None:
    """Accept a topic that was recreated, truncated or reset: record its id and where to continue."""
    where = _at(at)

    async def run(layout: Layout, cluster: Cluster) -> list[Accepted]:
        numbers = partition or list(range(layout.partitions))
        if wrong := [number for number in numbers if not 0 <= number < layout.partitions]:
            raise SettingsError(f"there are no partitions {wrong}: {layout.app_id} has {layout.partitions}")
        return await accept(layout, cluster, topic, numbers, where, dry_run=dry_run)

    for each in _run(run):
        echo(each, _accepted_line, as_json=as_json)
    if not as_json:
        say(
            "nothing was changed (--dry-run)"
            if dry_run
            else "accepted; restart the workers whose lanes have stopped"
        )


def _at(text: str) -> At | int:
    if text in tuple(At):
        return At(text)
    if text.isdigit():
        return int(text)
    raise typer.BadParameter(f"--at {text}: use one of {', '.join(At)}, or an offset")


def _run(work: Callable[[Layout, Cluster], Awaitable[T]]) -> T:
    from streams.kafka.cluster import KafkaCluster  # takes a second to load

    settings = Settings.read()

    async def run() -> T:
        layout, cluster = settings.layout(), KafkaCluster(settings.brokers())
        try:
            await require_partitions(layout, cluster)
            return await work(layout, cluster)
        finally:
            await cluster.close()

    return asyncio.run(run())


def _position_line(standing: Standing) -> str:
    at = "" if standing.recorded is None else f"  position {standing.recorded}"
    problem = f"  {standing.problem.upper()}" if standing.problem else ""
    if standing.cut is not None:
        problem += f" FROM {standing.cut} TO {standing.had}"
    return f"{standing.topic}[{standing.partition}]  offsets {standing.begin} to {standing.end}{at}{problem}"


def _accepted_line(each: Accepted) -> str:
    goes_on = "" if each.position is None else f"  continues at {each.position} (was {each.before})"
    return f"{each.topic}[{each.partition}]  topic id {each.topic_id}{goes_on}"
