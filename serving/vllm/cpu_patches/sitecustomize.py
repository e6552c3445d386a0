"""Patches vLLM on a CPU: its processes run this module at their start (the folder is their PYTHONPATH).

Rows without an adapter have index -1. vLLM's GPU kernels skip them. Its plain torch kernels for CPUs (0.32) read -1 as the last adapter's position, so
a base-model request beside one with an adapter gets a mixture (github.com/vllm-project/vllm/pull/48421, open). The patch passes zeros for such rows,
so that an adapter adds nothing to them; all other rows are computed as before, bit for bit.

The output layer's rows of a prompt whose log-probabilities are asked for come with the indices of the batch's samples, not with their own. Beside
another request the numbers differ, and the engine died. Such rows get no adapter output either: Patina's adapters leave the output layer alone.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_MODULE = "vllm.lora.ops.torch_ops.lora_ops"
_FUNCTIONS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


def skip_rows_without_adapter(function: Callable[..., None]) -> Callable[..., None]:
    """Return ``function(inputs [T, D], weights, output, indices [T], ...)`` so that rows without an adapter of their own add nothing."""

    @functools.wraps(function)
    def wrapped(
        inputs: Any, weights: Any, output: Any, lora_indices_tensor: Any, *args: Any, **more: Any
    ) -> None:
        if lora_indices_tensor.shape[0] not in (1, inputs.shape[0]):
            return  # the indices are of other rows
        without = (lora_indices_tensor < 0).unsqueeze(-1)
        function(
            inputs.masked_fill(without, 0), weights, output, lora_indices_tensor.clamp(min=0), *args, **more
        )

    return wrapped


class _PatchingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for name in _FUNCTIONS:
            setattr(module, name, skip_rows_without_adapter(getattr(module, name)))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchingLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
