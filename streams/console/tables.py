"""The pages of tables, their rows, and what these were."""

from __future__ import annotations

from streams.console.page import Page
from streams.control.api import tables

ROUTES = (
    Page("/tables", tables.tables, "tables.html"),
    Page("/tables/{table}", tables.table, "table.html"),
    Page("/tables/{table}/rows", tables.rows, "rows.html"),
    Page("/tables/{table}/history", tables.history, "history.html"),
)
