"""Who owns which lane: a pure function of the members, sticky and balanced (docs/adr/0003)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec


class Member(msgspec.Struct, frozen=True):
    """The metadata of a member when it joins. `generation` is that of the lanes it claims. One that is
    `unfit` cannot commit, for its machine: it gets no lanes while others can have them.
    """

    partitions: int
    lanes: int
    topics: tuple[str, ...]
    active: tuple[int, ...] = ()
    standby: tuple[int, ...] = ()
    generation: int = -1
    url: str = ""
    unfit: bool = False


class Assignment(msgspec.Struct, frozen=True):
    """A member's assignment. `owners` maps each lane to its owner's web address, `followers` to those of its
    standbys; `members` are the addresses of all; `partitions` and `lanes` are the cut that the lane numbers
    mean. `waiting` maps each topic that not every member consumes to the addresses of those that do not.

    `error` is set for a member whose layout or wiring is not the group's: it gets nothing and must stop.
    """

    active: tuple[int, ...] = ()
    standby: tuple[int, ...] = ()
    topics: tuple[str, ...] = ()
    owners: dict[int, str] = {}
    followers: dict[int, tuple[str, ...]] = {}
    members: tuple[str, ...] = ()
    error: str = ""
    partitions: int = 0
    lanes: int = 0
    waiting: dict[str, tuple[str, ...]] = {}


def assign(
    members: Mapping[str, Member], standbys: int, common: Collection[str] = ()
) -> dict[str, Assignment]:
    """Give every lane one owner and up to `standbys` followers, each on another member.

    Lanes stay where they are as far as balance allows. A topic that not every member knows yet waits. Members
    that share no topic with the group but those in `common`, which follow from its name, are refused.
    """
    related = _group_wiring(members, common)
    layout = _group_layout(related)
    fitting = {name: m for name, m in related.items() if (m.partitions, m.lanes) == layout}
    lanes = range(layout[1])
    able = {name: m for name, m in fitting.items() if not m.unfit} or fitting
    owners = _owners(able, lanes)
    followers = _followers(able, owners, standbys)
    known = [set(m.topics) for m in fitting.values()]
    topics = tuple(sorted(set.intersection(*known)))
    urls = {lane: fitting[owner].url for lane, owner in owners.items()}
    warm = {lane: tuple(fitting[name].url for name in names) for lane, names in followers.items()}
    waiting = {
        topic: tuple(sorted(member.url for member in fitting.values() if topic not in member.topics))
        for topic in sorted(set.union(*known) - set(topics))
    }
    everybody = tuple(sorted({member.url for member in fitting.values()}))
    assignments = {
        name: Assignment(
            tuple(lane for lane in lanes if owners[lane] == name),
            tuple(lane for lane in lanes if name in followers[lane]),
            topics,
            urls,
            warm,
            everybody,
            partitions=layout[0],
            lanes=layout[1],
            waiting=waiting,
        )
        for name in fitting
    }
    for name in related.keys() - fitting.keys():
        assignments[name] = Assignment(
            error=f"this worker has {members[name].partitions} partitions in {members[name].lanes} lanes, the"
            f" group {layout[0]} in {layout[1]}: stop all workers before changing either"
        )
    for name in members.keys() - related.keys():
        own, others = (sorted(set(each) - set(common)) for each in (members[name].topics, set.union(*known)))
        assignments[name] = Assignment(
            error=f"this worker consumes {_some(own)}; the workers at {_some(everybody)}, which run under the"
            f" same name, consume {_some(others)}: these are two applications. Give one of them another"
            " STEADFAUST_APP_ID, or stop the workers of the other one first"
        )
    return assignments


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _group_wiring(members: Mapping[str, Member], common: Collection[str]) -> dict[str, Member]:
    """The members of one application: those that share topics with the current owners of lanes, directly or
    through other members. Without owners, or in a tie, the application with the most members is chosen.

    A member without topics of its own fits any application.
    """
    parts: list[tuple[set[str], list[str]]] = []
    free = []
    for name in sorted(members):
        topics, names = set(members[name].topics) - set(common), [name]
        if not topics:
            free.append(name)
            continue
        for part in [part for part in parts if part[0] & topics]:
            topics |= part[0]
            names += part[1]
            parts.remove(part)
        parts.append((topics, names))
    if not parts:
        return dict(members)
    newest = max((member.generation for member in members.values() if member.active), default=-1)

    def weight(part: tuple[set[str], list[str]]) -> tuple[int, int]:
        owners = [n for n in part[1] if members[n].active and members[n].generation == newest >= 0]
        return len(owners), len(part[1])

    _, chosen = max(parts, key=weight)
    return {name: members[name] for name in (*chosen, *free)}


def _group_layout(members: Mapping[str, Member]) -> tuple[int, int]:
    """The layout of the members that already own lanes; at the first start, the most common one. Only
    owners of the newest generation count, because the others were frozen and have been replaced.
    """
    owners = [m for m in members.values() if m.generation >= 0 and m.active]
    newest = max((m.generation for m in owners), default=-1)
    deciding = [m for m in owners if m.generation == newest] or members.values()
    layouts = [(m.partitions, m.lanes) for m in deciding]
    return max(sorted(set(layouts)), key=layouts.count)


def _owners(members: Mapping[str, Member], lanes: Sequence[int]) -> dict[int, str]:
    names = sorted(members)
    fewest, extra = divmod(len(lanes), len(names))
    claims: dict[int, str] = {}
    for name in sorted(names, key=lambda n: members[n].generation):  # the newest claim wins
        claims |= dict.fromkeys(members[name].active, name)
    owned: dict[str, list[int]] = {name: [] for name in names}
    for lane in lanes:
        if lane in claims:
            owned[claims[lane]].append(lane)
    # The members with the most lanes keep the extra one; lanes beyond a member's share are given away.
    free = [lane for lane in lanes if lane not in claims]
    for rank, name in enumerate(sorted(names, key=lambda n: (-len(owned[n]), n))):
        share = fewest + (rank < extra)
        free += owned[name][share:]
        owned[name] = owned[name][:share]
    for lane in sorted(free):
        warm = [name for name in names if lane in members[name].standby and len(owned[name]) < fewest]
        name = min(warm or names, key=lambda n: (len(owned[n]), n))
        owned[name].append(lane)
    return {lane: name for name, own in owned.items() for lane in own}


def _followers(
    members: Mapping[str, Member], owners: Mapping[int, str], standbys: int
) -> dict[int, Collection[str]]:
    count = min(standbys, len(members) - 1)
    load = dict.fromkeys(members, 0)
    followers: dict[int, Collection[str]] = {}
    most = -(-len(owners) * count // len(members))

    def rank(name: str, lane: int) -> tuple[bool, bool, int, str]:
        warm = lane in members[name].active or lane in members[name].standby
        return load[name] >= most, not warm, load[name], name

    for lane, owner in owners.items():
        chosen: list[str] = []
        for _ in range(count):
            rest = [name for name in members if name != owner and name not in chosen]
            chosen.append(min(rest, key=lambda name: rank(name, lane)))
            load[chosen[-1]] += 1
        followers[lane] = chosen
    return followers
