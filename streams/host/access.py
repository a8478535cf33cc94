"""Checks before anything starts: the brokers' addresses for Faust, and whether they accept this client."""

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

#: Timeout of one request, in seconds.
_ASK_WITHIN = 5.0
#: Seconds between two requests.
_ASK_EVERY = 1.0


async def check_access(settings: Settings) -> None:
    """Raise AccessRefused if the brokers and this client do not trust each other, SettingsError if the
    settings are not usable. Brokers that do not answer are no error here, because they may answer later.
    """
    if settings.security_protocol == "PLAINTEXT":
        return  # brokers refuse no client
    options = KafkaOptions(request_timeout=_ASK_WITHIN)
    client = AIOKafkaClient(**options.connection(settings.brokers()))
    try:
        with suppress(KafkaError, TimeoutError, OSError):
            await client.bootstrap()
    finally:
        await client.close()


async def until_brokers_answer(bootstrap: Bootstrap, goes_on: Callable[[], bool]) -> None:
    """Wait until a broker answers, or `goes_on` returns False. Raises AccessRefused, because waiting does not
    help then.
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
    """The brokers' addresses for Faust; None if the settings are not usable, because some commands need no
    broker.
    """
    try:
        client_arguments(settings.security())
        return [f"kafka://{address}" for address in settings.brokers().addresses.split(",")]
    except SettingsError:
        return None
