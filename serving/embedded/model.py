"""Loads a Hugging Face causal LM and runs one forward of the batch. The only module that calls the model."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from serving.embedded.adapters import Adapter, AdapterSelector
from serving.embedded.devices import usable_device
from serving.embedded.kv_cache import BatchKvCache, build_mask
from serving.openai_server.values import SamplingDefaults, end_ids
from serving.openai_server.vocabulary import Vocabulary
from store.errors import ConfigError, first_line

# Below this size float32 costs little and makes outputs independent of the batch to six digits.
FLOAT32_MAX_PARAMETERS = 200_000_000
_SINGLE_THREAD_MAX_PARAMETERS = 20_000_000


class Model:
    """A causal LM with a cache row and an adapter per sequence. One thread only, except `vocabulary`.

    Args:
        max_model_len: longest prompt and reply together, in tokens.
    """

    def __init__(
        self,
        *,
        network: Any,
        tokenizer: Any,
        max_model_len: int,
        device: torch.device,
    ) -> None:
        self.network = network
        self.device = device
        self.max_model_len = max_model_len
        config = network.config.get_text_config()
        self.vocabulary = Vocabulary(tokenizer, int(config.vocab_size))
        self.loras = AdapterSelector(network)
        self.parameters = sum(parameter.numel() for parameter in network.parameters())
        self.dtype: torch.dtype = network.dtype
        generation = network.generation_config.to_dict() if network.generation_config else {}
        self.end_ids = end_ids(
            generation.get("eos_token_id"),
            getattr(network.config, "eos_token_id", None),
            tokenizer.eos_token_id,
        )
        self.defaults = SamplingDefaults.stated_in(generation)
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        unknown = layer_types - {"full_attention", "sliding_attention"}
        if unknown:
            raise ConfigError(
                f"{type(network).__name__} has {', '.join(sorted(unknown))} layers; the built-in engine serves models with "
                "full and sliding attention only. Serve it with vLLM."
            )
        self._layer_types = layer_types
        self._window: int | None = getattr(config, "sliding_window", None)
        if "sliding_attention" not in layer_types and getattr(config, "layer_types", None):
            self._window = None
        self._masks_by_layer_type = bool(getattr(config, "layer_types", None))
        self._supports_logits_to_keep = "logits_to_keep" in inspect.signature(network.forward).parameters

    @torch.inference_mode()
    def forward(
        self,
        cache: BatchKvCache,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        adapters: Sequence[Adapter | None],
        last: Sequence[int],
    ) -> Tensor:
        """Return logits [B, V] in float32 at position last[i] of row i's new tokens.

        Row i of the cache gets ids[i], the same number Q of tokens in all rows (shorter ones are padded at the end: causality hides the
        padding, and the row's next tokens overwrite it), the first at index starts[i].
        """
        logits = self._run(cache, ids, starts, adapters, last)
        if logits.shape[1] != 1:
            logits = logits[torch.arange(len(last)), torch.tensor(last)][:, None]
        return logits[:, 0].to(torch.float32)

    def forward_all(
        self, cache: BatchKvCache, ids: Sequence[int], start: int, adapter: Adapter | None
    ) -> Tensor:
        """Return logits [Q, V] in float32 at every position of one row's new tokens; otherwise as `forward`."""
        return self._run(cache, [ids], [start], [adapter], None)[0].to(torch.float32)

    def _run(
        self,
        cache: BatchKvCache,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        adapters: Sequence[Adapter | None],
        last: Sequence[int] | None,
    ) -> Tensor:
        """Return logits [B, 1, V] at the positions `last` where the network can leave out the others, else [B, Q, V]."""
        length = len(ids[0])
        self.loras.activate(adapters)
        cache.begin(starts, length, self.device)
        begin = torch.tensor(starts, device=self.device)[:, None]
        position = begin + torch.arange(length, device=self.device) if length > 1 else begin
        arguments: dict[str, Any] = {}
        if last is not None and self._supports_logits_to_keep and length > 1:
            arguments["logits_to_keep"] = torch.tensor(last, device=self.device)[:, None]
        logits: Tensor = self.network(
            input_ids=torch.tensor(ids, device=self.device),
            position_ids=position,
            attention_mask=self._mask(starts, length),
            past_key_values=cache,
            use_cache=True,
            **arguments,
        ).logits
        return logits

    def _mask(self, starts: Sequence[int], length: int) -> Any:
        """Return the attention mask in the form that the model's layers expect: one for all, or one for each layer type."""
        if not self._masks_by_layer_type:
            return self._shape(build_mask(starts, length, self.device, self._window))
        masks: dict[str, Tensor | None] = {}
        for kind in self._layer_types:
            window = self._window if kind == "sliding_attention" else None
            uniform = len(set(starts)) == 1 and (length == 1 or starts[0] == 0)
            fits = window is None or starts[0] + length <= window
            if uniform and fits and self.network.config._attn_implementation == "sdpa":
                masks[kind] = None  # plain causal attention, which has a faster kernel
            else:
                masks[kind] = self._shape(build_mask(starts, length, self.device, window))
        return masks

    def _shape(self, seen: Tensor) -> Tensor:
        if self.network.config._attn_implementation == "sdpa":
            return seen
        # Other implementations add the mask to the scores.
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return torch.where(seen, zero, torch.finfo(self.dtype).min)

    def check(self) -> None:
        """Compare a few tokens in two rows of different length with the model's own forward without a cache.

        Architectures differ in how they use masks, positions and caches; a model with different results is refused at start.
        """
        for masks_by_layer_type, attention in (
            (self._masks_by_layer_type, None),
            (False, None),
            (False, "eager"),
        ):
            self._masks_by_layer_type = masks_by_layer_type
            if attention is not None:
                self.network.set_attn_implementation(attention)
            try:
                error = self._compare_with_reference()
            except (AttributeError, TypeError, ValueError, RuntimeError, KeyError, IndexError) as failure:
                error, reason = float("inf"), f"{type(failure).__name__}: {failure}"
            else:
                reason = f"its logits differ by {error:.3g}"
            if error < (1e-3 if self.dtype == torch.float32 else 0.5):
                return
        raise ConfigError(
            f"the built-in engine cannot batch {type(self.network).__name__} ({reason}). Serve it with vLLM."
        )

    @torch.inference_mode()
    def _compare_with_reference(self) -> float:
        usable = [i for i in range(self.vocabulary.size) if i not in self.vocabulary.special][:64] or [0]
        long, short = usable[: min(12, self.max_model_len - 2)], usable[-5:]
        long = (long * 12)[: min(12, self.max_model_len - 2)]
        rows = [long, short]
        padded = [long, [*short, *[short[-1]] * (len(long) - len(short))]]
        cache = BatchKvCache()
        self.forward(cache, padded, [0, 0], [None, None], [len(row) - 1 for row in rows])
        worst = 0.0
        for step in range(2):
            chosen = usable[step % len(usable)]
            starts = [len(row) for row in rows]
            got = self.forward(cache, [[chosen], [chosen]], starts, [None, None], [0, 0])
            rows = [[*row, chosen] for row in rows]
            for i, row in enumerate(rows):
                wanted = self.network(input_ids=torch.tensor([row], device=self.device), use_cache=False)
                difference = (got[i] - wanted.logits[0, -1].to(torch.float32)).abs().max().item()
                scale = max(1.0, wanted.logits[0, -1].abs().max().item())
                worst = max(worst, difference / scale)
        return worst


def load_model(
    name: str, *, dtype: str = "auto", device: str = "auto", max_model_len: int | None = None
) -> Model:
    """Load a model folder, or a model of the local Hugging Face cache. Nothing is downloaded.

    Raises ConfigError, one sentence, if the model does not exist or cannot be served.
    """
    transformers_logging.disable_progress_bar()
    folder = Path(name).expanduser()
    local = folder.is_dir()
    source = str(folder) if local else name
    target_device = usable_device(device)
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
        network = AutoModelForCausalLM.from_pretrained(
            source, local_files_only=True, dtype=_dtype(dtype, config)
        )
    except (
        Exception
    ) as error:  # many libraries read these files, each with its own errors; all of them end the start
        what = (
            "the model folder" if local else "the model (no such folder, and not complete in the local cache)"
        )
        raise ConfigError(f"{what} {name} cannot be loaded: {first_line(error)}") from error
    network.to(target_device).eval().requires_grad_(False)
    limit = int(getattr(config.get_text_config(), "max_position_embeddings", None) or 2048)
    if max_model_len is not None and max_model_len > limit:
        raise ConfigError(f"--max-model-len {max_model_len} is above what {name} was made for ({limit})")
    model = Model(
        network=network,
        tokenizer=tokenizer,
        max_model_len=max_model_len or limit,
        device=target_device,
    )
    model.check()
    return model


def default_threads(parameters: int, cores: int) -> int:
    """Return the number of threads for a model of this size: a tiny one is slower with several."""
    return 1 if parameters < _SINGLE_THREAD_MAX_PARAMETERS else cores


def _dtype(wanted: str, config: Any) -> torch.dtype:
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[wanted]
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    return torch.float32 if size < FLOAT32_MAX_PARAMETERS else torch.bfloat16
