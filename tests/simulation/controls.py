"""Negative controls: the real code without one of its protections. The simulation has to find each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from chaos.controls.hasty import HastyLane
from streams.lane import host as lane_host
from streams.lane import intake
from streams.model.choreography import Choreography, Route, choreography
from streams.ports import TP, Outgoing, Transactions
from streams.saga import participant
from streams.saga.steps import Step as SagaStep
from streams.saga.turn import Turn
from streams.staging.payloads import Payloads
from streams.testing.clients import FakeTransactions
from streams.testing.simulation import machines, run
from streams.testing.simulation.machines import Network


def _unfenced() -> AbstractContextManager[Any]:
    """Each machine has transactional ids of its own."""
    real = Network.transactions

    def transactions(self: Network, transactional_id: str) -> Transactions:
        return real(self, f"{transactional_id}-of-{self._machine.name}")

    return patch.object(Network, "transactions", transactions)


def _letters_apart() -> AbstractContextManager[Any]:
    """Dead letters are sent at once, outside the transaction."""
    real = FakeTransactions.send

    async def send(self: FakeTransactions, batches: Mapping[TP, Sequence[Outgoing]]) -> dict[TP, int]:
        for tp, some in batches.items():
            if tp.topic.endswith(".dlq"):
                for each in some:
                    self._broker.produce(tp, *each)
        return await real(self, {tp: some for tp, some in batches.items() if not tp.topic.endswith(".dlq")})

    return patch.object(FakeTransactions, "send", send)


def _offsets_outside() -> AbstractContextManager[Any]:
    """Offsets are committed at once, beside the transaction."""

    async def send_offsets(self: FakeTransactions, offsets: Mapping[TP, int], group: str) -> None:
        self._broker.groups.setdefault(group, {}).update(offsets)

    return patch.object(FakeTransactions, "send_offsets", send_offsets)


def _reused_after_doubt() -> AbstractContextManager[Any]:
    """A commit whose answer is lost is taken for done."""
    real = machines._Producer.commit

    async def commit(self: Any) -> None:
        try:
            await real(self)
        except Exception:  # noqa: BLE001 - that is the mistake
            self._lost = ""

    return patch.object(machines._Producer, "commit", commit)


def _without_inbox() -> AbstractContextManager[Any]:
    """No topic is checked for what came before."""

    def without(*routes: Route) -> Choreography:
        return choreography(*(replace(route, inbox=False) for route in routes))

    return patch.object(run, "choreography", without)


def _unwritten_payloads() -> AbstractContextManager[Any]:
    """What an outcome refers to is not written before it is staged."""

    async def write(*_: Any) -> None:
        """Nothing is."""

    return patch.object(Payloads, "write", write)


def _left_in_doubt() -> AbstractContextManager[Any]:
    """A step of which nobody knows whether it was done is not undone."""
    real = Turn._is_to_be_undone

    def is_to_be_undone(self: Turn, step: SagaStep) -> bool:
        return real(self, step) and self.state(step).status == "completed"

    return patch.object(Turn, "_is_to_be_undone", is_to_be_undone)


CONTROLS: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "no-inbox": _without_inbox,
    "no-fencing": _unfenced,
    "store-before-commit": lambda: patch.object(lane_host, "Lane", HastyLane),
    "letters-apart": _letters_apart,
    "offsets-outside": _offsets_outside,
    "reuse-after-doubt": _reused_after_doubt,
    "unwritten-payloads": _unwritten_payloads,
    "left-in-doubt": _left_in_doubt,
    "forgetful-participants": lambda: patch.object(participant, "_known", lambda *_: None),
    "unmarked-loop": lambda: patch.object(intake, "was_looped", lambda *_: False),
}
