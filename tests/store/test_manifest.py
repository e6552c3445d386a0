"""A version is what its manifest and the record say, or it is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store.errors import AdapterError, AdapterMismatch
from store.manifest import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MANIFEST,
    TINKER_FILE,
    ModelDigests,
    build_manifest,
    check_version,
    content_hash,
    digest_model,
    hash_manifest,
)

FILES = {ADAPTER_CONFIG: b"{}", ADAPTER_WEIGHTS: bytes(4096), "patina/state.json": b"{}"}
MODEL = ModelDigests(base_model="b", tokenizer="t", chat_template="c")
CONTENT = content_hash(FILES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine@1"
    for name, body in {**FILES, MANIFEST: build_manifest(FILES, name="mine@1", model=MODEL)}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return folder


def expected(folder: Path) -> str:
    return hash_manifest((folder / MANIFEST).read_bytes())


def test_what_the_trainer_wrote_is_accepted(folder: Path) -> None:
    assert check_version(folder, content=CONTENT, manifest=expected(folder), model=MODEL)
    assert check_version(
        folder, model=ModelDigests(tokenizer="t")
    )  # weights that are not here are not compared


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_of_any_file_is_refused(folder: Path, name: str) -> None:
    body = bytearray((folder / name).read_bytes())
    body[len(body) // 2] ^= 1
    (folder / name).write_bytes(body)
    with pytest.raises(AdapterMismatch, match=f"{name} changed"):
        check_version(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_lost_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(AdapterMismatch, match=f"has lost {name}"):
        check_version(folder)


def test_an_added_file_is_refused(folder: Path) -> None:
    (folder / "patina" / "more.bin").write_bytes(b"")
    with pytest.raises(AdapterMismatch, match=r"did not write: patina/more\.bin"):
        check_version(folder)


def test_weights_and_manifest_that_were_changed_together_are_refused_by_the_record(folder: Path) -> None:
    known = expected(folder)
    other = {**FILES, ADAPTER_WEIGHTS: bytes(4095) + b"\1"}
    (folder / ADAPTER_WEIGHTS).write_bytes(other[ADAPTER_WEIGHTS])
    (folder / MANIFEST).write_bytes(build_manifest(other, name="mine@1", model=MODEL))
    assert check_version(folder)  # by itself it is consistent
    with pytest.raises(AdapterMismatch, match=r"the manifest\.json .* is not what was published"):
        check_version(folder, manifest=known)
    with pytest.raises(AdapterMismatch, match="its hash is"):
        check_version(folder, content=CONTENT)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"format": 9, "files": {}}', b'{"format": 1}'])
def test_a_torn_manifest_is_refused(folder: Path, body: bytes) -> None:
    (folder / MANIFEST).write_bytes(body)
    with pytest.raises(AdapterMismatch):
        check_version(folder)


def test_a_version_without_a_manifest_is_accepted_where_the_record_knows_of_none(folder: Path) -> None:
    known = expected(folder)
    (folder / MANIFEST).unlink()
    assert not check_version(folder, content=CONTENT)
    with pytest.raises(AdapterMismatch, match="its hash is"):
        check_version(folder, content="0" * 64)
    with pytest.raises(AdapterMismatch, match="has lost its"):
        check_version(folder, manifest=known)


@pytest.mark.parametrize("name", ["base_model", "tokenizer", "chat_template"])
def test_a_version_of_another_model_is_refused(folder: Path, name: str) -> None:
    other = {"base_model": "b", "tokenizer": "t", "chat_template": "c", name: "other"}
    with pytest.raises(AdapterMismatch, match=f"for another {name.replace('_', ' ')}"):
        check_version(folder, model=ModelDigests(**other))


def test_a_missing_folder_is_an_error_and_no_mismatch(tmp_path: Path) -> None:
    with pytest.raises(AdapterError) as caught:
        check_version(tmp_path / "nowhere", manifest="0" * 64)
    assert not isinstance(caught.value, AdapterMismatch)


def test_a_version_on_a_tinker_server_is_checked_alike(tmp_path: Path) -> None:
    files = {TINKER_FILE: b'{"sampler_path": "tinker://one"}'}
    (tmp_path / MANIFEST).write_bytes(build_manifest(files, name="mine@1", model=MODEL))
    (tmp_path / TINKER_FILE).write_bytes(files[TINKER_FILE])
    assert check_version(tmp_path, content=content_hash(files))
    (tmp_path / TINKER_FILE).write_bytes(b'{"sampler_path": "tinker://two"}')
    with pytest.raises(AdapterMismatch):
        check_version(tmp_path)


def test_a_model_is_digested_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert digest_model(tmp_path).base_model == ""  # no weights here, as beside a Tinker server
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    first = digest_model(tmp_path)
    assert first.base_model
    assert first.tokenizer
    assert first.chat_template == ""
    state = weights.stat()
    weights.write_bytes(b"Weights")  # the same size
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    second = digest_model(tmp_path)
    assert second.base_model != first.base_model
    assert second.tokenizer == first.tokenizer
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    assert digest_model(tmp_path).chat_template != ""


def test_bytes_that_move_from_one_file_to_the_next_change_the_hash() -> None:
    names = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    for first, second in (names, names[::-1]):
        inner = f"{second}\0".encode()
        one = content_hash({first: b"a", second: b"b" + inner + b"c"})
        other = content_hash({first: b"a" + inner + b"b", second: b"c"})
        assert one != other
