"""A system under test that learns in this process (`lab.evals.in_process`), for sweeps.

Its `Numbers` are exact.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any, Self

import torch

from lab.evals.in_process import InProcessLearner, PendingReply
from lab.evals.metrics import Answer, Numbers, Probe, mean
from lab.evals.preferences import PREFERENCES, Task
from lab.evals.systems import Cost, SystemRequest, brief_version
from serving.openai_server.toolcalls import ToolCall, ToolCallParser
from store.settings import read_settings
from store.values import Json
from trainer.protocol import Reply, Weights

#: Replies that are read at once for exact numbers.
_READ_ROWS = 16
#: Pairs of answers a margin is measured on.
_MARGIN_PAIRS = 24

#: A question, and a preferred and a dispreferred answer to it.
Pair = tuple[str, tuple[int, ...], tuple[int, ...]]


class InProcessSystem:
    """See `lab.evals.systems.System`. Use as a context manager: its versions are in a folder that is removed at exit.

    Args:
        settings: what to learn and how, by name.
        learns: False: reactions are not scored.
        preferences: for the margin.

    Raises:
        ConfigError: wrong settings, or no such model.
    """

    def __init__(
        self, settings: dict[str, Any], *, learns: bool, seed: int, preferences: Sequence[str]
    ) -> None:
        self.cost = Cost()
        self._folder = tempfile.TemporaryDirectory(prefix="patina-")
        self._learns = learns
        self._seed = seed
        self._preferences = tuple(preferences)
        self._learner = InProcessLearner(read_settings({**settings, "seed": seed, "home": self._folder.name}))
        self._policy = self._learner.policy
        self._pending: dict[int, PendingReply] = {}
        self._versions: list[Json] = []
        self._pairs: list[Pair] | None = None
        self._round = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    @property
    def version(self) -> int:
        return self._learner.version

    # ------------------------------------------------------------------ talking

    async def converse(self, requests: Sequence[SystemRequest]) -> list[Answer]:
        prompts = [self._policy.render(request.messages) for request in requests]
        self._round += 1
        replies = self._learner.sample(prompts, seed=100_003 * self._seed + self._round)
        answers = []
        for request, prompt, reply in zip(requests, prompts, replies, strict=True):
            pending = self._pending.pop(request.conversation, None)
            if pending is not None and self._learns:
                drop = self._learner.add_reaction(pending, str(request.messages[-1]["content"]))
                if drop is not None:
                    self._drop(drop.value)
            answer = self._answer(prompt, reply)
            self.cost.prompt_tokens += answer.prompt_tokens
            self.cost.completion_tokens += answer.completion_tokens
            self._pending[request.conversation] = self._learner.record_reply(
                session=str(request.conversation), messages=request.messages, prompt_ids=prompt, reply=reply
            )
            answers.append(answer)
        return answers

    def _answer(self, prompt: Sequence[int], reply: Reply) -> Answer:
        # Tool calls are parsed from markup, so special tokens stay, except the end of the turn.
        ids = list(reply.token_ids[:-1] if reply.finished else reply.token_ids)
        parser = ToolCallParser()
        marked = str(self._policy.tokenizer.decode(ids))
        calls = [part for part in (*parser.feed(marked), *parser.flush()) if isinstance(part, ToolCall)]
        return Answer(
            text=self._policy.decode(reply.token_ids),
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            ended=reply.finished,
            calls=tuple((call.name, call.arguments) for call in calls),
            prompt_tokens=len(prompt),
            completion_tokens=len(reply.token_ids),
        )

    # ----------------------------------------------------------------- learning

    def _drop(self, reason: str) -> None:
        self.cost.dropped[reason] = self.cost.dropped.get(reason, 0) + 1

    async def wait_for_training(self, *, at_end: bool = False) -> None:
        while self._train():
            pass

    def _train(self) -> bool:
        """Take a step if there is a batch; returns whether there was."""
        started = time.monotonic()
        attempt = self._learner.train()
        if attempt is None:
            return False
        outcome = attempt.outcome
        for refusal in outcome.refused.values():
            self._drop(refusal.reason.value)
        if outcome.written is not None:
            self.cost.steps += int(outcome.metrics.get("optimizer_steps", 0))
            if outcome.rejected:
                self.cost.rejected += 1
            else:
                self.cost.published += 1
            state = "rejected" if outcome.rejected else "published"
            reason = "; ".join((outcome.reason, *outcome.rejected))
            self._versions.append(brief_version(attempt.number, state, reason, outcome.metrics))
        self.cost.training_s += time.monotonic() - started
        return True

    async def versions(self) -> list[Json]:
        return list(self._versions)

    # ---------------------------------------------------------------- measuring

    async def probe(self, probes: Sequence[Probe], *, exact: bool) -> tuple[list[Answer], Numbers | None]:
        prompts = [self._policy.render(probe.messages, probe.tools or None) for probe in probes]
        replies = self._learner.sample(prompts, seed=probes[0].seed)
        answers = [self._answer(prompt, reply) for prompt, reply in zip(prompts, replies, strict=True)]
        if not exact:
            return answers, None
        plain = [index for index, probe in enumerate(probes) if probe.kind == "plain"]
        kl, entropy = self._read([prompts[i] for i in plain], [replies[i].token_ids for i in plain])
        return answers, Numbers(kl_to_base=kl, entropy=entropy, margin=self._margin(probes))

    @torch.no_grad()
    def _read(
        self, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
    ) -> tuple[float, float]:
        """KL(policy ‖ base) and the policy's entropy along these replies, mean nats a token."""
        divergences: list[float] = []
        entropies: list[float] = []
        for start in range(0, len(prompts), _READ_ROWS):
            some = prompts[start : start + _READ_ROWS], replies[start : start + _READ_ROWS]
            own, mask = self._policy.response_logits(*some)
            base, _ = self._policy.response_logits(*some, Weights.BASE)
            s, p = torch.log_softmax(own[mask], dim=-1), torch.log_softmax(base[mask], dim=-1)
            divergences += (s.exp() * (s - p)).sum(dim=-1).tolist()
            entropies += torch.special.entr(s.exp()).sum(dim=-1).tolist()
        return mean(divergences), mean(entropies)

    def _margin(self, probes: Sequence[Probe]) -> float | None:
        """How much likelier preferred answers are than dispreferred ones, nats a token; see `Numbers`."""
        if self._pairs is None:
            self._pairs = self._contrast(probes)
        if not self._pairs:
            return None
        system = [{"role": "system", "content": probes[0].prefix}] if probes[0].prefix else []
        prompts = [
            self._policy.render([*system, {"role": "user", "content": text}]) for text, _, _ in self._pairs
        ]
        scores = []
        for answers in ([good for _, good, _ in self._pairs], [bad for _, _, bad in self._pairs]):
            values, mask = self._policy.response_logprobs(prompts, answers)
            sums = torch.where(mask, values, 0.0).sum(dim=-1) / mask.sum(dim=-1)
            scores.append(sums.tolist())
        return mean([good - bad for good, bad in zip(*scores, strict=True)])

    def _contrast(self, probes: Sequence[Probe]) -> list[Pair]:
        """Answers of the base model with a wish and with its opposite in the question, where both came out as asked."""
        cases: list[tuple[str, Task]] = [
            (self._preferences[index % len(self._preferences)], probe.task)
            for index, probe in enumerate(probes[:_MARGIN_PAIRS])
            if probe.task is not None
        ]
        replies = []
        for is_wish in (True, False):
            asked = [
                f"{task.text} {PREFERENCES[name].wish if is_wish else PREFERENCES[name].undo[0]}"
                for name, task in cases
            ]
            prompts = [self._policy.render([{"role": "user", "content": text}]) for text in asked]
            replies.append(self._learner.sample(prompts, seed=self._seed, weights=Weights.BASE))
        found: list[Pair] = []
        for (name, task), good, bad in zip(cases, *replies, strict=True):
            complies = PREFERENCES[name].complies
            if complies(task, self._policy.decode(good.token_ids)) and not complies(
                task, self._policy.decode(bad.token_ids)
            ):
                found.append((task.text, good.token_ids, bad.token_ids))
        return found
