"""The policy on a Tinker server, for the rooms of the trainer: `trainer.protocol.Policy` by requests.

Rules of the room:
- **Where the weights are is a value** (`Saved`): the checkpoints of the version that is the parent of the next one. A training client is
  made from it when a step needs one and thrown away when its state is unknown; nothing is lost with it.
- Everything is read at temperature 1: a Tinker server scores prompts at no other.
- What reads the policy asks sampling clients, many requests at once; the training client only trains. So base, teacher and student are
  compared on one engine.
- Whole distributions are never seen. Where they are asked for, they are known on some tokens and one bin for all others.

Shapes: P prompt tokens, C completion tokens, B batch, K size of a token support.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import torch
from tinker import types
from torch import Tensor

from serving.tinker.local_tokenizer import load_local_tokenizer
from serving.tinker.version import FILE, TinkerVersion, read_version
from store.errors import AdapterError, AlignmentError, ConfigError
from store.settings import Settings
from trainer.batch import GREEDY_BELOW
from trainer.losses import (
    LOG_ZERO,
    NO_RESIDUAL,
    Residual,
    kl_k3,
    topk_overlap,
    unlearnt,
    with_residual,
    with_tail,
)
from trainer.protocol import LEAST_SHIFT, Change, HintScore, Reply, Weights
from trainer.texts import Texts
from trainer.tinker.capabilities import Support, TinkerCapabilities
from trainer.tinker.link import TinkerConnection

#: Context to assume where the server does not say: what the smallest models of today have.
_DEFAULT_CONTEXT = 32_768
_SEEDS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Checkpoints of one set of weights; both empty: the bare base model."""

    sampler_path: str = ""
    state_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeacherScore:
    """A teacher's log-probabilities of a response, as far as the server reports them.

    Attributes:
        logprobs: q [C], of the response's tokens.
        support_ids: [C, K] int64, or None: only the response's tokens are known.
        support_logprobs: [C, K] the teacher's.
        overlap: see `trainer.protocol.HintScore`.
    """

    logprobs: Tensor
    support_ids: Tensor | None = None
    support_logprobs: Tensor | None = None
    overlap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A response with the prompt that the student sees and the one that the teacher sees."""

    prompt: tuple[int, ...]
    hinted: tuple[int, ...]
    response: tuple[int, ...]


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
        *,
        top_k: int = 20,
    ) -> None:
        # as the serving side has it: both have to write the same prompts
        text = load_local_tokenizer(settings.model_path)
        super().__init__(settings.model_path, text.vocabulary.tokenizer)
        self.link = link
        self.base_model = base_model
        self.max_context = min((c for c in (context, text.context) if c), default=_DEFAULT_CONTEXT)
        self.window = None
        self.vocabulary_size = text.vocabulary.size
        self.end_ids = text.end_ids
        self.learning_rate = settings.resolved_learning_rate
        self._rank, self._seed = settings.lora_rank, settings.seed
        self._teacher = settings.teacher_model_name
        self._top_k = top_k
        self._support_of = settings.learning.support_of
        self._saved = Saved()
        self._training: tinker.TrainingClient | None = None
        self._moved = False
        self._finite = True
        self._name = ""
        self._fresh = ""
        self._taught: dict[Pair, TeacherScore] = {}
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
    def support(self) -> Support:
        """What a directive term can be computed on."""
        return self.abilities.support(self._support_of)

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
        self._taught.clear()

    def is_finite(self) -> bool:
        """Whether the weights answer with numbers, as far as the last step saw."""
        return self._finite

    def _client(self, weights: Weights) -> tinker.SamplingClient:
        if weights is Weights.TEACHER:
            return self.link.base_client(self._teacher)
        if weights is Weights.EMA:
            raise ConfigError("a Tinker server keeps no moving average: --teacher base or live")
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
        heat = [temperature] if isinstance(temperature, int | float) else temperature
        if any(value != 1.0 for value in heat):
            raise AlignmentError("a Tinker server tells log-probabilities at temperature 1 only")
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

    def _likeliest(
        self, weights: Weights, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Ids and log-probabilities of the K likeliest tokens at each position of each response, [C, K] each."""
        client = self._client(weights)
        asked = [
            client.sample(
                prompt=_input((*prompt, *response)),
                num_samples=1,
                sampling_params=types.SamplingParams(max_tokens=1, seed=0),
                include_prompt_logprobs=True,
                topk_prompt_logprobs=self._top_k,
            )
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        found = []
        for answer, response in zip(self.link.wait(asked), responses, strict=True):
            top = answer.topk_prompt_logprobs_np
            if top is None:
                raise AlignmentError("the Tinker server did not tell the likeliest tokens")
            found.append(
                (
                    torch.from_numpy(top.token_ids[-len(response) :].astype(np.int64)),
                    torch.from_numpy(top.logprobs[-len(response) :].astype(np.float32)),
                )
            )
        return found

    def _named(
        self,
        weights: Weights,
        prompts: Sequence[Sequence[int]],
        ids: Sequence[Tensor],
        responses: Sequence[Sequence[int]],
    ) -> list[Tensor]:
        """Log-probabilities [C, M] of the tokens ``ids`` [C, M] at each position of each response."""
        client = self._client(weights)
        asked = []
        for prompt, wanted, response in zip(prompts, ids, responses, strict=True):
            # Row i is about position i + 1; what is -1 is not computed.
            rows = np.full((len(prompt) + len(response) - 1, wanted.shape[1]), -1, dtype=np.int64)
            rows[len(prompt) - 1 :] = wanted.numpy()
            asked.append(
                client.sample(
                    prompt=_input((*prompt, *response)),
                    num_samples=1,
                    sampling_params=types.SamplingParams(max_tokens=1, seed=0),
                    target_prompt_logprobs=types.TensorData.from_torch_sparse(
                        torch.from_numpy(rows), pad_value=-1
                    ),
                )
            )
        found = []
        for answer, wanted in zip(self.link.wait(asked), ids, strict=True):
            values = answer.target_prompt_logprobs
            if values is None:
                raise AlignmentError("the Tinker server did not tell the log-probabilities it was asked for")
            # dense or sparse: what was named comes in its order
            flat = torch.tensor(values.data, dtype=torch.float32)
            if values.sparse_crow_indices is None:
                flat = flat.reshape(-1, wanted.shape[1])[-len(wanted) :]
            found.append(flat.reshape(wanted.shape))
        return found

    # -- the teacher

    def score_with_hint(
        self,
        prompts: Sequence[Sequence[int]],
        hinted: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        *,
        teacher: Weights,
        residual: Residual,
        temperature: Sequence[float],
        top_k: int,
    ) -> list[HintScore]:
        """See `trainer.policy.LocalPolicy.score_with_hint`; ``top_k`` is the trainer's."""
        if any(value != 1.0 for value in temperature):
            raise AlignmentError("a Tinker server tells log-probabilities at temperature 1 only")
        pairs = [
            Pair(prompt=tuple(p), hinted=tuple(h), response=tuple(r))
            for p, h, r in zip(prompts, hinted, responses, strict=True)
        ]
        return [
            HintScore(logprobs=tuple(taught.logprobs.tolist()), overlap=taught.overlap)
            for taught in self.taught(pairs, teacher=teacher, residual=residual)
        ]

    def taught(self, pairs: Sequence[Pair], *, teacher: Weights, residual: Residual) -> list[TeacherScore]:
        """What the teacher says of each response, before the step. What was asked once is not asked again."""
        self._check([pair.hinted for pair in pairs], [pair.response for pair in pairs])
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._taught]
        if new:
            residual = residual if teacher is Weights.BASE else NO_RESIDUAL
            self._taught |= dict(zip(new, self._ask_teacher(new, teacher, residual), strict=True))
        return [self._taught[pair] for pair in pairs]

    def _ask_teacher(self, pairs: Sequence[Pair], teacher: Weights, residual: Residual) -> list[TeacherScore]:
        prompts = [pair.prompt for pair in pairs]
        hinted = [pair.hinted for pair in pairs]
        responses = [pair.response for pair in pairs]
        if self.support == "token":
            return self._ask_about_tokens(prompts, hinted, responses, teacher, residual)
        top_teacher = self._likeliest(teacher, hinted, responses)
        top_student = self._likeliest(Weights.STUDENT, prompts, responses)
        overlaps = [
            float(topk_overlap(mine, theirs).mean())
            for (mine, _), (theirs, _) in zip(top_student, top_teacher, strict=True)
        ]
        of_student = self.support == "student"
        supports = [ids for ids, _ in (top_student if of_student else top_teacher)]
        own = [torch.tensor(response)[:, None] for response in responses]
        if not self.abilities.named:
            # The base model's values without the hint are unknown here: the teacher gets no residual.
            logprobs, _ = self._padded_logprobs(self._client(teacher), hinted, responses)
            return [
                TeacherScore(
                    logprobs=logprobs[i, : len(pair.response)],
                    support_ids=ids,
                    support_logprobs=top,
                    overlap=overlap,
                )
                for i, (pair, (ids, top), overlap) in enumerate(
                    zip(pairs, top_teacher, overlaps, strict=True)
                )
            ]
        # The response's own token beside the support; where it is in it already, once is enough.
        wanted = [torch.cat([ids, mine], dim=-1) for ids, mine in zip(supports, own, strict=True)]
        places = [_place(ids == mine) for ids, mine in zip(supports, own, strict=True)]
        values = self._named(teacher, hinted, wanted, responses)
        if residual:
            plain = self._named(Weights.BASE, prompts, wanted, responses)
            student = self._named(Weights.STUDENT, prompts, wanted, responses)
            values = [
                with_residual_on_bins(h, p, s, residual, place)
                for h, p, s, place in zip(values, plain, student, places, strict=True)
            ]
        return [
            TeacherScore(
                logprobs=value[:, -1], support_ids=ids, support_logprobs=value[:, :-1], overlap=overlap
            )
            for value, ids, overlap in zip(values, supports, overlaps, strict=True)
        ]

    def _ask_about_tokens(
        self,
        prompts: Sequence[Sequence[int]],
        hinted: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        teacher: Weights,
        residual: Residual,
    ) -> list[TeacherScore]:
        logprobs, _ = self._padded_logprobs(self._client(teacher), hinted, responses)
        if residual:
            plain, _ = self._padded_logprobs(self._client(Weights.BASE), prompts, responses)
            student, _ = self._padded_logprobs(self._client(Weights.STUDENT), prompts, responses)
            nowhere = torch.full((logprobs.numel(),), -1)
            logprobs = with_residual_on_bins(
                logprobs.reshape(-1, 1), plain.reshape(-1, 1), student.reshape(-1, 1), residual, nowhere
            ).reshape(logprobs.shape)
        return [TeacherScore(logprobs=logprobs[i, : len(response)]) for i, response in enumerate(responses)]

    # -- the gate's measures

    def changes(
        self,
        before: Sequence[Sequence[int]],
        after: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        *,
        before_weights: Weights = Weights.BASE,
        after_weights: Weights = Weights.BASE,
    ) -> list[Change]:
        """How the distributions along each response differ, as far as the server gives them.

        Of the likeliest tokens of both and one bin for the rest; on servers without them, of the response's own token and one bin: a
        lower bound of what `LocalPolicy.changes` measures.
        """
        if self.abilities.top:
            tops = zip(
                self._likeliest(before_weights, before, responses),
                self._likeliest(after_weights, after, responses),
                strict=True,
            )
            return [change_of_likeliest(first, second) for first, second in tops]
        first, mask = self.response_logprobs(before, responses, before_weights)
        second, _ = self.response_logprobs(after, responses, after_weights)
        found = []
        for row, response in enumerate(responses):
            p, q = first[row][mask[row]].double().exp(), second[row][mask[row]].double().exp()
            bins = torch.stack([torch.stack([p, 1 - p]), torch.stack([q, 1 - q])]).clamp(min=1e-12)
            middle = bins.mean(dim=0)
            divergence = 0.5 * (bins * (bins.log() - middle.log())).sum(dim=(0, 1))
            shifts = {
                (place, token): float(moved)
                for place, (token, moved) in enumerate(zip(response, q - p, strict=True))
                if abs(float(moved)) >= LEAST_SHIFT
            }
            found.append(Change(peak=float(divergence.max()), shifts=shifts))
        return found

    @property
    def sees_distributions(self) -> bool:
        """Whether `changes` sees more than the response's own tokens."""
        return self.abilities.top

    def entropy_and_kl(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        weights: Weights,
        *,
        kl: bool,
    ) -> tuple[list[float], list[float]]:
        """Mean entropy and KL to base along each response, nats a token; KL is 0 where it is not asked for.

        Of the K likeliest tokens and one bin for the rest: a lower bound, close where a model is nearly certain. On servers that
        do not tell the likeliest tokens, the surprise of the response's tokens, and the k3 estimate on them.
        """
        nothing = [0.0] * len(responses)
        if not self.abilities.top:
            own, mask = self.response_logprobs(prompts, responses, weights)
            surprise = [float(-own[i][mask[i]].mean()) for i in range(len(own))]
            return surprise, self._k3(own, mask, prompts, responses) if kl else nothing
        top = self._likeliest(weights, prompts, responses)
        entropies = []
        for _, values in top:
            bins = with_tail(values.double())
            entropies.append(float(-(bins.exp() * bins).sum(dim=-1).mean()))
        if not kl:
            return entropies, nothing
        if not self.abilities.named:
            own, mask = self.response_logprobs(prompts, responses, weights)
            return entropies, self._k3(own, mask, prompts, responses)
        base = self._named(Weights.BASE, prompts, [ids for ids, _ in top], responses)
        divergences = []
        for (_, values), plain in zip(top, base, strict=True):
            s, p = with_tail(values.double()), with_tail(plain.double())
            divergences.append(float((s.exp() * (s - p)).sum(dim=-1).mean()))
        return entropies, divergences

    def _k3(
        self, own: Tensor, mask: Tensor, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[float]:
        base, _ = self.response_logprobs(prompts, responses, Weights.BASE)
        values = kl_k3(own, base)
        return [float(values[i][mask[i]].mean()) for i in range(len(own))]

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
        self._taught.clear()

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


def with_residual_on_bins(
    hinted: Tensor, base: Tensor, student: Tensor, residual: Residual, place: Tensor
) -> Tensor:
    """`trainer.losses.with_residual` where only some tokens are known: on these and one bin for all others, [N, M].

    Args:
        hinted, base, student: [N, M] log-probabilities of M tokens.
        place: [N] where among the others the last of the M is once more, and no bin of its own; -1: nowhere.

    Returns:
        [N, M] the teacher's log-probabilities of the same tokens; NaN where something is not known.
    """
    is_twice = place >= 0

    def bins(values: Tensor) -> Tensor:
        last = torch.where(is_twice, LOG_ZERO, values[:, -1].double())
        return with_tail(torch.cat([values[:, :-1].double(), last[:, None]], dim=-1))

    h, p, s = bins(hinted), bins(base), bins(student)
    taught = with_residual(h, p, s, replace(residual, min_p=0.0))
    if hinted.shape[-1] > 1:
        # The bin of all others is no token: what is likely is so beside other tokens, and one alone gives no information.
        named = unlearnt(taught[:, :-1], [part[:, :-1] for part in (h, p, s)], residual.min_p)
        taught = torch.cat([named, taught[:, -1:]], dim=-1)
    result = torch.log_softmax(taught, dim=-1)[:, :-1]
    there = result.gather(-1, place.clamp(min=0)[:, None]).squeeze(-1)
    return torch.cat([result[:, :-1], torch.where(is_twice, there, result[:, -1])[:, None]], dim=-1).float()


def _place(is_it: Tensor) -> Tensor:
    """Column of the first True of each row [N, K]; -1 where there is none."""
    return torch.where(is_it.any(dim=-1), is_it.int().argmax(dim=-1), -1)


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


def change_of_likeliest(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> Change:
    """The change between two distributions along a response that are known by their likeliest tokens.

    A token that only one side lists has no probability on the other: there it is below every listed one.

    Args:
        before, after: ids and log-probabilities, [C, K] each.
    """
    peak = 0.0
    shifts: dict[tuple[int, int], float] = {}
    for place in range(len(before[0])):
        p, q = (
            {
                int(i): math.exp(v)
                for i, v in zip(ids[place].tolist(), logs[place].tolist(), strict=True)
                if i >= 0
            }
            for ids, logs in (before, after)
        )
        pairs = {token: (p.get(token, 0.0), q.get(token, 0.0)) for token in p.keys() | q.keys()}
        rest = (max(0.0, 1.0 - sum(p.values())), max(0.0, 1.0 - sum(q.values())))
        divergence = 0.0
        for a, b in (*pairs.values(), rest):
            middle = (a + b) / 2
            divergence += 0.5 * sum(x * math.log(x / middle) for x in (a, b) if x > 0)
        peak = max(peak, divergence)
        shifts |= {(place, token): b - a for token, (a, b) in pairs.items() if abs(b - a) >= LEAST_SHIFT}
    return Change(peak=peak, shifts=shifts)
