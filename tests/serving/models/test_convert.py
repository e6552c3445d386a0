"""What a GGUF file becomes, and which files are refused with which sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from serving.models.convert import convert
from store.errors import ConfigError
from tests.serving.models.gguf_files import write_gguf
from tests.tiny import CHAT_TEMPLATE


def job(gguf: Path, folder: Path, **more: Any) -> dict[str, Any]:
    plain = {"name": "tiny", "gguf_sha256": "ab", "converter": 1, "sampling": {}, "stop": [], "origin": {}}
    return {**plain, "gguf": str(gguf), "folder": str(folder), **more}


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_every_weight_is_the_dequantised_one(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    weights = write_gguf(tmp_path / "a.gguf", tiny_model, kind=kind)
    convert(job(tmp_path / "a.gguf", tmp_path / "made"))
    made = load_file(tmp_path / "made" / "model.safetensors")
    assert set(made) == set(weights)  # the output layer is tied, and written once
    for name, value in weights.items():
        np.testing.assert_array_equal(made[name], value, err_msg=name)


def test_configuration_tokenizer_and_template_are_those_of_the_file(tmp_path: Path, tiny_model: Path) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_model, temperature=0.25)
    folder = tmp_path / "made"
    convert(job(tmp_path / "a.gguf", folder, origin={"from": "a test"}))
    config, generation, origin = (
        read(folder, f"{one}.json") for one in ("config", "generation_config", "origin")
    )
    assert (config["model_type"], config["max_position_embeddings"], config["dtype"]) == (
        "llama",
        2048,
        "float32",
    )
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"] is True
    assert (generation["temperature"], generation["do_sample"]) == (0.25, True)
    assert (origin["from"], origin["stated_in_file"]) == ("a test", {"name": "Tiny Random", "license": "mit"})
    made, own = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(tiny_model)
    assert generation["eos_token_id"] == config["eos_token_id"] == made.eos_token_id == own.eos_token_id
    assert made.chat_template == CHAT_TEMPLATE
    text = '<|im_start|>user\nGröße 😀 <tool_call>{"a": []}</tool_call><|im_end|>'
    assert made(text)["input_ids"] == own(text)["input_ids"]


def test_digits_are_split_off_where_the_file_says_so(tmp_path: Path, tiny_model: Path) -> None:
    """GPT-2's own rule leaves one line break to the number: a list then has other tokens than in training."""
    for rule in ("smollm", "gpt-2", "unheard-of"):
        write_gguf(tmp_path / f"{rule}.gguf", tiny_model, pre=rule)
        convert(job(tmp_path / f"{rule}.gguf", tmp_path / rule))

    def pieces(rule: str) -> list[str]:
        backend = AutoTokenizer.from_pretrained(tmp_path / rule).backend_tokenizer
        return [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("a\n\n12")]

    assert pieces("smollm") == ["a", "ĊĊ", "1", "2"]
    assert pieces("gpt-2") == ["a", "Ċ", "Ċ", "12"]
    assert [read(tmp_path / rule, "origin.json")["notes"] for rule in ("smollm", "gpt-2")] == [[], []]
    assert "pre-tokenizer unheard-of is not known" in read(tmp_path / "unheard-of", "origin.json")["notes"][0]


def test_given_sampling_wins_and_stop_texts_of_one_token_end_a_reply(
    tmp_path: Path, tiny_model: Path
) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_model, temperature=0.25)
    sampling = {"temperature": 0.5, "top_k": 40.0}
    convert(
        job(tmp_path / "a.gguf", tmp_path / "made", sampling=sampling, stop=["<|endoftext|>", "no token"])
    )
    generation = read(tmp_path / "made", "generation_config.json")
    assert (generation["temperature"], generation["top_k"]) == (0.5, 40)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert generation["eos_token_id"] == sorted([tokenizer.eos_token_id, tokenizer.pad_token_id])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"architecture": "unheard"},
            "cannot be read for training: GGUF model with architecture unheard is not supported",
        ),
        ({"template": ""}, "has no chat template"),
        ({"parts": 3}, "is one part of a split model"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(
    more: dict[str, Any], sentence: str, tmp_path: Path, tiny_model: Path
) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_model, **more)
    with pytest.raises(ConfigError, match=sentence):
        convert(job(tmp_path / "a.gguf", tmp_path / "made"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_called_that(share: float, tmp_path: Path, tiny_model: Path) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_model)
    data = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ConfigError, match=r"a\.gguf is truncated or damaged"):
        convert(job(tmp_path / "a.gguf", tmp_path / "made"))
