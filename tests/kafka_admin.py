"""What operators do to topics of a real broker, mistaken ones too."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import for_code

from chaos.rig.brokers import add_settings, own_settings
from streams.ports import TP
from tests.waiting import eventually_async


@asynccontextmanager
async def administering(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def truncate(bootstrap: str, tp: TP, before: int = -1) -> None:
    """Delete the records before an offset; all, without one."""
    async with administering(bootstrap) as admin:
        await admin.delete_records({TopicPartition(*tp): RecordsToDelete(before)})


async def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic; returns when the broker does not know it any more."""
    async with administering(bootstrap) as admin:
        await admin.delete_topics([topic])
        await eventually_async(lambda: _is_gone(admin, topic), f"{topic} is gone")


async def add_partitions(bootstrap: str, topic: str, partitions: int) -> None:
    """Raise a topic's number of partitions; returns when brokers know leaders of them all."""
    async with administering(bootstrap) as admin:
        await admin.create_partitions({topic: NewPartitions(partitions)})
        await eventually_async(lambda: _is_led(admin, topic, partitions), f"{topic} has leaders")


async def recreate_topic(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Delete a topic and create it again under its name, empty; returns when brokers know it."""
    async with administering(bootstrap) as admin:
        await admin.delete_topics([topic])
        made = NewTopic(topic, partitions, 1, topic_configs=config)
        await eventually_async(lambda: _is_made(admin, made), f"{topic} is made anew")
        await eventually_async(lambda: _is_led(admin, topic, partitions), f"{topic} has leaders")


async def set_in_topics(bootstrap: str, topics: Sequence[str], config: Mapping[str, str]) -> None:
    """Set something in topics, beside what is set there."""
    async with administering(bootstrap) as admin:
        await add_settings(admin, await own_settings(admin, topics), config)


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
