"""The gate: may this version be published? A pure decision on measures, and the measuring.

A wish is meant to change the policy. What no wish asks for must not change, so only that is judged:

=================  ==========================================================================================
plain questions    (`facts`) style is free here. As many answers are right as the base model's, or as its answers with the wishes
                   in its prompt, where a wish itself costs some; replies are not empty, end, are not all the same, are not
                   three times as long.
explicit requests  (`obeyed`) a request in the prompt is obeyed, whatever the person prefers by default.
tool calls         (`tools`) machines read them: the call is valid and of the right tool.
=================  ==========================================================================================

Of requests and tool calls only those count that the base model answers as asked: the others say nothing about a version. Of facts all count:
near its limits any change of a model makes some answers right and others wrong, and those that were right could only be lost. Replies are
greedy, so a measure moves only when the weights do. The base model is measured once for a model and kept (`store.calibration`).

With few prompts a gate sees little: of n prompts of which a version spoils the share q, it sees none with probability (1 - q)^n, and one
is always allowed. `GateMeasures.counts` says how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from serving.openai_server.toolcalls import ToolCall, ToolCallParser
from store.errors import ConfigError
from trainer.canaries import AnchorPrompt, Canaries, Fact, ToolCase, as_message, load_canaries
from trainer.gate_bounds import Thresholds as Thresholds
from trainer.gate_bounds import slack
from trainer.protocol import Policy, Reply, Weights
from wire.wish_text import add_wishes

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
        facts: share of the questions that are answered right.
        tools, obeyed: share of the prompts that are answered as asked: of the base model of all of them, of a version of those that the base
            model answers so; None: there are none.
        empty: share of plain replies without any text.
        distinct: number of different plain replies, by number of questions.
        ends: share of plain replies that ended within `MAX_TOKENS`.
        plain_length: mean tokens of a reply to a plain question.
        counts: number of prompts behind each.
        examples: replies to the first plain questions, by question, for the web page.
        right: numbers of the prompts that are answered as asked, by kind.
    """

    finite: bool = True
    facts: float | None = None
    tools: float | None = None
    obeyed: float | None = None
    empty: float = math.nan
    distinct: float = math.nan
    ends: float = math.nan
    plain_length: float = math.nan
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    right: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """``rejected`` holds a sentence for each check that failed; empty: the version may be published."""

    rejected: tuple[str, ...]
    measures: dict[str, Any]


def judge_gate(
    after: GateMeasures,
    base: GateMeasures,
    thresholds: Thresholds | None = None,
    *,
    told: float | None = None,
) -> tuple[str, ...]:
    """Why a version may not be published, one sentence each; empty: it may. Pure; NaN is beyond every bound.

    Args:
        told: share of the facts that the base model answers right with the wishes in its prompt; None: it was not asked.
    """
    limits = thresholds or Thresholds()
    if not after.finite:
        return ("a weight is not a finite number",)
    reasons = []

    def check(ok: bool, sentence: str) -> None:
        if not ok:
            reasons.append(sentence)

    if after.facts is not None and base.facts is not None:
        least = base.facts if told is None else min(told, base.facts)
        check(
            after.facts >= least - slack(limits.facts_drop, after.counts.get("facts", 0)),
            f"facts are forgotten: {after.facts:.0%} of {after.counts.get('facts', 0)} are right, base {base.facts:.0%}"
            + ("" if told is None else f", with the wishes in its prompt {told:.0%}"),
        )
    for name, now, allowed, what in (
        ("tools", after.tools, limits.tools_drop, "tool calls break"),
        ("obeyed", after.obeyed, limits.obeyed_drop, "explicit requests are not obeyed"),
    ):
        if now is not None:
            count = after.counts.get(name, 0)
            check(
                now >= 1.0 - slack(allowed, count),
                f"{what}: {1 - now:.0%} of the {count} that the base model has right",
            )
    check(
        after.ends >= base.ends - slack(limits.ends_drop, after.counts.get("plain", 0)),
        f"replies do not end: {after.ends:.0%}, base {base.ends:.0%}",
    )
    check(
        after.empty <= base.empty + slack(0.0, after.counts.get("plain", 0)),
        f"replies are empty: {after.empty:.0%}, base {base.empty:.0%}",
    )
    check(
        after.distinct >= limits.distinct_low * base.distinct,
        f"different questions get the same reply: {after.distinct:.0%} are different, base {base.distinct:.0%}",
    )
    check(
        after.plain_length <= limits.length_high * base.plain_length,
        f"replies have {after.plain_length:.0f} tokens, base {base.plain_length:.0f}",
    )
    return tuple(reasons)


class Gate:
    """The gate of one model.

    Args:
        model: whose canaries to use; see `trainer.canaries`.
        share: of the tool calls and explicit requests that are asked again for a version; at least `FEWEST`.
        base: measures of the base model that are known.
    """

    def __init__(
        self,
        policy: Policy,
        model: str,
        *,
        thresholds: Thresholds | None = None,
        share: float = 1.0,
        base: GateMeasures | None = None,
    ) -> None:
        self._thresholds = thresholds or Thresholds()
        self._share = share
        self.probe = GateProbe(policy, load_canaries(model))
        self._base = base

    def base(self) -> GateMeasures:
        """Measures of the base model."""
        if self._base is None:
            self._base = self.probe.measure(Weights.BASE)
        return self._base

    def examine(self, told: Callable[[], float] | None = None) -> GateVerdict:
        """Measure the policy's weights as they are and judge them.

        Args:
            told: returns the share of facts that the base model answers right with the wishes in its prompt; asked only where facts are
                forgotten.
        """
        base = self.base()
        asked = {
            name: some[: max(FEWEST, math.ceil(self._share * len(some)))]
            for name, some in base.right.items()
            if name != "facts"
        }
        after = self.probe.measure(Weights.STUDENT, right=asked)
        measures = {"after": after.to_json(), "base": base.to_json()}
        rejected = judge_gate(after, base, self._thresholds)
        if told is not None and len(rejected) > len(judge_gate(after, base, self._thresholds, told=0.0)):
            measures["told"] = {"facts": told()}
            rejected = judge_gate(after, base, self._thresholds, told=measures["told"]["facts"])
        return GateVerdict(rejected=rejected, measures=measures)


class GateProbe:
    """Asks a policy the canaries' questions, greedily, and reads the replies.

    Args:
        most: times the number of prompts that a gate asks, at most.
    """

    def __init__(self, policy: Policy, canaries: Canaries, *, most: float = 1.0) -> None:
        self._policy = policy
        room = policy.max_context - MAX_TOKENS
        facts, tools, anchors = (math.ceil(most * count) for count in (MAX_FACTS, MAX_TOOLS, MAX_ANCHORS))

        def fitting(cases: Iterable[T], render: Callable[[T], list[int]]) -> tuple[list[T], list[list[int]]]:
            pairs = [(case, ids) for case in cases if len(ids := render(case)) <= room]
            return [case for case, _ in pairs], [ids for _, ids in pairs]

        self._facts, self._fact_ids = fitting(canaries.facts[:facts], lambda c: _ask(policy, c.prompt))
        self._tools, self._tool_ids = fitting(
            canaries.tools[:tools], lambda c: policy.render(c.messages, c.tools)
        )
        self._anchors, self._anchor_ids = fitting(
            _spread(canaries.anchors, anchors), lambda c: _ask(policy, c.prompt)
        )
        if not self._facts or not self._anchors:
            raise ConfigError(
                f"no canary prompt and {MAX_TOKENS} tokens of reply fit the model's context of {policy.max_context}"
            )

    def measure(self, weights: Weights, *, right: Mapping[str, Sequence[int]] | None = None) -> GateMeasures:
        """Measures of one set of weights.

        Args:
            right: numbers of the tool calls and requests to judge by, by kind; None: all.
        """
        policy = self._policy
        if weights is Weights.STUDENT and not policy.is_finite():
            return GateMeasures(finite=False)
        kept = {name: list(right.get(name, ())) for name in ("tools", "obeyed")} if right is not None else {}
        facts = list(range(len(self._facts)))
        tools = kept.get("tools", list(range(len(self._tools))))
        anchors = kept.get("obeyed", [i for i, one in enumerate(self._anchors) if one.has_check])
        replies = self._greedy(
            [*self._fact_ids, *(self._tool_ids[i] for i in tools), *(self._anchor_ids[i] for i in anchors)],
            weights,
        )
        plain, called, asked = (
            replies[: len(facts)],
            replies[len(facts) : len(facts) + len(tools)],
            replies[len(facts) + len(tools) :],
        )
        texts = [policy.decode(reply.token_ids).strip() for reply in plain]
        answers = {
            "facts": {i: self._facts[i].is_right(texts[i]) for i in facts},
            "tools": {
                i: self._calls(reply, self._tools[i].expect_name)
                for i, reply in zip(tools, called, strict=True)
            },
            "obeyed": {
                i: self._anchors[i].is_obeyed(policy.decode(reply.token_ids))
                for i, reply in zip(anchors, asked, strict=True)
            },
        }
        shares = {name: _mean(list(some.values())) if some else None for name, some in answers.items()}
        return GateMeasures(
            facts=shares["facts"],
            tools=shares["tools"],
            obeyed=shares["obeyed"],
            empty=_mean([not text for text in texts]),
            distinct=len(set(texts)) / len(texts),
            ends=_mean([reply.finished for reply in plain]),
            plain_length=_mean([len(reply.token_ids) for reply in plain]),
            counts={**{name: len(some) for name, some in answers.items()}, "plain": len(plain)},
            examples={case.prompt: text for case, text in zip(self._facts[:EXAMPLES], texts, strict=False)},
            right={name: [i for i, ok in some.items() if ok] for name, some in answers.items()},
        )

    def facts_with(self, text: str, place: str) -> float:
        """Share of the facts that the base model answers right with these wishes in its prompt."""
        ids = [self._policy.render(add_wishes([as_message(one.prompt)], text, place)) for one in self._facts]
        replies = self._greedy(ids, Weights.BASE)
        pairs = zip(self._facts, replies, strict=True)
        return _mean([fact.is_right(self._policy.decode(reply.token_ids)) for fact, reply in pairs])

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
        """Whether the reply is one valid call of that tool."""
        return called_tools(self._policy, reply) == [name]

    def _greedy(self, prompts: Sequence[Sequence[int]], weights: Weights) -> list[Reply]:
        return self._policy.sample(prompts, max_tokens=MAX_TOKENS, temperature=0.0, weights=weights)


def called_tools(policy: Policy, reply: Reply) -> list[str]:
    """Return the names of the valid calls in a reply. Models without our markup may write the bare JSON."""
    # Markup is what is looked for, so special tokens stay; the end of the turn is none of it.
    ids = reply.token_ids[:-1] if reply.finished else reply.token_ids
    text = policy.decode(ids, markup=True)
    for written in (text, f"<tool_call>{text.strip()}"):
        parser = ToolCallParser()
        parts = [*parser.feed(written), *parser.flush()]
        if calls := [part.name for part in parts if isinstance(part, ToolCall)]:
            return calls
    return []


def _ask(policy: Policy, question: str) -> list[int]:
    return policy.render([as_message(question)])


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
