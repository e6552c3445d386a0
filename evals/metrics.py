"""What is measured of a policy, and how the numbers come from its replies. Pure.

Every prompt here is one that no user sends (`evals.preferences.tasks`), and none is among the gate's canaries or the trainer's
anchors. The same prompts and sampling seeds are used at every measurement of a run, so that differences are the policy's.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Literal

from evals.preferences import PREFERENCES, Task, task_kind, tasks, violations
from models.canaries import canaries
from models.corpus import TOOL_KINDS, Errand, errand, offered
from store.errors import ConfigError

#: Replies that self-ROUGE-L compares, pairwise.
_ROUGE_REPLIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One reply as a client sees it.

    Attributes:
        token_ids, logprobs: None where the backend does not report them.
        ended: the policy ended its turn by itself.
        calls: tool calls, (name, arguments as JSON text).
    """

    text: str
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    ended: bool = True
    calls: tuple[tuple[str, str], ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One fresh conversation of one message.

    Attributes:
        kind: plain asks for no manner; undo asks for the opposite of `preference`; tool needs a call.
        expect: of a tool probe: the call's name and arguments.
        seed: of the sampling.
        prefix: a system prompt in front, "" for none.
    """

    kind: Literal["plain", "undo", "tool"]
    text: str
    seed: int
    task: Task | None = None
    preference: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    expect: tuple[str, Mapping[str, Any]] | None = None
    prefix: str = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.prefix}] if self.prefix else []
        return [*system, {"role": "user", "content": self.text}]


@cache
def _trained_errands() -> frozenset[str]:
    return frozenset(case["messages"][0]["content"] for case in canaries()["tools"])


def _unseen_errand(rng: random.Random, kind: str) -> Errand:
    while (work := errand(rng, kind)).text in _trained_errands():
        pass
    return work


def plan_probes(
    preferences: Sequence[str], *, questions: int, undos: int, tools: int, seed: int
) -> tuple[Probe, ...]:
    """Return the probes of a run.

    Args:
        preferences: every one that is ever wanted in it.
        questions: plain ones; where there are fewer tasks than that, tasks are asked again with another sampling seed.
        undos: requests for the opposite, shared out among the preferences.
        tools: requests that need a tool call, none of which is also a canary (those are trained on).

    Raises:
        ConfigError: fewer than one question.
    """
    if questions < 1:
        raise ConfigError("at least one question is needed to measure anything")
    rng = random.Random(f"probes/{seed}")
    pool = list(tasks(task_kind(preferences), asked=False))
    rng.shuffle(pool)
    base = 10_000 * (seed + 1)
    found = [
        Probe(
            kind="plain", text=pool[index % len(pool)].text, task=pool[index % len(pool)], seed=base + index
        )
        for index in range(questions)
    ]
    for index in range(undos):
        name = preferences[index % len(preferences)]
        wordings = PREFERENCES[name].undo
        task = pool[-1 - index % len(pool)]
        found.append(
            Probe(
                kind="undo",
                text=f"{task.text} {wordings[index // len(preferences) % len(wordings)]}",
                task=task,
                preference=name,
                seed=base + 4_000 + index,
            )
        )
    kinds = sorted(TOOL_KINDS)
    for index in range(tools):
        work = _unseen_errand(rng, kinds[index % len(kinds)])
        found.append(
            Probe(
                kind="tool",
                text=work.text,
                tools=tuple(offered(rng, [work])),
                expect=(work.name, work.arguments),
                seed=base + 7_000 + index,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What can only be had from inside: exact values over the very replies that were measured, in nats a token.

    Attributes:
        kl_to_base: KL(policy ‖ base) along the policy's own replies.
        entropy: of the policy along them.
        margin: mean log-probability of preferred answers less that of dispreferred ones to the same question, both written
            by the base model with the wish or its opposite in the question.
    """

    kl_to_base: float | None = None
    entropy: float | None = None
    margin: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Shares in [0, 1] unless told; None where it was not measured.

    Attributes:
        compliance: replies that meet all wishes of now, though nothing was asked of them.
        by_preference: of each preference that is ever wanted.
        facts: right answers among the same replies. tools: right call, with right arguments, of requests that need one.
        undone: explicit requests for the opposite that are obeyed; mean over preferences.
        ended: replies ended by the policy itself. tokens: mean length.
        distinct_1, distinct_2: different words and pairs of words among all of them. self_rouge: mean ROUGE-L of pairs of replies.
        surprise: mean -log-probability of the sampled tokens (an estimate of the entropy a client can make).
        kl_to_base, entropy, margin: see `Numbers`.
    """

    compliance: float
    by_preference: Mapping[str, float]
    facts: float
    tools: float | None
    undone: float | None
    by_undone: Mapping[str, float]
    ended: float
    tokens: float
    distinct_1: float
    distinct_2: float
    self_rouge: float
    surprise: float | None
    questions: int
    kl_to_base: float | None = None
    entropy: float | None = None
    margin: float | None = None
    samples: tuple[tuple[str, str], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        told = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        return {**told, "samples": [list(pair) for pair in self.samples]}


def judge(
    wants: Sequence[str],
    ever: Sequence[str],
    probes: Sequence[Probe],
    answers: Sequence[Answer],
    numbers: Numbers | None = None,
) -> Measures:
    """Return what the answers, in the order of the probes, amount to."""
    pairs = list(zip(probes, answers, strict=True))
    plain = [(probe, probe.task, answer) for probe, answer in pairs if probe.kind == "plain" and probe.task]
    missed = [set(violations(ever, task, answer.text)) for _, task, answer in plain]
    undone: dict[str, list[bool]] = {}
    for probe, answer in pairs:
        if probe.kind == "undo" and probe.preference and probe.task:
            obeyed = PREFERENCES[probe.preference].undone(probe.task, answer.text)
            undone.setdefault(probe.preference, []).append(obeyed)
    called = [_is_called(probe, answer) for probe, answer in pairs if probe.kind == "tool"]
    texts = [answer.text for _, _, answer in plain]
    surprises = [-value for _, _, answer in plain for value in answer.logprobs or ()]
    by_undone = {name: mean(hits) for name, hits in undone.items()}
    numbers = numbers or Numbers()
    return Measures(
        compliance=mean([not names & set(wants) for names in missed]),
        by_preference={name: mean([name not in names for names in missed]) for name in ever},
        facts=mean([task.is_correct(answer.text) for _, task, answer in plain]),
        tools=mean(called) if called else None,
        undone=mean(list(by_undone.values())) if by_undone else None,
        by_undone=by_undone,
        ended=mean([answer.ended for _, _, answer in plain]),
        tokens=mean([answer.completion_tokens for _, _, answer in plain]),
        distinct_1=distinct(texts, 1),
        distinct_2=distinct(texts, 2),
        self_rouge=self_rouge(texts),
        surprise=mean(surprises) if surprises else None,
        questions=len(plain),
        kl_to_base=numbers.kl_to_base,
        entropy=numbers.entropy,
        margin=numbers.margin,
        samples=tuple((probe.text, answer.text) for probe, _, answer in plain[:6]),
    )


def _is_called(probe: Probe, answer: Answer) -> bool:
    """Exactly the call that was needed; arguments compared as JSON values."""
    assert probe.expect is not None
    name, arguments = probe.expect
    if len(answer.calls) != 1 or answer.calls[0][0] != name:
        return False
    try:
        return bool(json.loads(answer.calls[0][1]) == dict(arguments))
    except ValueError:
        return False


# ------------------------------------------------------------------ text


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def distinct(texts: Sequence[str], size: int) -> float:
    """Return the share of different n-grams of words among all of them (Li et al. 2016)."""
    grams = [
        tuple(words[at : at + size]) for words in map(words_of, texts) for at in range(len(words) - size + 1)
    ]
    return len(set(grams)) / len(grams) if grams else 0.0


def self_rouge(texts: Sequence[str]) -> float:
    """Return the mean ROUGE-L (F1) over pairs of replies to different questions: 1 is one reply to everything."""
    rows = [words_of(text) for text in texts[:_ROUGE_REPLIES]]
    scores = [
        rouge_l(left, right)
        for index, left in enumerate(rows)
        for right in rows[index + 1 :]
        if left or right
    ]
    return mean(scores)


def rouge_l(left: Sequence[str], right: Sequence[str]) -> float:
    """Return the F1 of the longest common subsequence (Lin 2004)."""
    if not left or not right:
        return 0.0
    row = [0] * (len(right) + 1)
    for word in left:
        before = 0
        for column, other in enumerate(right, 1):
            above = row[column]
            row[column] = before + 1 if word == other else max(above, row[column - 1])
            before = above
    return 2.0 * row[-1] / (len(left) + len(right))


# ------------------------------------------------------------------ statistics

#: Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
)


def mean(values: Sequence[float | bool]) -> float:
    """Return the mean; 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the half-open truth about a mean over seeds: its 95 % confidence interval by Student's t.

    One value says nothing about its spread: the interval is then infinite.
    """
    centre, count = mean(values), len(values)
    if count < 2:
        return -math.inf, math.inf
    spread = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (count - 1))
    half = (_T[count - 2] if count - 2 < len(_T) else 1.96) * spread / math.sqrt(count)
    return centre - half, centre + half
