"""Sizes, context and family of a model, needed before its engine starts. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from store.errors import ConfigError

#: Smaller models are served in float32, larger ones in bfloat16, like in the trainer: the log-probabilities of both are compared.
FLOAT32_BELOW = 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A causal language model, as far as memory and API are concerned.

    Attributes:
        family: `model_type` of its configuration, e.g. ``qwen3``.
        parameters: number of parameters; 0: unknown.
        context: longest sequence in tokens.
        lora_width: sum over all adapted linear layers of (inputs + outputs): parameters of a LoRA per unit of rank.
        has_experts: its MLPs are mixtures of experts, with other sizes.
        template: chat template; "" if there is none.
        temperature: vLLM's default temperature (from `generation_config.json`).
    """

    name: str
    family: str
    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    lora_width: int
    template: str = ""
    temperature: float = 1.0
    has_experts: bool = False

    @property
    def dtype(self) -> str:
        return "float32" if 0 < self.parameters < FLOAT32_BELOW else "bfloat16"

    @property
    def item_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.item_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.item_bytes

    @property
    def linear_sizes(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the linear layers that every decoder has, by the last part of their name."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
        }
        mlp = {
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }
        return attention if self.has_experts else attention | mlp

    def lora_parameters(self, rank: int) -> int:
        return self.lora_width * rank


def model_facts_from_config(
    name: str, config: dict[str, Any], *, parameters: int = 0, template: str = "", temperature: float = 1.0
) -> ModelFacts:
    """Return the facts in a configuration.

    Raises:
        ConfigError: it does not describe a decoder-only language model.
    """
    text = config.get("text_config")
    inner: dict[str, Any] = text if isinstance(text, dict) else config
    try:
        heads, hidden, layers = (
            int(inner[key]) for key in ("num_attention_heads", "hidden_size", "num_hidden_layers")
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigError(f"{name}: config.json is not that of a causal language model ({exc})") from exc
    head_dim = int(inner.get("head_dim") or hidden // heads)
    kv_heads = int(inner.get("num_key_value_heads") or heads)
    intermediate = int(inner.get("intermediate_size") or 4 * hidden)
    vocabulary = int(inner.get("vocab_size") or 0)
    attention = [(hidden, heads * head_dim), *[(hidden, kv_heads * head_dim)] * 2, (heads * head_dim, hidden)]
    mlp = [(hidden, intermediate)] * 2 + [(intermediate, hidden)]
    width = layers * sum(a + b for a, b in (*attention, *mlp))
    if not parameters:
        tied = bool(inner.get("tie_word_embeddings", config.get("tie_word_embeddings")))
        embedding = vocabulary * hidden * (1 if tied else 2)
        parameters = embedding + layers * sum(a * b for a, b in (*attention, *mlp))
    return ModelFacts(
        name=name,
        family=str(inner.get("model_type") or config.get("model_type") or ""),
        parameters=parameters,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        context=int(inner.get("max_position_embeddings") or 2048),
        lora_width=width,
        template=template,
        temperature=temperature,
        has_experts=any("expert" in key for key in inner),
    )
