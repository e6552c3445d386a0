"""Versions on disk: whole or absent, never overwritten, and known by what is in them."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import AdapterError
from store.manifest import content_hash
from store.values import AdapterState
from tests.making import make_adapter
from trainer.checkpoint import (
    folder_size,
    remove_version,
    store_version,
    sweep,
    verify_version,
    versions_to_keep,
    write_version,
)
from trainer.policy import LocalPolicy
from trainer.protocol import WrittenVersion


@pytest.fixture
def files(policy: LocalPolicy) -> dict[str, bytes]:
    return policy.version_files()


def write(adapters: Path, files: dict[str, bytes], version: int = 1) -> WrittenVersion:
    return write_version(adapters, "mine", version, files, metrics={"loss": 0.5, "kl": float("nan")})


def test_a_version_is_a_folder_with_its_hash_in_its_name(tmp_path: Path, files: dict[str, bytes]) -> None:
    written = write(tmp_path / "adapters", files)
    assert written.path.name == f"mine@1.{written.content_hash[:12]}"
    assert verify_version(written.path) == written.content_hash == content_hash(files)
    assert sorted(p.relative_to(written.path).as_posix() for p in written.path.rglob("*") if p.is_file()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "patina/metrics.json",
        "patina/trainer_state.safetensors",
    ]
    assert json.loads((written.path / "patina/metrics.json").read_text()) == {"kl": None, "loss": 0.5}
    assert [p.name for p in (tmp_path / "adapters").iterdir()] == [written.path.name]


def test_the_hash_is_of_what_is_served_and_of_nothing_else(files: dict[str, bytes]) -> None:
    whole = content_hash(files)
    assert content_hash({**files, "patina/trainer_state.safetensors": b"other"}) == whole
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert content_hash({**files, name: files[name] + b" "}) != whole
    # a byte that moves from one file to the other is a change, too
    moved = {
        "adapter_config.json": files["adapter_config.json"] + files["adapter_model.safetensors"][:1],
        "adapter_model.safetensors": files["adapter_model.safetensors"][1:],
    }
    assert content_hash(moved) != whole


def test_the_same_version_again_is_the_same_folder_and_another_content_goes_beside_it(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    first = write(tmp_path, files)
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    assert write(tmp_path, files) == first
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == before
    changed = {**files, "adapter_config.json": files["adapter_config.json"] + b"\n"}
    second = write(tmp_path, changed)
    assert second.path != first.path
    verify_version(first.path, first.content_hash)
    verify_version(second.path, second.content_hash)


def test_a_version_appears_whole_in_one_rename_after_all_of_it_is_on_the_disk(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        events.append(("fsync", Path(f"/proc/self/fd/{descriptor}").readlink().name))

    def noted_rename(path: Path, target: Path) -> Path:
        assert not target.exists()
        assert {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()} == {
            *files,
            "patina/metrics.json",
            "manifest.json",
        }
        events.extend((("from", path.name), ("to", target.name)))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    written = write(tmp_path / "adapters", files)
    before, [moved, to, *behind] = events[:-3], events[-3:]
    unfinished = moved[1]
    names = [Path(name).name for name in files] + [
        "metrics.json",
        "manifest.json",
        "patina",
        unfinished,
    ]
    assert sorted(before) == sorted(("fsync", name) for name in names)
    assert before[-2:] == [("fsync", "patina"), ("fsync", unfinished)]  # folders after what is in them
    assert (moved, to, behind) == (("from", unfinished), ("to", written.path.name), [("fsync", "adapters")])


def test_a_version_whose_writing_fails_half_way_is_not_there(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, left = os.fsync, [2]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AdapterError, match="No space left on device"):
        write(tmp_path, files)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_folder_under_the_same_name_is_an_error_and_stays_as_it_is(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    path = write(tmp_path, files).path / "adapter_model.safetensors"
    path.write_bytes(b"damaged")
    with pytest.raises(AdapterError, match="not what was published"):
        write(tmp_path, files)
    assert path.read_bytes() == b"damaged"


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_torn_changed_and_missing_files_are_distinguished(
    tmp_path: Path, files: dict[str, bytes], name: str
) -> None:
    written = write(tmp_path, files)
    path = written.path / name
    whole = path.read_bytes()
    (
        written.path / "manifest.json"
    ).unlink()  # as made by an earlier Patina: `tests/store/test_manifest.py` has the others
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AdapterError, match="not what was published"):
        verify_version(written.path, written.content_hash)
    with pytest.raises(AdapterError, match="is torn"):
        verify_version(written.path)
    path.unlink()
    with pytest.raises(AdapterError, match=f"no {name}"):
        verify_version(written.path, written.content_hash)
    shutil.rmtree(written.path)
    with pytest.raises(AdapterError, match="there is no adapter folder"):
        verify_version(written.path)


def test_a_folder_of_something_else_is_no_adapter(tmp_path: Path, files: dict[str, bytes]) -> None:
    written = write(tmp_path, {**files, "adapter_config.json": b'{"peft_type": "PROMPT_TUNING"}'})
    with pytest.raises(AdapterError, match="no LoRA"):
        verify_version(written.path)


def test_an_unwritable_place_is_one_clear_sentence(tmp_path: Path, files: dict[str, bytes]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AdapterError, match=r"version mine@1\.\w+ cannot be written to"):
        write(tmp_path / "file", files)


def test_sweeping_removes_what_dead_workers_left_and_nothing_else(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    assert sweep(tmp_path / "nowhere", [], ["mine"]) == []
    top, apart = tmp_path / "adapters", tmp_path / "adapters" / "mine.ann"
    kept, pruned, orphan = (write(top, files, number) for number in (1, 2, 3))
    hers, torn = (write_version(apart, "mine.ann", n, files, metrics={}) for n in (1, 2))
    another = write_version(top, "other", 1, files, metrics={})  # of another base model, without a row
    unfinished = [folder / ".writing-123-abcd" for folder in (top, apart)]
    for one in (*(one / "patina" for one in unfinished), top / "notes"):
        one.mkdir(parents=True)
    (top / "mine@9").symlink_to(tmp_path)
    versions = [
        make_adapter(policy, number, path=str(path.path), state=state)
        for policy, number, path, state in (
            ("mine", 1, kept, AdapterState.PUBLISHED),
            ("mine", 2, pruned, AdapterState.PRUNED),
            ("mine.ann", 1, hers, AdapterState.REJECTED),
        )
    ]
    assert set(sweep(top, versions, ["mine", "mine.ann"])) == {
        *unfinished, pruned.path, orphan.path, torn.path,
    }  # fmt: skip
    assert {p.name for p in top.iterdir()} == {
        kept.path.name, another.path.name, "mine.ann", "mine@9", "notes",
    }  # fmt: skip
    assert [p.name for p in apart.iterdir()] == [hers.path.name]


def test_a_removed_version_is_gone_at_once_and_twice_is_once(tmp_path: Path, files: dict[str, bytes]) -> None:
    written = write(tmp_path, files)
    remove_version(written.path)
    remove_version(written.path)
    assert list(tmp_path.iterdir()) == []


def test_of_a_link_only_the_link_is_removed(tmp_path: Path, files: dict[str, bytes]) -> None:
    elsewhere = write(tmp_path / "elsewhere", files).path
    (tmp_path / "mine@1").symlink_to(elsewhere)
    remove_version(tmp_path / "mine@1")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    assert verify_version(elsewhere)


def test_the_newest_eight_every_twentieth_the_live_one_and_its_parent_stay() -> None:
    parents = {version: version - 1 for version in range(1, 61)}
    assert versions_to_keep(parents, live=60) == {20, 40, *range(53, 61)}
    # After a rollback to 5, the live version and the one before it stay although both are old.
    assert versions_to_keep(parents, live=5) == {4, 5, 20, 40, *range(53, 61)}
    assert versions_to_keep(parents, live=0, newest=2, every=25) == {25, 50, 59, 60}
    assert versions_to_keep({}, live=0) == set()


@given(
    st.dictionaries(st.integers(1, 80), st.integers(0, 80), max_size=40),
    st.integers(0, 80),
    st.integers(0, 9),
    st.integers(1, 30),
)
def test_retention_keeps_only_what_exists_and_always_the_live_version(
    parents: dict[int, int], live: int, newest: int, every: int
) -> None:
    kept = versions_to_keep(parents, live, newest=newest, every=every)
    assert kept <= set(parents)
    assert live not in parents or live in kept
    assert set(sorted(parents, reverse=True)[:newest]) <= kept


def test_wanted_versions_stay_and_older_ones_as_far_as_the_budget_goes() -> None:
    parents = {version: version - 1 for version in range(1, 31)}
    sizes = dict.fromkeys(parents, 10)
    base = {20, *range(23, 31)}
    assert versions_to_keep(parents, live=30, wanted=(3, 99)) == {3, *base}
    assert versions_to_keep(parents, live=30, sizes=sizes, budget=115) == {21, 22, *base}
    assert versions_to_keep(parents, live=30, sizes=sizes, budget=95) == base
    assert versions_to_keep(parents, live=30, sizes=sizes, budget=10_000) == parents.keys()


def test_the_size_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"123")
    assert folder_size(tmp_path) == 8
    assert folder_size(tmp_path / "missing") == 0


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/out", "a/..", ".."])
def test_no_name_of_a_remote_version_or_its_file_leads_out(
    tmp_path: Path, files: dict[str, bytes], name: str
) -> None:
    adapters = tmp_path / "adapters"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(AdapterError, match="no name of a version"):
        store_version(adapters, "tiny@1", {**files, name: b"x"}, "0" * 64)
    with pytest.raises(AdapterError, match="no name of a version"):
        store_version(adapters, name, files, "0" * 64)
    assert sorted(tmp_path.rglob("*")) == before
