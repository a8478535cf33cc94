"""Faust's web server, serving nothing."""

from __future__ import annotations

from faust.web.drivers.aiohttp import Web


class NoWeb(Web):
    """Faust starts and stops it with the worker. Of Faust's own server and pages nothing is used: some answer
    without asking who it is.
    """

    async def start_server(self) -> None:
        """Serve nothing."""

    async def stop_server(self) -> None:
        """Nothing was served."""

    def init_server(self) -> None:
        """Mount nothing: Faust's index would be at / whatever its settings say."""
