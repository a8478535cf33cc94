"""Where the nodes of a picture stand and how its edges run: layers from left to right.

Pure functions; the same graph has the same picture, so that nothing jumps while numbers change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Between layers, between nodes of a layer, and around all, in the units of the nodes' sizes.
COLUMN_GAP, ROW_GAP, MARGIN = 46.0, 16.0, 8.0
#: The height that an edge takes where it passes through a layer.
LANE = 8.0
#: Sweeps over the layers to lessen crossings.
SWEEPS = 8

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Box:
    """A node's place: its left upper corner and size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Half way down."""
        return self.y + self.height / 2

    def overlaps(self, other: Box) -> bool:
        """Whether they have a point in common."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn graph. Edges are lists of points from the first node's side to the second one's; `back` are
    those that run from right to left.
    """

    boxes: Mapping[str, Box]
    edges: Mapping[Edge, Sequence[tuple[float, float]]]
    back: frozenset[Edge]
    width: float
    height: float


#: In a layer: a node, or an edge that passes through, with the layer's number.
_Place = str | tuple[Edge, int]


def draw(sizes: Mapping[str, tuple[float, float]], edges: Sequence[Edge]) -> Picture:
    """Lay out nodes of given (width, height). Nodes that come first stand left: an edge to an earlier node
    runs back, which is how cycles end. An edge from a node to itself is left out. Each edge is between nodes.
    """
    number = {name: index for index, name in enumerate(sizes)}
    there = list(dict.fromkeys(edge for edge in edges if edge[0] != edge[1]))
    back = frozenset((a, b) for a, b in there if number[a] > number[b])
    forward = {edge: edge if edge not in back else (edge[1], edge[0]) for edge in there}
    layer = _layers(list(sizes), list(forward.values()))
    rows, chains = _rows(sizes, layer, forward)
    _reduce_crossings(rows, chains)
    heights = {place: sizes[place][1] if isinstance(place, str) else LANE for row in rows for place in row}
    tops = _tops(rows, chains, heights)
    lefts, widths, width = _columns(sizes, rows)
    boxes = {name: Box(lefts[layer[name]], tops[name], *sizes[name]) for name in sizes}
    lines = {edge: _line(boxes, chain, tops, lefts, widths) for edge, chain in chains.items()}
    _spread_ends(boxes, chains, lines)
    lines = {edge: points[::-1] if edge in back else points for edge, points in lines.items()}
    height = max((tops[place] + heights[place] for place in tops), default=0.0) + MARGIN
    return Picture(boxes, lines, back, width, height)


def _layers(nodes: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """The longest path to each node. Edges go from earlier nodes to later ones. What nothing leads to stands
    right before the first node that it leads to.
    """
    layer = dict.fromkeys(nodes, 0)
    after: dict[str, list[str]] = {name: [] for name in nodes}
    led_to = {b for _, b in edges}
    for a, b in edges:
        after[a].append(b)
    for name in nodes:
        for following in after[name]:
            layer[following] = max(layer[following], layer[name] + 1)
    for name in nodes:
        if name not in led_to and after[name]:
            layer[name] = min(layer[following] for following in after[name]) - 1
    return layer


def _rows(
    sizes: Mapping[str, tuple[float, float]], layer: Mapping[str, int], forward: Mapping[Edge, Edge]
) -> tuple[list[list[_Place]], dict[Edge, list[_Place]]]:
    """The nodes of each layer, and of each edge the places from left to right."""
    rows: list[list[_Place]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for name in sizes:
        rows[layer[name]].append(name)
    chains: dict[Edge, list[_Place]] = {}
    for edge, (a, b) in forward.items():
        passed: list[_Place] = [(edge, number) for number in range(layer[a] + 1, layer[b])]
        for number, place in enumerate(passed, start=layer[a] + 1):
            rows[number].append(place)
        chains[edge] = [a, *passed, b]
    return rows, chains


def _reduce_crossings(rows: list[list[_Place]], chains: Mapping[Edge, Sequence[_Place]]) -> None:
    """Order each layer by where the neighbours of its places are, on one side and on the other in turn."""
    left: dict[_Place, list[_Place]] = {}
    right: dict[_Place, list[_Place]] = {}
    for chain in chains.values():
        for a, b in pairwise(chain):
            right.setdefault(a, []).append(b)
            left.setdefault(b, []).append(a)
    for sweep in range(SWEEPS):
        neighbours, order = (right, rows[::-1]) if sweep % 2 else (left, rows)
        for row in order:
            at = {place: index / max(1, len(each) - 1) for each in rows for index, place in enumerate(each)}
            centre = {
                place: sum(at[n] for n in found) / len(found)
                for place in row
                if (found := neighbours.get(place))
            }
            row.sort(key=lambda place: centre.get(place, at[place]))


def _tops(
    rows: Sequence[Sequence[_Place]],
    chains: Mapping[Edge, Sequence[_Place]],
    heights: Mapping[_Place, float],
) -> dict[_Place, float]:
    """Where each place begins: near the middle of its neighbours, in the order of its layer."""
    beside: dict[_Place, list[_Place]] = {}
    for chain in chains.values():
        for a, b in pairwise(chain):
            beside.setdefault(a, []).append(b)
            beside.setdefault(b, []).append(a)
    tops: dict[_Place, float] = {}
    total = max((_height(row, heights) for row in rows), default=0.0)
    for row in rows:
        top = (total - _height(row, heights)) / 2
        for place in row:
            tops[place] = top
            top += heights[place] + ROW_GAP
    for _ in range(SWEEPS):
        for row in rows:
            _settle(row, beside, heights, tops)
    first = min(tops.values(), default=0.0)
    return {place: top - first + MARGIN for place, top in tops.items()}


def _settle(
    row: Sequence[_Place],
    beside: Mapping[_Place, Sequence[_Place]],
    heights: Mapping[_Place, float],
    tops: dict[_Place, float],
) -> None:
    """Move the places of a layer towards their neighbours; they keep their order and the gap."""
    wanted = {}
    for place in row:
        near = [tops[each] + heights[each] / 2 for each in beside.get(place, [])]
        wanted[place] = sum(near) / len(near) - heights[place] / 2 if near else tops[place]
    down: list[float] = []
    at = float("-inf")
    for place in row:  # pushed down by those above
        at = max(at, wanted[place])
        down.append(at)
        at += heights[place] + ROW_GAP
    up: list[float] = []
    at = float("inf")
    for place in reversed(row):  # pushed up by those below
        at = min(at, wanted[place] + heights[place] + ROW_GAP)
        at -= heights[place] + ROW_GAP
        up.append(at)
    # Half way between: both keep the gaps, and so does their mean.
    for place, low, high in zip(row, down, reversed(up), strict=True):
        tops[place] = (low + high) / 2


def _height(row: Sequence[_Place], heights: Mapping[_Place, float]) -> float:
    return sum(heights[place] for place in row) + ROW_GAP * max(0, len(row) - 1)


def _columns(
    sizes: Mapping[str, tuple[float, float]], rows: Sequence[Sequence[_Place]]
) -> tuple[list[float], list[float], float]:
    """The left sides and widths of the layers, and the width of all."""
    widths = [max((sizes[place][0] for place in row if isinstance(place, str)), default=0.0) for row in rows]
    lefts, left = [], MARGIN
    for width in widths:
        lefts.append(left)
        left += width + COLUMN_GAP
    return lefts, widths, max(left - COLUMN_GAP, 0.0) + MARGIN


def _line(
    boxes: Mapping[str, Box],
    chain: Sequence[_Place],
    tops: Mapping[_Place, float],
    lefts: Sequence[float],
    widths: Sequence[float],
) -> list[tuple[float, float]]:
    """From the right side of the first node to the left side of the last; through a layer straight."""
    points: list[tuple[float, float]] = []
    for index, place in enumerate(chain):
        if isinstance(place, str):
            box = boxes[place]
            points.append((box.x if index else box.x + box.width, box.middle))
        else:
            y = tops[place] + LANE / 2
            points += [(lefts[place[1]], y), (lefts[place[1]] + widths[place[1]], y)]
    return points


def _spread_ends(
    boxes: Mapping[str, Box],
    chains: Mapping[Edge, Sequence[_Place]],
    lines: Mapping[Edge, list[tuple[float, float]]],
) -> None:
    """Let the edges of a side of a box end one below the other, in the order of where they come from."""
    sides: dict[tuple[str, int], list[tuple[float, Edge]]] = {}
    for edge, points in lines.items():
        sides.setdefault((str(chains[edge][0]), 0), []).append((points[1][1], edge))
        sides.setdefault((str(chains[edge][-1]), -1), []).append((points[-2][1], edge))
    for (name, end), found in sides.items():
        box = boxes[name]
        for place, (_, edge) in enumerate(sorted(found), start=1):
            y = box.y + box.height * place / (len(found) + 1)
            lines[edge][end] = (lines[edge][end][0], y)
