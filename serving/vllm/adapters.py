"""Checks an adapter's folder before vLLM loads it. vLLM silently copies weights that are too small into a part of its buffers: an adapter of another
model would be served as noise. Reads file headers only, without a library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from serving.vllm.model_facts import ModelFacts
from store.errors import AdapterError

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def check_adapter(folder: Path, facts: ModelFacts, *, max_rank: int | None = None) -> None:
    """Check that a LoRA folder is complete and fits the model; unknown modules are left to vLLM.

    Args:
        max_rank: the engine's limit; None: unknown.

    Raises:
        AdapterError: one sentence about the problem.
    """
    config = _read_config(folder)
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1:
        raise AdapterError(f"{folder}: {_CONFIG} has no rank")
    if max_rank is not None and rank > max_rank:
        raise AdapterError(f"{folder} has rank {rank}, the engine takes up to {max_rank}")
    tensors = read_head(folder / _WEIGHTS)
    if not tensors:
        raise AdapterError(f"{folder} holds no weights")
    sizes = facts.linear_sizes
    for name, shape in tensors.items():
        module, _, part = name.removesuffix(".weight").rpartition(".lora_")
        size = sizes.get(module.rpartition(".")[2])
        if size is None or part not in ("A", "B"):
            continue
        wanted = (rank, size[0]) if part == "A" else (size[1], rank)
        if shape != wanted:
            raise AdapterError(
                f"{folder} is of another model than {facts.name}: {module} has shape {shape} and should have {wanted}"
            )


def read_head(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes in a safetensors file, by name.

    AdapterError: it is missing, truncated, or not such a file.
    AdapterError: it is missing, torn, or not such a file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= size - 8:
                raise AdapterError(f"{path} is truncated: its head is incomplete")
            head: dict[str, Any] = json.loads(file.read(length))
        found = {name: entry for name, entry in head.items() if name != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in found.values()), default=0)
        if 8 + length + end != size:
            raise AdapterError(f"{path} is truncated: it has {size} bytes instead of {8 + length + end}")
        return {name: tuple(int(side) for side in entry["shape"]) for name, entry in found.items()}
    except FileNotFoundError:
        raise AdapterError(f"{path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as exc:
        raise AdapterError(f"{path} cannot be read: {exc}") from exc


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AdapterError(f"{folder} is not an adapter folder: no {_CONFIG}") from None
    except (OSError, ValueError) as exc:
        raise AdapterError(f"{folder}: {_CONFIG} cannot be read: {exc}") from exc
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(f"{folder}: only LoRA adapters can be served")
    return config
