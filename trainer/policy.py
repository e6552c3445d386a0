"""The policy as the trainer holds it: one base model, one trainable LoRA adapter, its EMA, its optimizer.

Rules of the room:
- Only this file calls a model. It knows tokens and weights; it does not know methods, verdicts or turns.
- **Prompt and response meet as ids.** A response is never decoded and encoded again: its ids are what the sampler emitted.
- Sequences are padded behind. Under causal attention no real token sees padding, so there is no attention mask and no
  position shift to get wrong, and a row of a batch computes what it computes alone.
- No dropout anywhere, neither while training nor while reading: the log-probabilities of one pass are those of the next.
- LoRA weights, their gradients and moments are float32 whatever the base is, and so are logits: in bfloat16 the
  difference of two nearly equal distributions is rounding.

Shapes: P prompt tokens, C completion tokens (padded to the longest), T = P + C, B batch, D hidden size, V vocabulary.
"""

from __future__ import annotations

import importlib.util
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from peft.utils import get_peft_model_state_dict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from store.errors import AdapterError, AlignmentError, ConfigError, GateRejected
from trainer.batch import GREEDY_BELOW, cheapest_parts
from trainer.checkpoint import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TRAINER_STATE
from trainer.losses import Carry, carried_over, likeliest, topk_overlap
from trainer.protocol import Heard as Heard
from trainer.protocol import Reply as Reply
from trainer.protocol import Weights as Weights
from trainer.texts import Texts, check_folder, end_ids, first_line, load_tokenizer

#: Models smaller than this are held in float32, larger ones in bfloat16 with gradient checkpointing.
FLOAT32_BELOW = 200_000_000
#: Weight of the newest adapter in the moving average, per optimizer step (SDPO; 3-step memory of about 20 steps).
EMA_RATE = 0.05
#: Largest gradient norm; what is above is scaled down to it.
MAX_GRADIENT_NORM = 1.0
#: AdamW's second moment: a shorter memory than the usual .999, since steps are few and far between.
BETA2 = 0.99
#: Rows generated at a time.
SAMPLE_ROWS = 32
#: Padded prompt tokens generated from at a time, for the sake of the cache (8 B parameters: 150 kB a token).
_SAMPLE_ROOM = 32_768
#: What it costs to generate in one more group, in padded prompt tokens (built-in model, one thread: .1 s).
_SAMPLE_TOKENS = 1_024
#: Padded tokens of one pass that measures a spread.
_SPREAD_TOKENS = 8_192
#: Up to this many tokens in the vocabulary, whole logits are made; beyond it those of so many positions at a time.
WHOLE_VOCABULARY, POSITIONS = 8_192, 256
_ADAPTER = "default"


class LocalPolicy(Texts):
    """Base model and adapter in this process. One thread only.

    Args:
        model: folder, or name of a model in the local Hugging Face cache. Nothing is downloaded.
        rank: of the LoRA matrices on every linear layer but the output layer; alpha is twice the rank, so that the update's
            scale does not depend on the rank.
        learning_rate: of AdamW, without weight decay: LoRA is already a bound on how far weights can go.
        beta1: of AdamW: how much of the direction of the last steps is kept.
        update_clip: most that a step moves a tensor, in learning rates, as the root mean square of its entries; 0: no bound.
        seed: of the adapter's initial weights.
        teacher: another model to teach with the hint in context; empty: none is loaded.
        device: "auto" or a torch device.
        checkpointing: recompute layers in the backward pass; None: for models of `FLOAT32_BELOW` parameters and more.
        quantize: hold the base model in 4 bits (NF4); only on an NVIDIA GPU.

    Attributes:
        at_boundary: called where nothing is under way on the device: before each micro-batch and each optimizer step. It may take
            its time (`trainer.device`).

    Raises:
        ConfigError: there is no such model, its files are torn or incomplete, or it cannot be trained here.
    """

    def __init__(
        self,
        model: str,
        *,
        rank: int = 16,
        learning_rate: float = 1e-4,
        beta1: float = 0.9,
        update_clip: float = 0.0,
        seed: int = 0,
        teacher: str = "",
        device: str = "auto",
        checkpointing: bool | None = None,
        quantize: bool = False,
    ) -> None:
        self.at_boundary: Callable[[], None] = _go_on
        self._parked: dict[nn.Parameter, Tensor] = {}
        self.device = _device(device)
        self.name = model
        super().__init__(model)
        network, self.parameters = _load_network(model, self.device, quantize=quantize)
        config = network.config.get_text_config()
        self.max_context = int(getattr(config, "max_position_embeddings", None) or 2048)
        self.vocabulary_size = int(config.vocab_size)
        self.end_ids = end_ids(
            self.tokenizer,
            getattr(network.generation_config, "eos_token_id", None),
            getattr(network.config, "eos_token_id", None),
        )
        self._pad = int(self.tokenizer.pad_token_id or 0)
        self._head_checked: set[int] = set()
        self._learning_rate = learning_rate
        self._beta1, self._update_clip = beta1, update_clip
        self._checkpointing = self.parameters >= FLOAT32_BELOW if checkpointing is None else checkpointing
        self._base_name = str(Path(model).resolve()) if Path(model).is_dir() else model
        lora = LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            target_modules="all-linear",
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
            base_model_name_or_path=self._base_name,
        )
        self._wrap(network, lora, seed)
        self._check_head(network)
        self._teacher: Any = None
        if teacher:
            self._teacher, _ = _load_network(teacher, self.device, quantize=quantize)
            self._check_vocabulary(teacher)
            self._check_head(self._teacher)

    # -- set-up

    def _wrap(self, network: Any, config: LoraConfig, seed: int) -> None:
        """Put a fresh adapter of that form on the bare network, with fresh moments and average."""
        if network.is_activation_checkpointing:  # from an adapter before; peft would add hooks we do not need
            network.activation_checkpointing_disable()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # peft 0.21 asks for a property that transformers 5.23 has renamed.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            torch.manual_seed(seed)
            self._peft: Any = get_peft_model(network, config)
        self._peft.eval()
        self._layers: list[nn.Module] = []
        if self._checkpointing:
            network.activation_checkpointing_enable({"use_reentrant": False})
            self._layers = [
                module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)
            ]
        self._trainable: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self._peft.named_parameters() if parameter.requires_grad
        }
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Forget moments and average: the adapter as it is now is all there is."""
        self._ema = {name: parameter.detach().clone() for name, parameter in self._trainable.items()}
        self._optimizer = torch.optim.AdamW(
            list(self._trainable.values()),
            lr=self._learning_rate,
            betas=(self._beta1, BETA2),
            weight_decay=0.0,
            fused=True,
        )

    @property
    def _network(self) -> Any:
        return self._peft.get_base_model()

    @property
    def rank(self) -> int:
        return int(self._peft.peft_config[_ADAPTER].r)

    @property
    def learning_rate(self) -> float:
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = value
        for group in self._optimizer.param_groups:
            group["lr"] = value

    @property
    def has_teacher(self) -> bool:
        return self._teacher is not None

    def _check_vocabulary(self, teacher: str) -> None:
        mine, theirs = self.tokenizer.get_vocab(), load_tokenizer(teacher).get_vocab()
        width = int(self._teacher.config.get_text_config().vocab_size)
        if mine != theirs or width != self.vocabulary_size:
            raise ConfigError(
                f"the teacher {teacher} has another vocabulary than {self.name}: it cannot speak of the same tokens. "
                "Choose a teacher of the same model family"
            )

    @torch.no_grad()
    def _check_head(self, network: Any) -> None:
        """Logits from hidden states must be the model's own: some architectures scale or cap them in between."""
        ids = torch.arange(8, device=self.device)[None] % self.vocabulary_size
        hidden = network.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        mine = self._head(network, hidden)
        theirs = network(input_ids=ids, use_cache=False).logits.float()
        tolerance = 1e-4 if network.dtype == torch.float32 else 0.1
        scale = max(1.0, float(theirs.abs().max()))
        if not bool(((mine - theirs).abs() <= tolerance * scale).all()):
            raise ConfigError(
                f"{type(network).__name__} computes its logits in a way this trainer does not know; it cannot be trained here"
            )

    # -- forward

    def response_logits(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights = Weights.STUDENT,
    ) -> tuple[Tensor, Tensor]:
        """Logits that predict each response token, and which positions are real.

        ``model(prompt + response).logits[P-1:-1]`` of each row; the output layer is computed for these positions only. The
        student's carry a gradient (unless grad mode is off), all others none.

        Returns:
            logits [B, C, V] float32 (padding holds some other position's logits), mask [B, C] bool.

        Raises:
            AlignmentError: an empty prompt or response, an id outside the vocabulary, more tokens than the context holds.
        """
        hidden, mask = self.response_hidden(prompts, responses, weights)
        return self.logits(hidden, weights), mask

    def response_hidden(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights = Weights.STUDENT,
    ) -> tuple[Tensor, Tensor]:
        """As :meth:`response_logits`, one layer earlier: hidden states [B, C, D] for :meth:`logits`, mask [B, C].

        For large vocabularies: D is far below V, so logits can be made, read and dropped a few positions at a time.
        """
        ids, index, mask = self._pack(prompts, responses)
        grad = torch.is_grad_enabled() and weights is Weights.STUDENT
        if grad:  # the micro-batch before has been through its backward pass
            self.at_boundary()
        with self._as(weights), torch.set_grad_enabled(grad), self._recompute(grad):
            # The last response token predicts nothing that is asked for; what is padding is behind, so no mask is needed.
            output = self._of(weights).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
            hidden = output[torch.arange(len(ids), device=self.device)[:, None], index]
        return hidden, mask

    def logits(self, hidden: Tensor, weights: Weights = Weights.STUDENT) -> Tensor:
        """The output layer: [..., D] -> [..., V] float32. With a gradient for the hidden states if they carry one."""
        with self._as(weights):
            return self._head(self._of(weights), hidden)

    @torch.no_grad()
    def response_logprobs(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights = Weights.STUDENT,
        *,
        temperature: float | Sequence[float] = 1.0,
        chunk: int = POSITIONS,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the response tokens, without a gradient and without ever holding [B, C, V].

        Args:
            temperature: one, or one for each row.
            chunk: positions whose logits exist at a time.

        Returns:
            logprobs [B, C] float32, NaN in padding; mask [B, C] bool.
        """
        self.at_boundary()
        hidden, mask = self.response_hidden(prompts, responses, weights)
        targets = _padded(responses, mask.shape[1], 0).to(self.device)
        heat = torch.tensor(
            [temperature] * len(prompts) if isinstance(temperature, int | float) else list(temperature),
            device=self.device,
        )[:, None].expand(mask.shape)
        flat_hidden, flat_ids, flat_heat = hidden[mask], targets[mask], heat[mask]
        pieces = []
        for start in range(0, len(flat_ids), chunk):
            piece = slice(start, start + chunk)
            logits = self.logits(flat_hidden[piece], weights) / flat_heat[piece, None]
            taken = logits.gather(-1, flat_ids[piece, None]).squeeze(-1)
            pieces.append(taken - torch.logsumexp(logits, dim=-1))
        logprobs = torch.full(mask.shape, math.nan, device=self.device)
        logprobs[mask] = torch.cat(pieces)
        return logprobs, mask

    @torch.no_grad()
    def hinted_logits(
        self,
        prompts: Sequence[Sequence[int]],
        hinted: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        *,
        teacher: Weights,
        carry: Carry,
    ) -> Tensor:
        """What the teacher who read the hints says, [B, C, V]; in main memory where the vocabulary is large.

        Args:
            prompts, hinted: without and with the hint.
            carry: how much of what was learnt so far the base model carries along; see `trainer.losses.carried_over`. No other
                teacher does.
        """
        place = torch.device("cpu") if self.is_wide else self.device
        pieces = [
            logits.to(place)
            for logits, _ in self._heard(prompts, hinted, responses, teacher, carry, with_student=False)
        ]
        return torch.cat(pieces, dim=1)

    @torch.no_grad()
    def hear(
        self,
        prompts: Sequence[Sequence[int]],
        hinted: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        *,
        teacher: Weights,
        carry: Carry,
        temperature: Sequence[float],
        top_k: int,
    ) -> list[Heard]:
        """What a teacher who read the hints says of each response, in one pass; see `hinted_logits`.

        Args:
            temperature: [B], of the log-probabilities.
            top_k: size of the token sets whose overlap is measured.
        """
        targets = _padded(responses, max(map(len, responses)), 0).to(self.device)
        heat = torch.tensor(list(temperature), device=self.device)[:, None, None]
        said, overlap, start = [], [], 0
        for logits, student in self._heard(prompts, hinted, responses, teacher, carry, with_student=True):
            assert student is not None  # asked for
            end = start + logits.shape[1]
            theirs = torch.log_softmax(logits / heat, dim=-1)
            said.append(theirs.gather(-1, targets[:, start:end, None]).squeeze(-1))
            overlap.append(topk_overlap(likeliest(student, top_k), likeliest(logits, top_k)).float())
            start = end
        whole, shared = torch.cat(said, dim=1), torch.cat(overlap, dim=1)
        return [
            Heard(
                logprobs=tuple(whole[row, : len(response)].tolist()),
                overlap=float(shared[row, : len(response)].mean()),
            )
            for row, response in enumerate(responses)
        ]

    def _heard(
        self,
        prompts: Sequence[Sequence[int]],
        hinted: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        teacher: Weights,
        carry: Carry,
        *,
        with_student: bool,
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Logits [B, c, V] of the hinted teacher and of the student, some positions at a time; no gradient."""
        self.at_boundary()
        carries = bool(carry) and teacher is Weights.BASE
        theirs, _ = self.response_hidden(hinted, responses, teacher)
        plain = self.response_hidden(prompts, responses, Weights.BASE)[0] if carries else None
        own = self.response_hidden(prompts, responses)[0] if carries or with_student else None
        for at in self._pieces(*theirs.shape[:2]):
            student = None if own is None else self.logits(own[:, at])
            logits = self.logits(theirs[:, at], teacher)
            if plain is not None and student is not None:
                logits = carried_over(logits, self.logits(plain[:, at], Weights.BASE), student, carry)
            yield logits, student

    @property
    def is_wide(self) -> bool:
        """Whether the vocabulary is so large that logits are made a few positions at a time."""
        return self.vocabulary_size > WHOLE_VOCABULARY

    def _pieces(self, rows: int, columns: int) -> Iterator[slice]:
        """Columns whose logits are held at a time."""
        step = max(1, POSITIONS // rows) if self.is_wide else columns
        for start in range(0, columns, step):
            yield slice(start, start + step)

    @torch.no_grad()
    def spread(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights,
        *,
        kl: bool,
    ) -> tuple[list[float], list[float]]:
        """Mean entropy and KL to base along each response, nats a token; KL is 0 where it is not asked for."""
        entropies, divergences = [], []
        longest = max(len(p) + len(r) for p, r in zip(prompts, responses, strict=True))
        rows = max(1, _SPREAD_TOKENS // longest)
        for start in range(0, len(responses), rows):
            self.at_boundary()
            asked = prompts[start : start + rows], responses[start : start + rows]
            own, mask = self.response_hidden(*asked, weights)
            base = self.response_hidden(*asked, Weights.BASE)[0] if kl else None
            entropy, divergence = [], []
            for at in self._pieces(*mask.shape):
                s = torch.log_softmax(self.logits(own[:, at], weights), dim=-1)
                entropy.append(torch.special.entr(s.exp()).sum(dim=-1))
                if base is not None:
                    p = torch.log_softmax(self.logits(base[:, at], Weights.BASE), dim=-1)
                    divergence.append((s.exp() * (s - p)).sum(dim=-1))
            for row, live in enumerate(mask):
                entropies.append(float(torch.cat(entropy, dim=1)[row][live].mean()))
                divergences.append(float(torch.cat(divergence, dim=1)[row][live].mean()) if kl else 0.0)
        return entropies, divergences

    def _pack(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        if len(prompts) != len(responses) or not prompts:
            raise AlignmentError(f"{len(prompts)} prompts for {len(responses)} responses")
        for prompt, response in zip(prompts, responses, strict=True):
            if not prompt or not response:
                raise AlignmentError("a sequence to train on has a prompt and a response")
            if len(prompt) + len(response) > self.max_context:
                raise AlignmentError(
                    f"{len(prompt)} prompt and {len(response)} response tokens exceed the context of {self.max_context}"
                )
            low, high = min(min(prompt), min(response)), max(max(prompt), max(response))
            if low < 0 or high >= self.vocabulary_size:
                raise AlignmentError(
                    f"token id {low if low < 0 else high} is not in the vocabulary of {self.vocabulary_size}"
                )
        rows = [[*prompt, *response[:-1]] for prompt, response in zip(prompts, responses, strict=True)]
        length = max(map(len, rows))
        columns = torch.arange(max(map(len, responses)), device=self.device)
        starts = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        mask = columns < torch.tensor([len(response) for response in responses], device=self.device)[:, None]
        index = (starts[:, None] + columns).clamp(max=length - 1)
        return _padded(rows, length, self._pad).to(self.device), index, mask

    def _of(self, weights: Weights) -> Any:
        if weights is not Weights.TEACHER:
            return self._network
        if self._teacher is None:
            raise ConfigError("no teacher model was loaded: set --teacher-model-name")
        return self._teacher

    def _head(self, network: Any, hidden: Tensor) -> Tensor:
        layer = network.get_output_embeddings()
        if type(layer) is nn.Linear and layer.weight.dtype != torch.float32:
            logits = wide_linear(hidden, layer.weight, layer.bias)
        else:
            logits = layer(hidden).float()
        config = network.config.get_text_config()
        if scale := getattr(config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if scale := getattr(config, "logits_scaling", None):  # Granite
            logits = logits / scale
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
            logits = torch.tanh(logits / cap) * cap
        return logits

    @contextmanager
    def _as(self, weights: Weights) -> Iterator[None]:
        """The network speaks with these weights inside; the adapter's own are back afterwards, also after an error."""
        if weights is Weights.BASE:
            self._peft.base_model.disable_adapter_layers()
            try:
                yield
            finally:
                self._peft.base_model.enable_adapter_layers()
        elif weights is Weights.EMA:
            own = {name: parameter.data for name, parameter in self._trainable.items()}
            for name, parameter in self._trainable.items():
                parameter.data = self._ema[name]
            try:
                yield
            finally:
                for name, parameter in self._trainable.items():
                    parameter.data = own[name]
        else:
            yield

    @contextmanager
    def _recompute(self, grad: bool) -> Iterator[None]:
        """Gradient checkpointing for the forward inside. It hangs on `training` of each layer; what is in the layer (dropout)
        stays in evaluation mode."""
        if not (grad and self._layers):
            yield
            return
        for layer in self._layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer.training = False

    # -- text and samples

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seed: int = 0,
        weights: Weights = Weights.STUDENT,
    ) -> list[Reply]:
        """Completions, up to `SAMPLE_ROWS` prompts at a time. Temperature 0 is greedy. No top-k, no top-p, no penalties.

        The same arguments give the same replies; another grouping of the prompts may not.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
        lengths = [len(prompts[i]) for i in order]
        replies: dict[int, Reply] = {}
        with self._as(weights), torch.no_grad():
            for part in cheapest_parts(
                lengths, cost=_SAMPLE_TOKENS, max_tokens=_SAMPLE_ROOM, max_rows=SAMPLE_ROWS
            ):
                rows = order[part]
                self.at_boundary()
                some = self._generate(
                    self._of(weights), [prompts[i] for i in rows], max_tokens, temperature, generator
                )
                replies.update(zip(rows, some, strict=True))
        return [replies[i] for i in range(len(prompts))]

    def _generate(
        self,
        network: Any,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> list[Reply]:
        length = max(map(len, prompts))
        # Here padding is in front, so that all rows' newest token is in the last column; mask and positions say so.
        ids = torch.full((len(prompts), length), self._pad, device=self.device)
        seen = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, length - len(prompt) :] = torch.tensor(prompt, device=self.device)
            seen[row, length - len(prompt) :] = 1
        position = (seen.cumsum(dim=1) - 1).clamp(min=0)
        ends = torch.tensor(sorted(self.end_ids), device=self.device)
        finished = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        cache: Any = None
        live = list(range(len(prompts)))  # row of the batch -> prompt
        tokens: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        for _ in range(min(max_tokens, self.max_context - length)):
            output = network.get_decoder()(
                input_ids=ids,
                attention_mask=seen,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            distribution = torch.log_softmax(self._head(network, output.last_hidden_state[:, -1]), dim=-1)
            if temperature < GREEDY_BELOW:
                token = distribution.argmax(dim=-1)
            else:
                heated = torch.softmax(distribution / temperature, dim=-1)
                token = torch.multinomial(heated, 1, generator=generator).squeeze(-1)
            taken = distribution.gather(-1, token[:, None]).squeeze(-1)
            for row, one, value, done in zip(
                live, token.tolist(), taken.tolist(), finished.tolist(), strict=True
            ):
                if not done:
                    tokens[row].append(one)
                    logprobs[row].append(value)
            finished = finished | torch.isin(token, ends)
            if bool(finished.all()):
                break
            ids = token[:, None]
            seen = torch.cat([seen, seen.new_ones(len(live), 1)], dim=1)
            position = position[:, -1:] + 1
            keep = (~finished).nonzero().squeeze(-1)
            if 2 * len(keep) <= len(live) and hasattr(cache, "batch_select_indices"):
                # Most rows have ended: go on with the others alone.
                cache.batch_select_indices(keep)
                ids, seen, position, finished = ids[keep], seen[keep], position[keep], finished[keep]
                live = [live[i] for i in keep.tolist()]
        return [
            Reply(
                token_ids=tuple(row),
                logprobs=tuple(values),
                finished=bool(row) and row[-1] in self.end_ids,
            )
            for row, values in zip(tokens, logprobs, strict=True)
        ]

    # -- the step

    def apply_gradients(self) -> float:
        """One AdamW step with the accumulated gradients (clipped), then the moving average. Gives the norm before clipping.

        Raises:
            GateRejected: a gradient is not finite; weights and moments are untouched and the gradients are gone.
        """
        self.at_boundary()
        norm = float(nn.utils.clip_grad_norm_(self._trainable.values(), MAX_GRADIENT_NORM))
        if not math.isfinite(norm):
            self.drop_gradients()
            raise GateRejected("the gradient is not finite: no step was taken")
        before = [p.detach().clone() for p in self._trainable.values()] if self._update_clip else []
        self._optimizer.step()
        self.drop_gradients()
        with torch.no_grad():
            if self._update_clip:
                self._bound_update(before)
            for name, parameter in self._trainable.items():
                self._ema[name].lerp_(parameter, EMA_RATE)
        return norm

    def _bound_update(self, before: list[Tensor]) -> None:
        """Shorten what the last step did to each tensor to `update_clip` learning rates, root mean square.

        Where a gradient grows after many small ones, the second moment lags and Adam's step is up to (1 - β₁) / sqrt(1 - β₂) rates
        long: four at β₁ = .6 (Shazeer and Stern 2018, section 5; Wortsman et al. 2023).
        """
        most = self._update_clip * self._learning_rate
        for parameter, old in zip(self._trainable.values(), before, strict=True):
            moved = parameter - old
            length = moved.square().mean().sqrt()
            parameter.copy_(old + moved * (most / length.clamp(min=1e-30)).clamp(max=1.0))

    def weaken(self, share: float) -> None:
        """Be ``share`` times as far from the base model, in the space of weights; moments stay what they are.

        Between a fine-tuned model and the one it came from lie models that have most of what was learnt and more of what was known
        (Wortsman et al. 2022).
        """
        with torch.no_grad():
            for name, parameter in self._trainable.items():
                if "lora_B" in name:
                    parameter.mul_(share)
                    self._ema[name].mul_(share)

    def park(self) -> None:
        """Take the base model off the device, into main memory. Adapter, moments, average and gradients stay: they are small.

        Until `unpark` nothing may be computed. Frozen weights never change, so that leaving copies nothing after the first time.
        """
        if self.device.type == "cpu":
            return
        for parameter in self._frozen():
            if parameter not in self._parked:
                # pinned: the way back is several times faster
                self._parked[parameter] = parameter.data.to("cpu").pin_memory()
            parameter.data = self._parked[parameter]
        torch.cuda.empty_cache()

    def unpark(self) -> None:
        """Put the base model back on the device."""
        for parameter, host in self._parked.items():
            parameter.data = host.to(self.device, non_blocking=True)
        if self._parked:
            torch.cuda.synchronize()

    def _frozen(self) -> Iterator[nn.Parameter]:
        """Weights that no step changes. Packed ones stay: their scales are elsewhere."""
        for network in (self._network, self._teacher):
            for parameter in network.parameters() if network is not None else ():
                if not parameter.requires_grad and parameter.is_floating_point():
                    yield parameter

    def drop_gradients(self) -> None:
        """Forget what backward passes have accumulated."""
        self._optimizer.zero_grad(set_to_none=True)

    def is_finite(self) -> bool:
        """Whether every weight of the adapter is a number."""
        return all(bool(torch.isfinite(parameter).all()) for parameter in self._trainable.values())

    # -- state

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of all that a step changes: weights, moving average, moments, torch's random state."""
        state = {f"weight/{name}": p.detach().clone() for name, p in self._trainable.items()}
        state |= {f"ema/{name}": value.clone() for name, value in self._ema.items()}
        for name, parameter in self._trainable.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                state[f"adam.{key}/{name}"] = value.detach().clone()
        state["rng"] = torch.get_rng_state()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Be exactly what :meth:`snapshot` saw; gradients are dropped.

        Raises:
            AdapterError: the state is of another adapter (names or shapes differ).
        """
        for kind in ("weight", "ema"):
            for name, parameter in self._trainable.items():
                value = state.get(f"{kind}/{name}")
                if value is None or value.shape != parameter.shape:
                    raise AdapterError(f"the saved trainer state has no {kind} that fits {name}")
        moments: dict[nn.Parameter, dict[str, Tensor]] = {}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if not kind.startswith("adam."):
                continue
            if name not in self._trainable:
                raise AdapterError(f"the saved trainer state speaks of {name}, which this adapter lacks")
            moments.setdefault(self._trainable[name], {})[kind.removeprefix("adam.")] = value.clone().to(
                self.device
            )
        self._start_afresh()
        with torch.no_grad():
            for name, parameter in self._trainable.items():
                parameter.copy_(state[f"weight/{name}"])
                self._ema[name].copy_(state[f"ema/{name}"])
        for parameter, moment in moments.items():
            self._optimizer.state[parameter] = moment
        if (rng := state.get("rng")) is not None:
            torch.set_rng_state(rng.cpu())
        self.drop_gradients()

    @contextmanager
    def as_it_was(self, state: Mapping[str, Tensor]) -> Iterator[None]:
        """Be what :meth:`snapshot` saw inside, and what it is now afterwards."""
        now = self.snapshot()
        self.restore(state)
        try:
            yield
        finally:
            self.restore(now)

    def version_files(self, name: str = "") -> dict[str, bytes]:
        """The adapter and the trainer's state as files of a version folder: relative path -> bytes.

        The same weights give the same bytes. ``adapter_config.json`` and ``adapter_model.safetensors`` are peft's format.
        """
        weights = get_peft_model_state_dict(self._peft, adapter_name=_ADAPTER, save_embedding_layers=False)
        config = self._peft.peft_config[_ADAPTER].to_dict()
        config |= {"inference_mode": True, "base_model_name_or_path": self._base_name}
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
        state = {key: value for key, value in self.snapshot().items() if not key.startswith("weight/")}
        return {
            ADAPTER_CONFIG: json.dumps(plain, indent=2, sort_keys=True).encode(),
            ADAPTER_WEIGHTS: safetensors.torch.save(
                {key: value.detach().cpu().contiguous() for key, value in weights.items()}, {"format": "pt"}
            ),
            TRAINER_STATE: safetensors.torch.save(
                {key: value.cpu().contiguous() for key, value in state.items()}, {"format": "pt"}
            ),
        }

    def load_version(self, folder: Path) -> None:
        """Become the version in ``folder``: weights, and moments and average where it has them (a foreign peft adapter does
        not; it starts with none). An adapter of another form (rank, layers) replaces the form, too.

        Raises:
            AdapterError: missing, torn, or of another model. The policy is as before.
        """
        try:
            config = LoraConfig.from_pretrained(folder)
            weights = safetensors.torch.load((folder / ADAPTER_WEIGHTS).read_bytes())
            saved = folder / TRAINER_STATE
            state = safetensors.torch.load(saved.read_bytes()) if saved.exists() else None
        except Exception as error:  # peft, safetensors and json each have their own; all mean a broken folder
            raise AdapterError(f"the adapter in {folder} cannot be loaded: {first_line(error)}") from error
        before = self.snapshot()
        form = self._peft.peft_config[_ADAPTER]
        try:
            if _form(config) != _form(form):
                config.lora_dropout, config.inference_mode = 0.0, False
                self._wrap(self._peft.unload(), config, seed=0)
            self._load_weights(weights, folder)
            self._start_afresh()
            if state is not None:
                self.restore({**self._weights_state(), **state})
        except AdapterError:
            if self._peft.peft_config[_ADAPTER] is not form:
                self._wrap(self._peft.unload(), form, seed=0)
            self.restore(before)
            raise

    def reset(self, seed: int = 0) -> None:
        """Be version 0 again: an adapter that changes nothing, with no past."""
        self._wrap(self._peft.unload(), self._peft.peft_config[_ADAPTER], seed)

    def _weights_state(self) -> dict[str, Tensor]:
        return {f"weight/{name}": parameter.detach().clone() for name, parameter in self._trainable.items()}

    def _load_weights(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        mine = get_peft_model_state_dict(self._peft, adapter_name=_ADAPTER, save_embedding_layers=False)
        if mine.keys() != weights.keys():
            odd = sorted(mine.keys() ^ weights.keys())[0]
            raise AdapterError(f"the adapter in {folder} is not of {self.name}: {odd} is on one side only")
        for key, value in weights.items():
            if mine[key].shape != value.shape:
                raise AdapterError(
                    f"the adapter in {folder} is not of {self.name}: {key} has shape {tuple(value.shape)}, "
                    f"not {tuple(mine[key].shape)}"
                )
        set_peft_model_state_dict(self._peft, dict(weights), adapter_name=_ADAPTER)


def wide_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``hidden @ weight.T + bias`` in float32 for a frozen half-precision weight, [..., D] -> [..., V]."""
    # torch does not type what a Function returns
    return cast(Tensor, _WideLinear.apply(hidden, weight, bias))  # type: ignore[no-untyped-call]


class _WideLinear(torch.autograd.Function):
    """A frozen half-precision linear layer with float32 products: a few thousand rows of its weight widened at a time."""

    ROWS = 16_384

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.dtype = hidden.dtype
        wide = hidden.float()
        logits = torch.cat([wide @ part.float().T for part in torch.split(weight, _WideLinear.ROWS)], dim=-1)
        return logits if bias is None else logits + bias.float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        (gradient,) = gradients
        parts = zip(
            torch.split(gradient, _WideLinear.ROWS, dim=-1),
            torch.split(weight, _WideLinear.ROWS),
            strict=True,
        )
        total = sum((g @ part.float() for g, part in parts), start=torch.zeros((), device=weight.device))
        return total.to(ctx.dtype), None, None


def _form(config: LoraConfig) -> dict[str, Any]:
    """What of an adapter's configuration decides what its weights compute."""
    skip = {
        "base_model_name_or_path",
        "inference_mode",
        "init_lora_weights",
        "lora_dropout",
        "peft_version",
        "revision",
        "task_type",
        "auto_mapping",
    }
    return {
        key: sorted(value) if isinstance(value, set | list) else value
        for key, value in config.to_dict().items()
        if key not in skip and value not in (None, {}, [], "", False)
    }


def _padded(rows: Sequence[Sequence[int]], length: int, value: int) -> Tensor:
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"the device {wanted} cannot be used: {first_line(error)}") from error
    return device


def _go_on() -> None:
    return


def _quantization(device: torch.device) -> Any:
    """NF4 with double quantization; products in bfloat16.

    Raises:
        ConfigError: it cannot be had here.
    """
    if device.type != "cuda":
        raise ConfigError(
            "--quantize 4bit needs an NVIDIA GPU; on a CPU the model is held as it is (--quantize none)"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError("--quantize 4bit needs bitsandbytes: pip install bitsandbytes==0.50.2")
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def _load_network(name: str, device: torch.device, *, quantize: bool = False) -> tuple[Any, int]:
    """Return the network and its number of parameters (those of a quantized one are packed, and counted before)."""
    check_folder(name)
    # what is quantized is quantized as it is loaded, on the device itself
    extra = {"quantization_config": _quantization(device), "device_map": {"": device}} if quantize else {}
    transformers_logging.disable_progress_bar()
    local = Path(name).expanduser().is_dir()
    try:
        config = AutoConfig.from_pretrained(name, local_files_only=True)
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        network, info = AutoModelForCausalLM.from_pretrained(
            name,
            local_files_only=True,
            dtype=torch.float32 if size < FLOAT32_BELOW else torch.bfloat16,
            attn_implementation="sdpa",
            output_loading_info=True,
            **extra,
        )
    except Exception as error:  # as above
        what = "the model folder" if local else "the model (no such folder, and not whole in the local cache)"
        raise ConfigError(f"{what} {name} cannot be loaded: {first_line(error)}") from error
    # Weights that a file lacks are made up at random, with a warning at most: a policy of noise.
    missing = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if missing:
        raise ConfigError(f"the weights of {name} are incomplete: {missing[0]} is missing or misshapen")
    return (network if quantize else network.to(device)).eval(), size
