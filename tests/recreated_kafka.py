"""Makes a topic of a real broker anew, as a mistaken operator does."""

from __future__ import annotations

import asyncio

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import for_code

BOUND = 20.0


async def recreate_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Delete a topic and create it again under its name, empty; returns when brokers know it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic])
        async with asyncio.timeout(BOUND):
            while True:
                answer = await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])
                ((_, code, *_),) = answer.topic_errors
                if not code:
                    break
                if for_code(code).__name__ != "TopicAlreadyExistsError":  # it is being deleted still
                    raise for_code(code)(topic)
                await asyncio.sleep(0.05)
            while True:
                if await _is_led(admin, topic, partitions):
                    break
                await asyncio.sleep(0.05)
    finally:
        await admin.close()


async def _is_led(admin: AIOKafkaAdminClient, topic: str, partitions: int) -> bool:
    (found,) = await admin.describe_topics([topic])
    led = [p for p in found["partitions"] if p["leader"] >= 0 and not p["error_code"]]
    return not found["error_code"] and len(led) == partitions
