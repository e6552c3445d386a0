"""What is examined: something that answers, and may learn from what is said to it.

LiveSubject         a running Patina through its public API: what is claimed is measured so
evals.fast          the trainer's own step in this process: for sweeps
Remembering         either of them that does not learn, with a system prompt of collected complaints
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from openai.types.chat import ChatCompletion

from evals.client import House, live_version
from evals.measure import opted_out, require_no_trace
from evals.metrics import Answer, Numbers, Probe
from scorers.reactions import read_reaction
from store.errors import UpstreamError
from store.settings import REPOSITORY, child_environment
from store.values import Json

#: Requests in flight at once.
CONCURRENCY = 8
#: Complaints a memory holds; the oldest goes first.
MEMORY_ENTRIES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of a person. `conversation` tells which words are a reaction to which reply."""

    conversation: int
    messages: tuple[dict[str, Any], ...]


@dataclass(slots=True, kw_only=True)
class Cost:
    """What learning took. `context_tokens`: what a memory adds to every prompt."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    published: int = 0
    rejected: int = 0
    training_s: float = 0.0
    context_tokens: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)


class Subject(Protocol):
    """See the head of this file."""

    cost: Cost

    @property
    def version(self) -> int:
        """The version that is live; 0 is the bare model."""
        ...

    async def converse(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer people; what they say may be learnt from."""
        ...

    async def probe(self, probes: Sequence[Probe], *, exact: bool) -> tuple[list[Answer], Numbers | None]:
        """Answer probes, and learn nothing from them. ``exact``: also what can only be known from inside, if it can."""
        ...

    async def settle(self, *, at_end: bool = False) -> None:
        """Let it make of what was said what it will for now."""
        ...

    async def versions(self) -> list[Json]:
        """Every version with why it was made: version, state, reason, and some of its metrics."""
        ...


class LiveSubject:
    """A running Patina.

    Args:
        learns: False: what people say opts out of training, so that nothing is learnt from it.
        pause_every: replies between two pauses.
        home: of a house of our own, for `versions`.
    """

    def __init__(
        self,
        house: House,
        *,
        learns: bool,
        batch_size: int,
        pause_every: int = 0,
        pause_s: float = 30.0,
        home: Path | None = None,
    ) -> None:
        self.cost = Cost()
        self.late_pauses = 0
        self._house = house
        self._learns = learns
        self._batch_size = batch_size
        self._pause_every = pause_every or batch_size
        self._pause_s = pause_s
        self._home = home
        self._since_pause = 0
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    async def converse(self, asks: Sequence[Ask]) -> list[Answer]:
        answers = await asyncio.gather(
            *(self._ask(ask.messages, trains=self._learns, seed=None) for ask in asks)
        )
        self._since_pause += len(asks)
        for answer in answers:
            self.cost.prompt_tokens += answer.prompt_tokens
            self.cost.completion_tokens += answer.completion_tokens
        return list(answers)

    async def probe(self, probes: Sequence[Probe], *, exact: bool) -> tuple[list[Answer], Numbers | None]:
        before = opted_out(await self._house.status())
        gate = asyncio.Semaphore(CONCURRENCY)

        async def ask(probe: Probe) -> Answer:
            async with gate:
                return await self._ask(probe.messages, trains=False, seed=probe.seed, tools=probe.tools)

        answers = await asyncio.gather(*(ask(probe) for probe in probes))
        await require_no_trace(self._house, before + len(probes))
        status = await self._house.status()
        metrics = (status.get("last_step") or {}).get("metrics") or {}
        kl = metrics.get("kl_to_base")
        # The trainer's own number, on the turns it trained: a client cannot know the base model's log-probabilities.
        return list(answers), Numbers(kl_to_base=float(kl)) if isinstance(kl, int | float) else None

    async def settle(self, *, at_end: bool = False) -> None:
        if not self._learns or (self._since_pause < self._pause_every and not at_end):
            return
        self._since_pause = 0
        if not await self._house.settle(batch_size=self._batch_size, timeout_s=self._pause_s):
            self.late_pauses += 1
        status = await self._house.status()
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
        # The command a person would give; the record of a house is nobody else's business.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(REPOSITORY / "run.py"),
            "versions",
            "--json",
            f"--home={self._home}",
            f"--served-model-name={await self._house.model()}",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            env=child_environment(),
        )
        told, wrong = await process.communicate()
        if process.returncode:
            raise UpstreamError(f"run.py versions failed: {wrong.decode(errors='replace').strip()}")
        rows: list[Json] = json.loads(told)["versions"]
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
        _, completion = await self._house.ask(
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
    """What a report says of a version."""
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
    """The gate's measures without the breakdown by style; `bench.gate` tells how they are distributed."""
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
        told = measures.get(side) or {}
        found[side] = {name: told[name] for name in kept if isinstance(told.get(name), int | float)}
        if told.get("kl_by_style"):
            found[side]["kl_worst"] = max(told["kl_by_style"].values())
    return found


def memory_prompt(entries: Sequence[str]) -> str:
    """The system prompt that tells what was complained about before."""
    return "What this user has asked for before: " + " ".join(entries)


class Remembering:
    """A prompt memory: what people complained about, in their own words, in front of every request.

    The baseline of everybody who does not train: it costs context in each request, and is gone when it is taken away
    (`without_memory`).
    """

    def __init__(self, inner: Subject) -> None:
        self._inner = inner
        self.cost = inner.cost
        self.entries: list[str] = []
        self._replies: dict[int, str] = {}

    @property
    def version(self) -> int:
        return self._inner.version

    @property
    def without_memory(self) -> Subject:
        return self._inner

    async def converse(self, asks: Sequence[Ask]) -> list[Answer]:
        for ask in asks:
            reply = self._replies.pop(ask.conversation, None)
            if reply is not None and len(ask.messages) > 1:
                self._note(str(ask.messages[-1]["content"]), reply)
        answers = await self._inner.converse(
            [replace(ask, messages=self._with_memory(ask.messages)) for ask in asks]
        )
        for ask, answer in zip(asks, answers, strict=True):
            self._replies[ask.conversation] = answer.text
        return answers

    async def probe(self, probes: Sequence[Probe], *, exact: bool) -> tuple[list[Answer], Numbers | None]:
        if not self.entries:
            return await self._inner.probe(probes, exact=exact)
        remembered = [replace(probe, prefix=self._prompt()) for probe in probes]
        found = await self._inner.probe(remembered, exact=exact)
        bare, _ = await self._inner.probe(probes[:1], exact=False)
        self.cost.context_tokens = found[0][0].prompt_tokens - bare[0].prompt_tokens
        return found

    async def settle(self, *, at_end: bool = False) -> None:
        await self._inner.settle(at_end=at_end)

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
