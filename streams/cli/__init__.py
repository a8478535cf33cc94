"""The `steadfaust` command."""

from streams.errors import missing_extra

try:
    import typer as typer
except ModuleNotFoundError as error:
    raise SystemExit(f"error: {missing_extra('cli', 'The commands', error)}") from error
