"""LoRA adapters: reading peft folders, and applying several of them to the rows of one batch.

For a batch whose rows use different adapters, the A matrices of all of them are stacked into one [R, in] and the B matrices into one [out, R],
where R is the sum of their ranks. A row's activations under other adapters' A are multiplied by 0, so two matrix products serve the whole mixed
batch, and a row without an adapter gets exactly the base model's output plus 0. When all rows share one adapter, no mask is needed; when none
has one, nothing is added.

An adapter is immutable: its name never gets other weights. Its users hold references; the memory is freed with the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from serving.peft_folder import WEIGHTS, read_lora_shape, split_key
from store.errors import AdapterError

_MAX_CACHED_STACKS = (
    4  # combinations of adapters whose stacked matrices are cached; a new one costs a copy of its adapters
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Adapter:
    """A loaded adapter: for each module, A [r, in] and B [out, r] with the scaling included."""

    name: str
    path: str
    rank: int
    layers: Mapping[str, tuple[Tensor, Tensor]]


def read_adapter(
    name: str,
    folder: Path,
    modules: Mapping[str, nn.Linear],
    *,
    max_rank: int,
) -> Adapter:
    """Read a peft folder and check it against the served model. Callable from any thread.

    Raises AdapterError if the folder is missing, truncated, of another model, or uses an unsupported feature.
    """
    shape = read_lora_shape(folder)
    rank, scaling = shape.rank, shape.scaling
    if rank > max_rank:
        raise AdapterError(f"{folder}: rank {rank} is above this server's --max-lora-rank {max_rank}")
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in _read_tensors(folder).items():
        module, part = split_key(key, folder)
        found.setdefault(module, {})[part] = tensor
    if not found:
        raise AdapterError(f"{folder}: adapter_model.safetensors holds no weights")
    layers: dict[str, tuple[Tensor, Tensor]] = {}
    for module, parts in found.items():
        linear = modules.get(module)
        if linear is None:
            raise AdapterError(
                f"{folder}: the served model has no linear layer {module}; the adapter is of another model"
            )
        if parts.keys() != {"A", "B"}:
            raise AdapterError(f"{folder}: {module} has only one of lora_A and lora_B")
        a, b = parts["A"], parts["B"]
        wanted = (rank, linear.in_features), (linear.out_features, rank)
        if (tuple(a.shape), tuple(b.shape)) != wanted:
            raise AdapterError(
                f"{folder}: {module} has shapes {tuple(a.shape)} and {tuple(b.shape)}, the served model needs "
                f"{wanted[0]} and {wanted[1]}"
            )
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            raise AdapterError(f"{folder}: {module} has weights that are not finite")
        weight = linear.weight
        layers[module] = (
            a.to(weight.device, weight.dtype),
            (b.to(torch.float32) * scaling).to(weight.device, weight.dtype),
        )
    return Adapter(name=name, path=str(folder), rank=rank, layers=layers)


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            # Cloned: if a mapped file were truncated later, the engine would die with SIGBUS.
            return {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise AdapterError(f"{folder} has no adapter_model.safetensors") from None
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{folder}: adapter_model.safetensors cannot be read: {error}") from None


class LoraLinear(nn.Linear):
    """A linear layer that adds the low-rank product of the active adapters."""

    active: tuple[Tensor, Tensor, Tensor | None] | None

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]; the first dimension is the batch row of the mask."""
        output = nn.functional.linear(input, self.weight, self.bias)
        if self.active is None:
            return output
        a, b, mask = self.active
        hidden = nn.functional.linear(input, a)
        if mask is not None:
            hidden = hidden * mask
        return output + nn.functional.linear(hidden, b)


class AdapterSelector:
    """Selects the adapter of each row, forward by forward. One thread only."""

    def __init__(self, model: nn.Module) -> None:
        self.modules: dict[str, LoraLinear] = {}
        for name, module in model.named_modules():
            if type(module) is nn.Linear:  # a subclass may compute more than a plain product
                module.__class__ = LoraLinear
                assert isinstance(module, LoraLinear)
                module.active = None
                self.modules[name] = module
        self._rows: tuple[Adapter | None, ...] = ()
        self._stacks: dict[tuple[Adapter, ...], dict[str, tuple[Tensor, Tensor, tuple[Adapter, ...]]]] = {}

    def activate(self, rows: Sequence[Adapter | None]) -> None:
        """Serve row i of the next forwards with rows[i]; None is the base model."""
        rows = tuple(rows)
        if rows == self._rows:
            return
        self._rows = rows
        distinct = tuple(dict.fromkeys(row for row in rows if row is not None))
        if not distinct:
            for module in self.modules.values():
                module.active = None
            return
        if len(distinct) == 1 and None not in rows:
            layers = distinct[0].layers
            for name, module in self.modules.items():
                pair = layers.get(name)
                module.active = None if pair is None else (*pair, None)
            return
        distinct = tuple(sorted(distinct, key=id))
        stack = self._stacks.get(distinct)
        if stack is None:
            while len(self._stacks) >= _MAX_CACHED_STACKS:
                del self._stacks[next(iter(self._stacks))]
            stack = self._stacks[distinct] = self._build_stack(distinct)
        masks: dict[tuple[Adapter, ...], Tensor] = {}
        for name, module in self.modules.items():
            entry = stack.get(name)
            if entry is None:
                module.active = None
                continue
            a, b, owners = entry
            mask = masks.get(owners)
            if mask is None:
                lines = [[float(row is owner) for owner in owners for _ in range(owner.rank)] for row in rows]
                mask = masks[owners] = torch.tensor(lines, dtype=a.dtype, device=a.device)[:, None, :]
            module.active = (a, b, mask)

    def _build_stack(
        self, adapters: tuple[Adapter, ...]
    ) -> dict[str, tuple[Tensor, Tensor, tuple[Adapter, ...]]]:
        stack = {}
        for name in self.modules:
            owners = tuple(adapter for adapter in adapters if name in adapter.layers)
            if owners:
                pairs = [owner.layers[name] for owner in owners]
                stack[name] = (torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs], 1), owners)
        return stack

    def retain_only(self, adapters: Sequence[Adapter | None]) -> None:
        """Drop cached stacks of other adapters, so that their memory is freed."""
        wanted = set(adapters)
        self._stacks = {key: stack for key, stack in self._stacks.items() if wanted.issuperset(key)}
        if not wanted.issuperset(self._rows):
            self._rows = ()
            for module in self.modules.values():
                module.active = None
