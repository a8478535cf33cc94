"""The event loop of workers."""

from __future__ import annotations

import asyncio

import uvloop


def use_uvloop() -> None:
    """Make uvloop the loop of this process: about twice as fast for many small network operations."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
