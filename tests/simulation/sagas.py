"""Sagas that move money between accounts: their messages, participants and definitions, different for each
seed. Rows say what was done to an account, and in which order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple

import msgspec

from streams.errors import PermanentError, TransientError
from streams.model.choreography import Route, on
from streams.model.handlers import Service
from streams.model.message import Message, Row
from streams.model.outcome import Outcome, Timer, nothing, outcome
from streams.model.table import RowOf, Table
from streams.saga import Refusal, Saga, orchestrate, saga, step
from streams.saga.facts import Facts
from streams.saga.messages import Command, Repair, Reply, SagaTransition
from streams.saga.participant import Answer, Participant, done, later, refused
from streams.saga.participation import Participation
from streams.saga.state import SagaRow
from streams.saga.steps import Backoff
from streams.testing.simulation.machines import Outside

#: What each account has in the beginning.
START = 100
#: More is refused by the saga itself.
MOST = 90


class Account(Row, frozen=True):
    """An account: its balance, what is reserved on it for which saga, and all that was done, in order."""

    balance: int = START
    held: dict[str, int] = msgspec.field(default_factory=dict)
    entries: tuple[tuple[str, str], ...] = ()

    def moved(self, saga_id: str, what: str, balance: int, hold: int = 0) -> "Account":
        """The same after an entry."""
        held = dict(self.held)
        held[saga_id] = held.get(saga_id, 0) + hold
        entries = (*self.entries, (saga_id, what))
        return Account(self.balance + balance, {k: v for k, v in held.items() if v}, entries)


class Told(Row, frozen=True):
    """How often a saga has told its end, and how."""

    ends: tuple[str, ...] = ()


class Family(NamedTuple):
    """The messages of a saga. Those of accounts come under the account's key, or all under the saga's own."""

    wanted: type[Any]
    reply: type[Any]
    repair: type[Any]
    transition: type[Any]
    done: type[Any]
    cancelled: type[Any]
    too_late: type[Any]
    conflict: type[Any]
    reserve: type[Any]
    release: type[Any]
    hold: type[Any]
    drop: type[Any]
    review: type[Any]
    reviewed: type[Any]
    charge: type[Any]
    refund: type[Any]
    credit: type[Any]
    debit: type[Any]


@cache
def family(same_key: bool) -> Family:
    """The classes of one; made once, for codecs are kept for each class."""

    class Wanted(Message, frozen=True, kw_only=True):
        """A transfer. `troubles` says which step fails, and how."""

        TOPIC: ClassVar[str] = "transfers.wanted.v1"
        id: str
        source: str
        target: str
        amount: int
        troubles: dict[str, str] = msgspec.field(default_factory=dict)

        @property
        def key(self) -> str:
            return self.id

    class TransferReply(Reply, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "transfers.replies"
        SAME_KEY = same_key

    class TransferRepair(Repair, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "transfers.repairs"

    class Transition(SagaTransition, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "transfers.transitions.v1"

    class End(Message, frozen=True, kw_only=True):
        id: str
        reason: str = ""

        @property
        def key(self) -> str:
            return self.id

    class Done(End, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "transfers.done.v1"
        SAME_KEY = True

    class Cancelled(End, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "transfers.cancelled.v1"
        SAME_KEY = True

    class TooLate(End, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "transfers.too-late.v1"

    class Conflict(End, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "transfers.conflict.v1"

    class Asked(Command, frozen=True, kw_only=True):
        REPLY = TransferReply
        SAME_KEY = same_key
        amount: int
        troubles: dict[str, str] = msgspec.field(default_factory=dict)

    class OfSource(Asked, frozen=True, kw_only=True):
        source: str

        @property
        def key(self) -> str:
            return self.source

    class OfTarget(Asked, frozen=True, kw_only=True):
        target: str

        @property
        def key(self) -> str:
            return self.target

    class Reserve(OfSource, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "accounts.reserve"

    class Release(OfSource, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "accounts.release"

    class Charge(OfSource, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "accounts.charge"

    class Refund(OfSource, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "accounts.refund"

    class Credit(OfTarget, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "accounts.credit"

    class Debit(OfTarget, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "accounts.debit"

    class Hold(Asked, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "gateway.hold"
        SAME_KEY = True

    class Drop(Asked, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "gateway.drop"
        SAME_KEY = True

    class Review(Asked, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "reviews.review"
        SAME_KEY = True

    class Reviewed(End, frozen=True, kw_only=True):
        TOPIC: ClassVar[str] = "reviews.reviewed.v1"
        SAME_KEY = True

    return Family(
        Wanted, TransferReply, TransferRepair, Transition, Done, Cancelled, TooLate, Conflict,
        Reserve, Release, Hold, Drop, Review, Reviewed, Charge, Refund, Credit, Debit,
    )  # fmt: skip


class Reserved(Row, frozen=True):
    """What a reservation tells."""

    left: int


@dataclass
class Gateway:
    """Money outside, by operation. What was dropped there is never held again.

    Attributes:
        held, dropped: operations.
        attempts: how often a participant was asked for a step.
    """

    outside: Outside
    held: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    attempts: dict[tuple[str, str], int] = field(default_factory=dict)

    def check(self, command: Any, name: str) -> str:
        """Fail as the command says for a step of this name; returns why it is refused, or ""."""
        trouble = command.troubles.get(name, "")
        made = self.attempts[command.saga_id, name] = self.attempts.get((command.saga_id, name), 0) + 1
        if trouble == "refuse":
            return "no"
        if trouble == "poison" or (trouble == "curable" and not self.outside.is_healed):
            raise PermanentError(f"{name} of {command.saga_id} is poison")
        if trouble == "flaky" and not self.outside.is_healed:
            raise TransientError(f"{name} of {command.saga_id} is flaky")
        if trouble.isdecimal() and made <= int(trouble):
            raise TransientError(f"attempt {made} of {name} of {command.saga_id}")
        return ""

    async def ask(self, command: Any, name: str) -> None:
        """A request that takes its time, which may be longer than anybody waits."""
        await self.outside.sleep(
            12.0 if command.troubles.get(name) == "slow" and not self.outside.is_healed else 0.2
        )
        self.outside.check()

    async def answer(self, command: Any, name: str) -> None:
        """The answer, which may be lost."""
        await self.outside.sleep(0.1)
        if command.troubles.get(name) == "unanswered" and not self.outside.is_healed:
            raise TransientError(f"no answer to {name} of {command.saga_id}")


ACCOUNTS, TRANSFERS, ENDS = Table("accounts", Account), Table("transfers", SagaRow), Table("ends", Told)
ACCOUNT_STEPS, GATEWAY_STEPS = Table("account-steps", Participation), Table("gateway-steps", Participation)
REVIEW_STEPS = Table("review-steps", Participation)
NAME = "transfer"


@dataclass(frozen=True)
class Features:
    """What the definition of a seed has.

    Attributes:
        same_key: all is under the saga's key, where its account is, too.
        local: the saga checks the amount itself.
        hold: money is held outside as well: "", "alone" or "together" with the review.
        review: a step whose answer comes later.
        pivot: "charge" cannot be taken back, or "refund" can; "none": there is no pivot.
        timeout: of each step, in seconds.
        retry: how often steps are tried again.
    """

    same_key: bool
    local: bool
    hold: str
    review: bool
    pivot: str
    timeout: float
    retry: int


def definition(has: Features, version: int = 1) -> Saga:
    """The saga of these features."""
    of = family(has.same_key)
    again = Backoff(has.retry, 1.0)
    often: dict[str, Any] = {"timeout": has.timeout, "retry": again, "retry_compensation": Backoff(2, 1.0)}
    made = saga(NAME, started_by=of.wanted, version=version)
    if has.local:
        made = made.local("limit", _limit)
    made = made.step("reserve", of.reserve, compensate=of.release, reply=Reserved, **often)
    hold = step("hold", of.hold, compensate=of.drop, when=lambda facts: facts["amount"] % 3 > 0, **often)
    review = step("review", of.review, changes_nothing=True, **often)
    if has.hold == "together" and has.review:
        made = made.together(hold, review)
    else:
        for each in [hold] * bool(has.hold) + [review] * has.review:
            made = made.together(each)
    match has.pivot:
        case "charge":
            made = made.pivot("charge", of.charge, **often)
        case "refund":
            made = made.pivot("charge", of.charge, compensate=of.refund, **often)
        case "none":
            made = made.step("charge", of.charge, compensate=of.refund, **often)
    if has.pivot == "none":
        made = made.step("credit", of.credit, compensate=of.debit, **often)
    else:
        made = made.step("credit", of.credit, **often)
    return made.ends(completed=of.done, compensated=of.cancelled, too_late=of.too_late, conflict=of.conflict)


def _limit(facts: Facts) -> Refusal | None:
    return Refusal("too much") if facts["amount"] > MOST else None


def transfers(versions: Sequence[Saga], gateway: Gateway) -> list[Route]:
    """The wiring of these definitions: the participants are those that any of them needs."""
    of = next(each for each in map(family, (False, True)) if each.wanted is versions[0].started_by)
    conductor = orchestrate(
        *versions, service=Service("transfers"), table=TRANSFERS, log=of.transition, repairs=of.repair
    )
    needed = {kind for version in versions for step in version.steps() for kind in step.commands}
    tell = Service("transfers")

    @tell.handler(row=ENDS)
    def note_end(event: of.done | of.cancelled, row: Told | None) -> Outcome:  # type: ignore[valid-type]
        ends = (*(row or Told()).ends, type(event).__name__.lower())
        return outcome(row=Told(ends))

    routes = [
        on(of.wanted, conductor),
        on(of.reply, conductor),
        on(of.repair, conductor, inbox=True),
        on(of.done, note_end),
        on(of.cancelled, note_end),
        *(route for route in _accounts(of, gateway) if route.message in needed),
    ]
    if of.hold in needed:
        routes += _gateway(of, gateway)
    if of.review in needed:
        routes += _reviews(of, gateway)
    return routes


def _accounts(of: Family, gateway: Gateway) -> list[Route]:
    steps = Participant(Service("accounts"), ACCOUNT_STEPS)

    def does(
        kind: type[Any],
        name: str,
        act: Callable[[Any, Account], Answer],
        declare: Callable[..., Callable[[Any], Any]],
    ) -> Route:
        def handle(command: Any, account: Account | None) -> Answer:
            if why := gateway.check(command, name):
                return refused(why)
            return act(command, account or Account())

        handle.__name__ = name
        handle.__annotations__["command"] = kind
        return on(kind, declare(account=ACCOUNTS)(handle))

    def moved(what: str, balance: int, hold: int = 0) -> Callable[[Any, Account], Answer]:
        def act(command: Any, account: Account) -> Answer:
            amount = command.amount
            return done(account=account.moved(command.saga_id, what, balance * amount, hold * amount))

        return act

    def reserve(command: Any, account: Account) -> Answer:
        amount = command.amount
        if account.balance < amount:
            return refused("no money")
        kept = account.moved(command.saga_id, "reserve", -amount, amount)
        return done(Reserved(kept.balance), account=kept)

    does_it, undoes = steps.command, steps.compensation
    return [
        does(of.reserve, "reserve", reserve, does_it),
        does(of.release, "release", moved("release", +1, -1), undoes),
        does(of.charge, "charge", moved("charge", 0, -1), does_it),
        does(of.credit, "credit", moved("credit", +1), does_it),
        does(of.refund, "refund", moved("refund", 0, +1), undoes),
        does(of.debit, "debit", moved("debit", -1), undoes),
    ]


def _gateway(of: Family, gateway: Gateway) -> list[Route]:
    steps = Participant(Service("gateway"), GATEWAY_STEPS)

    @steps.command()
    async def hold(command: of.hold) -> Answer:  # type: ignore[valid-type]
        await gateway.ask(command, "hold")
        if why := gateway.check(command, "hold"):
            return refused(why)
        if command.operation in gateway.dropped:
            return refused("dropped")
        gateway.held.add(command.operation)
        await gateway.answer(command, "hold")
        return done()

    @steps.compensation()
    async def drop(command: of.drop) -> Answer:  # type: ignore[valid-type]
        await gateway.ask(command, "drop")
        gateway.check(command, "drop")
        gateway.dropped.add(command.operation)
        gateway.held.discard(command.operation)
        await gateway.answer(command, "drop")
        return done()

    return [on(of.hold, hold), on(of.drop, drop)]


def _reviews(of: Family, gateway: Gateway) -> list[Route]:
    service = Service("reviews")
    steps = Participant(service, REVIEW_STEPS)
    asked: RowOf[Participation] = steps.row_of(NAME, "review")

    @steps.command(sends=(of.reviewed,))
    def review(command: of.review) -> Answer:  # type: ignore[valid-type]
        if why := gateway.check(command, "review"):
            return refused(why)
        if command.troubles.get("review") == "mute":
            return later()
        said = of.reviewed(id=command.key, reason=command.troubles.get("verdict", ""))
        return later(timers=[Timer("review", after=0.5, message=said)])

    @service.handler(sends=(of.reply,), asked=asked)
    def answer(event: of.reviewed, asked: Participation | None) -> Outcome:  # type: ignore[valid-type]
        if asked is None or asked.status != "working":
            return nothing("nobody asks any more")
        answered = asked.answered("refused" if event.reason else "done", event.reason)
        return outcome(asked=answered, send=[answered.reply(of.reply)])

    return [on(of.review, review), on(of.reviewed, answer)]
