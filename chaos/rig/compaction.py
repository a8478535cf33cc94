"""Compaction within a minute: deletions are gone from changelogs as soon as they may be, as after days in a
cluster that runs for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from chaos.rig.waiting import ChaosFailed

#: Beside what the application has declared. A segment is compacted once it is no longer written to. As long
#: as deletions are kept, and no shorter: there are hundreds of logs. Their segments do not begin all at once,
#: nor with large indexes, of which the kernel reads ahead (`streams.local.kafka`).
_HASTE: dict[str, str] = {
    "segment.ms": "45000",
    "segment.jitter.ms": "20000",
    "segment.index.bytes": "65536",
    "max.compaction.lag.ms": "45000",
}
_POLICY, _COMPACT = "cleanup.policy", "compact"
#: Where a broker says that a setting comes from: the topic itself.
_OF_TOPIC = 1


async def hasten_compaction(bootstrap: str, app_id: str) -> int:
    """Let the application's compacted topics be compacted at once; returns how many there are.

    Raises ChaosFailed when the cluster does not take the settings.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        names = [name for name in await admin.list_topics() if name.startswith(f"{app_id}-")]
        own = await own_settings(admin, names)
        compacted = {name: config for name, config in own.items() if config.get(_POLICY) == _COMPACT}
        # What is not named is set back to the cluster's defaults.
        altered = [
            ConfigResource(ConfigResourceType.TOPIC, name, config | _HASTE)
            for name, config in compacted.items()
        ]
        for answer in await admin.alter_configs(altered):
            for code, message, *_ in answer.resources:
                if code:
                    raise ChaosFailed(f"compaction cannot be hastened: error {code}, {message}")
        return len(compacted)
    finally:
        await admin.close()


async def own_settings(admin: Any, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of topics that are not the cluster's defaults."""
    asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    return {
        name: {entry[0]: entry[1] for entry in entries if entry[3] == _OF_TOPIC}
        for answer in await admin.describe_configs(asked)
        for _, _, _, name, entries in answer.resources
    }
