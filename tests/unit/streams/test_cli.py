"""The command itself."""

from importlib.metadata import version

from typer.testing import CliRunner

from streams.cli.main import app


def test_it_says_its_version() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout) == (0, f"steadfaust {version('steadfaust')}\n")
