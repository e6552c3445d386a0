"""The gate: may this version be published? A pure decision on measures, and the measuring.

What a person teaches is meant to change the policy: shorter replies, another language, JSON. What it must not change is what
they did not ask for. So a preference is never measured where it may show:

=================  ==========================================================================================
plain questions    (`facts`) style is free here. Only what no preference excuses counts: the right answer is still
                   in there, replies are not empty, end, are not all the same, are not three times as long.
explicit wishes    (`anchors`) a reply follows the wish in the prompt, whatever the person prefers by default. Here the
                   policy should still be the base model: KL to base, entropy and length are compared **here**.
tool calls         (`tools`) machines read them: the call is valid and of the right tool.
=================  ==========================================================================================

A policy that was taught "concise" falls from 45 to 8 tokens on plain questions, far outside any sane bound for length, and is
right to; one whose *detailed* answers on request fall by two thirds has lost something.

Every bound is relative to the base model, measured the same way once. Replies are greedy, so that a measure moves only when the
weights do. A version that is beyond a bound is let through where it is no worse there than the version before it: an adapter
taken over from elsewhere may begin outside, and training must be able to bring it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from serving.openai_server.toolcalls import ToolCall, ToolCallParser
from store.errors import ConfigError
from trainer.canaries import AnchorPrompt, Canaries, Fact, ToolCase, load_canaries
from trainer.gate_bounds import Thresholds as Thresholds
from trainer.protocol import Policy, Reply, Weights

T = TypeVar("T")

#: Longest reply the gate waits for. Replies of the base that do not end within it are no fault of the candidate.
MAX_TOKENS = 96
#: Replies that are kept of each measurement.
EXAMPLES = 6
#: At most so many prompts of each kind; the same ones for base and candidate.
MAX_FACTS, MAX_TOOLS, MAX_ANCHORS = 24, 8, 28
#: At least so many of each kind, however slow the model is.
FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GateMeasures:
    """What the gate knows of some weights. Shares are in [0, 1].

    Attributes:
        finite: every weight is a number. When False nothing else was measured.
        facts, tools: share answered right; tools None: there were no cases.
        obeyed: share of checkable explicit wishes that were followed; None: there are no checks.
        empty: share of plain replies without any text.
        distinct: number of different plain replies, by number of questions.
        ends: share of all replies that ended within `MAX_TOKENS`.
        plain_length, length: mean tokens of a reply, to plain questions / explicit wishes.
        kl: KL(these weights ‖ base) on explicit wishes along the replies, nats a token.
        entropy: on explicit wishes along the **base model's** replies, nats a token. Along its own replies it would speak of
            their length: the tokens that fill a long reply are nearly certain, so "concise" alone doubled it.
        kl_by_style: the same by style.
        counts: number of prompts behind facts, tools, obeyed, all replies.
        examples: replies to the first plain questions, by question, for the web page.
    """

    finite: bool = True
    facts: float = math.nan
    tools: float | None = None
    obeyed: float | None = None
    empty: float = math.nan
    distinct: float = math.nan
    ends: float = math.nan
    plain_length: float = math.nan
    length: float = math.nan
    entropy: float = math.nan
    kl: float = math.nan
    kl_by_style: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """``rejected`` holds a sentence for each check that failed; empty: the version may be published.

    Attributes:
        is_intact: no fact, tool call or explicit instruction is lost; see `has_lost_nothing`.
    """

    rejected: tuple[str, ...]
    measures: dict[str, Any]
    is_intact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """A measure with its bounds; ``excess`` is how far beyond, 0 or less: within."""

    excess: float
    sentence: str


def judge_gate(
    before: GateMeasures | None, after: GateMeasures, base: GateMeasures, thresholds: Thresholds | None = None
) -> tuple[str, ...]:
    """Why a version may not be published, one sentence each; empty: it may. Pure.

    Args:
        before: the version it was trained from; None: unknown, so being beyond a bound is never excused.
        after: the candidate.
        base: the base model.
    """
    limits = thresholds or Thresholds()
    if not after.finite:
        return ("a weight is not a finite number",)
    checks = _checks(after, base, limits)
    earlier = _checks(before, base, limits) if before is not None and before.finite else {}
    reasons = []
    for name, check in checks.items():
        if check.excess <= 1e-9:  # NaN is beyond every bound
            continue
        excused = name in earlier and check.excess <= earlier[name].excess < math.inf
        if not excused:
            reasons.append(check.sentence)
    return tuple(reasons)


def _checks(after: GateMeasures, base: GateMeasures, limits: Thresholds) -> dict[str, _Check]:
    found: dict[str, _Check] = {}

    def fallen(name: str, now: float | None, then: float | None, allowed: float, what: str) -> None:
        if now is None or then is None:
            return
        count = after.counts.get(name, 0)
        slack = max(allowed, 1 / count) if count else allowed
        found[name] = _Check(
            excess=_beyond(then - slack - now), sentence=f"{what}: {now:.0%}, base {then:.0%}"
        )

    def within(name: str, ratio: float, low: float, high: float, sentence: str) -> None:
        excess = max(low / ratio if ratio > 0 else math.inf, ratio / high) - 1 if ratio == ratio else math.inf
        found[name] = _Check(excess=excess, sentence=sentence)

    fallen("facts", after.facts, base.facts, limits.facts_drop, "facts are forgotten")
    fallen("tools", after.tools, base.tools, limits.tools_drop, "tool calls break")
    fallen("obeyed", after.obeyed, base.obeyed, limits.obeyed_drop, "explicit wishes are not followed")
    fallen("replies", after.ends, base.ends, limits.ends_drop, "replies do not end")
    found["empty"] = _Check(
        excess=_beyond(after.empty - base.empty - 1 / max(1, after.counts.get("facts", 1))),
        sentence=f"replies are empty: {after.empty:.0%}, base {base.empty:.0%}",
    )
    found["distinct"] = _Check(
        excess=_beyond(limits.distinct_low * base.distinct - after.distinct),
        sentence=f"different questions get the same reply: {after.distinct:.0%} are different, base {base.distinct:.0%}",
    )
    slack = limits.entropy_slack
    within(
        "entropy",
        (after.entropy + slack) / (base.entropy + slack),
        limits.entropy_low,
        limits.entropy_high,
        f"the entropy is {after.entropy:.3f} nat/token, base {base.entropy:.3f}",
    )
    within(
        "length",
        after.length / max(base.length, 1e-9),
        limits.length_low,
        limits.length_high,
        f"replies to explicit wishes have {after.length:.0f} tokens, base {base.length:.0f}",
    )
    within(
        "plain_length",
        max(after.plain_length, base.plain_length) / max(base.plain_length, 1e-9)
        if after.plain_length > 0
        else math.nan,
        limits.length_low,
        limits.length_high,
        f"replies have {after.plain_length:.0f} tokens, base {base.plain_length:.0f}",
    )
    found["kl"] = _Check(
        excess=_beyond(after.kl - limits.kl),
        sentence=f"explicit wishes are answered {after.kl:.2f} nat/token away from the base model",
    )
    if after.kl_by_style:
        style, worst = max(after.kl_by_style.items(), key=lambda pair: (math.isnan(pair[1]), pair[1]))
        found["kl_worst"] = _Check(
            excess=_beyond(worst - limits.kl_worst),
            sentence=f"the wish {style!r} is answered {worst:.2f} nat/token away from the base model",
        )
    return found


def _beyond(excess: float) -> float:
    """NaN compares false with everything, and would pass."""
    return math.inf if math.isnan(excess) else excess


class Gate:
    """The gate of one model. The base model is measured once, at the first use.

    Args:
        model: whose canaries to use; see `trainer.canaries`.
        share: of the prompts of each kind that are asked, for models that are slow here; at least `FEWEST`.
    """

    def __init__(
        self,
        policy: Policy,
        model: str,
        *,
        thresholds: Thresholds | None = None,
        max_tokens: int = MAX_TOKENS,
        share: float = 1.0,
    ) -> None:
        self._thresholds = thresholds or Thresholds()
        self._probe = GateProbe(policy, load_canaries(model), max_tokens=max_tokens, share=share)
        self._base: GateMeasures | None = None

    @property
    def probe(self) -> GateProbe:
        return self._probe

    def base(self) -> GateMeasures:
        """Measures of the base model."""
        if self._base is None:
            self._base = self._probe.measure(Weights.BASE)
        return self._base

    def examine(self, policy: Policy, before: Mapping[str, Any] | None = None) -> GateVerdict:
        """Measure the policy's weights as they are and judge them.

        Args:
            before: snapshot of the weights the candidate was trained from. Only looked at when the candidate is beyond a
                bound; the policy is as it was afterwards.
        """
        base, after = self.base(), self._probe.measure(Weights.STUDENT)
        rejected = judge_gate(None, after, base, self._thresholds)
        measures = {"after": after.to_json(), "base": base.to_json()}
        if rejected and after.finite and before is not None:
            with policy.as_it_was(before):
                earlier = self._probe.measure(Weights.STUDENT)
            rejected = judge_gate(earlier, after, base, self._thresholds)
            measures["before"] = earlier.to_json()
        return GateVerdict(rejected=rejected, measures=measures, is_intact=has_lost_nothing(after, base))


def has_lost_nothing(after: GateMeasures, base: GateMeasures) -> bool:
    """Whether as many facts, tool calls and explicit instructions are right as with the base model. False if no instruction
    can be checked: only these show what the anchors hold. Pure."""
    counted = [(after.obeyed, base.obeyed), (after.facts, base.facts), (after.tools, base.tools)]
    return (
        after.finite
        and after.obeyed is not None
        and all(now >= then for now, then in counted if now is not None and then is not None)
    )


class GateProbe:
    """Asks a policy the canaries' questions, greedily, and reads the replies."""

    def __init__(
        self, policy: Policy, canaries: Canaries, *, max_tokens: int = MAX_TOKENS, share: float = 1.0
    ) -> None:
        self._policy = policy
        self._max_tokens = max_tokens
        room = policy.max_context - max_tokens
        facts, tools, anchors = (
            max(FEWEST, math.ceil(share * most)) for most in (MAX_FACTS, MAX_TOOLS, MAX_ANCHORS)
        )

        def fitting(cases: Iterable[T], render: Callable[[T], list[int]]) -> tuple[list[T], list[list[int]]]:
            pairs = [(case, ids) for case in cases if len(ids := render(case)) <= room]
            return [case for case, _ in pairs], [ids for _, ids in pairs]

        self._facts, self._fact_ids = fitting(canaries.facts[:facts], lambda c: _ask(policy, c.prompt))
        self._tools, self._tool_ids = fitting(
            canaries.tools[: min(tools, MAX_TOOLS)], lambda c: policy.render(c.messages, c.tools)
        )
        self._reference: list[tuple[int, ...]] | None = None
        self._anchors, self._anchor_ids = fitting(
            _spread(canaries.split()[1], anchors), lambda c: _ask(policy, c.prompt)
        )
        if not self._facts or not self._anchors:
            raise ConfigError(
                f"no canary prompt and {max_tokens} tokens of reply fit the model's context of {policy.max_context}"
            )

    def measure(self, weights: Weights) -> GateMeasures:
        """Measures of one set of weights."""
        policy = self._policy
        if weights is Weights.STUDENT and not policy.is_finite():
            return GateMeasures(finite=False)
        prompts = [*self._fact_ids, *self._tool_ids, *self._anchor_ids]
        replies = self._greedy(prompts, weights)
        facts = replies[: len(self._facts)]
        tools = replies[len(self._facts) : len(self._facts) + len(self._tools)]
        anchors = replies[len(self._facts) + len(self._tools) :]
        fact_texts = [policy.decode(reply.token_ids).strip() for reply in facts]
        checked = [
            anchor.is_obeyed(policy.decode(reply.token_ids))
            for anchor, reply in zip(self._anchors, anchors, strict=True)
            if anchor.has_check
        ]
        called = [
            self._calls(reply, case.expect_name) for reply, case in zip(tools, self._tools, strict=True)
        ]
        if self._reference is None:
            of_base = anchors if weights is Weights.BASE else self._greedy(self._anchor_ids, Weights.BASE)
            self._reference = [reply.token_ids for reply in of_base]
        entropy, _ = policy.entropy_and_kl(self._anchor_ids, self._reference, weights, kl=False)
        kl = [0.0] * len(anchors)  # of the base model from itself
        if weights is not Weights.BASE:
            own = [reply.token_ids for reply in anchors]
            _, kl = policy.entropy_and_kl(self._anchor_ids, own, weights, kl=True)
        by_style: dict[str, list[float]] = {}
        for anchor, value in zip(self._anchors, kl, strict=True):
            by_style.setdefault(anchor.style, []).append(value)
        return GateMeasures(
            facts=_mean([f.is_right(text) for f, text in zip(self._facts, fact_texts, strict=True)]),
            tools=_mean(called) if called else None,
            obeyed=_mean(checked) if checked else None,
            empty=_mean([not text for text in fact_texts]),
            distinct=len(set(fact_texts)) / len(fact_texts),
            ends=_mean([reply.finished for reply in replies]),
            plain_length=_mean([len(reply.token_ids) for reply in facts]),
            length=_mean([len(reply.token_ids) for reply in anchors]),
            entropy=_mean(entropy),
            kl=_mean(kl),
            kl_by_style={style: _mean(values) for style, values in by_style.items()},
            counts={
                "facts": len(facts),
                "tools": len(tools),
                "obeyed": len(checked),
                "replies": len(replies),
            },
            examples={
                case.prompt: text for case, text in zip(self._facts[:EXAMPLES], fact_texts, strict=False)
            },
        )

    def scores(self, weights: Weights) -> dict[str, list[float]]:
        """Return a score for each prompt, by kind: to be compared prompt by prompt with those of other weights."""
        policy = self._policy
        cases: list[Fact | ToolCase | AnchorPrompt] = [*self._facts, *self._tools, *self._anchors]
        replies = self._greedy([*self._fact_ids, *self._tool_ids, *self._anchor_ids], weights)
        found: dict[str, list[float]] = {"facts": [], "tools": [], "ended": [], "length": []}
        for case, reply in zip(cases, replies, strict=True):
            found["ended"].append(float(reply.finished))
            if isinstance(case, Fact):
                found["facts"].append(float(case.is_right(policy.decode(reply.token_ids))))
                found["length"].append(float(len(reply.token_ids)))
            elif isinstance(case, ToolCase):
                found["tools"].append(float(self._calls(reply, case.expect_name)))
            elif case.has_check:
                obeyed = case.is_obeyed(policy.decode(reply.token_ids))
                found.setdefault(f"obeyed: {case.style}", []).append(float(obeyed))
        return {name: values for name, values in found.items() if values}

    def _calls(self, reply: Reply, name: str) -> bool:
        """Whether the reply is one valid call of that tool. Models without our markup may write the bare JSON."""
        # Markup is what is looked for, so special tokens stay; the end of the turn is none of it.
        ids = reply.token_ids[:-1] if reply.finished else reply.token_ids
        text = self._policy.decode(ids, markup=True)
        parser = ToolCallParser()
        parts = [*parser.feed(text), *parser.flush()]
        calls = [part for part in parts if isinstance(part, ToolCall)]
        if not calls:
            parser = ToolCallParser()
            parts = [*parser.feed(f"<tool_call>{text.strip()}"), *parser.flush()]
            calls = [part for part in parts if isinstance(part, ToolCall)]
        return [call.name for call in calls] == [name]

    def _greedy(self, prompts: Sequence[Sequence[int]], weights: Weights) -> list[Reply]:
        return self._policy.sample(prompts, max_tokens=self._max_tokens, temperature=0.0, weights=weights)


def _ask(policy: Policy, question: str) -> list[int]:
    return policy.render([{"role": "user", "content": question}])


def _spread(anchors: Sequence[AnchorPrompt], count: int) -> tuple[AnchorPrompt, ...]:
    """At most ``count`` anchors, one of every style before a second of any."""
    seen: dict[str, int] = {}
    ranked = []
    for anchor in anchors:
        seen[anchor.style] = seen.get(anchor.style, -1) + 1
        ranked.append((seen[anchor.style], anchor))
    return tuple(anchor for _, anchor in sorted(ranked, key=lambda pair: pair[0])[:count])


def _mean(values: Sequence[float | bool]) -> float:
    return sum(values) / len(values) if values else math.nan
