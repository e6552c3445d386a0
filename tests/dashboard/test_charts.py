"""Charts are well-formed and say what they show."""

from xml.etree import ElementTree

import pytest

from dashboard.charts import share, share_chart


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
