"""Advice on an answer of PostgreSQL that a retry alone does not cure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from streams.postgres.errors import StatementRefused

_DENIED = re.compile(r"permission denied for (?P<kind>[a-z ]+) (?P<name>\S+)")
_OWNER = re.compile(r"must be (?:able to SET ROLE|owner of (?P<kind>[a-z ]+) (?P<name>\S+))")
_MISSING = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError)
_RIGHTS = {
    "schema": "USAGE, CREATE ON SCHEMA",
    "database": "CREATE ON DATABASE",
    "table": "SELECT, INSERT, UPDATE, DELETE ON TABLE",
    "view": "SELECT ON TABLE",
    "sequence": "USAGE, UPDATE ON SEQUENCE",
    "function": "EXECUTE ON FUNCTION",
}


def advice(error: asyncpg.PostgresError, role: str = "the role") -> str:
    """Name the missing right, or the command to run, after a colon; empty when nothing is known."""
    if isinstance(error, _MISSING):
        return ": run `steadfaust db migrate`"
    if isinstance(error, asyncpg.InvalidSchemaNameError):
        return f": {role} may use no schema of its search_path: GRANT {_RIGHTS['schema']} public TO {role}"
    if not isinstance(error, asyncpg.InsufficientPrivilegeError):
        return ""
    text = str(error)
    if (owner := _OWNER.search(text)) and owner["name"]:
        return (
            f": {role} is not the owner of {owner['kind']} {owner['name']}: do this as its owner, or"
            f" GRANT its owner TO {role}"
        )
    if (denied := _DENIED.search(text)) and denied["kind"] in _RIGHTS:
        return f": GRANT {_RIGHTS[denied['kind']]} {denied['name']} TO {role}"
    return f": {role} has not the right for it"


@contextmanager
def curable_told(*, others: bool = False) -> Iterator[None]:
    """Raise StatementRefused, with the advice, for an answer of PostgreSQL that an operator can cure, and for
    `others` too.
    """
    try:
        yield
    except asyncpg.PostgresError as error:
        cure = advice(error)
        if not cure and not others:
            raise
        raise StatementRefused(f"PostgreSQL refused: {error}{cure}") from error
