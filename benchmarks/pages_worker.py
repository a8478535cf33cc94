"""The order application's worker; it indexes what it has recovered with a whole core: that is waited for."""

from __future__ import annotations

from streams.control.overview import samples

samples.SHARE_BEHIND = 0.9

from agents.worker import app  # noqa: E402 - after the setting

__all__ = ["app"]
