"""The outline of a definition: what a saga in flight depends on, as a value that can be kept and compared.

The digest of it lies in each saga's row. So code with other steps under the same version is noticed before it
touches the saga (docs/adr/0013). What only changes how long or how often something is tried is not in the
digest: a saga in flight takes that over with its next command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from hashlib import sha256
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from streams.saga.state import SagaRow, StepState
from streams.saga.steps import Step

#: Prefix of a digest. A row with another prefix was made by other rules, so its steps are compared.
RULES = "1:"


class StepOutline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step.

    Attributes:
        command: the topic of its command; empty for a local step.
        compensation: the topic of what undoes it; empty when nothing does.
        reply: the fields that the data of its reply must have, with their types.
    """

    name: str
    command: str = ""
    compensation: str = ""
    pivot: bool = False
    reply: dict[str, Any] = {}


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A definition, without its functions.

    Attributes:
        started_by: the topic of the message that starts it.
        forgets: fields of that message which its row does not keep.
        stages: the steps in order; those of a group are one stage.
        timeouts: seconds, by step. In no digest, since no saga depends on them.
    """

    saga: str
    version: int
    started_by: str
    forgets: tuple[str, ...]
    stages: tuple[tuple[StepOutline, ...], ...]
    timeouts: dict[str, float] = {}

    def steps(self) -> dict[str, StepOutline]:
        """All steps in order, by name."""
        return {each.name: each for stage in self.stages for each in stage}

    def digest(self) -> str:
        """Equal for definitions that a saga in flight can switch between. Leaves out version and timeouts."""
        kept = [self.started_by, self.forgets, self.stages]
        return RULES + sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()[:16]


def outline(
    saga: str, version: int, started_by: str, forgets: Sequence[str], stages: Sequence[Sequence[Step]]
) -> Outline:
    """Make the outline of a definition from its parts."""
    return Outline(
        saga=saga,
        version=version,
        started_by=started_by,
        forgets=tuple(sorted(forgets)),
        stages=tuple(tuple(map(_step, stage)) for stage in stages),
        timeouts={each.name: each.timeout for stage in stages for each in stage if each.command},
    )


def fits(row: SagaRow, made: Outline, digest: str) -> bool:
    """Whether a saga can continue with a definition, given its outline and digest. A row without a digest of
    these rules is compared by the names and topics of its steps.
    """
    if row.definition.startswith(RULES):
        return row.definition == digest
    return list(map(_stored, row.steps)) == list(map(_bare, made.steps().values()))


def why_unfit(row: SagaRow, made: Outline) -> str:
    """How the steps of a definition differ from those that a saga began with."""
    began = {step.name: _stored(step) for step in row.steps}
    now = {name: _bare(step) for name, step in made.steps().items()}
    return "; ".join(_step_changes(began, now)) or (
        "the groups of its steps, its pivot, a reply's data or what it forgets have changed"
    )


def changes(before: Outline, after: Outline) -> list[str]:
    """Differences because of which a saga that began with `before` cannot continue with `after`."""
    old, new = before.steps(), after.steps()
    found = list(_step_changes(old, new))
    if before.started_by != after.started_by:
        found.append(f"it is started by {after.started_by} in place of {before.started_by}")
    if before.forgets != after.forgets:
        found.append(f"it forgets {_listed(after.forgets)} in place of {_listed(before.forgets)}")
    if not found and _groups(before) != _groups(after):
        found.append("the groups of steps that are made together have changed")
    return found


def harmless_changes(before: Outline, after: Outline) -> list[str]:
    """Changes that a saga in flight takes over with its next command."""
    return [
        f"step {name} has a timeout of {after.timeouts[name]:g} s in place of {timeout:g} s"
        for name, timeout in before.timeouts.items()
        if after.timeouts.get(name, timeout) != timeout
    ]


def _step_changes(old: dict[str, StepOutline], new: dict[str, StepOutline]) -> Iterator[str]:
    gone, added = [name for name in old if name not in new], [name for name in new if name not in old]
    if gone:
        yield f"{_steps(gone)} gone"
    if added:
        yield f"{_steps(added)} new"
    kept = [name for name in old if name in new]
    if kept != [name for name in new if name in old]:
        yield f"the order was {', '.join(old)} and is {', '.join(new)}"
    for name in kept:
        yield from _one_step(name, old[name], new[name])


def _one_step(name: str, old: StepOutline, new: StepOutline) -> Iterator[str]:
    if old.command != new.command:
        yield f"step {name} asks {new.command or 'nobody'} in place of {old.command or 'nobody'}"
    if old.compensation != new.compensation:
        yield (
            f"step {name} is undone by {new.compensation or 'nothing'} in place of "
            f"{old.compensation or 'nothing'}"
        )
    if old.pivot != new.pivot:
        yield f"step {name} is {'the' if new.pivot else 'no'} pivot now"
    if old.reply != new.reply:
        yield f"the reply to step {name} must tell {_told(new.reply)} in place of {_told(old.reply)}"


def _groups(made: Outline) -> list[list[str]]:
    return [[each.name for each in stage] for stage in made.stages]


def _steps(names: list[str]) -> str:
    return f"step {names[0]} is" if len(names) == 1 else f"steps {', '.join(names)} are"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _told(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {each}" for name, each in fields.items()) or "nothing"


def _stored(step: StepState) -> StepOutline:
    return StepOutline(name=step.name, command=step.action, compensation=step.compensation)


def _bare(step: StepOutline) -> StepOutline:
    return StepOutline(name=step.name, command=step.command, compensation=step.compensation)


def _step(step: Step) -> StepOutline:
    return StepOutline(
        name=step.name,
        command=step.command.TOPIC if step.command else "",
        compensation=step.compensate.TOPIC if step.compensate else "",
        pivot=step.pivot,
        reply=_needed(step.reply, ()) if step.reply else {},
    )


# -- types ------------------------------------------------------------------------------------------------


def _needed(kind: type[Any], inside: tuple[type[Any], ...]) -> dict[str, Any]:
    """The required fields: data that has them can be read, whatever other fields it has."""
    fields = msgspec.structs.fields(kind)
    return {each.encode_name: _named(each.type, (*inside, kind)) for each in fields if each.required}


def _named(hint: Any, inside: tuple[type[Any], ...] = ()) -> Any:
    """Describe a type independently of the versions of Python and msgspec."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _named(parts[0], inside)
    if origin in (Union, UnionType):
        return " or ".join(sorted(str(_named(part, inside)) for part in parts))
    if origin is Literal:
        return " or ".join(sorted(map(repr, parts)))
    if origin is not None:
        return f"{_name(origin)} of {', '.join(str(_named(part, inside)) for part in parts)}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in inside:
        return _needed(hint, inside)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(sorted(repr(each.value) for each in hint))
    return _name(hint)


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
