"""The policy on a Tinker server, for the rooms of the trainer: `trainer.protocol.Policy` by requests.

Rules of the room:
- **Where the weights are is a value** (`Saved`): the checkpoints of the version that is the parent of the next one. A training client is
  made from it when a step needs one and thrown away when its state is unknown; nothing is lost with it.
- Everything is read at temperature 1: a Tinker server scores prompts at no other.
- What reads the policy asks sampling clients, many requests at once; the training client only trains. So base, teacher and student are
  compared on one engine.
- Whole distributions are never seen: a teacher is known on its likeliest tokens, or on those of the reply alone.

Shapes: P prompt tokens, C completion tokens, B batch, K size of a token support.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import torch
from tinker import types
from torch import Tensor

from serving.tinker.local_tokenizer import load_local_tokenizer
from serving.tinker.version import FILE, TinkerVersion, read_version
from store.errors import AdapterError, AlignmentError
from store.settings import Settings
from trainer.batch import GREEDY_BELOW
from trainer.protocol import Reply, TeacherScore, Weights
from trainer.texts import Texts
from trainer.tinker.capabilities import TinkerCapabilities
from trainer.tinker.link import TinkerConnection

#: Context to assume where the server does not say: what the smallest models of today have.
_DEFAULT_CONTEXT = 32_768
_SEEDS = 2**31 - 1
#: What a server writes where it lists fewer than the K likeliest tokens is below this.
_UNUSED = -1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Checkpoints of one set of weights; both empty: the bare base model."""

    sampler_path: str = ""
    state_path: str = ""


class TinkerPolicy(Texts):
    """A base model and an adapter on a Tinker server. One thread only.

    Args:
        base_model: the server's name of it.
        context: the longest sequence it takes; None: it does not say.

    Raises:
        ConfigError: its tokenizer is not here.
    """

    def __init__(
        self,
        settings: Settings,
        link: TinkerConnection,
        base_model: str,
        context: int | None,
    ) -> None:
        # as the serving side has it: both have to write the same prompts
        text = load_local_tokenizer(settings.model_path)
        super().__init__(settings.model_path, text.vocabulary.tokenizer)
        self.link = link
        self.base_model = base_model
        self.max_context = min((c for c in (context, text.context) if c), default=_DEFAULT_CONTEXT)
        self.vocabulary_size = text.vocabulary.size
        self.end_ids = text.end_ids
        self.sampling_temperature = 1.0
        self.learning_rate = settings.resolved_learning_rate
        self._rank, self._seed = settings.lora_rank, settings.seed
        self._teacher = settings.teacher_model_name
        self._saved = Saved()
        self._training: tinker.TrainingClient | None = None
        self._moved = False
        self._finite = True
        self._name = ""
        self._fresh = ""
        self._abilities: TinkerCapabilities | None = None

    # -- what is there

    @property
    def abilities(self) -> TinkerCapabilities:
        assert self._abilities is not None  # the trainer finds them out before anything is asked
        return self._abilities

    @abilities.setter
    def abilities(self, found: TinkerCapabilities) -> None:
        self._abilities = found

    @property
    def saved(self) -> Saved:
        """Where the weights are that the next step begins from."""
        return self._saved

    def training(self) -> tinker.TrainingClient:
        """The training client, at these weights and this optimizer's state.

        Raises:
            UpstreamError: the server is away. AdapterError: it does not have the checkpoint any more.
        """
        if self._training is None:
            if self._saved.state_path:
                self._training = self.link.train_from(self._saved.state_path)
            else:
                self._training = self.link.train_anew(self.base_model, rank=self._rank, seed=self._seed)
        return self._training

    def begin(self, name: str) -> None:
        """A step begins; ``name`` is what its checkpoints are to be called."""
        # A number may be tried again, and a checkpoint of that name be there from a trainer that died.
        self._name = f"{name.replace('@', '-')}-{secrets.token_hex(4)}"
        self._finite = True

    def has_moved(self, *, is_finite: bool) -> None:
        """The training client holds other weights than the ones saved, or gradients of an unfinished step."""
        self._moved, self._fresh = True, ""
        self._finite = is_finite

    def is_finite(self) -> bool:
        """Whether the weights answer with numbers, as far as the last step saw."""
        return self._finite

    def _client(self, weights: Weights) -> tinker.SamplingClient:
        if weights is Weights.TEACHER:
            return self.link.base_client(self._teacher)
        path = self._sampler_path() if weights is Weights.STUDENT else ""
        return self.link.client_of(path) if path else self.link.base_client(self.base_model)

    def _sampler_path(self) -> str:
        if not self._moved:
            return self._saved.sampler_path
        if not self._fresh:
            saving = self.training().save_weights_for_sampler(self._name)
            self._fresh = str(self.link.wait([saving])[0].path)
        return self._fresh

    # -- reading

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seed: int = 0,
        weights: Weights = Weights.STUDENT,
    ) -> list[Reply]:
        """Completions, all asked for at once. Temperature 0 is greedy. No top-k, no top-p, no penalties."""
        client = self._client(weights)
        asked = []
        for number, prompt in enumerate(prompts):
            room = min(max_tokens, self.max_context - len(prompt))
            params = types.SamplingParams(
                max_tokens=max(1, room),
                temperature=temperature,
                seed=(seed * 1_000_003 + number) % _SEEDS,
                stop=sorted(self.end_ids),
            )
            asked.append(client.sample(prompt=_input(prompt), num_samples=1, sampling_params=params))
        replies = []
        for response in self.link.wait(asked):
            sequence = response.sequences[0]
            tokens = tuple(int(token) for token in sequence.tokens)
            values = [math.nan if value is None else float(value) for value in sequence.logprobs or ()]
            replies.append(
                Reply(
                    token_ids=tokens,
                    logprobs=tuple(values) if len(values) == len(tokens) else (math.nan,) * len(tokens),
                    finished=bool(tokens) and tokens[-1] in self.end_ids,
                )
            )
        if temperature == 1.0 or (temperature < GREEDY_BELOW and self.abilities.greedy_is_raw):
            return replies
        return self._at_temperature_one(prompts, replies, weights)

    def _at_temperature_one(
        self, prompts: Sequence[Sequence[int]], replies: Sequence[Reply], weights: Weights
    ) -> list[Reply]:
        answered = [i for i, reply in enumerate(replies) if reply.token_ids]
        if not answered:
            return list(replies)
        values, _ = self.response_logprobs(
            [prompts[i] for i in answered], [replies[i].token_ids for i in answered], weights
        )
        result = list(replies)
        for row, i in enumerate(answered):
            old = replies[i]
            count = len(old.token_ids)
            result[i] = Reply(
                token_ids=old.token_ids, logprobs=tuple(values[row, :count].tolist()), finished=old.finished
            )
        return result

    def response_logprobs(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights = Weights.STUDENT,
        *,
        temperature: float | Sequence[float] = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, C] of the response tokens at temperature 1, NaN in padding; mask [B, C] bool.

        Raises:
            AlignmentError: another temperature; an empty prompt or response, or more tokens than the context holds.
        """
        _check_temperature([temperature] if isinstance(temperature, int | float) else temperature)
        return self._padded_logprobs(self._client(weights), prompts, responses)

    def trained_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities [T - 1] of a text's tokens after the first, by the training client: not by what is sampled from its checkpoint."""
        targets = np.array(token_ids[1:], dtype=np.int64)
        inputs = {"target_tokens": targets, "weights": np.ones(len(targets), dtype=np.float32)}
        datum = types.Datum(
            model_input=_input(token_ids[:-1]),
            loss_fn_inputs={name: types.TensorData.from_numpy(value) for name, value in inputs.items()},
        )
        (output,) = self.link.wait([self.training().forward([datum], "cross_entropy")])
        values = [float(value) for value in output.loss_fn_outputs[0]["logprobs"].data]
        if len(values) != len(targets):
            raise AlignmentError(
                f"the Tinker server returned {len(values)} log-probabilities for {len(targets)} targets"
            )
        return values

    def logprobs_of_version(
        self, path: str, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> Tensor:
        """The same for a version's checkpoint (""; the base model), [B, C]."""
        client = self.link.client_of(path) if path else self.link.base_client(self.base_model)
        return self._padded_logprobs(client, prompts, responses)[0]

    def _padded_logprobs(
        self,
        client: tinker.SamplingClient,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
    ) -> tuple[Tensor, Tensor]:
        self._check(prompts, responses)
        asked = [
            client.compute_logprobs(_input((*prompt, *response)))
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        longest = max(map(len, responses))
        values = torch.full((len(responses), longest), math.nan)
        mask = torch.zeros(values.shape, dtype=torch.bool)
        for row, (found, response) in enumerate(zip(self.link.wait(asked), responses, strict=True)):
            values[row, : len(response)] = _tail_of(found, len(response))
            mask[row, : len(response)] = True
        return values, mask

    def _check(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> None:
        if len(prompts) != len(responses) or not prompts:
            raise AlignmentError(f"{len(prompts)} prompts for {len(responses)} responses")
        for prompt, response in zip(prompts, responses, strict=True):
            if not prompt or not response:
                raise AlignmentError("a sequence to train on has a prompt and a response")
            if len(prompt) + len(response) > self.max_context:
                raise AlignmentError(
                    f"{len(prompt)} prompt and {len(response)} response tokens exceed the context of {self.max_context}"
                )

    def teacher_scores(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights,
        *,
        temperature: Sequence[float],
        top_k: int,
    ) -> list[TeacherScore]:
        """See `trainer.policy.LocalPolicy.teacher_scores`; of the responses' tokens alone where the server tells no others.

        Raises:
            AlignmentError: as :meth:`response_logprobs`.
        """
        _check_temperature(temperature)
        if not self.abilities.support:
            values, _ = self.response_logprobs(prompts, responses, weights)
            return [
                TeacherScore(logprobs=row[: len(one)]) for row, one in zip(values, responses, strict=True)
            ]
        self._check(prompts, responses)
        client = self._client(weights)
        asked = [
            client.sample(
                prompt=_input((*prompt, *response)),
                num_samples=1,
                sampling_params=types.SamplingParams(max_tokens=1, seed=0),
                include_prompt_logprobs=True,
                topk_prompt_logprobs=top_k,
            )
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        scores = []
        for answer, response in zip(self.link.wait(asked), responses, strict=True):
            count, top = len(response), answer.topk_prompt_logprobs_np
            if top is None:
                raise AlignmentError("the Tinker server did not tell the likeliest tokens")
            values = torch.from_numpy(top.logprobs[-count:].astype(np.float32))
            scores.append(
                TeacherScore(
                    logprobs=_tail_of(answer.prompt_logprobs, count),
                    support_ids=torch.from_numpy(top.token_ids[-count:].astype(np.int64)),
                    support_logprobs=values.masked_fill(values < _UNUSED, -math.inf),
                )
            )
        return scores

    # -- state

    def snapshot(self) -> dict[str, Any]:
        """Where the weights are."""
        return asdict(self._saved)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Be what :meth:`snapshot` saw; a training client that holds anything else is given up."""
        self._settle(Saved(**state), keep=not self._moved and Saved(**state) == self._saved)

    def _settle(self, saved: Saved, *, keep: bool = False) -> None:
        if not keep:
            self._training = None
            self.link.end_training()
        self._saved, self._moved, self._finite, self._fresh = saved, False, True, ""

    @contextmanager
    def as_it_was(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Sampling clients are those of ``state`` inside."""
        now = (self._saved, self._moved, self._finite, self._fresh)
        self._saved, self._moved, self._finite = Saved(**state), False, True
        try:
            yield
        finally:
            self._saved, self._moved, self._finite, self._fresh = now

    def version_files(self, name: str = "") -> dict[str, bytes]:
        """Save weights and optimizer on the server; what the version's folder says of it. From here on these are the weights
        that training goes on from.

        Raises:
            UpstreamError: it cannot be saved.
        """
        training = self.training()
        if not self._name:
            self.begin(name)
        saving = [training.save_state(self._name)]
        if not self._fresh:
            saving.append(training.save_weights_for_sampler(self._name))
        found = self.link.wait(saving)
        sampler = self._fresh or str(found[1].path)
        self._saved = Saved(sampler_path=sampler, state_path=str(found[0].path))
        self._moved, self._fresh, self._name = False, "", ""
        version = TinkerVersion(
            sampler_path=self._saved.sampler_path,
            state_path=self._saved.state_path,
            base_model=self.base_model,
            lora_rank=self._rank,
            address=self.link.address,
        )
        return {FILE: json.dumps(asdict(version), indent=2, sort_keys=True).encode()}

    def load_version(self, folder: Path) -> None:
        """Go on from the version in ``folder``.

        Raises:
            AdapterError: missing, torn, of another model, or without an optimizer's state.
        """
        version = read_version(folder)
        if version.base_model != self.base_model:
            raise AdapterError(
                f"the version in {folder} is of {version.base_model}, not of {self.base_model}"
            )
        if not version.state_path:
            raise AdapterError(
                f"the version in {folder} can be served, but not trained on: it has no state_path"
            )
        self._settle(Saved(sampler_path=version.sampler_path, state_path=version.state_path))

    def reset(self, seed: int = 0) -> None:
        """Be the bare base model again."""
        self._seed = seed
        self._settle(Saved())

    def give_up(self) -> None:
        """Forget the training client: its state is unknown."""
        self._settle(self._saved)


def _check_temperature(temperatures: Sequence[float]) -> None:
    if any(value != 1.0 for value in temperatures):
        raise AlignmentError("a Tinker server tells log-probabilities at temperature 1 only")


def _input(tokens: Sequence[int]) -> types.ModelInput:
    return types.ModelInput.from_ints([int(token) for token in tokens])


def _tail_of(found: Any, count: int) -> Tensor:
    """The last ``count`` of a prompt's log-probabilities; NaN where there is none.

    Raises:
        AlignmentError: there are fewer.
    """
    if found is None or len(found) < count:
        raise AlignmentError(
            f"the Tinker server returned {0 if found is None else len(found)} log-probabilities for {count}"
        )
    return torch.tensor([math.nan if value is None else float(value) for value in found[-count:]])
