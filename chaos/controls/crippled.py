"""The order application's worker without one of its protections: no product option, so done by force."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from unittest.mock import patch

from aiokafka import AIOKafkaProducer

from agents import worker
from agents.settings import OrderSettings
from chaos.controls.hasty import CONTROL, Control, HastyLane
from streams.engine.life import host as lane_host
from streams.host import app as runtime
from streams.host import membership
from streams.kafka import cluster
from streams.kafka.cluster import KafkaCluster
from streams.kafka.transactions.producer import TransactionalProducer
from streams.model.choreography import choreography
from streams.model.layout import dead_letter_topic
from streams.ports import TP, Sendable, Transactions
from streams.testing.faults import faults_from_environment


def inbox_off() -> None:
    """No topic is checked for what came before."""
    for way, wiring in worker.CHOREOGRAPHIES.items():
        routes = (replace(route, inbox=False) for route in wiring.routes.values())
        worker.CHOREOGRAPHIES[way] = choreography(*routes)


class UnfencedCluster(KafkaCluster):
    """Gives each process transactional ids of its own, so that no owner of a lane fences another."""

    def transactions(self, transactional_id: str) -> Transactions:
        """A producer that is not started yet."""
        return super().transactions(f"{transactional_id}-of-{os.getpid()}")


class LettersApart(TransactionalProducer):
    """Sends dead letters at once, outside the lane's transaction, as is usual elsewhere."""

    async def send(self, batches: Mapping[TP, Sequence[Sendable]]) -> dict[TP, int]:
        """Write the dead letters, then the rest."""
        letters = [(tp, each) for tp, some in batches.items() if tp.topic.endswith(_LETTERS) for each in some]
        if letters:
            async with AIOKafkaProducer(bootstrap_servers=str(self._link.bootstrap)) as producer:
                for tp, (key, value, headers) in letters:
                    await producer.send_and_wait(tp.topic, value, key, tp.partition, headers=list(headers))
        rest = {tp: some for tp, some in batches.items() if not tp.topic.endswith(_LETTERS)}
        return await super().send(rest)


_LETTERS = dead_letter_topic("")


async def nothing_waited_out(*_: object) -> str:
    """A worker ends when its group refuses it."""
    return ""


CRIPPLED: Mapping[Control, Callable[[], object]] = {
    Control.INBOX_OFF: inbox_off,
    Control.FENCING_OFF: patch.object(runtime, "KafkaCluster", UnfencedCluster).start,
    Control.LETTERS_APART: patch.object(cluster, "TransactionalProducer", LettersApart).start,
    Control.STORE_BEFORE_COMMIT: patch.object(lane_host, "Lane", HastyLane).start,
    Control.FORMER_PRIMARY_KEPT: lambda: None,  # of the database edge: see `chaos.controls.former`
    Control.REFUSALS_END: patch.object(membership, "waited_out", nothing_waited_out).start,
    Control.LOGS_WAIT: patch("streams.logs.detach", lambda _: None).start,
}

if control := os.environ.get(CONTROL):
    CRIPPLED[Control(control)]()
app = worker.create_worker(OrderSettings.read_or_exit(), faults_from_environment())
