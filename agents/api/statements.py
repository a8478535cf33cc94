"""The SQL of this folder, by name."""

from __future__ import annotations

from pathlib import Path

from streams.postgres.statements import statements

SQL = statements(Path(__file__).with_name("orders.sql"))
