"""Writes a LoRA folder of peft as a GGUF adapter, which llama.cpp and Ollama load.

A GGUF file stores the rows of the query and key projections of some architectures in another order than the Hugging Face model, because llama.cpp
rotates neighbouring dimensions there. The adapter's rows are brought into the same order; an architecture whose order is not known here is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import numpy.typing
from safetensors import SafetensorError
from safetensors import deserialize as read_entries

from serving.peft_folder import WEIGHTS, read_lora_shape, split_key
from store.errors import AdapterError

Matrix = numpy.typing.NDArray[numpy.float32]

#: Architectures whose query and key rows are interleaved for neighbouring rotation; those that keep the order; both as GGUF names them.
_INTERLEAVED = frozenset({"llama", "granite", "smollm3", "arcee"})
_PLAIN = frozenset(
    {"qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "olmo2", "starcoder2", "stablelm", "exaone4"}
)
#: Model types of config.json that GGUF names otherwise.
_GGUF_NAMES = {"mistral": "llama", "gemma3_text": "gemma3"}
_DTYPES = {"F32": numpy.float32, "F16": numpy.float16}


@dataclass(frozen=True, kw_only=True)
class ModelLayout:
    """What the conversion must know of the base model; of a loaded file, or of its header."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int


def layout_of_folder(folder: Path) -> ModelLayout:
    """Return the layout of the GGUF file that llama.cpp's converter makes of a Hugging Face folder. Raises AdapterError."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{folder / 'config.json'} cannot be read: {error}") from None
    config = config.get("text_config") or config
    kind, heads = str(config.get("model_type", "")), int(config.get("num_attention_heads") or 0)
    return ModelLayout(
        architecture=_GGUF_NAMES.get(kind, kind),
        layers=int(config.get("num_hidden_layers") or 0),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
    )


def write_gguf_adapter(folder: Path, file: Path, layout: ModelLayout) -> None:
    """Write a peft folder as a GGUF adapter, in float32. Raises AdapterError."""
    import gguf

    shape = read_lora_shape(folder)
    tensors = gguf_tensors(_read_tensors(folder), folder, shape.rank, layout)
    writer = gguf.GGUFWriter(file, layout.architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    # llama.cpp divides by the rank.
    writer.add_float32("adapter.lora.alpha", shape.scaling * shape.rank)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(
    tensors: Mapping[str, Matrix], folder: Path, rank: int, layout: ModelLayout
) -> dict[str, Matrix]:
    """Return the matrices by their GGUF names, rows in the order of the GGUF model. Raises AdapterError."""
    import gguf

    if layout.architecture not in _INTERLEAVED | _PLAIN:
        raise AdapterError(
            f"adapters of the architecture {layout.architecture} cannot be converted for llama.cpp; use another --backend"
        )
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == layout.architecture)
    names = gguf.get_tensor_name_map(kind, layout.layers)
    found: dict[str, Matrix] = {}
    parts: dict[str, set[str]] = {}
    for key, tensor in tensors.items():
        module, part = split_key(key, folder)
        name = names.get_name(f"{module}.weight", try_suffixes=(".weight",))
        if name is None:
            raise AdapterError(
                f"{folder}: {layout.architecture} has no layer {module}; the adapter is of another model"
            )
        if tensor.ndim != 2 or tensor.shape[0 if part == "A" else 1] != rank:
            raise AdapterError(f"{folder}: {key} has the shape {tensor.shape} and is not of rank {rank}")
        if not numpy.isfinite(tensor).all():
            raise AdapterError(f"{folder}: {module} has weights that are not finite")
        if part == "B" and layout.architecture in _INTERLEAVED:
            tensor = _interleave(tensor, module, layout)
        parts.setdefault(module, set()).add(part)
        found[f"{name}.lora_{part.lower()}"] = numpy.ascontiguousarray(tensor, numpy.float32)
    if not found:
        raise AdapterError(f"{folder}: {WEIGHTS} holds no weights")
    for module, both in parts.items():
        if len(both) < 2:
            raise AdapterError(f"{folder}: {module} has only one of lora_A and lora_B")
    return found


def _interleave(tensor: Matrix, module: str, layout: ModelLayout) -> Matrix:
    """Order the rows [out, r] of a query or key projection: the two halves of each head alternate."""
    projection = re.search(r"\.([qk])_proj$", module)
    if projection is None:
        return tensor
    heads = layout.heads if projection.group(1) == "q" else layout.kv_heads
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise AdapterError(
            f"{module} has {rows} rows, which {heads} heads do not share; the adapter is of another model"
        )
    return tensor.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(rows, -1)


def _read_tensors(folder: Path) -> dict[str, Matrix]:
    path = folder / WEIGHTS
    try:
        entries: list[Any] = read_entries(path.read_bytes())  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise AdapterError(f"{folder} has no {WEIGHTS}") from None
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{folder}: {WEIGHTS} cannot be read: {error}") from None
    return {key: _matrix(folder, key, entry) for key, entry in entries}


def _matrix(folder: Path, key: str, entry: Mapping[str, Any]) -> Matrix:
    if entry["dtype"] == "BF16":  # numpy has no such type: these are the upper halves of float32 values
        wide = numpy.frombuffer(entry["data"], numpy.uint16).astype(numpy.uint32) << 16
        return wide.view(numpy.float32).reshape(entry["shape"])
    if entry["dtype"] not in _DTYPES:
        raise AdapterError(f"{folder}: {key} is of the type {entry['dtype']}, which is not supported")
    return (
        numpy.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"]).astype(numpy.float32)
    )
