"""The half that trains: one base model, LoRA adapters in it by model id, all on one thread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.tinker.checkpoints import LoraSpec, Weights
from tests.tinker.errors import Refused
from tests.tinker.losses import loss_of
from tests.tinker.wire import Floats, ForwardBackward

#: Tinker's, whatever the rank.
LORA_ALPHA = 32


def lora_config(spec: LoraSpec, tied: bool) -> LoraConfig:
    """Return peft's configuration of an adapter; an unembedding that is tied to the embedding is left alone."""
    targets = [
        *(["q_proj", "k_proj", "v_proj", "o_proj"] if spec.train_attn else []),
        *(["gate_proj", "up_proj", "down_proj"] if spec.train_mlp else []),
        *(["lm_head"] if spec.train_unembed and not tied else []),
    ]
    if spec.rank < 1 or not targets:
        raise Refused(400, "an adapter needs a rank of at least 1, and something to train")
    return LoraConfig(r=spec.rank, lora_alpha=LORA_ALPHA, target_modules=targets, task_type="CAUSAL_LM")


def adapter_name(model_id: str) -> str:
    """Return a model's name for peft, which takes no dots and no colons."""
    return "".join(sign if sign.isalnum() else "_" for sign in model_id)


class Training:
    """Adapters under training. Every method is called on one thread."""

    def __init__(self, path: str, name: str) -> None:
        self._base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._tied = bool(self._base.config.tie_word_embeddings)
        self._name = name
        self._peft: PeftModel | None = None
        self._specs: dict[str, LoraSpec] = {}
        self._optimizers: dict[str, torch.optim.AdamW] = {}

    def spec(self, model_id: str) -> LoraSpec:
        """Raises: Refused when there is no such model (any more)."""
        if model_id not in self._specs:
            raise Refused(404, f"there is no model {model_id}")
        return self._specs[model_id]

    def create(self, model_id: str, spec: LoraSpec) -> None:
        """Add a fresh adapter: it changes nothing yet."""
        if model_id in self._specs:
            raise Refused(409, f"there is a model {model_id} already")
        config = lora_config(spec, self._tied)
        if spec.seed is not None:
            torch.manual_seed(spec.seed)
        if self._peft is None:
            self._peft = get_peft_model(self._base, config, adapter_name=adapter_name(model_id))
        else:
            self._peft.add_adapter(adapter_name(model_id), config)
        self._specs[model_id] = spec

    def drop(self, model_id: str) -> None:
        """Forget an adapter; harmless when it is not there."""
        if self._specs.pop(model_id, None) is not None:
            self._optimizers.pop(model_id, None)
            if self._specs:  # peft cannot be without any
                self._model.delete_adapter(adapter_name(model_id))
            else:
                self._base = self._model.unload()
                self._peft = None

    @property
    def _model(self) -> PeftModel:
        assert self._peft is not None
        return self._peft

    def _parameters(self, model_id: str) -> list[Tensor]:
        mark = f".{adapter_name(model_id)}."
        return [value for name, value in self._model.named_parameters() if mark in name]

    def forward_backward(self, request: ForwardBackward) -> tuple[float, list[Floats]]:
        """Return the loss, and the log-probabilities of each datum's targets; gradients are added to what is there."""
        self.spec(request.model_id)
        self._model.set_adapter(adapter_name(request.model_id))
        total = 0.0
        results: list[Floats] = []
        for datum in request.data:
            targets = datum.inputs.get("target_tokens")
            if targets is None or targets.shape[0] != len(datum.tokens):
                raise ValueError("target_tokens has to have an entry for each token of model_input")
            with torch.set_grad_enabled(not request.forward_only):
                logits = self._model(torch.tensor([datum.tokens])).logits[0].float()
                logprobs = torch.log_softmax(logits, -1)
                logprobs = logprobs.gather(-1, targets.long().view(len(datum.tokens), -1)).view(targets.shape)
                loss = loss_of(request.loss, logprobs, datum.inputs, request.config)
            if not request.forward_only:
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            results.append(logprobs.detach().numpy().astype(np.float32))
        return total, results

    def optim_step(self, model_id: str, params: dict[str, Any]) -> dict[str, float]:
        """One step of AdamW on the gradients so far, which are gone afterwards."""
        self.spec(model_id)
        parameters = self._parameters(model_id)
        optimizer = self._optimizer(model_id)
        for group in optimizer.param_groups:
            group.update(
                lr=params.get("learning_rate", 1e-4),
                betas=(params.get("beta1", 0.9), params.get("beta2", 0.95)),
                eps=params.get("eps", 1e-12),
                weight_decay=params.get("weight_decay", 0.0),
            )
        norm = torch.nn.utils.clip_grad_norm_(parameters, params.get("grad_clip_norm") or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        return {"grad_norm:mean": float(norm)}

    def _optimizer(self, model_id: str) -> torch.optim.AdamW:
        if model_id not in self._optimizers:
            self._optimizers[model_id] = torch.optim.AdamW(self._parameters(model_id))
        return self._optimizers[model_id]

    def weights(self, model_id: str) -> Weights:
        """Return a copy of an adapter."""
        spec = self.spec(model_id)
        found = get_peft_model_state_dict(self._model, adapter_name=adapter_name(model_id))
        return Weights(
            spec=spec,
            tensors={key: value.detach().clone() for key, value in found.items()},
            base_model=self._name,
        )

    def optimizer_state(self, model_id: str) -> dict[str, Any] | None:
        """Return the optimizer's state, None before the first step."""
        optimizer = self._optimizers.get(model_id)
        return None if optimizer is None else optimizer.state_dict()

    def load(self, model_id: str, weights: Weights, optimizer: dict[str, Any] | None) -> None:
        """Put saved weights (and the optimizer's state) into a model, which is made where it is not there."""
        if model_id not in self._specs:
            self.create(model_id, weights.spec)
        if self.spec(model_id).rank != weights.spec.rank:
            raise Refused(
                400, f"the checkpoint has rank {weights.spec.rank}, the model {self.spec(model_id).rank}"
            )
        set_peft_model_state_dict(self._model, weights.tensors, adapter_name=adapter_name(model_id))
        for parameter in self._parameters(model_id):
            parameter.grad = None
        self._optimizers.pop(model_id, None)
        if optimizer is not None:
            self._model.set_adapter(adapter_name(model_id))  # which makes its parameters trainable
            self._optimizer(model_id).load_state_dict(optimizer)
