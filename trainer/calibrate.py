"""What has to be known of a base model before it learns anything, measured once at its first start (`store.calibration`).

=========  ===================================================================================================================
placement  where wishes stand in a prompt: where the base model obeys most checkable instructions of the canaries, and still obeys a
           message that asks for the opposite
wishes     from which cosine two wordings are one wish: half way between two wordings of one instruction and those of different ones;
           and how much words change that ask for nothing
gate       which of the gate's prompts the base model answers as asked
anchors    its replies to questions with an instruction that the gate does not ask, to which every version is held
=========  ===================================================================================================================
"""

from __future__ import annotations

from itertools import combinations, product
from statistics import fmean

from store.calibration import Calibration
from trainer.canaries import Canaries, as_message
from trainer.gate import Gate
from trainer.protocol import Policy, Weights
from trainer.wish_meter import NEUTRAL, PROBES, WishMeter, share
from wire.wish_text import PLACES, add_wishes

#: Questions for each instruction by which a placement is judged, and the longest reply in tokens.
_QUESTIONS, _TOKENS = 2, 64
#: Pairs of wordings by which rewordings are told from different wishes.
_PAIRS = 6
#: Longest reply of an anchor, in tokens: the first ones decide on language, form and tone.
ANCHOR_TOKENS = 64


def calibrate(
    policy: Policy, model: str, canaries: Canaries, gate: Gate, *, anchors: int, seed: int
) -> Calibration:
    """Measure a base model.

    Args:
        model: its digest.
        anchors: how many replies to keep, at most.
    """
    obeyed = {place: _obeyed(policy, canaries, place) for place in PLACES}
    placement = max(PLACES, key=lambda place: sum(obeyed[place]))
    meter = WishMeter(policy, canaries.plain_questions(), placement)
    same, different = _cosines(meter, canaries)
    return Calibration(
        model=model,
        placement=placement,
        obeyed=obeyed,
        same_wish=(fmean(same) + fmean(different)) / 2 if same and different else 1.0,
        neutral=max(meter.size(words) for words in NEUTRAL),
        gate=gate.base().to_json(),
        anchors=_anchors(policy, canaries, anchors, seed),
    )


def _obeyed(policy: Policy, canaries: Canaries, place: str) -> tuple[float, float]:
    """Shares of instructions at this place that the base model obeys, and of messages that ask for the opposite of one and are obeyed.

    Styles without an opposite are not asked about: the two shares would not be of the same instructions.
    """
    checks = {
        one.style: one for one in canaries.anchors if one.has_check and canaries.instructions.get(one.style)
    }
    pairs = [
        pair
        for one, other in canaries.opposites
        for pair in ((one, other), (other, one))
        if {*pair} <= {*checks}
    ]
    questions = canaries.plain_questions()[PROBES:] or canaries.plain_questions()
    cases = list(product(pairs, questions[:_QUESTIONS]))
    asked = [(wished, question) for (wished, _), question in cases]
    asked += [
        (wished, f"{question} {canaries.instructions[other][-1]}") for (wished, other), question in cases
    ]
    replies = policy.sample(
        [
            policy.render(add_wishes([as_message(message)], canaries.instructions[wished][0], place))
            for wished, message in asked
        ],
        max_tokens=_TOKENS,
        temperature=0.0,
        weights=Weights.BASE,
    )
    texts = [policy.decode(reply.token_ids) for reply in replies]
    return (
        share([checks[wished].is_obeyed(text) for ((wished, _), _), text in zip(cases, texts, strict=False)]),
        share(
            [
                checks[other].is_obeyed(text)
                for ((_, other), _), text in zip(cases, texts[len(cases) :], strict=True)
            ]
        ),
    )


def _cosines(meter: WishMeter, canaries: Canaries) -> tuple[list[float], list[float]]:
    """Cosines of two wordings of one instruction, and of different instructions."""
    pairs = [texts[:2] for texts in canaries.instructions.values() if len(texts) > 1][:_PAIRS]
    same = [meter.cosine(*pair) for pair in pairs]
    different = [meter.cosine(a[0], b[0]) for a, b in combinations(pairs, 2)]
    return same, different


def _anchors(policy: Policy, canaries: Canaries, count: int, seed: int) -> list[tuple[str, list[int]]]:
    """Questions with an instruction and the base model's replies: at most ``count``, each instruction once."""
    questions = canaries.plain_questions()[PROBES:] or canaries.plain_questions()
    messages = [
        f"{questions[i % len(questions)]} {text}"
        for i, text in enumerate(canaries.trained_instructions()[:count])
    ]
    if not messages:
        return []
    ids = [policy.render([as_message(message)]) for message in messages]
    replies = policy.sample(ids, max_tokens=ANCHOR_TOKENS, seed=seed, weights=Weights.BASE)
    return [
        (message, list(reply.token_ids))
        for message, reply in zip(messages, replies, strict=False)
        if reply.token_ids
    ]
