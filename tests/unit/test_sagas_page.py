"""`docs/sagas.md`: its code is one program, in the order of the page, and the tests that it prints pass."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from streams.testing import run_choreography

PAGE = Path(__file__).parents[2] / "docs" / "sagas.md"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """The program of the page."""
    module = ModuleType("sagas_page")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    exec(compile(code, str(PAGE), "exec"), vars(module))  # as it is printed
    return module


def test_the_tests_of_the_page_pass(page: ModuleType) -> None:
    tests = [value for name, value in vars(page).items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


@pytest.mark.parametrize(
    ("city", "cents", "status"),
    [("Rome", 9_900, "completed"), ("Atlantis", 9_900, "compensated"), ("Rome", 990_000, "compensated")],
)
async def test_its_participants_answer_its_saga(page: ModuleType, city: str, cents: int, status: str) -> None:
    world = None
    for message in (page.TripBooked(trip="t", city=city, cents=cents), page.RoomConfirmed(trip="t")):
        world = await run_choreography(page.wiring, [message], timers="ignored", world=world)
    assert world is not None
    assert [each.after for each in world.sent(page.TripTransition) if not each.step][-1] == status


def test_the_page_has_every_word_of_the_test_language(page: ModuleType) -> None:
    words = {name for name in vars(type(page.given_saga(page.Trip))) if not name.startswith("_")}
    _, _, section = PAGE.read_text().partition("## A test, word by word")
    assert {word for word in words | {"now", "entries"} if f".{word}" not in section} == set()
