"""Runs in vLLM's processes on a CPU, at their start (this folder is their PYTHONPATH): mends one thing of vLLM's there.

Rows without an adapter have index -1. vLLM's kernels for GPUs skip them; its plain torch ones for CPUs (0.32) take -1 for the last
adapter's place, so that a request of the base model which happens to run beside one with an adapter is answered by a mixture
(github.com/vllm-project/vllm/pull/48421, open). Here such rows enter with zeros, and what an adapter adds to them is nothing; all
other rows are computed as before, bit for bit.
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


def skipping(function: Callable[..., None]) -> Callable[..., None]:
    """Return ``function(inputs [T, D], weights, output, indices [T], ...)`` so that rows with index -1 add nothing."""

    @functools.wraps(function)
    def wrapped(
        inputs: Any, weights: Any, output: Any, lora_indices_tensor: Any, *args: Any, **more: Any
    ) -> None:
        without = (lora_indices_tensor < 0).unsqueeze(-1)
        function(
            inputs.masked_fill(without, 0), weights, output, lora_indices_tensor.clamp(min=0), *args, **more
        )

    return wrapped


class _Mending(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for name in _FUNCTIONS:
            setattr(module, name, skipping(getattr(module, name)))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Mending(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
