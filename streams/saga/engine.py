"""The handler that runs sagas on a lane. It takes start messages, replies, and requests of operators.

    order_saga = orchestrate(
        OrderSaga, service=service, table=ORDER_SAGAS, log=OrderSagaTransition, repairs=OrderSagaRepair
    )

    on(OrderSubmitted,   order_saga),
    on(OrderSagaReply,   order_saga),
    on(OrderSagaRepair,  order_saga),

Commands, deadlines and transitions are part of its outcome, and are committed together with the saga's row.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from operator import or_
from typing import Any, NamedTuple

import msgspec

from streams.errors import (
    NotYet,
    PermanentError,
    SagaStepsChanged,
    SagaVersionUnknown,
    Unencodable,
    WiringError,
)
from streams.model.handlers import Handler, Service
from streams.model.message import Message
from streams.model.outcome import Outcome, nothing, outcome
from streams.model.table import RowOf, Table
from streams.ports import Clock
from streams.saga.definition import Saga
from streams.saga.messages import IGNORED, TEXT_BOUND, Repair, Reply, SagaTransition, saga_id
from streams.saga.outline import fits, why_unfit
from streams.saga.repairs import apply_repair, reason_text
from streams.saga.state import SagaRow, Transition
from streams.saga.transition import STARTED_BEFORE, begin, receive, start_again

#: Reasons why a message has no effect on a saga.
NO_SUCH_SAGA, ANOTHER_SAGA, UNREADABLE = "no_such_saga", "another_saga", "unreadable"
IGNORED_FOR = (STARTED_BEFORE, NO_SUCH_SAGA, ANOTHER_SAGA, UNREADABLE)


class SagaHandler(Handler[Any, Outcome]):
    """The handler of a saga.

    Attributes:
        saga: the saga's name.
        versions: the saga's definitions.
        repairs: message class of operators' requests; None if the saga accepts none.
        ignored: number of messages without any effect, by reason; used only for metrics.
    """

    def __init__(
        self,
        versions: tuple[Saga, ...],
        service: Service,
        function: Callable[..., Outcome],
        rows: dict[str, Table[Any] | RowOf[Any]],
        log: type[SagaTransition],
        repairs: type[Repair] | None,
        ignored: Counter[str],
    ) -> None:
        replies = versions[0].replies
        assert replies is not None
        super().__init__(service.name, function, [*_sent(versions), replies, log], rows)
        self.saga = versions[0].name
        self.must_hear = (replies,)
        self.undone_by = {
            step.command: step.compensate
            for version in versions
            for step in version.steps()
            if step.command is not None and step.compensate is not None
        }
        self.versions = versions
        self.repairs = repairs
        self.ignored = ignored
        self._by_version = _by_version(versions)

    def why_waits(self, row: SagaRow) -> str:
        """Why the saga's messages wait: no definition here fits its row. Empty if one fits."""
        try:
            _began_with(self._by_version, row)
        except NotYet as error:
            return str(error)
        return ""


class Admission(NamedTuple):
    """The decision whether a message starts a saga, made by `admitted` or `turned_away`.

    Attributes:
        begins: whether the message starts a saga.
        outcome: rows that change with it. If the message is turned away, also the messages to send, and the
            note.
    """

    begins: bool
    outcome: Outcome


def admitted(**rows: Any) -> Admission:
    """For `admit`: the message starts a saga, and these rows change with it."""
    return Admission(begins=True, outcome=outcome(**rows))


def turned_away(why: str, *, send: Sequence[Message] = (), **rows: Any) -> Admission:
    """For `admit`: the message does not start a saga. `why` is noted; `send` and rows are still committed."""
    return Admission(begins=False, outcome=outcome(send=send, note=why, **rows))


def orchestrate(
    *versions: Saga,
    service: Service,
    table: Table[SagaRow],
    log: type[SagaTransition],
    repairs: type[Repair] | None = None,
    admit: Callable[..., Admission] | None = None,
    **rows: Table[Any] | RowOf[Any],
) -> SagaHandler:
    """Make the handler of a saga, named `<service>.<name>_saga`. It needs the resource `clock`, which workers
    have.

    A new saga uses the highest version that its message can start, and keeps that version until it ends. If
    changed steps were deployed without a new version, pass both definitions with that version, and the new
    one again with a higher version: every saga then continues with the steps that it began with.

    Arguments:
        versions: definitions of the saga.
        service: the service that sends its messages.
        table: table with a row for each saga.
        log: message class of its transitions; each transition is sent as a message.
        repairs: message class for operators' requests. Without it `steadfaust saga` cannot repair the saga.
        admit: function of the start message and `rows` that returns `admitted(...)` or `turned_away(...)`.
        rows: tables of the application that `admit` reads and writes, by parameter.

    Raises WiringError for versions that contradict each other. The handler raises Unencodable if `admit`
    returns anything else, and PermanentError if the table has another saga under the key.
    """
    newest = _newest(versions)
    _check_versions(versions)
    assert newest.replies is not None

    ignored: Counter[str] = Counter()

    @cache
    def known(consumed: frozenset[str]) -> _Known:
        return _Known.of([replace(each, ours=consumed) for each in versions])

    def run(
        message: Any, saga: SagaRow | None, *more: Any, clock: Clock, consumed: frozenset[str] = frozenset()
    ) -> Outcome:
        beginning, definitions = known(consumed)
        own_id = saga_id(newest.name, message.key)
        if not isinstance(message, Reply | Repair):
            definition = beginning[type(message)]
            if saga is not None and saga.saga_id != own_id:
                raise PermanentError(f"table {table.name} has {saga.saga_id} already: give each saga its own")
            if saga is not None and not definition.began_alike(saga.start, message):
                ignored[STARTED_BEFORE] += 1
                return outcome_of(start_again(definition, saga, message, clock.now()), log)
            if reason := _why_not_begun(definition, message, saga):
                return nothing(reason)
            admission = _admission(newest, admit(message, *more)) if admit is not None else admitted()
            if not admission.begins:
                return admission.outcome
            return _both(outcome_of(begin(definition, message, clock.now()), log), admission.outcome)
        if message.saga_id != own_id:
            ignored[ANOTHER_SAGA] += 1
            return _ignored(log, message, "it is for another saga", clock.now())
        if saga is None:
            ignored[NO_SUCH_SAGA] += 1
            return _ignored(log, message, "there is no such saga", clock.now())
        definition = _goes_on_with(definitions, saga, newest)
        try:
            if isinstance(message, Repair):
                return outcome_of(apply_repair(definition, saga, message, clock.now()), log)
            return outcome_of(receive(definition, saga, message, clock.now()), log)
        except SagaStepsChanged as error:
            if not saga.ended:
                raise
            # The definition of an ended saga may be gone for good: the message would block its key forever.
            ignored[UNREADABLE] += 1
            return _ignored(log, message, f"it has ended, and {error}", clock.now())

    named: dict[str, Table[Any] | RowOf[Any]] = {"saga": table, **rows}
    _describe(run, versions, repairs, named)
    return SagaHandler(versions, service, run, named, log, repairs, ignored)


def _why_not_begun(definition: Saga, message: Any, saga: SagaRow | None) -> str:
    """Why a message does not start a saga; empty if it does."""
    if saga is not None:
        return f"saga {saga.saga_id} was started before"
    if definition.unless is not None and (reason := definition.unless(message)):
        return f"it starts no saga: {reason}"
    return ""


def _admission(definition: Saga, returned: object) -> Admission:
    if not isinstance(returned, Admission):
        what = f"`admit` of saga {definition.name} returned {type(returned).__name__}"
        raise Unencodable(f"{what}: return admitted(...) or turned_away(...)")
    return returned


def _ignored(log: type[SagaTransition], message: Reply | Repair, why: str, now: float) -> Outcome:
    """Record an ignored message in the topic of transitions, where operators can find it."""
    if isinstance(message, Repair):
        subject = f"{message.operation}, {reason_text(message)}"
    else:
        subject = f"{message.outcome} of {message.command_id}"
    entry = log(
        saga_id=message.saga_id,
        number=0,
        time=now,
        step=message.step[:TEXT_BOUND],
        before="",
        after="",
        detail=f"{IGNORED}{why}: {subject}"[:TEXT_BOUND],
    )
    return outcome(send=[entry], note=why)


def _both(begun: Outcome, admission: Outcome) -> Outcome:
    return msgspec.structs.replace(begun, rows={**begun.rows, **admission.rows})


def _describe(
    run: Callable[..., Outcome],
    versions: tuple[Saga, ...],
    repairs: type[Repair] | None,
    rows: Collection[str],
) -> None:
    """Name the handler after its saga, and give it the signature and annotations that the wiring reads."""
    run.__name__ = f"{versions[0].name}_saga"
    run.__doc__ = f"Conduct the saga {versions[0].name}."
    names = [each for each in inspect.signature(run).parameters.values() if each.kind is each.KEYWORD_ONLY]
    rows_of = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("message", *rows)]
    run.__signature__ = inspect.Signature([*rows_of, *names])  # type: ignore[attr-defined] # of functions
    kinds: list[type[Message]] = [each.started_by for each in versions]
    kinds += [kind for kind in (versions[0].replies, repairs) if kind is not None]
    run.__annotations__["message"] = reduce(or_, dict.fromkeys(kinds))


class _Known(NamedTuple):
    """Definitions by start message and by version."""

    beginning: dict[type[Message], Saga]
    by_version: dict[int, list[Saga]]

    @classmethod
    def of(cls, versions: Sequence[Saga]) -> _Known:
        ordered = sorted(versions, key=lambda each: each.version)
        return cls({each.started_by: each for each in ordered}, _by_version(ordered))


def _by_version(versions: Sequence[Saga]) -> dict[int, list[Saga]]:
    found: dict[int, list[Saga]] = {}
    for each in versions:
        found.setdefault(each.version, []).append(each)
    return found


def _check_versions(versions: Sequence[Saga]) -> None:
    """Allow definitions to share a version only if no new saga starts with it. Their digests must differ."""
    beginning = _Known.of(versions).beginning.values()
    for number, alike in _by_version(versions).items():
        if len(alike) > 1 and len({each.digest for each in alike}) < len(alike):
            raise WiringError(f"saga {alike[0].name}: two definitions have the same version and steps")
        if len(alike) > 1 and any(each.version == number for each in beginning):
            raise WiringError(
                f"saga {alike[0].name}: two definitions have the same version {number}, and sagas begin with"
                " it: give the one that they are to begin with a higher version"
            )


def outcome_of(transition: Transition, log: type[SagaTransition]) -> Outcome:
    """The outcome that commits a transition: its row, messages and timers, and a message per log entry."""
    row = transition.row
    logged = [log(saga_id=row.saga_id, **msgspec.structs.asdict(entry)) for entry in transition.entries]
    return outcome(
        saga=row, send=[*transition.send, *logged], timers=transition.timers, cancel=transition.cancel
    )


def _newest(versions: tuple[Saga, ...]) -> Saga:
    if not versions or len({each.name for each in versions}) != 1:
        raise WiringError("orchestrate() takes the versions of one saga, at least one")
    newest = max(versions, key=lambda each: each.version)
    if len({each.replies for each in versions}) != 1 or newest.replies is None:
        raise WiringError(
            f"saga {newest.name}: each version needs a command, and all are replied to on one topic"
        )
    return newest


def _began_with(definitions: Mapping[int, Sequence[Saga]], row: SagaRow) -> Saga:
    alike = definitions.get(row.version, ())
    for each in alike:
        if fits(row, each.outline, each.digest):
            return each
    if not alike:
        raise SagaVersionUnknown(
            f"{row.saga_id} began with version {row.version}, and here are {sorted(definitions)}: keep a "
            "version until its sagas have ended"
        )
    raise SagaStepsChanged(
        f"{row.saga_id} began with other steps of version {row.version}: {why_unfit(row, alike[0].outline)}."
        " Its messages wait. Give these steps another version, and keep those that it began with as"
        f" version {row.version} until its sagas have ended"
    )


def _goes_on_with(definitions: Mapping[int, Sequence[Saga]], row: SagaRow, newest: Saga) -> Saga:
    """The definition that a saga began with, or the newest one if the saga has ended and its own is gone."""
    try:
        return _began_with(definitions, row)
    except NotYet:
        if not row.ended:
            raise
        return newest


def _sent(versions: tuple[Saga, ...]) -> list[type[Message]]:
    kinds: list[type[Message]] = []
    for version in versions:
        kinds += [kind for step in version.steps() for kind in step.commands]
        classes = (version.completed, version.compensated, version.too_late, version.conflict)
        kinds += [kind for kind in classes if kind is not None]
    return list(dict.fromkeys(kinds))
