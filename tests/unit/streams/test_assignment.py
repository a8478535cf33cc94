"""Every lane has one owner, as evenly and with as few moves as can be, whoever joins and leaves."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.model.policy.assignment import Assignment, Member, assign

NAMES = st.lists(st.sampled_from([f"w{n}" for n in range(8)]), min_size=1, max_size=8, unique=True)


def member(lanes: int, **more: object) -> Member:
    return Member(partitions=64, lanes=lanes, topics=("t",), **more)


#: The topics that follow from the name of the group alone.
COMMON = {"operations"}


def wired(*topics: str, **more: object) -> Member:
    return Member(partitions=4, lanes=4, topics=("operations", *topics), **more)


def rejoined(given: dict[str, Assignment], lanes: int, generation: int = 1) -> dict[str, Member]:
    return {
        name: member(lanes, active=own.active, standby=own.standby, generation=generation)
        for name, own in given.items()
    }


def owners(given: dict[str, Assignment]) -> dict[int, str]:
    return {lane: name for name, own in given.items() for lane in own.active}


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, dict[str, Member]]:
    """Members with whatever claims, true, outdated and contradictory ones."""
    lanes = draw(st.integers(1, 24))
    claims = st.lists(st.integers(0, lanes + 3), max_size=lanes, unique=True).map(tuple)
    members = {
        name: member(lanes, active=draw(claims), standby=draw(claims), generation=draw(st.integers(-1, 4)))
        for name in draw(NAMES)
    }
    return lanes, draw(st.integers(0, 3)), members


@given(histories())
def test_followers_are_others_than_the_owner_and_even(history: tuple[int, int, dict[str, Member]]) -> None:
    lanes, standbys, members = history
    given = assign(members, standbys)
    followers = Counter(lane for own in given.values() for lane in own.standby)
    wanted = min(standbys, len(members) - 1)
    assert followers == Counter(dict.fromkeys(range(lanes), wanted) if wanted else {})
    for own in given.values():
        assert not set(own.active) & set(own.standby)
        assert len(own.standby) == len(set(own.standby))


@given(histories())
def test_answer_does_not_depend_on_the_order_of_members(history: tuple[int, int, dict[str, Member]]) -> None:
    _, standbys, members = history
    assert assign(dict(reversed(members.items())), standbys) == assign(members, standbys)


@given(NAMES, st.integers(1, 24), st.integers(0, 2))
def test_nothing_moves_when_nobody_joins_or_leaves(names: list[str], lanes: int, standbys: int) -> None:
    first = assign({name: member(lanes) for name in names}, standbys)
    assert owners(assign(rejoined(first, lanes), standbys)) == owners(first)


@given(NAMES, st.integers(1, 24))
def test_who_joins_takes_its_share_and_nothing_else_moves(names: list[str], lanes: int) -> None:
    before = assign({name: member(lanes) for name in names}, 0)
    after = assign({**rejoined(before, lanes), "new": member(lanes)}, 0)
    moved = {lane for lane, name in owners(after).items() if name != owners(before)[lane]}
    assert moved == set(after["new"].active)
    assert len(moved) == lanes // (len(names) + 1)


@given(NAMES.filter(lambda names: len(names) > 1), st.integers(1, 24))
def test_who_leaves_gives_away_its_own_lanes_only(names: list[str], lanes: int) -> None:
    before = assign({name: member(lanes) for name in names}, 0)
    stayed = rejoined(before, lanes)
    left = stayed.pop(names[0])
    after = owners(assign(stayed, 0))
    for lane, name in owners(before).items():
        assert after[lane] == name or lane in left.active


def test_a_lane_goes_to_who_has_followed_it() -> None:
    before = {f"w{n}": member(6, generation=1) for n in range(3)}
    stayed = rejoined(assign(before, 1), 6)
    left = stayed.pop("w0")
    warm = {lane: name for name, own in stayed.items() for lane in own.standby}
    after = owners(assign(stayed, 1))
    assert {lane: after[lane] for lane in left.active} == {lane: warm[lane] for lane in left.active}


def test_each_is_given_the_lanes_that_its_disk_has() -> None:
    kept = {"a": (4, 5), "b": (0, 1), "c": (2, 3)}
    given = assign({name: member(6, standby=lanes) for name, lanes in kept.items()}, 1)
    assert {name: own.active for name, own in given.items()} == kept


def test_of_two_claims_to_a_lane_the_newer_generation_wins() -> None:
    for old, new in (("a", "b"), ("b", "a")):
        claims = {old: member(2, active=(0, 1), generation=3), new: member(2, active=(0,), generation=4)}
        assert owners(assign(claims, 0)) == {0: new, 1: old}


@pytest.mark.promise("added-topic")
def test_a_topic_that_not_every_member_knows_waits() -> None:
    """Each member is told which others the topic waits for."""
    knowing = Member(partitions=4, lanes=2, topics=("old", "new"), url="http://a")
    ignorant = Member(partitions=4, lanes=2, topics=("old",), url="http://b")
    given = assign({"a": knowing, "b": ignorant}, 0)
    assert {own.topics for own in given.values()} == {("old",)}
    assert {name: own.waiting for name, own in given.items()} == {n: {"new": ("http://b",)} for n in "ab"}
    assert {own.topics for own in assign({"a": knowing}, 0).values()} == {("new", "old")}


def test_another_application_of_the_name_is_refused() -> None:
    shop = {f"shop-{n}": wired("orders", active=(n,), generation=2) for n in range(2)}
    post = {f"post-{n}": wired("letters", "parcels") for n in range(5)}
    given = assign({**shop, **post}, 1, COMMON)
    for name in post:
        assert "consumes letters, parcels" in given[name].error
        assert "consume orders: these are two applications" in given[name].error
        assert (given[name].active, given[name].standby, given[name].owners) == ((), (), {})
    for name in shop:
        assert (given[name].error, given[name].topics) == ("", ("operations", "orders"))
        assert given[name].active


def test_where_nobody_owns_lanes_the_most_members_decide() -> None:
    given = assign({"a": wired("x"), "b": wired("y"), "c": wired("y")}, 1, COMMON)
    assert {name for name, own in given.items() if own.error} == {"a"}


def test_members_related_by_way_of_another_are_one_application() -> None:
    given = assign({"old": wired("x"), "new": wired("y"), "between": wired("x", "y")}, 1, COMMON)
    assert not any(own.error for own in given.values())
    assert given["old"].waiting == {"x": ("",), "y": ("",)}


def test_a_member_without_topics_fits_every_application() -> None:
    given = assign({"agents": wired(), "shop": wired("orders", active=(0,), generation=1)}, 0, COMMON)
    assert not any(own.error for own in given.values())


@pytest.mark.promise("same-name")
@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.frozensets(st.sampled_from("uvwxyz"), max_size=3), st.integers(-1, 2), st.booleans()),
        min_size=1,
    )
)
def test_of_each_group_one_application_remains(drawn: dict[str, tuple[frozenset[str], int, bool]]) -> None:
    members = {
        name: wired(*topics, active=(0,) if owns else (), generation=generation)
        for name, (topics, generation, owns) in drawn.items()
    }
    given = assign(members, 1, COMMON)
    assert assign(dict(reversed(members.items())), 1, COMMON) == given
    stay = {name for name, own in given.items() if not own.error}
    assert sorted(lane for name in stay for lane in given[name].active) == list(range(4))
    refused = given.keys() - stay
    topics = {side: {t for n in side for t in drawn[n][0]} for side in (frozenset(stay), frozenset(refused))}
    assert not refused or not set.intersection(*topics.values())
    # Those that stay are one application: asked again without the others, none is refused.
    again = assign({name: members[name] for name in stay}, 1, COMMON)
    assert not any(own.error for own in again.values())


def test_another_layout_gets_an_error_and_no_lane() -> None:
    settled = {name: member(4, active=(n,), generation=2) for n, name in enumerate("abc")}
    for odd in (Member(partitions=64, lanes=8, topics=("t",)), Member(partitions=32, lanes=4, topics=("t",))):
        given = assign({**settled, "odd1": odd, "odd2": odd, "odd3": odd, "odd4": odd}, 1)
        for name in ("odd1", "odd2", "odd3", "odd4"):
            assert "stop all workers" in given[name].error
            assert (given[name].active, given[name].standby) == ((), ())
        assert sorted(owners(given)) == [0, 1, 2, 3]
        assert all(given[name].error == "" for name in settled)


@pytest.mark.promise("lane-count")
@pytest.mark.parametrize(("slept", "now"), [(2, 4), (4, 2)])
def test_owners_that_slept_do_not_turn_away_who_replaced_them(slept: int, now: int) -> None:
    woken = {f"old-{n}": member(slept, active=(n,), generation=3) for n in range(2)}
    given = assign({**woken, "new": member(now, active=tuple(range(now)), generation=7)}, 1)
    assert given["new"].active == tuple(range(now))
    assert all("stop all workers" in given[name].error for name in woken)


def test_everyone_is_told_who_owns_what() -> None:
    given = assign({name: member(4, url=f"http://{name}") for name in "ab"}, 0)
    assert len({msgspec.json.encode(own.owners) for own in given.values()}) == 1
    assert given["a"].owners == {lane: f"http://{name}" for lane, name in owners(given).items()}


@pytest.mark.promise("unfit-worker")
@given(histories(), st.just(set()) | st.sets(st.sampled_from([f"w{n}" for n in range(8)])))
def test_a_member_that_cannot_commit_gets_no_lanes_from_others(
    history: tuple[int, int, dict[str, Member]], unfit: set[str]
) -> None:
    """Every lane has one owner among the members that can commit, and their load is even."""
    lanes, standbys, members = history
    members = {name: msgspec.structs.replace(each, unfit=name in unfit) for name, each in members.items()}
    given = assign(members, standbys)
    assert given.keys() == members.keys()
    assert sorted(lane for own in given.values() for lane in own.active) == list(range(lanes))
    able = [name for name, each in members.items() if not each.unfit] or list(members)
    loads = [len(given[name].active) for name in able]
    assert max(loads) - min(loads) <= 1
    assert not any(given[name].active or given[name].standby for name in members.keys() - set(able))
