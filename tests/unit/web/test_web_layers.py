"""The picture of a graph: nothing overlaps, every edge is drawn, whatever the graph."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from streams.web.overview.layers import COLUMN_GAP, draw

NAMES = [f"n{number}" for number in range(14)]
sizes = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.floats(20, 200), st.floats(10, 120)), min_size=1, max_size=14
)


@st.composite
def graphs(drawn):
    found = drawn(sizes)
    node = st.sampled_from(sorted(found))
    return found, drawn(st.lists(st.tuples(node, node), max_size=40))


@given(graphs())
def test_no_two_nodes_overlap_and_all_are_inside(graph):
    picture = draw(*graph)
    assert picture.boxes.keys() == graph[0].keys()
    assert not [
        (one, other) for (one, a), (other, b) in combinations(picture.boxes.items(), 2) if a.overlaps(b)
    ]
    for box in picture.boxes.values():
        assert min(box.x, box.y) >= 0
        assert box.x + box.width <= picture.width
        assert box.y + box.height <= picture.height


@given(graphs())
def test_every_edge_is_drawn_between_its_nodes(graph):
    picture = draw(*graph)
    assert picture.edges.keys() == {edge for edge in graph[1] if edge[0] != edge[1]}
    for (a, b), points in picture.edges.items():
        for box, (x, y) in ((picture.boxes[a], points[0]), (picture.boxes[b], points[-1])):
            assert x in (box.x, box.x + box.width)
            assert box.y < y < box.y + box.height
        assert all(0 <= x <= picture.width and 0 <= y <= picture.height for x, y in points)


@given(graphs())
def test_edges_run_right_unless_they_lead_back(graph):
    picture = draw(*graph)
    order = list(graph[0])
    for (a, b), points in picture.edges.items():
        assert ((a, b) in picture.back) is (order.index(a) > order.index(b))
        steps = points[::-1] if (a, b) in picture.back else points
        assert all(x <= after for (x, _), (after, _) in pairwise(steps))


@given(graphs())
def test_the_same_graph_has_the_same_picture(graph):
    assert draw(*graph) == draw(*graph)


def test_a_long_edge_passes_between_the_nodes_on_its_way():
    size = dict.fromkeys("abcd", (100.0, 40.0))
    picture = draw(size, [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")])
    passing = picture.edges["a", "d"]
    for name in "bc":
        box = picture.boxes[name]
        assert not any(box.x <= x <= box.x + box.width and box.y < y < box.y + box.height for x, y in passing)


def test_a_cycle_has_one_edge_that_runs_back():
    picture = draw(dict.fromkeys("abc", (50.0, 20.0)), [("a", "b"), ("b", "c"), ("c", "a")])
    assert picture.back == {("c", "a")}
    lefts = [picture.boxes[name].x for name in "abc"]
    assert [after - before for before, after in pairwise(lefts)] == [50 + COLUMN_GAP] * 2


def test_nothing_is_an_empty_picture():
    assert draw({}, []).boxes == {}
