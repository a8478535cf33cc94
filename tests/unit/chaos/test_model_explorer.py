"""The explorer finds what is planted in systems small enough to be seen through."""

from collections.abc import Iterator

import pytest

from chaos.model.explorer import DEAD_END, ModelStep, explore

Square = tuple[int, int]


class Board:
    """A piece goes right or up on a board of 5 by 5, to its far corner. `wind` takes it one back as a fault;
    from a `trap` there is only the wind; `crooked` squares break a rule.
    """

    def __init__(
        self, *, traps: tuple[Square, ...] = (), crooked: tuple[Square, ...] = (), wind: bool = False
    ) -> None:
        self._traps = traps
        self._crooked = crooked
        self._wind = wind

    def initial(self) -> Square:
        return 0, 0

    def steps(self, state: Square) -> Iterator[ModelStep[Square]]:
        x, y = state
        if state not in self._traps:
            if x < 4:
                yield ModelStep("right", (x + 1, y))
            if y < 4:
                yield ModelStep("up", (x, y + 1))
        if self._wind and x:
            yield ModelStep("wind", (x - 1, y), is_fault=True)

    def broken(self, state: Square) -> list[str]:
        return ["straight"] if state in self._crooked else []

    def is_goal(self, state: Square) -> bool:
        return state == (4, 4)


def test_every_state_and_transition_is_counted_once() -> None:
    space = explore(Board())
    assert (space.states, space.transitions, space.depth, space.goals) == (25, 40, 8, 1)
    assert space.complete
    assert space.broken == {}


def test_a_broken_rule_is_shown_by_a_shortest_way() -> None:
    space = explore(Board(crooked=((3, 3), (0, 4), (2, 1))))
    trace = space.broken["straight"]
    assert trace.state == (2, 1)
    assert sorted(trace.steps) == ["right", "right", "up"]
    assert space.complete


def test_it_stops_at_the_rule_that_it_was_asked_for() -> None:
    space = explore(Board(crooked=((2, 1),)), until="straight")
    assert not space.complete
    assert space.states < 25
    assert set(space.broken) == {"straight"}


def test_a_state_without_way_to_a_goal_is_dead() -> None:
    trace = explore(Board(traps=((1, 2), (3, 3)))).broken[DEAD_END]
    assert trace.state == (1, 2)
    assert sorted(trace.steps) == ["right", "up", "up"]


def test_what_only_leads_to_dead_ends_is_dead_too() -> None:
    # Both neighbours of (2, 2) are traps: it can still move, and is lost all the same.
    assert explore(Board(traps=((3, 2), (2, 3)))).broken[DEAD_END].state == (2, 2)


def test_a_goal_behind_a_fault_does_not_count() -> None:
    assert explore(Board(traps=((1, 2),), wind=True)).broken[DEAD_END].state == (1, 2)


def test_circles_that_can_reach_a_goal_are_not_dead() -> None:
    space = explore(Board(wind=True))
    assert space.broken == {}
    assert space.states == 25


def test_a_limited_space_claims_nothing_of_dead_ends() -> None:
    space = explore(Board(traps=((1, 0), (0, 1))), limit=2)
    assert not space.complete
    assert space.broken == {}


@pytest.mark.parametrize("crooked", [(0, 0), (4, 4)])
def test_the_first_and_last_states_are_judged_too(crooked: Square) -> None:
    assert explore(Board(crooked=(crooked,))).broken["straight"].state == crooked
