"""Makes a topic of a real broker anew, as a mistaken operator does."""

from __future__ import annotations

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import for_code

from tests.waiting import eventually_async


async def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic; returns when the broker does not know it any more."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic])
        await eventually_async(lambda: _is_gone(admin, topic), f"{topic} is gone")
    finally:
        await admin.close()


async def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    """Raise a topic's number of partitions; returns when brokers know leaders of them all."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_partitions({topic: NewPartitions(partitions)})
        await eventually_async(lambda: _is_led(admin, topic, partitions), f"{topic} has leaders")
    finally:
        await admin.close()


async def recreate_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Delete a topic and create it again under its name, empty; returns when brokers know it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic])
        made = NewTopic(topic, partitions, 1, topic_configs=config)
        await eventually_async(lambda: _is_made(admin, made), f"{topic} is made anew")
        await eventually_async(lambda: _is_led(admin, topic, partitions), f"{topic} has leaders")
    finally:
        await admin.close()


async def _is_gone(admin: AIOKafkaAdminClient, topic: str) -> bool:
    return topic not in await admin.list_topics()


async def _is_made(admin: AIOKafkaAdminClient, topic: NewTopic) -> bool:
    ((_, code, *_),) = (await admin.create_topics([topic])).topic_errors
    if code and for_code(code).__name__ != "TopicAlreadyExistsError":  # it is being deleted still
        raise for_code(code)(topic.name)
    return not code


async def _is_led(admin: AIOKafkaAdminClient, topic: str, partitions: int) -> bool:
    (found,) = await admin.describe_topics([topic])
    led = [p for p in found["partitions"] if p["leader"] >= 0 and not p["error_code"]]
    return not found["error_code"] and len(led) == partitions
