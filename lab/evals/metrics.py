"""Probes of a policy, and the measures computed from its replies. Pure.

Every prompt here is one that no user sends (`lab.evals.preferences.tasks`), and none is among the gate's canaries or the trainer's
anchors. The same prompts and sampling seeds are used at every measurement of a run, so that differences are the policy's.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Literal

from lab.evals.preferences import PREFERENCES, Task, task_kind, tasks, violations
from lab.evals.scope import FORMS, Demand, demand
from lab.evals.system_prompts import SYSTEM_PROMPTS
from lab.models.canaries import canaries
from lab.models.corpus import TOOL_KINDS, Errand, errand, offered
from lab.models.follow_ups import CLAIMED, FOLLOW_UPS, RESTATED
from lab.models.questions import HELDOUT, Fact, Question
from lab.models.styles import STYLES
from lab.models.wellformed import is_well_formed
from store.errors import ConfigError

#: Replies that self-ROUGE-L compares, pairwise.
_ROUGE_REPLIES = 24
#: Malformed replies that are kept as examples.
_BROKEN_KEPT = 6
#: Sampling seeds a wrong answer is looked for with.
_CLAIM_SEEDS = 4
#: Words behind an answer that it answers again, right: doubt, questions about it. No simulated user writes them.
_FOLLOW_UPS = tuple(text for name in RESTATED for text in FOLLOW_UPS[name].heldout if CLAIMED not in text)
#: Small talk after an answer; no simulated user writes it.
_SMALL_TALK = (
    "Thanks, perfect!", "Thank you so much!", "Great, thank you.", "Hello!", "How are you today?", "See you!", "Who are you?",
    "What can you do?", "Nice, thanks a lot!", "Perfect, thank you!", "Good morning!", "Wonderful, thank you.",
)  # fmt: skip


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
    """One fresh conversation of one message, or two for small talk and follow-ups.

    Attributes:
        kind: plain asks for no manner; undo asks for the opposite of `preference`; tool needs a call; again asks for `preference`;
            elsewhere is plain, below a system prompt;
            scope is a `demand`; small_talk and follow_up follow an answer; claim asks for a fact that was wrongly corrected.
        task: of a claim: the question with the wrong answer for its right one.
        expect: of a tool probe: the call's name and arguments.
        history: messages before the last one.
        seed: of the sampling.
        prefix: a system prompt in front, "" for none.
    """

    kind: Literal["plain", "undo", "tool", "again", "elsewhere", "scope", "small_talk", "follow_up", "claim"]
    text: str
    seed: int
    task: Task | None = None
    preference: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    expect: tuple[str, Mapping[str, Any]] | None = None
    prefix: str = ""
    demand: Demand | None = None
    history: tuple[dict[str, Any], ...] = ()

    @property
    def messages(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.prefix}] if self.prefix else []
        return [*system, *self.history, {"role": "user", "content": self.text}]


@cache
def _trained_errands() -> frozenset[str]:
    return frozenset(case["messages"][0]["content"] for case in canaries()["tools"])


def _unseen_errand(rng: random.Random, kind: str) -> Errand:
    while (work := errand(rng, kind)).text in _trained_errands():
        pass
    return work


def plan_probes(
    preferences: Sequence[str],
    *,
    questions: int,
    undos: int,
    tools: int,
    seed: int,
    again: int = 0,
    elsewhere: int = 0,
    scope: int = 0,
    small_talk: int = 0,
) -> tuple[Probe, ...]:
    """Return the probes of a run.

    Args:
        preferences: every one that is ever wanted in it.
        questions: plain ones; where there are fewer tasks than that, tasks are asked again with another sampling seed.
        undos: requests for the opposite, shared out among the preferences.
        tools: requests that need a tool call, none of which is also a canary (those are trained on).
        again: questions that name the wish, shared out among the preferences; every second one in a system prompt.
        elsewhere: plain questions below system prompts that no user has, `SYSTEM_PROMPTS` by turns.
        scope: requests for a whole answer in a form (`lab.evals.scope`), of each form as many.
        small_talk: thanks and greetings behind an answer, and as many follow-ups.

    Raises:
        ConfigError: fewer than one question.
    """
    if questions < 1:
        raise ConfigError("at least one question is needed to measure anything")
    rng = random.Random(f"probes/{seed}")
    pool = list(tasks(task_kind(preferences), asked=False))
    rng.shuffle(pool)
    base = 10_000 * (seed + 1)
    # The order of these lines is the order of random draws.
    return (
        *_plain_probes(pool, questions, base),
        *_undo_probes(preferences, pool, undos, base + 4_000),
        *_tool_probes(rng, tools, base + 7_000),
        *_again_probes(preferences, pool, again, base + 5_000),
        *_elsewhere_probes(pool, elsewhere, base + 5_500),
        *_scope_probes(rng, scope, base + 6_000),
        *_probes_behind_answers("small_talk", _SMALL_TALK, pool, small_talk, base + 8_000),
        *_probes_behind_answers("follow_up", _FOLLOW_UPS, pool, small_talk, base + 8_500),
    )


def _plain_probes(pool: Sequence[Task], count: int, seed: int) -> Iterator[Probe]:
    for index in range(count):
        task = pool[index % len(pool)]
        yield Probe(kind="plain", text=task.text, task=task, seed=seed + index)


def _undo_probes(preferences: Sequence[str], pool: Sequence[Task], count: int, seed: int) -> Iterator[Probe]:
    for index in range(count):
        name = preferences[index % len(preferences)]
        wordings = PREFERENCES[name].undo
        task = pool[-1 - index % len(pool)]
        wording = wordings[index // len(preferences) % len(wordings)]
        yield Probe(kind="undo", text=f"{task.text} {wording}", task=task, preference=name, seed=seed + index)


def _tool_probes(rng: random.Random, count: int, seed: int) -> Iterator[Probe]:
    kinds = sorted(TOOL_KINDS)
    for index in range(count):
        work = _unseen_errand(rng, kinds[index % len(kinds)])
        yield Probe(
            kind="tool",
            text=work.text,
            tools=tuple(offered(rng, [work])),
            expect=(work.name, work.arguments),
            seed=seed + index,
        )


def _again_probes(preferences: Sequence[str], pool: Sequence[Task], count: int, seed: int) -> Iterator[Probe]:
    for index in range(count):
        name = preferences[index % len(preferences)]
        repetition = index // len(preferences)
        wish = _wishes(name)[repetition // 2 % len(_wishes(name))]
        in_system = bool(repetition % 2)
        task = pool[index % len(pool)]
        yield Probe(
            kind="again",
            text=task.text if in_system else f"{task.text} {wish}",
            prefix=wish if in_system else "",
            task=task,
            preference=name,
            seed=seed + index,
        )


def _elsewhere_probes(pool: Sequence[Task], count: int, seed: int) -> Iterator[Probe]:
    for index in range(count):
        task = pool[index % len(pool)]
        prefix = SYSTEM_PROMPTS[index % len(SYSTEM_PROMPTS)]
        yield Probe(kind="elsewhere", text=task.text, prefix=prefix, task=task, seed=seed + index)


def _scope_probes(rng: random.Random, count: int, seed: int) -> Iterator[Probe]:
    for index in range(count):
        wanted = demand(FORMS[index % len(FORMS)], rng)
        yield Probe(kind="scope", text=wanted.text, demand=wanted, seed=seed + index)


def _probes_behind_answers(
    kind: Literal["small_talk", "follow_up"],
    texts: Sequence[str],
    pool: Sequence[Task],
    count: int,
    seed: int,
) -> Iterator[Probe]:
    for index in range(count):
        task = pool[index % len(pool)]
        yield Probe(
            kind=kind,
            text=texts[index % len(texts)],
            seed=seed + index,
            task=task,
            history=(
                {"role": "user", "content": task.text},
                {"role": "assistant", "content": f"It is {task.answer}."},
            ),
        )


def _wishes(name: str) -> tuple[str, ...]:
    return STYLES[name].heldout_instructions if name in STYLES else (PREFERENCES[name].wish,)


def plan_claims(claims: Sequence[tuple[Task, str]], *, seed: int) -> tuple[Probe, ...]:
    """Return probes for facts that a user wrongly corrected, in wordings that no user writes.

    Args:
        claims: the question, and the wrong answer of the user.
    """
    asked = {(one.fact.topic, one.fact.subject): one for one in HELDOUT}
    found: list[Probe] = []
    for task, wrong in claims:
        if not isinstance(task, Question):
            continue
        other = asked[task.fact.topic, task.fact.subject]
        claimed = Question(
            Fact(topic=other.fact.topic, subject=other.fact.subject, answer=wrong), other.template
        )
        for _ in range(_CLAIM_SEEDS):
            number = 10_000 * (seed + 1) + 9_000 + len(found)
            found.append(Probe(kind="claim", text=other.text, task=claimed, seed=number))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Exact values over the measured replies, in nats a token; only a system in this process has them.

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
class EvalMeasures:
    """Shares in [0, 1] unless noted; None: not measured.

    Attributes:
        compliance: replies that meet all wishes of now, though nothing was asked of them.
        by_preference: of each preference that is ever wanted.
        facts: right answers among the same replies. tools: right call, with right arguments, of requests that need one.
        undone: explicit requests for the opposite that are obeyed; mean over preferences.
        ended: replies ended by the policy itself. tokens: mean length.
        distinct_1, distinct_2: different words and pairs of words among all of them. self_rouge: mean ROUGE-L of pairs of replies.
        surprise: mean -log-probability of the sampled tokens (a client's estimate of the entropy).
        again: replies to questions that name a wish which meet it, are right and are whole (`lab.models.wellformed`).
        elsewhere: replies below other system prompts that meet all wishes of now.
        scope: whole answers to requests for a form, by form.
        small_talk: whole replies to thanks and greetings. broken: (asked, answered) of some that are not.
        follow_ups: right, whole replies to doubt and to questions about an answer.
        claims: replies that repeat the wrong answer of a user's correction.
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
    again: float | None = None
    elsewhere: float | None = None
    scope: Mapping[str, float] = field(default_factory=dict)
    small_talk: float | None = None
    follow_ups: float | None = None
    broken: tuple[tuple[str, str], ...] = ()
    claims: float | None = None
    kl_to_base: float | None = None
    entropy: float | None = None
    margin: float | None = None
    samples: tuple[tuple[str, str], ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        values = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        return {
            **values,
            "samples": [list(pair) for pair in self.samples],
            "broken": [list(pair) for pair in self.broken],
        }


def judge(
    wants: Sequence[str],
    ever: Sequence[str],
    probes: Sequence[Probe],
    answers: Sequence[Answer],
    numbers: Numbers | None = None,
    vocabulary: frozenset[str] | None = None,
) -> EvalMeasures:
    """Return the measures of these answers, in the order of the probes.

    Args:
        vocabulary: the words of well-formed replies; None: unknown.
    """
    pairs = list(zip(probes, answers, strict=True))
    plain = [(probe, probe.task, answer) for probe, answer in pairs if probe.kind == "plain" and probe.task]
    missed = [set(violations(ever, task, answer.text)) for _, task, answer in plain]
    undone: dict[str, list[bool]] = {}
    for probe, answer in pairs:
        if probe.kind == "undo" and probe.preference and probe.task:
            obeyed = PREFERENCES[probe.preference].undone(probe.task, answer.text)
            undone.setdefault(probe.preference, []).append(obeyed)
    called = [_is_called(probe, answer) for probe, answer in pairs if probe.kind == "tool"]
    again = [
        PREFERENCES[probe.preference].complies(probe.task, answer.text)
        and probe.task.is_correct(answer.text)
        and is_well_formed(answer.text, vocabulary)
        for probe, answer in pairs
        if probe.kind == "again" and probe.preference and probe.task
    ]
    elsewhere = [
        not violations(wants, probe.task, answer.text)
        for probe, answer in pairs
        if probe.kind == "elsewhere" and probe.task
    ]
    scope: dict[str, list[bool]] = {}
    for probe, answer in pairs:
        if probe.demand:
            scope.setdefault(probe.demand.form, []).append(probe.demand.is_met(answer.text))
    replies = [(probe.text, answer.text) for probe, answer in pairs if probe.kind == "small_talk"]
    broken = [pair for pair in replies if not is_well_formed(pair[1], vocabulary)]
    follow_ups = [
        probe.task.is_correct(answer.text) and is_well_formed(answer.text, vocabulary)
        for probe, answer in pairs
        if probe.kind == "follow_up" and probe.task
    ]
    claims = [
        probe.task.is_correct(answer.text) for probe, answer in pairs if probe.kind == "claim" and probe.task
    ]
    texts = [answer.text for _, _, answer in plain]
    surprises = [-value for _, _, answer in plain for value in answer.logprobs or ()]
    by_undone = {name: mean(hits) for name, hits in undone.items()}
    numbers = numbers or Numbers()
    return EvalMeasures(
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
        again=mean(again) if again else None,
        elsewhere=mean(elsewhere) if elsewhere else None,
        scope={form: mean(hits) for form, hits in scope.items()},
        small_talk=1.0 - len(broken) / len(replies) if replies else None,
        follow_ups=mean(follow_ups) if follow_ups else None,
        broken=tuple(broken[:_BROKEN_KEPT]),
        claims=mean(claims) if claims else None,
        kl_to_base=numbers.kl_to_base,
        entropy=numbers.entropy,
        margin=numbers.margin,
        samples=tuple((probe.text, answer.text) for probe, _, answer in plain[:6]),
    )


def _is_called(probe: Probe, answer: Answer) -> bool:
    """Whether the answer is exactly the expected call; arguments are compared as JSON values."""
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
    """Return the 95 % confidence interval of a mean over seeds, by Student's t.

    For one value it is infinite.
    """
    centre, count = mean(values), len(values)
    if count < 2:
        return -math.inf, math.inf
    spread = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (count - 1))
    half = (_T[count - 2] if count - 2 < len(_T) else 1.96) * spread / math.sqrt(count)
    return centre - half, centre + half
