"""Keys and values of the running sequences, one row each, and the attention masks.

Row i holds one sequence; its token at position p is at index p. Rows of different length are aligned left, and joining or leaving the batch
does not move other rows. Beyond a row's length there is data of earlier sequences: the mask hides it from every query, and the next token overwrites
it.

Shapes per layer: [rows, kv heads, capacity, head dim]. A layer's tensors are allocated at its first write, when the shape is known, and grow by
doubling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK = 64


class BatchKvCache:
    """Duck-typed replacement of transformers' Cache: the layers call only `update`."""

    is_compileable = False
    is_sliding: tuple[bool, ...] = ()

    def __init__(self) -> None:
        self.rows = 0
        self.capacity = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._starts: Sequence[int] = ()
        self._uniform: int | None = None
        self._row_index = torch.empty(0)
        self._start_index = torch.empty(0)
        self._end = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position in one row, over all layers; 0 before the first forward."""
        tensors = [*self._keys.values(), *self._values.values()]
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in tensors)

    def bytes_for(self, rows: int, capacity: int) -> int:
        """Return the bytes that `reserve(rows, capacity)` may take."""
        return next_power_of_two(rows, 1) * next_power_of_two(capacity, _BLOCK) * self.bytes_per_token

    def reserve(self, rows: int, capacity: int) -> None:
        """Make room for `rows` rows of `capacity` positions. Existing entries stay; the space of a removed long row is freed."""
        if rows <= self.rows and capacity <= self.capacity:
            return
        rows, capacity = next_power_of_two(rows, 1), next_power_of_two(capacity, _BLOCK)
        for store in (self._keys, self._values):
            for layer, old in store.items():
                # Zeros, not empty: a masked NaN is still a NaN once multiplied by its weight 0.
                new = old.new_zeros(rows, old.shape[1], capacity, old.shape[3])
                new[: old.shape[0], :, : old.shape[2]] = old[:rows, :, :capacity]
                store[layer] = new
        self.rows, self.capacity = rows, capacity

    def clear(self) -> None:
        """Free all memory."""
        self._keys.clear()
        self._values.clear()
        self.rows = self.capacity = 0

    def begin(self, starts: Sequence[int], length: int, device: torch.device) -> None:
        """Prepare a forward: rows 0..len(starts)-1 get `length` new tokens each, the first at index starts[i]."""
        self._starts = starts
        self._uniform = starts[0] if len(set(starts)) == 1 else None
        self._end = max(starts) + length
        self.reserve(len(starts), self._end)
        if self._uniform is None:
            self._row_index = torch.arange(len(starts), device=device)
            self._start_index = torch.tensor(starts, device=device)

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's new keys and values [B, H, Q, D]; return those of all positions [B, H, end, D]."""
        all_keys = self._write(self._keys, layer_idx, keys)
        all_values = self._write(self._values, layer_idx, values)
        rows = keys.shape[0]
        return all_keys[:rows, :, : self._end], all_values[:rows, :, : self._end]

    def _write(self, store: dict[int, Tensor], layer: int, new: Tensor) -> Tensor:
        kept = store.get(layer)
        if kept is None:
            kept = new.new_zeros(self.rows, new.shape[1], self.capacity, new.shape[3])
            store[layer] = kept
        rows, length = new.shape[0], new.shape[2]
        if self._uniform is not None:
            kept[:rows, :, self._uniform : self._uniform + length] = new
        elif length == 1:
            kept[self._row_index, :, self._start_index] = new[:, :, 0]
        else:
            for row, start in enumerate(self._starts):
                kept[row, :, start : start + length] = new[row]
        return kept

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Called by models without explicit positions; here they are always explicit."""
        return max(self._starts, default=0)

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Return -1: no fixed limit."""
        return -1

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return the index of the first new token."""
        return max(self._starts, default=0)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return (kv length, kv offset) for models that size a mask before they use ours."""
        return self._end, 0

    def copy_row(self, source: BatchKvCache, source_row: int, row: int, length: int) -> None:
        """Copy the first `length` positions of another cache's row into a row of this one, which must have room."""
        for store, other in ((self._keys, source._keys), (self._values, source._values)):
            for layer, tensor in other.items():
                if layer not in store:
                    store[layer] = tensor.new_zeros(
                        self.rows, tensor.shape[1], self.capacity, tensor.shape[3]
                    )
                store[layer][row, :, :length] = tensor[source_row, :, :length]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move row `source` to row `target`, whose sequence has left."""
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[target, :, :length] = tensor[source, :, :length]


def next_power_of_two(size: int, least: int) -> int:
    """Return the next power of two, so that a cache that grows step by step is rarely copied."""
    return max(least, 1 << (size - 1).bit_length())


def build_mask(starts: Sequence[int], length: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return the attention mask: bool [B, 1, Q, max(starts) + Q], True where the query sees the key.

    Row i's queries are at starts[i], starts[i]+1, ...; a sliding layer sees only the last `window` positions, itself included.
    """
    end = max(starts) + length
    position = torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)
    key = torch.arange(end, device=device)
    seen = key <= position[..., None]
    if window is not None:
        seen &= key > position[..., None] - window
    return seen[:, None]
