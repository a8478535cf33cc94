"""The gateway for tests: one in memory for handlers, and the real process for everything else."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal, Self

import msgspec

from agents.gateway.cards import behaviour
from agents.gateway.errors import GatewayInvalid, GatewayRefused, GatewayUnavailable, Unanswered
from agents.gateway.ledger import VOIDED
from agents.gateway.wire import ChargeAsk, RefundAsk, VoidAsk
from agents.payments.gateway import INVALID, Charge, Refund

_INVALID, _CONFLICT, _NOT_FOUND = 422, 409, 404


class FakeGateway:
    """The port in memory, with the same checks, the same answers to the same test cards and no waiting.

    Attributes:
        done: what was done, by operation.
        requested: every operation, in the order of the requests, repeats and failures included.
        down: set it, and every request ends in GatewayUnavailable with nothing done.
    """

    def __init__(self, *, attempts: int = 5) -> None:
        """A gateway whose callers are patient for `attempts` attempts in each call."""
        self.done: dict[str, Charge | Refund] = {}
        self.requested: list[str] = []
        self.down = False
        self._attempts = attempts
        self._outages: dict[str, int] = {}
        self._cards: dict[str, str] = {}

    async def charge(self, *, operation: str, cents: int, card: str) -> Charge:
        """Charge `cents` to `card` under `operation`, once."""
        self._heard(operation)
        if _malformed(ChargeAsk(operation, cents, card)):
            return Charge("", operation, "declined", INVALID, cents)
        if (done := self._charged_before(operation, cents, card)) is not None:
            return done
        self._wait_out(operation, behaviour(card).outages)
        reason = behaviour(card).decline
        status: Literal["captured", "declined"] = "declined" if reason else "captured"
        charge = Charge(f"ch_{len(self.done) + 1}", operation, status, reason, cents)
        self.done[operation], self._cards[operation] = charge, card
        return charge

    async def void(self, *, operation: str, cents: int, card: str) -> Charge:
        """See to it that it is not charged any more."""
        self._heard(operation)
        if _malformed(VoidAsk(operation, cents, card)):
            return Charge("", operation, "declined", INVALID, cents)
        if (done := self._charged_before(operation, cents, card)) is not None:
            return done
        charge = Charge(f"ch_{len(self.done) + 1}", operation, "declined", VOIDED, cents)
        self.done[operation], self._cards[operation] = charge, card
        return charge

    def _charged_before(self, operation: str, cents: int, card: str) -> Charge | None:
        done = self.done.get(operation)
        if done is None:
            return None
        if isinstance(done, Charge) and (done.cents, self._cards[operation]) == (cents, card):
            return done
        raise GatewayRefused(operation, _CONFLICT, "operation_conflict")

    async def refund(self, *, operation: str, charge_operation: str) -> Refund:
        """Give back the charge made under `charge_operation`, once."""
        self._heard(operation)
        if why := _malformed(RefundAsk(operation, charge_operation)):
            raise GatewayInvalid(operation, _INVALID, why)
        if (done := self.done.get(operation)) is not None:
            if isinstance(done, Refund) and done.charge_operation == charge_operation:
                return done
            raise GatewayRefused(operation, _CONFLICT, "operation_conflict")
        charge = self.done.get(charge_operation)
        if not isinstance(charge, Charge):
            raise GatewayRefused(operation, _NOT_FOUND, "unknown_charge")
        if charge.declined:
            raise GatewayRefused(operation, _CONFLICT, "not_captured")
        if any(isinstance(d, Refund) and d.charge_operation == charge_operation for d in self.done.values()):
            raise GatewayRefused(operation, _CONFLICT, "already_refunded")
        refund = Refund(f"re_{len(self.done) + 1}", operation, charge_operation, "refunded", charge.cents)
        self.done[operation] = refund
        return refund

    async def find(self, operation: str) -> Charge | Refund | None:
        """Return the charge or refund made under `operation`; None when there is none."""
        self._heard(operation)
        return self.done.get(operation)

    def _heard(self, operation: str) -> None:
        self.requested.append(operation)
        if self.down:
            raise GatewayUnavailable(operation, self._attempts, 0.0, Unanswered("the gateway is down"))

    def _wait_out(self, operation: str, outages: int) -> None:
        before = self._outages.get(operation, 0)
        self._outages[operation] = min(outages, before + self._attempts)
        if before + self._attempts <= outages:
            raise GatewayUnavailable(operation, self._attempts, 0.0, Unanswered(f"{operation}: 503"))


def _malformed(ask: ChargeAsk | VoidAsk | RefundAsk) -> str:
    """Why the gateway would not take it from the wire; empty when it would."""
    try:
        msgspec.convert(msgspec.to_builtins(ask), type(ask))
    except msgspec.ValidationError as error:
        return str(error)
    return ""


class GatewayProcess:
    """`python -m agents.gateway` as a child on a free port, its ledger under `var`; use it `with`.

    Attributes:
        url: where it listens.
        pid: its process id.
    """

    def __init__(self, var: Path, *, start_within: float = 20.0) -> None:
        """Start it and wait for its address. Raises RuntimeError if its first line is no address."""
        environment = os.environ | {"PORT": "0", "STEADFAUST_VAR": str(var)}
        command = [sys.executable, "-m", "agents.gateway"]
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        line = self._first_line(start_within)
        if not line.startswith("gateway: http://"):
            self.kill()
            raise RuntimeError(f"the gateway did not start within {start_within} s; it printed {line!r}")
        self.url = line.split()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """End it in order and return its exit code; killed when it takes over ten seconds."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """End it at once, as a crash would."""
        return self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> int:
        self._process.send_signal(how)
        try:
            return self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()

    def _first_line(self, within: float) -> str:
        if self._process.stdout is None:
            return ""
        ready, _, _ = select.select([self._process.stdout], [], [], within)
        return self._process.stdout.readline() if ready else ""
