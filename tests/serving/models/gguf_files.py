"""Writes small GGUF files with random weights: a two-layer Llama with the tiny model's tokenizer, in the layout of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.tiny import CHAT_TEMPLATE

_LAYERS, _HIDDEN, _HEADS, _KV_HEADS, _INNER = 2, 64, 4, 2, 128
_TYPES = {"F16": gguf.GGMLQuantizationType.F16, "Q8_0": gguf.GGMLQuantizationType.Q8_0}
Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def write_gguf(
    path: Path,
    tokenizer: Path,
    *,
    kind: str = "F16",
    architecture: str = "llama",
    template: str = CHAT_TEMPLATE,
    pre: str = "smollm",
    parts: int = 1,
    temperature: float | None = None,
) -> Arrays:
    """Write a file; return its weights by their names in Hugging Face's format, as they are read back from it.

    Args:
        tokenizer: folder whose byte-level BPE the file gets.
        kind: F16 or Q8_0, of the matrices.
        parts: the number of files that it claims to be one of.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(2048)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_name("Tiny Random")
    writer.add_string("general.license", "mit")
    if temperature is not None:
        writer.add_float32("general.sampling.temp", temperature)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    vocabulary = _add_tokenizer(writer, tokenizer, pre)
    if template:
        writer.add_chat_template(template)
    weights = {}
    for name, (own, value) in _weights(vocabulary).items():
        wanted = _TYPES[kind] if value.ndim == 2 else gguf.GGMLQuantizationType.F32
        permuted = _permuted(own, value)
        writer.add_tensor(name, gguf.quantize(permuted, wanted), raw_dtype=wanted)
        weights[own] = gguf.dequantize(gguf.quantize(value, wanted), wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre: str) -> int:
    found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {one["content"]: one for one in found["added_tokens"]}
    ids = {**found["model"]["vocab"], **{text: one["id"] for text, one in added.items()}}
    tokens = sorted(ids, key=lambda token: int(ids[token]))
    control, user, normal = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [(control if added[one]["special"] else user) if one in added else normal for one in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in found["model"]["merges"]])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_bos_token_id(ids["<|im_start|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    return len(tokens)


def _weights(vocabulary: int) -> dict[str, tuple[str, Any]]:
    """Return (name in Hugging Face's format, values) by the file's name."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        return random.standard_normal((rows, columns)).astype(np.float32)

    key = _HIDDEN // _HEADS * _KV_HEADS
    found: dict[str, tuple[str, Any]] = {
        "token_embd.weight": ("model.embed_tokens.weight", matrix(vocabulary, _HIDDEN)),
        "output_norm.weight": ("model.norm.weight", matrix(1, _HIDDEN)[0]),
    }
    for layer in range(_LAYERS):
        for theirs, ours, value in (
            ("attn_norm", "input_layernorm", matrix(1, _HIDDEN)[0]),
            ("ffn_norm", "post_attention_layernorm", matrix(1, _HIDDEN)[0]),
            ("attn_q", "self_attn.q_proj", matrix(_HIDDEN, _HIDDEN)),
            ("attn_k", "self_attn.k_proj", matrix(key, _HIDDEN)),
            ("attn_v", "self_attn.v_proj", matrix(key, _HIDDEN)),
            ("attn_output", "self_attn.o_proj", matrix(_HIDDEN, _HIDDEN)),
            ("ffn_gate", "mlp.gate_proj", matrix(_INNER, _HIDDEN)),
            ("ffn_up", "mlp.up_proj", matrix(_INNER, _HIDDEN)),
            ("ffn_down", "mlp.down_proj", matrix(_HIDDEN, _INNER)),
        ):
            found[f"blk.{layer}.{theirs}.weight"] = (f"model.layers.{layer}.{ours}.weight", value)
    return found


def _permuted(name: str, value: Any) -> Any:
    """Return the rows in llama.cpp's order: its rotation pairs neighbours, Hugging Face's pairs halves."""
    heads = {"q_proj": _HEADS, "k_proj": _KV_HEADS}.get(name.split(".")[-2], 0)
    if not heads:
        return value
    halves = value.reshape(heads, 2, value.shape[0] // heads // 2, value.shape[1])
    return halves.swapaxes(1, 2).reshape(value.shape)
