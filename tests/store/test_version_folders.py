"""Where a version's folder lies: the record names it, and never leads out of the home."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.values import AdapterState
from store.version_folders import folder_of, leftovers
from tests.making import make_adapter

NAMES = st.one_of(
    st.sampled_from(["", ".", "..", "/", "/etc", "../..", "p", "p.ann", "p@1", "p@1.ab", "..@1", "/x/p@1.ab", "a/b"]),
    st.text(max_size=12),
)  # fmt: skip


@given(policy=NAMES, version=st.integers(0, 10), path=NAMES)
def test_no_row_of_a_record_names_a_folder_outside_the_home_or_of_another_version(
    policy: str, version: int, path: str
) -> None:
    top = Path("/home/of/patina/adapters")
    folder = folder_of(top, make_adapter(policy, version, path=path))
    inside = folder.relative_to(top)
    assert ".." not in inside.parts
    assert len(inside.parts) == 1 or inside.parts[0] == policy
    assert folder.name.replace("_", "/").startswith(f"{policy}@{version}".replace("_", "/"))


@pytest.mark.parametrize(
    ("path", "there", "place"),
    [
        ("/old/home/adapters/p@1.ab", ["p@1.ab"], "p@1.ab"),
        ("/old/home/adapters/p/p@1.ab", ["p/p@1.ab"], "p/p@1.ab"),
        ("/old/home/adapters/p@1.ab", ["p/p@1.ab"], "p/p@1.ab"),  # it was the shared policy then
        ("/old/home/adapters/p/p@1.ab", [], "p/p@1.ab"),
        ("/elsewhere/precious", ["p@1.ab"], "p@1"),
        ("/elsewhere/p@12", [], "p@1"),
        ("../../p@1.ab/..", [], "p@1"),
    ],
)
def test_only_the_last_part_of_a_path_counts(tmp_path: Path, path: str, there: list[str], place: str) -> None:
    for one in there:
        (tmp_path / one).mkdir(parents=True)
    assert folder_of(tmp_path, make_adapter("p", 1, path=path)) == tmp_path / place


@pytest.mark.parametrize("state", list(AdapterState))
@pytest.mark.parametrize("policy", ["p", "p.ann"])
def test_a_folder_is_left_over_exactly_when_its_version_keeps_no_files(
    tmp_path: Path, state: AdapterState, policy: str
) -> None:
    top = tmp_path if policy == "p" else tmp_path / policy
    folder, orphan = top / f"{policy}@1.ab", top / f"{policy}@2.cd"
    for one in (folder, orphan, top / ".writing-1-2", tmp_path / "notes", tmp_path / "of" / "mine@1"):
        one.mkdir(parents=True)
    found = leftovers(tmp_path, [make_adapter(policy, 1, path=str(folder), state=state)])
    is_gone = state in (AdapterState.PRUNED, AdapterState.FORGOTTEN)
    assert (folder in found) is is_gone
    assert {orphan, top / ".writing-1-2"} == set(found) - {folder}
    assert leftovers(tmp_path, [], policies=["other"]) == [top / ".writing-1-2"]
    assert leftovers(tmp_path, [], before=1.0) == []


def test_what_lies_behind_a_link_is_no_version(tmp_path: Path) -> None:
    adapters, elsewhere = tmp_path / "adapters", tmp_path / "elsewhere"
    (elsewhere / "p.ann@1").mkdir(parents=True)
    adapters.mkdir()
    (adapters / "p.ann").symlink_to(elsewhere)
    (adapters / "p@1").symlink_to(elsewhere / "p.ann@1")
    assert leftovers(adapters, []) == []
    row = make_adapter("p.ann", 1, path=str(adapters / "p.ann" / "p.ann@1"))
    assert folder_of(adapters, row) == adapters / "p.ann@1"
