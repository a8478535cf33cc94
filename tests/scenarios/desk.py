"""An operator at the command line of a world."""

import json
from typing import Any

from typer.testing import CliRunner

from streams.cli.main import app
from tests.scenarios.world import World


def steadfaust(world: World, *words: str) -> list[dict[str, Any]]:
    """What the command prints. It finds a worker by itself."""
    result = CliRunner().invoke(app, [*words, "--json"], env=world._environment())
    assert result.exit_code in (0, 3), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]
