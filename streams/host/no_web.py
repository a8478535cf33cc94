"""Faust's web server, serving nothing."""

from __future__ import annotations

from faust.web.drivers.aiohttp import Web


class NoWeb(Web):
    """Replaces Faust's web server, which starts and stops with the worker. Some of Faust's pages need no
    login, so none is served.
    """

    async def start_server(self) -> None:
        """Serve nothing."""

    async def stop_server(self) -> None:
        """Do nothing, because no server was started."""

    def init_server(self) -> None:
        """Mount no pages. Faust would mount its index at / whatever its settings say."""
