"""What has to be known of a base model before it learns anything, measured once at its first start (`store.calibration`).

=========  ===================================================================================================================
placement  where the model obeys best: checkable instructions of the canaries, put where wishes may stand in a prompt
wishes     from which cosine two wordings are one wish: half way between two wordings of one instruction and those of different ones;
           and how much words change that ask for nothing
gate       which of the gate's prompts the base model answers as asked
anchors    its replies to prompts with an instruction, to which every version is held
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
from wire.wish_text import BEHIND, PLACES, add_wishes

#: Instructions by which a placement is judged, questions for each, and the longest reply in tokens.
_INSTRUCTIONS, _QUESTIONS, _TOKENS = 8, 2, 64
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
        anchors: how many replies to keep.
    """
    obeyed = {place: _obeyed(policy, canaries, place) for place in PLACES}
    placement = max(PLACES, key=lambda place: (obeyed[place], place == BEHIND))
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


def _obeyed(policy: Policy, canaries: Canaries, place: str) -> float:
    """Share of checkable instructions that the base model obeys where wishes stand at this place."""
    checks = {
        one.style: one for one in canaries.anchors if one.has_check and one.style in canaries.instructions
    }
    questions = (
        canaries.plain_questions()[PROBES : PROBES + _QUESTIONS] or canaries.plain_questions()[:_QUESTIONS]
    )
    cases = list(product(list(checks)[:_INSTRUCTIONS], questions))
    replies = policy.sample(
        [
            policy.render(add_wishes([as_message(question)], canaries.instructions[style][0], place))
            for style, question in cases
        ],
        max_tokens=_TOKENS,
        temperature=0.0,
        weights=Weights.BASE,
    )
    return share(
        [
            checks[style].is_obeyed(policy.decode(r.token_ids))
            for (style, _), r in zip(cases, replies, strict=True)
        ]
    )


def _cosines(meter: WishMeter, canaries: Canaries) -> tuple[list[float], list[float]]:
    """Cosines of two wordings of one instruction, and of different instructions."""
    pairs = [texts[:2] for texts in canaries.instructions.values() if len(texts) > 1][:_PAIRS]
    same = [meter.cosine(*pair) for pair in pairs]
    different = [meter.cosine(a[0], b[0]) for a, b in combinations(pairs, 2)]
    return same, different


def _anchors(policy: Policy, canaries: Canaries, count: int, seed: int) -> list[list[list[int]]]:
    """Token ids of prompts with an instruction and of the base model's replies, each instruction as often as any other."""
    prompts = [one.prompt for one in canaries.split()[0]]
    questions = canaries.plain_questions()[PROBES:] or canaries.plain_questions()
    instructions = [text for texts in canaries.instructions.values() for text in texts]
    prompts += [
        f"{questions[i % len(questions)]} {text}"
        for i, text in enumerate(instructions * (1 + count // max(1, len(instructions))))
    ]
    ids = [policy.render([as_message(prompt)]) for prompt in prompts[:count]]
    replies = policy.sample(ids, max_tokens=ANCHOR_TOKENS, seed=seed, weights=Weights.BASE)
    return [
        [prompt, list(reply.token_ids)] for prompt, reply in zip(ids, replies, strict=True) if reply.token_ids
    ]
