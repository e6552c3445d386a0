"""The policy as the trainer holds it: one base model, one trainable LoRA adapter, its optimizer.

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
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from serving.embedded.devices import usable_device
from serving.openai_server.values import end_ids
from serving.vllm.model_folder import check_folder
from store.errors import AdapterError, AlignmentError, ConfigError, GateRejected, first_line
from store.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from trainer.batch import GREEDY_BELOW, cheapest_parts
from trainer.checkpoint import TRAINER_STATE
from trainer.cost import Speed
from trainer.decoding import Decoder, MergedDecoder, NetworkDecoder, largest_difference, supports
from trainer.memory_plan import MOST_ON_CPU, MOST_TOKENS, Sizes, TrainingMemoryPlan, free_bytes, plan_memory
from trainer.out_of_memory import in_halves
from trainer.protocol import Reply as Reply
from trainer.protocol import TeacherScore
from trainer.protocol import Weights as Weights
from trainer.texts import Texts, load_tokenizer

#: Models smaller than this are held in float32, larger ones in bfloat16 with gradient checkpointing.
FLOAT32_BELOW = 200_000_000
#: Largest gradient norm; what is above is scaled down to it.
MAX_GRADIENT_NORM = 1.0
#: AdamW's moments: the second one has a shorter memory than the usual .999, since steps are few.
BETA1, BETA2 = 0.9, 0.99
#: Rows generated at a time.
SAMPLE_ROWS = 32
#: Padded prompt tokens generated from at a time, for the sake of the cache (8 B parameters: 150 kB a token).
_SAMPLE_ROOM = 32_768
#: What it costs to generate in one more group, in padded prompt tokens (2 M test model, one thread: .1 s).
#: Measured on the 2 M test model; issue "Say it once" replaces it.
_SAMPLE_TOKENS = 1_024
#: When at most this share of the rows goes on, the others are taken out of the batch.
_KEPT_SHARE = 0.75
#: Up to this many tokens in the vocabulary, whole logits are made; beyond it those of so many positions at a time.
WHOLE_VOCABULARY, POSITIONS = 8_192, 256
#: Numbers in the logits that are made at a time, at most (64 MiB in float32; a few such tensors live at once).
_LOGITS = 1 << 24
#: Hidden states of the merged decoder may differ by this from the model's own, relative to their size.
_MERGED_TOLERANCE = 1e-4
#: An output layer in half precision is also held in float32 where that takes no more than this share of the free memory.
_WIDE_HEAD_SHARE = 0.2
#: Rows of the larger decoding step that is measured, and how often each operation is.
_DECODE_ROWS, _MEASUREMENTS = 16, 3
_ADAPTER = "default"


class LocalPolicy(Texts):
    """Base model and adapter in this process. One thread only.

    Args:
        model: folder, or name of a model in the local Hugging Face cache. Nothing is downloaded.
        rank: of the LoRA matrices on every linear layer but the output layer; alpha is twice the rank, so that the update's
            scale does not depend on the rank.
        learning_rate: of AdamW, without weight decay: LoRA is already a bound on how far weights can go.
        seed: of the adapter's initial weights.
        teacher: another model to teach with the hint in context; empty: none is loaded.
        device: "auto" or a torch device.
        checkpointing: recompute layers in the backward pass; None: where memory asks for it (`trainer.memory_plan`).
        quantize: hold the base model in 4 bits (NF4); only on an NVIDIA GPU.
        memory_bytes: free memory to plan with; None: what the device says.

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
        rank: int,
        learning_rate: float,
        seed: int = 0,
        teacher: str = "",
        device: str = "auto",
        checkpointing: bool | None = None,
        quantize: bool = False,
        memory_bytes: int | None = None,
    ) -> None:
        self.at_boundary: Callable[[], None] = _go_on
        self._parked: dict[nn.Parameter, Tensor] = {}
        self.device = usable_device(device)
        self.name = model
        super().__init__(model)
        network, self.parameters = _load_network(model, self.device, quantize=quantize)
        config = network.config.get_text_config()
        self.max_context = int(getattr(config, "max_position_embeddings", None) or 2048)
        self.vocabulary_size = int(config.vocab_size)
        self.end_ids = end_ids(
            self.tokenizer.eos_token_id,
            getattr(network.generation_config, "eos_token_id", None),
            getattr(network.config, "eos_token_id", None),
        )
        #: What the model's makers sample at; 1 where they do not say.
        self.sampling_temperature = float(getattr(network.generation_config, "temperature", None) or 1.0)
        self._pad = int(self.tokenizer.pad_token_id or 0)
        self._wide_heads: dict[Tensor, Tensor | None] = {}
        self._learning_rate = learning_rate
        #: Of the model itself; `max_context` is what can be trained on here.
        self.model_context = self.max_context
        self.memory = self._plan_memory(network, rank, memory_bytes)
        self.max_context = min(self.max_context, self.memory.longest)
        self._checkpointing = self.memory.checkpointing if checkpointing is None else checkpointing
        #: Padded tokens of a pass beyond which layers are recomputed.
        self._recompute_beyond = 0 if self._checkpointing else self.memory.whole_tokens
        if checkpointing is False:
            self._recompute_beyond = sys.maxsize
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
        self._merges = False
        if self.parameters < FLOAT32_BELOW and supports(network):
            self._merges = True
            decoder = self._decoder(network, Weights.STUDENT)
            self._merges = largest_difference(network, decoder) <= _MERGED_TOLERANCE
        self._teacher: Any = None
        if teacher:
            self._teacher, _ = _load_network(teacher, self.device, quantize=quantize)
            self._check_vocabulary(teacher)
            self._check_head(self._teacher)

    # -- set-up

    def _plan_memory(self, network: Any, rank: int, memory_bytes: int | None) -> TrainingMemoryPlan:
        config = network.config.get_text_config()
        free = free_bytes(self.device) if memory_bytes is None else memory_bytes
        if free is None:
            return TrainingMemoryPlan(
                checkpointing=self.parameters >= FLOAT32_BELOW,
                whole_tokens=self.max_context,
                micro_tokens=MOST_TOKENS,
                longest=self.max_context,
            )
        hidden = int(config.hidden_size)
        head = int(getattr(config, "head_dim", None) or hidden // config.num_attention_heads)
        linear = [module for module in network.get_decoder().modules() if isinstance(module, nn.Linear)]
        sizes = Sizes(
            layers=int(config.num_hidden_layers),
            hidden=hidden,
            intermediate=int(getattr(config, "intermediate_size", None) or 4 * hidden),
            heads=head
            * (config.num_attention_heads + 2 * (getattr(config, "num_key_value_heads", None) or 1)),
            item_bytes=network.dtype.itemsize,
            lora_parameters=sum(rank * (one.in_features + one.out_features) for one in linear),
        )
        plan = plan_memory(sizes, free)
        if self.device.type == "cpu":
            return replace(plan, micro_tokens=min(plan.micro_tokens, MOST_ON_CPU))
        return plan

    def clock(self) -> float:
        """Seconds of work: on a CPU the processor time of this thread, which also runs what its helpers cannot share: the time it takes on idle
        cores, whatever else runs."""
        if self.device.type == "cpu":
            return time.thread_time()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def measure_speed(self) -> Speed:
        """How fast this model is here, by `clock`, each operation the best of some: anything else that runs makes one slower."""
        count = min(128, self.max_context - 1)
        ids = [token % self.vocabulary_size for token in range(count)]

        def seconds(work: Callable[[], Any]) -> float:
            work()
            found = []
            for _ in range(_MEASUREMENTS):
                began = self.clock()
                work()
                found.append(self.clock() - began)
            return min(found)

        def learn() -> None:
            self.accumulate(self.response_hidden([ids[:1]], [ids])[0].sum())
            self.drop_gradients()

        learn_s = seconds(learn)
        with torch.no_grad():
            read_s = seconds(lambda: self.response_hidden([ids[:1]], [ids]))
            hidden, _ = self.response_hidden([ids[:1]], [ids])
            logits_s = seconds(lambda: self.logits(hidden))
            sampler = self._decoder(self._network, Weights.STUDENT)
            one, many = (self._decoding_s(sampler, rows, seconds) for rows in (1, _DECODE_ROWS))
        return Speed(
            read_s=read_s / count,
            logits_s=logits_s / count,
            step_s=one,
            row_s=max(0.0, many - one) / (_DECODE_ROWS - 1),
            learn_factor=max(1.0, learn_s / max(read_s, 1e-9)),
        )

    def _decoding_s(
        self, sampler: Decoder, rows: int, seconds: Callable[[Callable[[], Any]], float]
    ) -> float:
        ids = torch.ones(rows, 2, dtype=torch.long, device=self.device)
        sampler.begin(ids, torch.ones_like(ids), 3 + _MEASUREMENTS)
        return seconds(lambda: self._head(self._network, sampler.step(ids[:, 0])))

    def _wrap(self, network: Any, config: LoraConfig, seed: int) -> None:
        """Put a fresh adapter of that form on the bare network, with fresh moments."""
        if network.is_activation_checkpointing:  # from an adapter before; peft would add hooks we do not need
            network.activation_checkpointing_disable()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # peft 0.21 asks for a property that transformers 5.23 has renamed.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            torch.manual_seed(seed)
            self._peft: Any = get_peft_model(network, config)
        self._peft.eval()
        self._layers: list[nn.Module] = []
        if self._recompute_beyond < sys.maxsize:
            network.activation_checkpointing_enable({"use_reentrant": False})
            self._layers = [
                module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)
            ]
        self._trainable: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in self._peft.named_parameters() if parameter.requires_grad
        }
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Forget the moments: the adapter as it is now is all there is."""
        self._optimizer = torch.optim.AdamW(
            list(self._trainable.values()),
            lr=self._learning_rate,
            betas=(BETA1, BETA2),
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
        recomputes = grad and bool(self._layers) and ids.numel() > self._recompute_beyond
        with (
            self._as(weights),
            torch.set_grad_enabled(grad),
            self._recompute(recomputes),
            nullcontext() if recomputes else self._attention(ids.shape[1]),
        ):
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
        chunk: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the response tokens, without a gradient and without ever holding [B, C, V].

        Args:
            temperature: one, or one for each row.
            chunk: positions whose logits exist at a time; None: `positions`.

        Returns:
            logprobs [B, C] float32, NaN in padding; mask [B, C] bool.
        """
        heats = [temperature] * len(prompts) if isinstance(temperature, int | float) else list(temperature)

        def read(some: Sequence[tuple[Sequence[int], Sequence[int], float]]) -> list[Tensor]:
            asked, answers = [row[0] for row in some], [row[1] for row in some]
            self.at_boundary()
            hidden, mask = self.response_hidden(asked, answers, weights)
            return list(
                self.logprobs_of(
                    hidden, mask, answers, weights, temperature=[row[2] for row in some], chunk=chunk
                )
            )

        if not prompts:
            raise AlignmentError("there is nothing to read")
        rows = in_halves(list(zip(prompts, responses, heats, strict=True)), read)
        columns = max(map(len, responses))
        logprobs = torch.full((len(rows), columns), math.nan, device=self.device)
        for number, row in enumerate(rows):
            logprobs[number, : len(row)] = row
        lengths = torch.tensor([len(response) for response in responses], device=self.device)
        return logprobs, torch.arange(columns, device=self.device) < lengths[:, None]

    def trained_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities [T - 1] of a text's tokens after the first, under the weights that are trained."""
        values, _ = self.response_logprobs([token_ids[:1]], [token_ids[1:]])
        return [float(value) for value in values[0]]

    @torch.no_grad()
    def logprobs_of(
        self,
        hidden: Tensor,
        mask: Tensor,
        responses: Sequence[Sequence[int]],
        weights: Weights = Weights.STUDENT,
        *,
        temperature: float | Sequence[float] = 1.0,
        chunk: int | None = None,
    ) -> Tensor:
        """:meth:`response_logprobs` [B, C] from the hidden states [B, C, D] and the mask of :meth:`response_hidden`."""
        targets = _padded(responses, mask.shape[1], 0).to(self.device)
        heat = torch.tensor(
            [temperature] * len(responses) if isinstance(temperature, int | float) else list(temperature),
            device=self.device,
        )[:, None].expand(mask.shape)
        flat_hidden, flat_ids, flat_heat = hidden.detach()[mask], targets[mask], heat[mask]
        pieces = []
        size = chunk or self.positions
        for start in range(0, len(flat_ids), size):
            piece = slice(start, start + size)
            logits = self.logits(flat_hidden[piece], weights) / flat_heat[piece, None]
            taken = logits.gather(-1, flat_ids[piece, None]).squeeze(-1)
            pieces.append(taken - torch.logsumexp(logits, dim=-1))
        logprobs = torch.full(mask.shape, math.nan, device=self.device)
        logprobs[mask] = torch.cat(pieces)
        return logprobs

    def teacher_scores(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights,
        *,
        temperature: Sequence[float],
        top_k: int,
    ) -> list[TeacherScore]:
        """What these weights say along each response: of its tokens, and of their ``top_k`` likeliest ones.

        Args:
            temperature: [B], of the log-probabilities.
        """
        rows = list(zip(prompts, responses, temperature, strict=True))
        return in_halves(rows, lambda some: self._teacher_scores(some, weights, top_k))

    @torch.no_grad()
    def _teacher_scores(
        self, rows: Sequence[tuple[Sequence[int], Sequence[int], float]], weights: Weights, top_k: int
    ) -> list[TeacherScore]:
        self.at_boundary()
        hidden, mask = self.response_hidden([row[0] for row in rows], [row[1] for row in rows], weights)
        heat = torch.tensor([row[2] for row in rows], device=self.device)[:, None].expand(mask.shape)[mask]
        ids = torch.tensor([token for row in rows for token in row[1]], device=self.device)
        flat = hidden[mask]
        own, places, values = [], [], []
        for start in range(0, len(flat), self.positions):
            piece = slice(start, start + self.positions)
            logits = self.logits(flat[piece], weights) / heat[piece, None]
            total = torch.logsumexp(logits, dim=-1, keepdim=True)
            own.append(logits.gather(-1, ids[piece, None]) - total)
            top = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
            places.append(top.indices)
            values.append(top.values - total)
        lengths = [len(row[1]) for row in rows]
        return [
            TeacherScore(logprobs=q.squeeze(-1), support_ids=support, support_logprobs=top)
            for q, support, top in zip(
                torch.split(torch.cat(own), lengths),
                torch.split(torch.cat(places), lengths),
                torch.split(torch.cat(values), lengths),
                strict=True,
            )
        ]

    @property
    def is_wide(self) -> bool:
        """Whether the vocabulary is so large that logits are made a few positions at a time."""
        return self.vocabulary_size > WHOLE_VOCABULARY

    @property
    def positions(self) -> int:
        """Positions whose logits are made at a time."""
        return min(POSITIONS, max(16, _LOGITS // self.vocabulary_size))

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
            kept = self._widened(layer.weight)
            if kept is None:
                logits = wide_linear(hidden, layer.weight, layer.bias)
            else:
                bias = None if layer.bias is None else layer.bias.float()
                logits = nn.functional.linear(hidden.float(), kept, bias)
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

    def _widened(self, weight: Tensor) -> Tensor | None:
        """A frozen output layer in float32, on a CPU with room for it: widening it at every sampled token takes most of the time."""
        if weight.device.type != "cpu":
            return None
        if weight not in self._wide_heads:
            free = free_bytes(weight.device)
            fits = free is not None and 4 * weight.numel() < _WIDE_HEAD_SHARE * free
            self._wide_heads[weight] = weight.detach().float() if fits else None
        return self._wide_heads[weight]

    @contextmanager
    def _as(self, weights: Weights) -> Iterator[None]:
        """The network speaks with these weights inside; the adapter's own are back afterwards, also after an error."""
        if weights is Weights.BASE:
            self._peft.base_model.disable_adapter_layers()
            try:
                yield
            finally:
                self._peft.base_model.enable_adapter_layers()
        else:
            yield

    @contextmanager
    def _attention(self, length: int) -> Iterator[None]:
        """Plain attention for short texts on a CPU: the backward pass of torch's blocked one takes ten times as long (.30 of a step).

        Short is where a text's scores need no more memory than its feed-forward activations. Not where layers are recomputed: the backward
        pass would take the other one.
        """
        config = self._network.config.get_text_config()
        widest = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        if self.device.type == "cpu" and length * config.num_attention_heads <= widest:
            with sdpa_kernel(SDPBackend.MATH):
                yield
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

        The same arguments give the same replies. A reply does not depend on what it is sampled beside, but for float rounding.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        # One number in [0, 1) for each token that may be sampled: what a row gets does not depend on which others have ended.
        draws = torch.rand(len(prompts), max_tokens, generator=generator, device=self.device)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
        lengths = [len(prompts[i]) for i in order]
        replies: dict[int, Reply] = {}
        with self._as(weights), torch.no_grad():
            network = self._of(weights)
            decoder = self._decoder(network, weights)
            for part in cheapest_parts(
                lengths, cost=_SAMPLE_TOKENS, max_tokens=_SAMPLE_ROOM, max_rows=SAMPLE_ROWS
            ):
                rows = order[part]
                self.at_boundary()
                some = in_halves(
                    rows,
                    lambda numbers: self._generate(
                        network, decoder, [prompts[i] for i in numbers], draws[list(numbers)], temperature
                    ),
                )
                replies.update(zip(rows, some, strict=True))
        return [replies[i] for i in range(len(prompts))]

    def _decoder(self, network: Any, weights: Weights) -> Decoder:
        """How to sample from the network as it is now."""
        if weights is Weights.TEACHER or not self._merges:
            return NetworkDecoder(network)

        def merged(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
            if not isinstance(layer, LoraLayer):
                return layer.weight, layer.bias  # type: ignore[return-value]  # a linear layer
            base: Any = layer.get_base_layer()
            if weights is Weights.BASE:
                return base.weight, base.bias
            return base.weight + cast(Any, layer).get_delta_weight(_ADAPTER), base.bias

        return MergedDecoder(network, merged)

    def _generate(
        self,
        network: Any,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        draws: Tensor,
        temperature: float,
    ) -> list[Reply]:
        """Replies to some prompts; ``draws`` [B, C] are the random numbers."""
        length = max(map(len, prompts))
        # Here padding is in front, so that all rows' newest token is in the last column; mask and positions say so.
        ids = torch.full((len(prompts), length), self._pad, device=self.device)
        seen = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, length - len(prompt) :] = torch.tensor(prompt, device=self.device)
            seen[row, length - len(prompt) :] = 1
        ends = torch.tensor(sorted(self.end_ids), device=self.device)
        live = list(range(len(prompts)))  # row of the batch -> prompt
        running = [True] * len(prompts)  # by row of the batch
        tokens: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        count = min(draws.shape[1], self.max_context - length)
        hidden = decoder.begin(ids, seen, length + count) if count > 0 else None
        for column in range(count):
            assert hidden is not None
            distribution = torch.log_softmax(self._head(network, hidden), dim=-1)
            if temperature < GREEDY_BELOW:
                token = distribution.argmax(dim=-1)
            else:
                token = _drawn(distribution, temperature, draws[live, column])
            taken = distribution.gather(-1, token[:, None]).squeeze(-1)
            ended = torch.isin(token, ends).tolist()
            for row, one, value, goes_on in zip(live, token.tolist(), taken.tolist(), running, strict=True):
                if goes_on:
                    tokens[row].append(one)
                    logprobs[row].append(value)
            running = [goes_on and not end for goes_on, end in zip(running, ended, strict=True)]
            if column + 1 == count or not any(running):
                break
            kept = [i for i, goes_on in enumerate(running) if goes_on]
            rows = torch.tensor(kept, device=self.device)
            if len(kept) <= _KEPT_SHARE * len(live) and decoder.keep(rows):
                # Many rows have ended: go on with the others alone.
                token, live, running = token[rows], [live[i] for i in kept], [True] * len(kept)
            hidden = decoder.step(token)
        return [
            Reply(
                token_ids=tuple(row),
                logprobs=tuple(values),
                finished=bool(row) and row[-1] in self.end_ids,
            )
            for row, values in zip(tokens, logprobs, strict=True)
        ]

    # -- the step

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of a loss to those that are there: all of it, or nothing where memory gives out on the way."""
        parameters = list(self._trainable.values())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def apply_gradients(self) -> float:
        """One AdamW step with the accumulated gradients (clipped); gives the norm before clipping.

        Raises:
            GateRejected: a gradient is not finite; weights and moments are untouched and the gradients are gone.
        """
        self.at_boundary()
        norm = float(nn.utils.clip_grad_norm_(self._trainable.values(), MAX_GRADIENT_NORM))
        if not math.isfinite(norm):
            self.drop_gradients()
            raise GateRejected("the gradient is not finite: no step was taken")
        self._optimizer.step()
        self.drop_gradients()
        return norm

    def scale(self, share: float) -> None:
        """Be ``share`` times as far from the base model, in the space of weights; moments stay what they are."""
        with torch.no_grad():
            for name, parameter in self._trainable.items():
                if "lora_B" in name:
                    parameter.mul_(share)

    def park(self) -> None:
        """Take the base model off the device, into main memory. Adapter, moments and gradients stay: they are small.

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
        """Copies in main memory of all that a step changes: weights, moments, torch's random state."""
        state = {f"weight/{name}": _copied(parameter) for name, parameter in self._trainable.items()}
        for name, parameter in self._trainable.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                state[f"adam.{key}/{name}"] = _copied(value)
        state["rng"] = torch.get_rng_state()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Be exactly what :meth:`snapshot` saw; gradients are dropped.

        Raises:
            AdapterError: the state is of another adapter (names or shapes differ).
        """
        for name, parameter in self._trainable.items():
            value = state.get(f"weight/{name}")
            if value is None or value.shape != parameter.shape:
                raise AdapterError(f"the saved trainer state has no weight that fits {name}")
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


def _drawn(distribution: Tensor, temperature: float, draws: Tensor) -> Tensor:
    """One token of each row by the inverse of its cumulative distribution; [B, V] log-probabilities, [B] in [0, 1) -> [B]."""
    summed = torch.softmax(distribution / temperature, dim=-1).cumsum(dim=-1)
    # The sum may miss 1 by rounding; times the sum a draw stays below it, so that no token of probability 0 is behind the last.
    token = torch.searchsorted(summed, (draws * summed[:, -1])[:, None], right=True).squeeze(-1)
    return token.clamp(max=distribution.shape[-1] - 1)


def _copied(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)


def _padded(rows: Sequence[Sequence[int]], length: int, value: int) -> Tensor:
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])


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
