"""The definition of a saga: its steps in order, their compensations, and the pivot.

    OrderSaga = (
        saga("order", started_by=OrderSubmitted)
        .step("reserve_inventory", ReserveStock, compensate=ReleaseStock, timeout=30)
        .step("process_payment", CapturePayment, compensate=RefundPayment, timeout=30)
        .pivot("schedule_shipping", ScheduleShipment, timeout=30)
        .ends(completed=OrderConfirmed, compensated=OrderCancelled)
    )

A definition is a value that is checked when it is made: a mistake raises WiringError at import, and names the
step.

The fields of a command are filled by name from the facts, which are the fields of the start message and of
the replies to earlier steps. `fields` computes values that are not among the facts by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Unpack

import msgspec
from msgspec.structs import FieldInfo

from streams.errors import WiringError
from streams.model.codecs import NO_JSON, check_types, encode_json
from streams.model.message import Message
from streams.model.policy.bounds import not_seconds
from streams.saga.facts import Facts, filled, lacking, listed
from streams.saga.messages import Command, Reply
from streams.saga.outline import Outline, outline
from streams.saga.steps import NEVER, OWN, PATIENT, Backoff, Refusal, Step, StepOptions, step

__all__ = ["NEVER", "PATIENT", "Backoff", "Facts", "Refusal", "Saga", "Step", "saga", "step"]

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Saga:
    """A definition, made with `saga(...)`. Each method returns a new definition with one more part.

    Attributes:
        name, started_by, version, unless: as in `saga(...)`.
        forgets: fields of the start message that the row does not keep, and that no step can use.
        stages: the steps in order. The steps of a group are one stage.
        replies: the class of all replies to the saga, once it has a step.
        completed: message that is sent when all steps are done.
        compensated: message that is sent when all steps are compensated.
        too_late: message that is sent if a cancellation comes after the pivot.
        conflict: message that is sent if another message with other content would start the saga again.
        ours: topics of commands whose participants are in the same application; set by the engine. Such a
            participant is asked for its state before its step times out.
        outline, digest: the parts of the definition that sagas in flight depend on, and their digest, which
        is stored in each saga's row.
    """

    name: str
    started_by: type[Message]
    version: int = 1
    forgets: tuple[str, ...] = ()
    unless: Callable[[Any], str] | None = None
    stages: tuple[tuple[Step, ...], ...] = ()
    replies: type[Reply] | None = None
    completed: type[Message] | None = None
    compensated: type[Message] | None = None
    too_late: type[Message] | None = None
    conflict: type[Message] | None = None
    ours: frozenset[str] = frozenset()
    outline: Outline = field(init=False, compare=False, repr=False)
    digest: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Computed once here, because each saga that begins stores the digest in its row.
        made = outline(self.name, self.version, self.started_by.TOPIC, self.forgets, self.stages)
        object.__setattr__(self, "outline", made)
        object.__setattr__(self, "digest", made.digest())

    def step(self, name: str, command: type[Command], **options: Unpack[StepOptions]) -> Saga:
        """Add a step that a participant carries out. Raises WiringError if it does not fit."""
        return self._with(step(name, command, **options))

    def together(self, *steps: Step) -> Saga:
        """Add steps that run, and are compensated, concurrently. Raises WiringError."""
        return self._with(*steps)

    def local(
        self,
        name: str,
        function: Callable[[Facts], msgspec.Struct | Refusal | None],
        *,
        gives: type[msgspec.Struct] | None = None,
        when: Callable[[Facts], bool] | None = None,
    ) -> Saga:
        """Add a step that the saga computes itself from the facts, such as a check. Its result, an instance
        of `gives`, adds facts for later steps. A Refusal turns the saga back. With `when`, a function of the
        facts, the step is skipped unless that returns true. Raises WiringError.
        """
        return self._with(Step(name, local=function, reply=gives, when=when, changes_nothing=True))

    def pivot(self, name: str, command: type[Command], **options: Unpack[StepOptions]) -> Saga:
        """Add the step after which the saga cannot turn back. If it has no compensation, it
        has more retries by default, and the saga is `failed` if its outcome remains unknown.
        """
        if self.has_pivot:
            raise self._error(name, "there is already a pivot: a saga has at most one")
        return self._with(replace(step(name, command, **options), pivot=True))

    def ends(
        self,
        *,
        completed: type[Message] | None = None,
        compensated: type[Message] | None = None,
        too_late: type[Message] | None = None,
        conflict: type[Message] | None = None,
    ) -> Saga:
        """Set the messages that the saga sends, filled by name from the facts: `completed` once all steps are
        done, `compensated`, which may have a `reason`, once all are compensated. `too_late` answers a
        cancellation after the pivot. `conflict` answers a start message with other content; it is filled from
        that message, with the reason `started_before`. Raises WiringError for an unknown field.
        """
        begun, undone = self._facts(()), self._facts(()) | {"reason"}
        other = {*self.started_by.__struct_fields__, "reason"}
        for kind, facts in (
            (completed, self._facts()),
            (compensated, undone),
            (too_late, begun),
            (conflict, other),
        ):
            if kind is not None and (lacks := lacking(kind, facts, (), ())):
                raise WiringError(
                    f"saga {self.name}: {kind.__name__} needs {listed(lacks)}, which it never knows"
                )
        return replace(
            self, completed=completed, compensated=compensated, too_late=too_late, conflict=conflict
        )

    # -- read by the engine ---------------------------------------------------------------------------

    @property
    def has_pivot(self) -> bool:
        """Whether the saga has a pivot."""
        return any(each.pivot for each in self.steps())

    def steps(self) -> Iterator[Step]:
        """All steps in order."""
        for stage in self.stages:
            yield from stage

    def find(self, name: str) -> Step | None:
        """The step with this name; None if there is none."""
        return next((each for each in self.steps() if each.name == name), None)

    def kept(self, start: Message) -> bytes:
        """The start message as JSON for the row. Fields in `forgets` have their defaults."""
        if not self.forgets:
            return encode_json(start)
        fields = _fields_of(self.started_by)
        forgotten = {name: _default(fields[name]) for name in self.forgets}
        return encode_json(msgspec.structs.replace(start, **forgotten))

    def known(self, start: bytes) -> dict[str, Any]:
        """The facts of the start message, decoded from what `kept` returned."""
        message = msgspec.json.decode(start, type=self.started_by)
        names = self.started_by.__struct_fields__
        return {name: getattr(message, name) for name in names if name not in self.forgets}

    def began_alike(self, start: bytes, message: Message) -> bool:
        """Whether a message equals the start message in the fields that the row keeps."""
        try:
            return self.known(start) == self.known(self.kept(message))
        except NO_JSON:  # another class, or an older form of this one, started the saga
            return False

    @staticmethod
    def end(kind: type[Message], facts: Facts) -> Message:
        """Make a message that the saga sends about itself, filled by name from the facts."""
        return kind(**filled(kind, facts, {}, ()))

    # -- checks ---------------------------------------------------------------------------------------

    def _with(self, *steps: Step) -> Saga:
        steps = tuple(replace(each, forward_only=self.has_pivot) for each in steps)
        if not steps:
            raise WiringError(f"saga {self.name}: a group without steps")
        taken, replies = {each.name for each in self.steps()}, self.replies
        for each in steps:
            if each.name in taken:
                raise self._error(each.name, "another step has that name")
            taken.add(each.name)
            self._check(each)
            for kind in each.commands:
                if replies not in (None, kind.REPLY):
                    raise self._error(
                        each.name, f"{kind.__name__} has another reply topic than the other commands"
                    )
                replies = kind.REPLY
        return replace(self, stages=(*self.stages, steps), replies=replies)

    def _check(self, one: Step) -> None:
        if not _NAME.fullmatch(one.name):
            raise self._error(one.name, "use lower-case letters, digits, - and _ in its name")
        if wrong := not_seconds(one.timeout):
            raise self._error(one.name, f"its timeout {wrong}")
        for kind in (one.command, one.compensate):
            if kind is not None and not (isinstance(kind, type) and issubclass(kind, Command)):
                raise self._error(one.name, f"{kind!r} is not a command: derive it from Command")
        if one.reply is not None:
            check_types(one.reply)
        for kind in one.commands:
            if not hasattr(kind, "TOPIC") or not hasattr(kind, "REPLY"):
                raise self._error(one.name, f"{kind.__name__} has no TOPIC or no REPLY")
            if lacks := lacking(kind, self._facts(), one.fields, OWN):
                raise self._error(
                    one.name,
                    f"{kind.__name__} needs {listed(lacks)}, which neither {self.started_by.__name__} nor a "
                    "reply to a step that is always made before has: give it in `fields`",
                )
        taken = {name for kind in one.commands for name in kind.__struct_fields__} - {*OWN}
        if strange := sorted({*one.fields} - taken):
            raise self._error(one.name, f"{listed(strange)} in `fields`: neither of its commands has it")
        undone = one.compensate is not None or one.changes_nothing
        if not (undone or one.pivot or one.forward_only):
            raise self._error(
                one.name,
                "it comes before the pivot and has no compensation: give `compensate`, or say "
                "`changes_nothing`",
            )
        if one.compensate is not None and one.forward_only:
            raise self._error(
                one.name, "it comes after the pivot and is never undone: leave `compensate` out"
            )

    def _facts(self, stages: tuple[tuple[Step, ...], ...] | None = None) -> set[str]:
        """Names of the facts that are always known after these stages (default: all stages)."""
        known = {*self.started_by.__struct_fields__} - {*self.forgets}
        for stage in self.stages if stages is None else stages:
            for each in stage:
                if each.reply is not None and each.when is None:
                    known.update(each.reply.__struct_fields__)
        return known

    def _error(self, name: str, what: str) -> WiringError:
        return WiringError(f"saga {self.name}, step {name!r}: {what}")


@cache
def _fields_of(kind: type[Message]) -> dict[str, FieldInfo]:
    """Cached, because msgspec resolves the annotations at each call, which takes 40 % of starting a saga."""
    return {each.name: each for each in msgspec.structs.fields(kind)}


def _default(field: FieldInfo) -> Any:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


def saga(
    name: str,
    *,
    started_by: type[Message],
    version: int = 1,
    forgets: Collection[str] = (),
    unless: Callable[[Any], str] | None = None,
) -> Saga:
    """Begin a definition (docs/sagas.md builds one).

    Arguments:
        name: first part of each saga's id `<name>:<key>`: lower-case letters, digits, - and _.
        started_by: class of the message that starts a saga.
        version: use a higher number for every change of the steps, and keep the older definition until the
            sagas that began with it have ended.
        forgets: fields of the start message that no step needs, so that the row does not keep them. Each must
            have a default.
        unless: function of the start message that returns why it does not start a saga, or an empty text.

    Raises WiringError.
    """
    optional = {name for name, each in _fields_of(started_by).items() if not each.required}
    if strange := sorted({*forgets} - optional):
        raise WiringError(
            f"saga {name} forgets {listed(strange)}: name fields of {started_by.__name__} that have a default"
        )
    check_types(started_by)
    if not _NAME.fullmatch(name):
        raise WiringError(f"saga {name!r}: use lower-case letters, digits, - and _ in its name")
    return Saga(name, started_by, version, tuple(forgets), unless)
