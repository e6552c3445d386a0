"""Decoding a few tokens for several prompts at once: hidden states of new tokens, with keys and values of the old ones kept.

`NetworkDecoder` asks the model itself and works with every architecture. `MergedDecoder` is for small models, which spend most of a
step in Python and in tiny matrix products: it computes what the layers of Llama and its relatives compute, with the adapter merged
into copies of the weights, the projections of one input side by side in one matrix, and keys and values in tensors that are allocated
once. Its result is the model's own up to float rounding (`largest_difference`). It is for float32 weights: merging an adapter into
bfloat16 weights rounds the adapter away.

Shapes: B rows, T positions, D hidden size, d size of an attention head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Decoder layers of this form: norm, rotary attention with grouped heads, norm, gated SiLU.
_LAYERS = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"})


class Decoder(Protocol):
    """Reads prompts, then one token of each row at a time."""

    def begin(self, ids: Tensor, seen: Tensor, capacity: int) -> Tensor:
        """Read prompts padded in front.

        Args:
            ids: [B, T] int64; seen: [B, T], 1 for a token, 0 for padding.
            capacity: positions that there will be at most, T included.

        Returns:
            Hidden states [B, D] of the last position.
        """
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Read one more token [B] of each row; hidden states [B, D]."""
        ...

    def keep(self, rows: Tensor) -> bool:
        """Go on with these rows alone, in this order; rows: [B'] int64. False: it cannot, and goes on with all."""
        ...


class NetworkDecoder:
    """The model's own forward pass. See `Decoder`.

    Args:
        network: a causal language model.
    """

    def __init__(self, network: Any) -> None:
        self._decoder = network.get_decoder()
        self._cache: Any = None

    def begin(self, ids: Tensor, seen: Tensor, capacity: int) -> Tensor:
        self._cache, self._seen = None, seen.new_ones(len(ids), capacity)
        self._seen[:, : ids.shape[1]] = seen
        self._position = (seen.cumsum(dim=1) - 1).clamp(min=0)
        self._length = 0
        return self._forward(ids)

    def step(self, tokens: Tensor) -> Tensor:
        self._position = self._position[:, -1:] + 1
        return self._forward(tokens[:, None])

    def keep(self, rows: Tensor) -> bool:
        if not hasattr(self._cache, "batch_select_indices"):
            return False
        self._cache.batch_select_indices(rows)
        self._seen, self._position = self._seen[rows], self._position[rows]
        return True

    def _forward(self, ids: Tensor) -> Tensor:
        self._length += ids.shape[1]
        output = self._decoder(
            input_ids=ids,
            attention_mask=self._seen[:, : self._length],
            position_ids=self._position,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._cache = output.past_key_values
        hidden: Tensor = output.last_hidden_state[:, -1]
        return hidden


#: Gives the weight [out, in] and the bias [out] of a linear layer, an adapter merged into it.
Merge = Callable[[nn.Module], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Tensor
    bias: Tensor | None

    def __call__(self, values: Tensor) -> Tensor:
        return functional.linear(values, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    epsilon: float

    def __call__(self, values: Tensor) -> Tensor:
        return functional.rms_norm(values, [len(self.weight)], self.weight, self.epsilon)


@dataclass(frozen=True, slots=True)
class _Layer:
    norm: _Norm
    qkv: _Linear
    q_norm: _Norm | None
    k_norm: _Norm | None
    output: _Linear
    second_norm: _Norm
    gate_up: _Linear
    down: _Linear


def supports(network: Any) -> bool:
    """Whether the layers of this causal language model are of the known form."""
    decoder = network.get_decoder()
    config = network.config.get_text_config()
    layers: list[Any] = list(getattr(decoder, "layers", []))
    return (
        bool(layers)
        and all(type(layer).__name__ in _LAYERS for layer in layers)
        and network.dtype == torch.float32
        and getattr(config, "hidden_act", "") == "silu"
        and not getattr(config, "use_sliding_window", False)
        and (getattr(config, "sliding_window", None) is None or type(layers[0]).__name__.startswith("Qwen"))
        and config.rope_parameters.get("rope_type") == "default"
        and all(isinstance(x, nn.Linear) or hasattr(x, "get_base_layer") for x in _projections(layers[0]))
    )


@torch.no_grad()
def largest_difference(network: Any, decoder: Decoder) -> float:
    """Of the decoder's hidden states from the model's own, in two rows of different length, relative to their size."""
    size = network.config.get_text_config().vocab_size
    place = network.get_input_embeddings().weight.device
    ids = torch.arange(1, 15, device=place).reshape(2, 7) % size
    seen = torch.ones_like(ids)
    seen[1, :3] = 0
    got, own = decoder, NetworkDecoder(network)
    pairs = [(got.begin(ids, seen, 9), own.begin(ids, seen, 9))]
    tokens = torch.tensor([3, 5], device=place) % size
    pairs += [(got.step(tokens), own.step(tokens)) for _ in range(2)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) for a, b in pairs)


def _projections(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.o_proj,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
    ]


class MergedDecoder:
    """The model's layers without the cost of a general model. See `Decoder`.

    Args:
        network: a causal language model that `supports` accepts; its weights as they are now.
        merge: see `Merge`.
    """

    def __init__(self, network: Any, merge: Merge) -> None:
        decoder, config = network.get_decoder(), network.config.get_text_config()
        first = decoder.layers[0].self_attn
        self._embedding: Tensor = decoder.embed_tokens.weight
        self._rotary = decoder.rotary_emb
        self._norm = _norm(decoder.norm)
        self._size: int = first.head_dim
        self._heads: int = config.num_attention_heads
        self._groups: int = config.num_key_value_heads
        self._scale: float = first.scaling
        self._layers = [_layer(layer, merge) for layer in decoder.layers]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._length = 0

    def begin(self, ids: Tensor, seen: Tensor, capacity: int) -> Tensor:
        rows, length = ids.shape
        shape = (rows, self._groups, capacity, self._size)
        # zeros, not empty: a masked NaN is still NaN once multiplied by its weight 0
        self._keys = [self._embedding.new_zeros(shape) for _ in self._layers]
        self._values = [self._embedding.new_zeros(shape) for _ in self._layers]
        self._length = 0
        self._live = seen.bool().new_ones(rows, capacity)
        self._live[:, :length] = seen.bool()
        self._position = (seen.cumsum(dim=1) - 1).clamp(min=0)
        causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        mask = (causal & self._live[:, None, :length])[:, None]
        # A row of padding sees itself: with nothing to see its softmax would be NaN.
        mask = mask | torch.eye(length, dtype=torch.bool, device=ids.device)
        hidden = self._forward(ids, mask)
        self._position = self._position[:, -1:]
        return hidden[:, -1]

    def step(self, tokens: Tensor) -> Tensor:
        self._position = self._position + 1
        mask = self._live[:, None, None, : self._length + 1]
        return self._forward(tokens[:, None], mask)[:, -1]

    def keep(self, rows: Tensor) -> bool:
        self._keys = [keys[rows] for keys in self._keys]
        self._values = [values[rows] for values in self._values]
        self._live, self._position = self._live[rows], self._position[rows]
        return True

    def _forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = functional.embedding(ids, self._embedding)
        cosine, sine = self._rotary(hidden, self._position)  # [B, T, d]
        cosine, sine = cosine[:, :, None], sine[:, :, None]
        for number, layer in enumerate(self._layers):
            hidden = hidden + self._attend(number, layer, layer.norm(hidden), (cosine, sine), mask)
            gate, up = layer.gate_up(layer.second_norm(hidden)).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        self._length += ids.shape[1]
        return self._norm(hidden[:, -1:])

    def _attend(
        self, number: int, layer: _Layer, hidden: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        rows, length, _ = hidden.shape
        heads, groups, size = self._heads, self._groups, self._size
        mixed = layer.qkv(hidden).view(rows, length, heads + 2 * groups, size)
        query, key, value = mixed[:, :, :heads], mixed[:, :, heads:-groups], mixed[:, :, -groups:]
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key = layer.q_norm(query), layer.k_norm(key)
        query, key = _rotated(query, *angles), _rotated(key, *angles)
        end = self._length + length
        keys, values = self._keys[number], self._values[number]
        keys[:, :, self._length : end] = key.transpose(1, 2)
        values[:, :, self._length : end] = value.transpose(1, 2)
        keys, values = keys[:, :, :end], values[:, :, :end]
        answer: Tensor
        if length == 1:
            # the heads of a group are as many queries of one head
            grouped = query.view(rows, groups, heads // groups, size)
            scores = torch.matmul(grouped, keys.transpose(2, 3)).mul_(self._scale)
            weights = torch.softmax(scores.masked_fill_(~mask, -math.inf), dim=-1)
            return layer.output(torch.matmul(weights, values).reshape(rows, 1, heads * size))
        answer = functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            keys.repeat_interleave(heads // groups, dim=1),
            values.repeat_interleave(heads // groups, dim=1),
            attn_mask=mask,
            scale=self._scale,
        )
        return layer.output(answer.transpose(1, 2).reshape(rows, length, heads * size))


def _rotated(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = values.chunk(2, dim=-1)
    return values * cosine + torch.cat((-second, first), dim=-1) * sine


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight, module.variance_epsilon)


def _layer(layer: Any, merge: Merge) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        norm=_norm(layer.input_layernorm),
        qkv=_together(merge, attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        k_norm=_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        output=_together(merge, attention.o_proj),
        second_norm=_norm(layer.post_attention_layernorm),
        gate_up=_together(merge, mlp.gate_proj, mlp.up_proj),
        down=_together(merge, mlp.down_proj),
    )


def _together(merge: Merge, *modules: nn.Module) -> _Linear:
    """Several layers with one input as one."""
    merged = [merge(module) for module in modules]
    if len(merged) == 1:
        return _Linear(*merged[0])
    biases = [bias if bias is not None else weight.new_zeros(len(weight)) for weight, bias in merged]
    has_bias = any(bias is not None for _, bias in merged)
    return _Linear(torch.cat([weight for weight, _ in merged]), torch.cat(biases) if has_bias else None)
