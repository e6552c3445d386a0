"""Charts are well-formed and say what they show."""

from xml.etree import ElementTree

import pytest

from dashboard.charts import Node, share, share_chart, tree_chart


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"), [(0, 10, 0.0, 0.278), (5, 10, 0.237, 0.763), (10, 10, 0.722, 1.0)]
)
def test_the_interval_is_wilsons(hits: int, count: int, low: float, high: float) -> None:
    found = share("v1", hits, count)
    assert [found.low, found.high] == pytest.approx([low, high], abs=1e-3)


def test_a_chart_is_well_formed_and_described() -> None:
    svg = share_chart([share(f"v{i}", i, 20) for i in range(20)] + [share('<"&', 1, 2)], title="Complaints")
    root = ElementTree.fromstring(svg)
    assert "v3: 15% of 20" in root.attrib["aria-label"]
    assert len(root.findall("circle")) == 21
    assert share_chart([], title="x") == ""


def test_a_tree_has_a_link_for_each_turn_and_an_edge_to_its_parent() -> None:
    nodes = [
        Node(name='<"&', parent="", column=0, lane=0, mark="bad", label="<b>", is_main=True),
        Node(name="b", parent='<"&', column=1, lane=1, mark="", label="x", is_main=False),
        Node(name="c", parent='<"&', column=1, lane=0, mark="", label="y", is_main=True),
    ]
    root = ElementTree.fromstring(tree_chart(nodes))
    assert [link.attrib["href"] for link in root.findall("a")] == ["#%3C%22%26", "#b", "#c"]
    assert [link.attrib["aria-label"] for link in root.findall("a")] == [
        "Turn 1: <b>", "Turn 2, of a branch: x", "Turn 3: y",
    ]  # fmt: skip
    assert [path.attrib["class"] for path in root.findall("path")] == ["edge", "edge main"]
    assert tree_chart([]) == ""
