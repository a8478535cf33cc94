"""The `steadfaust` command."""
