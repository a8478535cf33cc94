"""A message goes the way that README draws: which module of its picture is entered first, second, third."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from lane_desk import letter_ids, operation
from lane_failing import LATER, Failing
from lane_scenes import retrying_counter
from lane_workloads import Workload
from lane_worlds import FakeWorld, Post, Running

from streams.errors import PermanentError, TransientError
from streams.model.operations import LetterCommand

ROOT = Path(__file__).parents[2]
#: In the modules of the picture, the functions that do the step which it names.
STEPS = {
    "way/intake.py": {"step"},
    "way/admission.py": {"take"},
    "way/dispatch.py": {"_dispatch", "dispatch_operation"},
    "way/attempt.py": {"run_handlers"},
    "staging/outcomes.py": {"stage"},
    "way/failure.py": {"settle_failed"},
    "waiting/due.py": {"due"},
    "dead_letters/table.py": {"write", "give_up"},
    "waiting/timers.py": {"step"},
    "operations/admission.py": {"take"},
    "staging/commit_order.py": {"take"},
    "way/commit.py": {"commit"},
    "kafka/reader.py": set(),  # the fakes cover it,
    "rocksdb/store.py": set(),  # and for this
}
INTAKE = "way/intake.py"
#: Entered whether there is a message or not: they say nothing of its way unless something follows.
IDLE = {"waiting/due.py", "waiting/timers.py"}
BUSY, NEVER = TransientError("busy"), PermanentError("never")
#: What a message that nobody can read does not pass.
UNREAD = (
    "way/dispatch.py",
    "way/attempt.py",
    "staging/outcomes.py",
    "way/failure.py",
)


def picture() -> list[str]:
    section = (ROOT / "README.md").read_text().split("## The way of a message")[1]
    drawn = re.search(r"^```\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    assert drawn is not None
    return re.findall(r"(\w+/\w+\.py)$", drawn[1], flags=re.MULTILINE)


@contextmanager
def watched() -> Iterator[list[str]]:
    """The steps that are done meanwhile, in their order, none twice in a row."""
    steps: list[str] = []

    def entered(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            module = "/".join(Path(frame.f_code.co_filename).parts[-2:])
            if frame.f_code.co_name in STEPS.get(module, ()) and steps[-1:] != [module]:
                steps.append(module)

    sys.setprofile(entered)
    try:
        yield steps
    finally:
        sys.setprofile(None)


async def way_of(world: FakeWorld, lane: Running, *posts: Post, begins: str) -> list[str]:
    """The steps from the one that begins it to the next commit, each where it is done first."""
    before = lane.lane.commits
    with watched() as steps:
        await world.post(*posts)
        await world.until(lambda: lane.lane.commits > before)
    # The begin that led to something: lanes look for work all the time.
    after = next(s for s in picture()[picture().index(begins) + 1 :] if s not in IDLE and s in steps)
    start = len(steps) - 1 - steps[::-1].index(begins, len(steps) - steps.index(after))
    return [step for step in dict.fromkeys(steps[start:]) if step == begins or step not in IDLE]


def test_every_module_of_the_picture_is_watched() -> None:
    assert set(picture()) == set(STEPS)


async def begun(world: FakeWorld, error: Exception | None = None) -> tuple[Workload, Running]:
    work = await retrying_counter(world, retry=LATER)
    if error is not None:
        work.hooks.before = Failing(world, {("a", 0): 1}, error)
    return work, await world.open()


def drawn(*left_out: str, operations: bool = False) -> list[str]:
    """The picture's straight way, and of its branches what is not left out."""
    aside = {"kafka/reader.py", "rocksdb/store.py", *IDLE, *left_out}
    if not operations:
        aside.add("operations/admission.py")
    return [step for step in picture() if step not in aside]


@pytest.mark.parametrize(
    ("error", "value", "left_out"),
    [
        pytest.param(None, None, ("way/failure.py", "dead_letters/table.py"), id="handled"),
        pytest.param(
            BUSY,
            None,
            ("staging/outcomes.py", "dead_letters/table.py"),
            id="tried again",
        ),
        pytest.param(NEVER, None, ("staging/outcomes.py",), id="given up"),
        pytest.param(None, b"{", UNREAD, id="does not decode"),
    ],
)
async def test_a_message_goes_the_way_that_its_end_calls_for(
    fake: FakeWorld, error: Exception | None, value: bytes | None, left_out: tuple[str, ...]
) -> None:
    work, lane = await begun(fake, error)
    event = fake.event(work, "a", 0)
    event = event if value is None else event._replace(value=value)
    assert await way_of(fake, lane, event, begins=INTAKE) == drawn(*left_out)


async def test_a_retry_that_is_due_joins_at_dispatch(fake: FakeWorld) -> None:
    work, lane = await begun(fake, BUSY)
    await way_of(fake, lane, fake.event(work, "a", 0), begins=INTAKE)
    way = await way_of(fake, lane, begins="waiting/due.py")
    passed = [step for step in way if step != INTAKE]
    aside = (
        INTAKE,
        "way/admission.py",
        "way/failure.py",
        "dead_letters/table.py",
    )
    assert passed == ["waiting/due.py", *drawn(*aside)]


async def test_an_operation_joins_at_dispatch(fake: FakeWorld) -> None:
    work, lane = await begun(fake, NEVER)
    await way_of(fake, lane, fake.event(work, "a", 0), begins=INTAKE)
    (letter,) = await letter_ids(fake)
    way = await way_of(fake, lane, operation(fake, LetterCommand.DISCARD, letter), begins=INTAKE)
    assert way == drawn("way/admission.py", *UNREAD[1:], "dead_letters/table.py", operations=True)
