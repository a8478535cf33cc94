"""Access rules of the run's brokers: the application's group is refused to everybody for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its names are there, not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from chaos.rig.waiting import ChaosFailed, until_answered
from streams.local.kafka import listener_name

#: What both makes a rule and finds it.
_Rule: TypeAlias = tuple[ResourceType, str, ResourcePatternType, str, str, AclOperation, AclPermissionType]

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: Controllers elect one of them before any has read the rules, when only a super user may do anything: so
#: they have a name and a password. Everybody else is anonymous.
_CONTROLLER = "controller"
_PASSWORD = f'{_PLAIN} required username="{_CONTROLLER}" password="secret" user_{_CONTROLLER}="secret";'


def asks_for_rights(listeners: Iterable[str] = ()) -> dict[str, str]:
    """Settings of brokers, with these further listeners, that ask for rights and allow what no rule names."""
    plain = ["CLIENTS", *map(listener_name, listeners)]
    protocols = [*(f"{name}:PLAINTEXT" for name in plain), "CONTROLLER:SASL_PLAINTEXT"]
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": f"User:{_CONTROLLER}",
        "listener.security.protocol.map": ",".join(protocols),
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": _PASSWORD,
    }


#: What a worker and its Kafka client call the refusal.
REFUSALS = ("may not read group", "GroupAuthorizationFailedError")
_ANSWER_WITHIN = 3.0
#: How long a change of the rules may take: a broker may be away or come back.
_CHANGED_WITHIN = 120.0


@asynccontextmanager
async def denied_group(bootstrap: str, group: str) -> AsyncIterator[None]:
    """While this is entered nobody may READ the group: no member, no commit of positions. Everything else
    stays allowed, so that positions can be looked at.

    Raises ChaosFailed when the cluster does not take a rule.
    """
    rules = [
        _rule(group, AclOperation.ALL, AclPermissionType.ALLOW),
        _rule(group, AclOperation.READ, AclPermissionType.DENY),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})  # errors
    try:
        for rule in rules:
            await _changed(partial(_create, admin, rule), f"{rule} is made")
        yield
    finally:  # each: one whose answer was lost may have been made
        for rule in reversed(rules):  # with the other order, nothing would be allowed in between
            await _changed(partial(_delete, admin, rule), f"{rule} is removed")


async def _changed(change: Callable[[], None], what: str) -> None:
    """Make a change that may be made twice, until a broker confirms it. Raises ChaosFailed."""

    async def confirmed() -> bool:
        await asyncio.to_thread(change)
        return True

    await until_answered(confirmed, what, within=_CHANGED_WITHIN)


def _rule(group: str, operation: AclOperation, permission: AclPermissionType) -> _Rule:
    return ResourceType.GROUP, group, ResourcePatternType.LITERAL, "User:*", "*", operation, permission


def _create(admin: AdminClient, rule: _Rule) -> None:
    _confirm(admin.create_acls([AclBinding(*rule)], request_timeout=_ANSWER_WITHIN))


def _delete(admin: AdminClient, rule: _Rule) -> None:
    _confirm(admin.delete_acls([AclBindingFilter(*rule)], request_timeout=_ANSWER_WITHIN))


def _confirm(answers: Mapping[Any, Future[Any]]) -> None:
    for answer in answers.values():
        try:
            answer.result(_ANSWER_WITHIN)
        except (KafkaException, TimeoutError) as error:
            raise ChaosFailed(f"the cluster did not confirm it: {error!r}") from error
