"""Which hints teach in a step, and which others the teacher's prompt holds. Holds the playbook of one attempt; knows no weights.

A hint teaches when it does something: to replies in general (then it is a wish, and enters the playbook), or to the very reply that it
is about (then it teaches there and is not remembered). A correction that only puts its own words into the reply ("no, it is Lyon")
is neither: it would teach an answer, not a preference. Nor is a complaint that asks for nothing: it makes unlikely replies, such as
those that follow an earlier wish, less likely ("That's wrong, check again." unlearned short replies).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from store.values import ScoredTurn
from store.wishes import CANONICAL, OPPOSITES
from trainer.hint_effect import HintMeter
from trainer.playbook import LEAST_EFFECT, SAME_DIRECTION, Playbook, Wording, canonical_text
from trainer.protocol import Change

#: A hint that changes its own reply by less than this (largest divergence of a token, nats) teaches nothing there.
LEAST_OWN_EFFECT = 0.15
#: Share of a canonical wording's effect below which the model does not find its label in the words. Behind free wordings of "short and no
#: emoji" .61 of the base model's replies are as wished with .5 or .7, .59 with .3, .40 without (lab/research/2026-11-27-half-understood-wishes.md).
ACTED_ON = 0.5
#: Tokens that gain most from a hint, and are looked for in its words.
_GAINS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HintDecision:
    """The decision on a turn's hint.

    Attributes:
        hint: the words; "": only the playbook, since the hint withdrew a wish; None: the hint does not teach.
        refusal: why it does not.
    """

    hint: str | None
    refusal: str = ""


class HintSelection:
    """The hints of one attempt.

    Args:
        playbook: as the parent version had it; `playbook` is what it becomes.
        version: the version that is being made.
        decode: ids -> text.
    """

    def __init__(
        self, meter: HintMeter, playbook: Playbook, *, version: int, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.playbook = playbook
        self._meter = meter
        self._version = version
        self._decode = decode

    def choose(self, turn: ScoredTurn, hint: str, *, is_reaction: bool) -> HintDecision:
        """Decide whether a hint teaches; where it states or withdraws a wish, the playbook is what it is after that."""
        wording = effective_wording(self._meter, turn.turn_id, hint, turn.verdict.wishes)
        effect = self._meter.effect(wording.text).size
        if self.playbook.breaks_a_named_wish(wording, self._meter):
            return HintDecision(
                hint=None,
                refusal="with these words in context the model forgets an earlier wish that they do not name",
            )
        before = self.playbook
        after = before.stated(wording, self._meter, version=self._version)
        withdrawn = {*after.withdrawn} - {*before.withdrawn}
        # A complaint about the emoji of a reply says that "no emoji" was not followed, though a small model may forget the wish when
        # it reads the complaint behind it.
        if (
            withdrawn
            and not wording.labels
            and {wish.text for wish in withdrawn} & {*self._broken_wishes(turn)}
        ):
            return HintDecision(
                hint=None, refusal="the words seem to withdraw a wish, but the reply did not follow that wish"
            )
        self.playbook = after
        if effect >= LEAST_EFFECT:
            return HintDecision(hint=wording.text)
        if withdrawn:
            return HintDecision(hint="")
        change = self._meter.effect_on_turn(turn, wording.text, is_reaction=is_reaction)
        if change is None or change.peak < LEAST_OWN_EFFECT:
            own = 0.0 if change is None else change.peak
            refusal = f"the model does not act on these words: effect {own:.3f} nat on this reply, {effect:.3f} on others"
            return HintDecision(hint=None, refusal=refusal)
        likeness = self._meter.likeness_to_empty_complaints(turn, change, is_reaction=is_reaction)
        if likeness >= SAME_DIRECTION:
            return HintDecision(hint=None, refusal="the words only tell the model that the reply is wrong")
        if self._is_copied(change, wording.text):
            return HintDecision(
                hint=None, refusal="the words give an answer to this question, not a preference"
            )
        return HintDecision(hint=wording.text)

    def broken_wish(self, turn: ScoredTurn) -> str | None:
        """Why thanks do not reinforce a reply: it speaks against a wish of the playbook. People also thank for the answer alone."""
        broken = self._broken_wishes(turn)
        return f"thanks for a reply that does not follow {len(broken)} of the wishes" if broken else None

    def _broken_wishes(self, turn: ScoredTurn) -> list[str]:
        return self._meter.broken_wishes(turn, [wish.text for wish in self.playbook.active])

    def others(self, hint: str, present: Sequence[str], most: int) -> list[str]:
        """Further hints for the teacher of a turn; see `Playbook.hints`."""
        return self.playbook.hints(hint.strip(), present, most)

    def _is_copied(self, change: Change, hint: str) -> bool:
        """Whether what the hint makes most likelier are its own words."""
        words = re.findall(r"\w{3,}", hint)
        gains = sorted(change.shifts.items(), key=lambda pair: pair[1], reverse=True)[:_GAINS]
        texts = [self._decode([token]).strip() for (_, token), _ in gains]
        return any(text and any(word.startswith(text) for word in words) for text in texts)


def effective_wording(meter: HintMeter, turn_id: str, hint: str, labels: Sequence[str]) -> Wording:
    """The person's words, or a canonical wording of the same wish where the model does not act on the words or takes them for what they
    withdraw ("emojis are fine again" for "no emojis").

    Where the model acts on some of the labels only ("Shorter please, and no emoji.": the 2 M test model leaves the emoji away), the
    canonical wording of the others is added; where that is not enough either, the canonical wording of all replaces the words.
    """
    text = hint.strip()
    canonical = canonical_text(labels)
    if not canonical:
        return Wording(turn_id=turn_id, text=text, labels=tuple(labels))
    effect = meter.effect(text)
    if effect.size < LEAST_EFFECT:
        text = canonical if meter.effect(canonical).size >= LEAST_EFFECT else text
    elif any(
        effect.cosine(meter.effect(CANONICAL[opposite])) >= SAME_DIRECTION
        for label in labels
        for opposite in OPPOSITES.get(label, ())
    ):
        text = canonical
    elif meter.compares:
        text = _completed(meter, text, labels)
    return Wording(turn_id=turn_id, text=text, labels=tuple(labels))


def _completed(meter: HintMeter, text: str, labels: Sequence[str]) -> str:
    """The text, with the labels that the model does not find in it, or their canonical wording: the first one with enough of each label."""
    missing = [label for label, share in _shares(meter, text, labels).items() if share < ACTED_ON]
    if not missing:
        return text
    wordings = [text, f"{text} {canonical_text(missing)}", canonical_text(labels)]
    least = [min(_shares(meter, one, labels).values()) for one in wordings]
    whole = [one for one, share in zip(wordings, least, strict=True) if share >= ACTED_ON]
    return whole[0] if whole else wordings[least.index(max(least))]


def _shares(meter: HintMeter, text: str, labels: Sequence[str]) -> dict[str, float]:
    """How much of each label's canonical effect a text has; labels whose canonical wording has none are left out."""
    effect = meter.effect(text)
    canonical = {label: meter.effect(CANONICAL[label]) for label in labels}
    return {
        label: effect.share_of(one)
        for label, one in canonical.items()
        if one.size >= LEAST_EFFECT and one.norm
    }
