"""Checks of brokers before anything starts: their addresses for Faust, and whether they let us in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from aiokafka import AIOKafkaClient
from aiokafka.errors import KafkaError

from streams.brokers import Bootstrap
from streams.errors import SettingsError
from streams.kafka.clients import KafkaOptions
from streams.kafka.security import client_arguments
from streams.settings import Settings

#: Bound on the one question, in seconds.
_ASK_WITHIN = 5.0
#: Between two of them, in seconds.
_ASK_EVERY = 1.0


async def check_access(settings: Settings) -> None:
    """Raise AccessRefused when the brokers and this client do not trust each other, SettingsError when the
    settings say nothing usable. Brokers that do not answer may do so later: that is for others to tell.
    """
    if settings.security_protocol == "PLAINTEXT":
        return  # no client is refused there
    options = KafkaOptions(request_timeout=_ASK_WITHIN)
    client = AIOKafkaClient(**options.connection(settings.brokers()))
    try:
        with suppress(KafkaError, TimeoutError, OSError):
            await client.bootstrap()
    finally:
        await client.close()


async def until_brokers_answer(bootstrap: Bootstrap, goes_on: Callable[[], bool]) -> None:
    """Wait until a broker answers, or `goes_on` says no more; `connections` says in the log what for. Raises
    AccessRefused, which does not pass.
    """
    options = KafkaOptions(request_timeout=_ASK_WITHIN)
    while goes_on():
        client = AIOKafkaClient(**options.connection(bootstrap))
        try:
            await client.bootstrap()
        except (KafkaError, TimeoutError, OSError):
            await asyncio.sleep(_ASK_EVERY)
        else:
            return
        finally:
            await client.close()


def broker_urls(settings: Settings) -> list[str] | None:
    """None when nothing usable says where brokers are, or how to get in: commands that list do without."""
    try:
        client_arguments(settings.security())
        return [f"kafka://{address}" for address in settings.brokers().addresses.split(",")]
    except SettingsError:
        return None
