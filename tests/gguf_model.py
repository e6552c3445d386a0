"""Writes a small model folder as a GGUF file, in the layout of llama.cpp's own converter: what `--backend llamacpp` serves in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy
from safetensors.numpy import load_file


def write_gguf_model(folder: Path, file: Path, *, quantizes: bool = False) -> Path:
    """Write a Llama or Qwen3 folder with a byte-level BPE tokenizer, in float32 or its matrices in 8 bits; returns `file`."""
    matrices = gguf.GGMLQuantizationType.Q8_0 if quantizes else gguf.GGMLQuantizationType.F32
    config = json.loads((folder / "config.json").read_text())
    kind = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}[config["model_type"]]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[kind])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantizes else gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, folder, config["vocab_size"])
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for key, value in load_file(folder / "model.safetensors").items():
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        tensor = numpy.ascontiguousarray(value, numpy.float32)
        rotated = {"q_proj": heads, "k_proj": kv_heads}.get(key.split(".")[-2])
        if rotated and kind is gguf.MODEL_ARCH.LLAMA:
            # llama.cpp rotates neighbouring rows of a head there, Hugging Face its halves
            halves = tensor.reshape(rotated, 2, head_size // 2, *tensor.shape[1:])
            tensor = numpy.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
        wanted = matrices if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(tensor, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, size: int) -> None:
    found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added: dict[str, Any] = {one["content"]: one for one in found["added_tokens"]}
    ids = {**found["model"]["vocab"], **{text: one["id"] for text, one in added.items()}}
    by_id = {token_id: token for token, token_id in ids.items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(size)]
    control, user, normal = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [(control if added[one]["special"] else user) if one in added else normal for one in tokens]
    )
    merges = found["model"]["merges"]
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    writer.add_eos_token_id(ids["<|im_end|>"])
