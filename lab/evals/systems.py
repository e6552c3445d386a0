"""Systems under test: each answers requests and may learn from the reactions.

LiveSystem          a running Patina through its public API; published numbers are measured with it
PromptMemory        the same without learning, with a system prompt of collected complaints
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from openai.types.chat import ChatCompletion

from lab.evals.client import PatinaClient, live_version
from lab.evals.metrics import Answer, Numbers, Probe
from scorers.reactions import read_reaction
from store.errors import UpstreamError
from store.settings import child_environment
from store.values import Json

#: Requests in flight at once.
CONCURRENCY = 8
#: Seconds that the row of a turn may come later than its reply.
RECORD_WAIT_S = 10.0
#: Complaints a memory holds; the oldest goes first.
MEMORY_ENTRIES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRequest:
    """One request of a user. Requests of one `conversation` react to its replies."""

    conversation: int
    messages: tuple[dict[str, Any], ...]


@dataclass(slots=True, kw_only=True)
class Cost:
    """Cost of learning. `context_tokens`: what a prompt memory adds to each prompt."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    published: int = 0
    rejected: int = 0
    training_s: float = 0.0
    context_tokens: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)


class System(Protocol):
    """A system under test."""

    cost: Cost

    @property
    def version(self) -> int:
        """The live adapter version; 0 is the base model."""
        ...

    async def converse(self, requests: Sequence[SystemRequest]) -> list[Answer]:
        """Answer users; the system may learn from what they write."""
        ...

    async def probe(self, probes: Sequence[Probe], *, exact: bool) -> tuple[list[Answer], Numbers | None]:
        """Answer probes without learning from them. ``exact``: also return `Numbers`, where the system has them."""
        ...

    async def wait_for_training(self, *, at_end: bool = False) -> None:
        """Wait until the reactions so far are trained on, as far as they will be now."""
        ...

    async def versions(self) -> list[Json]:
        """Return every version: number, state, reason and some metrics."""
        ...


async def require_no_trace(client: PatinaClient, expected: int) -> None:
    """Check that all probes so far opted out of training: a probe that trains shows the policy what it is measured on.

    Args:
        expected: the least count of turns that opted out.

    Raises:
        UpstreamError: probes were recorded as conversations.
    """
    give_up = time.monotonic() + RECORD_WAIT_S
    while (found := opted_out(await client.status())) < expected:
        if time.monotonic() > give_up:
            raise UpstreamError(
                f"{expected - found} probes were recorded as conversations although they sent X-Patina-Train: off"
            )
        await asyncio.sleep(0.2)


def opted_out(status: Mapping[str, Any]) -> int:
    """Return how many turns opted out of training."""
    return int((status.get("drop_reasons") or {}).get("opted_out", 0))


class LiveSystem:
    """A running Patina.

    Args:
        learns: False: every request opts out of training.
        pause_every: replies between two pauses.
        home: of a Patina that this process started, for `versions`.
        version: the version that is live at the start.
    """

    def __init__(
        self,
        client: PatinaClient,
        *,
        learns: bool,
        batch_size: int,
        pause_every: int = 0,
        pause_s: float = 120.0,
        home: Path | None = None,
        version: int = 0,
    ) -> None:
        self.cost = Cost()
        self.late_pauses = 0
        self._client = client
        self._learns = learns
        self._batch_size = batch_size
        self._pause_every = pause_every or batch_size
        self._pause_s = pause_s
        self._home = home
        self._since_pause = 0
        self._version = version

    @property
    def version(self) -> int:
        return self._version

    async def converse(self, requests: Sequence[SystemRequest]) -> list[Answer]:
        answers = await asyncio.gather(
            *(self._ask(request.messages, trains=self._learns, seed=None) for request in requests)
        )
        self._since_pause += len(requests)
        for answer in answers:
            self.cost.prompt_tokens += answer.prompt_tokens
            self.cost.completion_tokens += answer.completion_tokens
        return list(answers)

    async def probe(self, probes: Sequence[Probe], *, exact: bool) -> tuple[list[Answer], Numbers | None]:
        before = opted_out(await self._client.status())
        gate = asyncio.Semaphore(CONCURRENCY)

        async def ask(probe: Probe) -> Answer:
            async with gate:
                return await self._ask(probe.messages, trains=False, seed=probe.seed, tools=probe.tools)

        answers = await asyncio.gather(*(ask(probe) for probe in probes))
        await require_no_trace(self._client, before + len(probes))
        status = await self._client.status()
        metrics = (status.get("last_step") or {}).get("metrics") or {}
        kl = metrics.get("kl_to_base")
        # The trainer's own number, on the turns it trained: a client cannot know the base model's log-probabilities.
        return list(answers), Numbers(kl_to_base=float(kl)) if isinstance(kl, int | float) else None

    async def wait_for_training(self, *, at_end: bool = False) -> None:
        if not self._learns or (self._since_pause < self._pause_every and not at_end):
            return
        self._since_pause = 0
        if not await self._client.wait_until_idle(batch_size=self._batch_size, timeout_s=self._pause_s):
            self.late_pauses += 1
        status = await self._client.status()
        self._version = live_version(status)
        found = status.get("versions") or {}
        self.cost.published = int(found.get("published", 0))
        self.cost.rejected = int(found.get("rejected", 0))
        self.cost.steps = self.cost.published + self.cost.rejected
        self.cost.dropped = {
            name: count for name, count in (status.get("drop_reasons") or {}).items() if name != "opted_out"
        }

    async def versions(self) -> list[Json]:
        if self._home is None:
            return []
        # By the command line, as a user would: the record belongs to that Patina.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cli",
            "versions",
            "--json",
            f"--home={self._home}",
            f"--served-model-name={await self._client.model()}",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
        )
        output, errors = await process.communicate()
        if process.returncode:
            raise UpstreamError(f"run.py versions failed: {errors.decode(errors='replace').strip()}")
        rows: list[Json] = json.loads(output)["versions"]
        for row in rows:
            self.cost.training_s += float(row["metrics"].get("train_s", 0.0))
        return [brief_version(row["version"], row["state"], row["reason"], row["metrics"]) for row in rows]

    async def _ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        trains: bool,
        seed: int | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        _, completion = await self._client.ask(
            messages, trains=trains, seed=seed, tools=tools, logprobs=not trains
        )
        return _answer(completion)


def _answer(completion: ChatCompletion) -> Answer:
    choice = completion.choices[0]
    listed = choice.logprobs.content if choice.logprobs is not None else None
    usage = completion.usage
    return Answer(
        text=choice.message.content or "",
        logprobs=tuple(one.logprob for one in listed) if listed else None,
        ended=choice.finish_reason in ("stop", "tool_calls"),
        calls=tuple(
            (call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        ),
        prompt_tokens=usage.prompt_tokens if usage else 0,
        completion_tokens=usage.completion_tokens if usage else 0,
    )


def brief_version(version: int, state: str, reason: str, metrics: Mapping[str, Any]) -> Json:
    """Return the values of a version for a report."""
    kept = (
        "turns",
        "loss",
        "kl_to_base",
        "kl_step",
        "learning_rate",
        "optimizer_steps",
        "anchors",
        "train_s",
    )
    return {
        "version": version,
        "state": state,
        "reason": reason,
        **{name: metrics[name] for name in kept if isinstance(metrics.get(name), int | float)},
        "gate": _brief_gate(metrics.get("gate") or {}),
    }


def _brief_gate(measures: Mapping[str, Any]) -> Json:
    """Return the gate's measures without the breakdown by style."""
    kept = (
        "facts",
        "tools",
        "obeyed",
        "empty",
        "distinct",
        "ends",
        "plain_length",
        "length",
        "entropy",
        "kl",
    )
    found: Json = {}
    for side in ("base", "after"):
        values = measures.get(side) or {}
        found[side] = {name: values[name] for name in kept if isinstance(values.get(name), int | float)}
        if values.get("kl_by_style"):
            found[side]["kl_worst"] = max(values["kl_by_style"].values())
    return found


def memory_prompt(entries: Sequence[str]) -> str:
    """Return a system prompt with these complaints."""
    return "What this user has asked for before: " + " ".join(entries)


class PromptMemory:
    """Puts the complaints so far, in the users' words, into the system prompt of every request.

    The baseline without training: it costs context in each request, and its effect ends with it (`without_memory`).
    """

    def __init__(self, inner: System) -> None:
        self._inner = inner
        self.cost = inner.cost
        self.entries: list[str] = []
        self._replies: dict[int, str] = {}

    @property
    def version(self) -> int:
        return self._inner.version

    @property
    def without_memory(self) -> System:
        return self._inner

    async def converse(self, requests: Sequence[SystemRequest]) -> list[Answer]:
        for request in requests:
            reply = self._replies.pop(request.conversation, None)
            if reply is not None and len(request.messages) > 1:
                self._note(str(request.messages[-1]["content"]), reply)
        answers = await self._inner.converse(
            [replace(request, messages=self._with_memory(request.messages)) for request in requests]
        )
        for request, answer in zip(requests, answers, strict=True):
            self._replies[request.conversation] = answer.text
        return answers

    async def probe(self, probes: Sequence[Probe], *, exact: bool) -> tuple[list[Answer], Numbers | None]:
        if not self.entries:
            return await self._inner.probe(probes, exact=exact)
        remembered = [replace(probe, prefix=f"{self._prompt()}\n{probe.prefix}".strip()) for probe in probes]
        found = await self._inner.probe(remembered, exact=exact)
        bare, _ = await self._inner.probe(probes[:1], exact=False)
        self.cost.context_tokens = found[0][0].prompt_tokens - bare[0].prompt_tokens
        return found

    async def wait_for_training(self, *, at_end: bool = False) -> None:
        await self._inner.wait_for_training(at_end=at_end)

    async def versions(self) -> list[Json]:
        return await self._inner.versions()

    def _note(self, words: str, reply: str) -> None:
        reaction = read_reaction(words, reply=reply)
        if reaction.hint and reaction.value != 1:
            entry = " ".join(reaction.hint.split())
            older = [one for one in self.entries if one != entry]
            self.entries = [*older[-(MEMORY_ENTRIES - 1) :], entry]

    def _prompt(self) -> str:
        return memory_prompt(self.entries)

    def _with_memory(self, messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
        if not self.entries:
            return tuple(messages)
        return ({"role": "system", "content": self._prompt()}, *messages)
