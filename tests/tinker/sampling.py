"""The half that samples: its own copy of the base model, adapters loaded beside it, one thread that gives every request one token in turn.

It shares nothing with the half that trains, so that neither waits for the other but for the processor.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from peft import PeftModel, get_peft_model, set_peft_model_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from tests.tinker.checkpoints import Weights
from tests.tinker.training import lora_config
from tests.tinker.wire import PromptScores, Sampled, build_sample

log = logging.getLogger("tests.tinker")

LogprobsMode = Literal["raw", "processed"]
_BASE = "__base__"  # peft's word for no adapter
_MOST_LOADED = 16
_LONGEST = 256  # tokens, where a request does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """What the server pretends not to know, as some do."""

    prompt_logprobs: bool = False
    top_logprobs: bool = False


@dataclass(slots=True)
class _Running:
    steps: Iterator[None]
    future: Future[bytes]


class Sampling:
    """Samples on a thread of its own.

    Args:
        mode: whether a sample's log-probabilities are the model's (raw) or those after temperature.
        token_s: a pause after each token of everybody, to be slower than a tiny model is.
    """

    def __init__(self, path: str, *, mode: LogprobsMode, lacks: Lacks, token_s: float) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._tied = bool(self._base.config.tie_word_embeddings)
        found = self._base.generation_config.eos_token_id
        ends = found if isinstance(found, list) else [found]
        self._ends = {end for end in (*ends, self._tokenizer.eos_token_id) if end is not None}
        self.context = int(self._base.config.max_position_embeddings)
        self._mode = mode
        self._lacks = lacks
        self._token_s = token_s
        self._peft: PeftModel | None = None
        self._loaded: OrderedDict[str, None] = OrderedDict()
        self._mail: queue.SimpleQueue[_Running | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def submit(
        self, key: str, weights: Callable[[], Weights] | None, request: dict[str, Any]
    ) -> Future[bytes]:
        """Queue a request; cancel the future to have it stopped.

        Args:
            key: of the adapter, for ever the same weights.
            weights: reads them; None: the base model.
        """
        future: Future[bytes] = Future()
        steps = self._sample(key, weights, request, future)
        self._mail.put(_Running(steps, future))
        return future

    def stop(self) -> None:
        self._mail.put(None)
        self._thread.join()

    @torch.inference_mode()
    def _run(self) -> None:
        running: list[_Running] = []
        while True:
            while not running or not self._mail.empty():
                arrived = self._mail.get()
                if arrived is None:
                    return
                running.append(arrived)
            still = []
            for one in running:
                if one.future.cancelled():
                    continue
                try:
                    next(one.steps)
                    still.append(one)
                except StopIteration:
                    pass
                except Exception as error:
                    # An error of one request: its client gets it, the others go on.
                    log.exception("a sample failed")
                    _settle(one.future, error=error)
            running = still
            if self._token_s:
                time.sleep(self._token_s)

    def _use(self, key: str, weights: Callable[[], Weights]) -> str:
        name = "".join(sign if sign.isalnum() else "_" for sign in key)
        if name not in self._loaded:
            read = weights()
            config = lora_config(read.spec, self._tied)
            if self._peft is None:
                self._peft = get_peft_model(self._base, config, adapter_name=name).eval()
            else:
                self._peft.add_adapter(name, config)
            set_peft_model_state_dict(self._peft, read.tensors, adapter_name=name)
            self._peft.eval()
        self._loaded[name] = None
        self._loaded.move_to_end(name)
        return name

    def _make_room(self, used: set[str]) -> None:
        for name in list(self._loaded):
            if len(self._loaded) <= _MOST_LOADED:
                return
            if name not in used and self._peft is not None:
                self._peft.delete_adapter(name)
                del self._loaded[name]

    def _forward(self, ids: Tensor, cache: DynamicCache, adapter: str, keep: int) -> Tensor:
        more: dict[str, Any] = {"past_key_values": cache, "use_cache": True, "logits_to_keep": keep}
        if self._peft is None:
            return self._base(ids, **more).logits.float()  # type: ignore[no-any-return]
        return self._peft(ids, adapter_names=[adapter] * len(ids), **more).logits.float()  # type: ignore[no-any-return]

    def _sample(
        self, key: str, weights: Callable[[], Weights] | None, request: dict[str, Any], future: Future[bytes]
    ) -> Iterator[None]:
        prompt = [token for chunk in request["prompt"]["chunks"] for token in chunk["tokens"]]
        params = request["sampling_params"]
        count = int(request.get("num_samples") or 1)
        longest = params.get("max_tokens") or min(_LONGEST, self.context - len(prompt))
        if not prompt or len(prompt) + longest > self.context:
            raise ValueError(
                f"{len(prompt)} tokens and {longest} to come do not fit into a context of {self.context}"
            )
        adapter = _BASE if weights is None else self._use(key, weights)
        self._make_room({adapter})
        temperature = float(params.get("temperature", 1.0))
        stop_ids, stop_texts = self._stops(params.get("stop"))
        width = 0 if self._lacks.top_logprobs else int(request.get("topk_sample_logprobs") or 0)
        scored = self._wants_scores(request)
        cache = DynamicCache()
        logits = self._forward(torch.tensor([prompt]), cache, adapter, 0 if scored else 1)
        scores = self._scores(prompt, logits[0], request) if scored else PromptScores()
        cache.batch_repeat_interleave(count)
        rows = logits[:, -1].repeat(count, 1)
        seed = params.get("seed")
        generators = [torch.Generator() for _ in range(count)]
        for number, generator in enumerate(generators):
            if seed is None:
                generator.seed()
            else:
                generator.manual_seed(int(seed) * 1_000_003 + number)
        sequences = [Sampled() for _ in range(count)]
        open_rows = set(range(count))
        while open_rows:
            shaped = rows / temperature if temperature else rows
            drawn = [0] * count
            raw = torch.log_softmax(rows if self._mode == "raw" else shaped, -1)
            for row in sorted(open_rows):
                if temperature:
                    allowed = _truncated(
                        shaped[row], int(params.get("top_k", -1)), float(params.get("top_p", 1.0))
                    )
                    token = int(torch.multinomial(allowed.softmax(-1), 1, generator=generators[row]))
                else:
                    token = int(rows[row].argmax())
                drawn[row] = token
                one = sequences[row]
                one.tokens.append(token)
                one.logprobs.append(float(raw[row, token]))
                if width:
                    values, places = raw[row].topk(width)
                    one.top.append(list(zip(places.tolist(), values.tolist(), strict=True)))
                text = self._tokenizer.decode(one.tokens) if stop_texts else ""
                one.is_stopped = token in stop_ids or any(stop in text for stop in stop_texts)
                if one.is_stopped or len(one.tokens) == longest:
                    open_rows.discard(row)
            if open_rows:
                yield
                rows = self._forward(torch.tensor(drawn)[:, None], cache, adapter, 1)[:, -1]
        _settle(future, result=build_sample(sequences, scores))

    def _stops(self, stop: str | Sequence[str] | Sequence[int] | None) -> tuple[set[int], list[str]]:
        """An explicit list takes the place of the model's own end, as documented; an empty one leaves no end at all."""
        if stop is None:
            return self._ends, []
        listed: Sequence[str | int] = [stop] if isinstance(stop, str) else stop
        ids = {one for one in listed if isinstance(one, int)}
        texts = [one for one in listed if isinstance(one, str)]
        return ids, texts

    def _wants_scores(self, request: dict[str, Any]) -> bool:
        if self._lacks.prompt_logprobs:
            return False
        return bool(request.get("prompt_logprobs") or request.get("topk_prompt_logprobs"))

    def _scores(self, prompt: list[int], logits: Tensor, request: dict[str, Any]) -> PromptScores:
        """Args: logits: [P, V]."""
        logprobs = torch.log_softmax(logits[:-1], -1)
        scores = PromptScores()
        first = len(prompt) - (request.get("prompt_logprobs_last_n") or len(prompt) - 1)
        if request.get("prompt_logprobs"):
            own = logprobs.gather(-1, torch.tensor(prompt[1:])[:, None]).squeeze(-1).numpy()
            found = np.concatenate([[np.nan], own]).astype(np.float32)
            found[:first] = np.nan
            scores.logprobs = found
        width = int(request.get("topk_prompt_logprobs") or 0)
        if width and not self._lacks.top_logprobs:
            values, places = logprobs.topk(width, -1)
            pairs = zip(places.tolist(), values.tolist(), strict=True)
            rows = [list(zip(ids, found, strict=True)) for ids, found in pairs]
            scores.top = [[], *(row if i >= first else [] for i, row in enumerate(rows, 1))]
        return scores


def _settle(future: Future[bytes], *, result: bytes = b"", error: Exception | None = None) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _truncated(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits [V] with -inf where top-k and top-p leave nothing."""
    if 0 < top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
    if top_p < 1.0:
        ordered, order = logits.softmax(-1).sort(descending=True)
        logits = logits.index_fill(0, order[(ordered.cumsum(0) - ordered) >= top_p], -torch.inf)
    return logits
