"""Ollama's own store, as its client lays it out on the disk."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from serving.models.ollama import find_ollama_model
from store.errors import ConfigError

_MEDIA = "application/vnd.ollama.image."


def put(store: Path, place: str, layers: dict[str, bytes]) -> None:
    """Put a model into a store; ``place``: HOST/NAMESPACE/MODEL/TAG."""
    entries: list[dict[str, Any]] = []
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    for kind, data in layers.items():
        digest = hashlib.sha256(data).hexdigest()
        (store / "blobs" / f"sha256-{digest}").write_bytes(data)
        entries.append({"mediaType": _MEDIA + kind, "digest": f"sha256:{digest}", "size": len(data)})
    manifest = store / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": {}, "layers": entries}), encoding="utf-8")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    parameters = {
        "temperature": 0.6,
        "top_k": 20,
        "repeat_penalty": 1,
        "num_ctx": 4096,
        "stop": ["<|im_end|>"],
    }
    put(
        tmp_path,
        "registry.ollama.ai/library/qwen3/latest",
        {
            "model": b"GGUF-1",
            "template": b"{{ .Prompt }}",
            "params": json.dumps(parameters).encode(),
            "system": b"Be kind.",
        },
    )
    put(tmp_path, "registry.ollama.ai/library/qwen3/0.6b", {"model": b"GGUF-2"})
    put(tmp_path, "registry.ollama.ai/someone/own/q4", {"model": b"GGUF-3"})
    put(tmp_path, "hf.co/Qwen/Qwen3-0.6B-GGUF/Q8_0", {"model": b"GGUF-4"})
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("qwen3", b"GGUF-1"),
        ("qwen3:0.6b", b"GGUF-2"),
        ("someone/own:q4", b"GGUF-3"),
        ("someone/own", b"GGUF-3"),  # the only tag
        ("hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0", b"GGUF-4"),
    ],
)
def test_a_model_is_found_by_name_tag_namespace_and_host(name: str, content: bytes, store: Path) -> None:
    found = find_ollama_model(name, str(store))
    assert found.gguf.read_bytes() == content
    assert found.digest == hashlib.sha256(content).hexdigest()


def test_its_parameters_are_sampling_defaults_and_ends(store: Path) -> None:
    found = find_ollama_model("qwen3", str(store))
    assert found.sampling == {"temperature": 0.6, "top_k": 20.0, "repetition_penalty": 1.0}
    assert found.stop == ("<|im_end|>",)
    assert found.notes == ("the layer system of Ollama's model is not used",)


def test_an_unknown_name_is_answered_with_what_is_there(store: Path) -> None:
    there = "hf.co/Qwen/Qwen3-0.6B-GGUF:Q8_0, qwen3, qwen3:0.6b, someone/own:q4"
    with pytest.raises(ConfigError, match=f"Ollama's store has no model qwen4; it has {there}"):
        find_ollama_model("qwen4", str(store))
    with pytest.raises(ConfigError, match="has no model qwen3:8b; it has"):
        find_ollama_model("qwen3:8b", str(store))


def test_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no models are in {tmp_path / 'none'}"):
        find_ollama_model("qwen3", str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["", "../../etc:passwd", "a/b/c/d", "a b", "..:x"])
def test_a_name_of_another_form_leaves_the_store_alone(name: str, store: Path) -> None:
    with pytest.raises(ConfigError, match="is not of the form"):
        find_ollama_model(name, str(store))


def test_a_model_that_is_not_one_whole_gguf_file_is_refused(store: Path) -> None:
    put(store, "registry.ollama.ai/library/tuned/latest", {"model": b"GGUF-1", "adapter": b"x"})
    put(store, "registry.ollama.ai/library/cut/latest", {"model": b"GGUF-9"})
    (store / "blobs" / f"sha256-{hashlib.sha256(b'GGUF-9').hexdigest()}").unlink()
    (store / "manifests/registry.ollama.ai/library/torn").mkdir()
    (store / "manifests/registry.ollama.ai/library/torn/latest").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tuned is not one GGUF file \(it has adapter, model\)"):
        find_ollama_model("tuned", str(store))
    with pytest.raises(ConfigError, match="`ollama pull cut` completes it"):
        find_ollama_model("cut", str(store))
    with pytest.raises(ConfigError, match="torn/latest cannot be read"):
        find_ollama_model("torn", str(store))
