"""What can go wrong with the demo itself."""

from __future__ import annotations

from streams.errors import SteadfaustError


class DemoFailed(SteadfaustError):
    """The demo cannot go on; the message is one line that says why and names the logs."""
