"""Effects of hints: arithmetic on values, and the test model, which acts on some words and not on others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lab.evals.metrics import _SMALL_TALK
from store.values import ScoredTurn
from store.wishes import CANONICAL
from tests.fixtures import PATINA_TINY
from tests.trainer.test_playbook import stated
from tests.trainer.turns import sampled_turn
from trainer.batch import SampleKind
from trainer.hint_effect import Effect, HintMeter
from trainer.hint_selection import LEAST_OWN_EFFECT, HintSelection, effective_wording
from trainer.playbook import LEAST_EFFECT, SAME_DIRECTION, UNDONE, Playbook
from trainer.policy import LocalPolicy
from trainer.protocol import Change, Weights
from trainer.wish_training import SMALL_TALK, SMALL_TALK_SAMPLES, Shares, WishTraining, lost_wishes

MODEL = str(PATINA_TINY)


@pytest.fixture(scope="module")
def builtin() -> LocalPolicy:
    return LocalPolicy(MODEL, rank=4, learning_rate=1e-3, seed=0, device="cpu")


@pytest.fixture(scope="module")
def meter(builtin: LocalPolicy) -> HintMeter:
    return HintMeter(builtin, MODEL, references=4, probes=8)


def labelled(policy: LocalPolicy, hint: str, *labels: str) -> ScoredTurn:
    turn = sampled_turn(policy, f"turn {hint}", "What is 2 plus 3?", verdict={"value": -1, "hint": hint})
    return replace(turn, verdict=replace(turn.verdict, wishes=labels))


def test_size_direction_and_norm_are_those_of_the_shifts() -> None:
    one = Effect.of([Change(peak=0.2, shifts={(0, 7): 0.3, (1, 8): -0.4}), Change(peak=0.4, shifts={})])
    other = Effect.of([Change(peak=0.1, shifts={(0, 7): 0.3}), Change(peak=0.1, shifts={(0, 7): 5.0})])
    assert one.size == pytest.approx(0.3)
    assert one.norm == pytest.approx(0.5)
    assert one.dot(other) == pytest.approx(0.09)  # the second reply's shift is of another reply
    assert one.cosine(one) == pytest.approx(1.0)
    assert one.cosine(Effect(peaks=(), shifts={})) == 0.0


def test_a_change_is_the_divergence_of_two_contexts_and_the_shift_of_each_token(policy: LocalPolicy) -> None:
    first, second, response = [5, 6, 7], [8, 9], [10, 11, 12]
    (change,) = policy.changes([first], [second], [response])
    p, mask = policy.response_logits([first], [response], Weights.BASE)
    q, _ = policy.response_logits([second], [response], Weights.BASE)
    before, after = torch.softmax(p[0][mask[0]], -1), torch.softmax(q[0][mask[0]], -1)
    middle = (before + after) / 2
    rows = 0.5 * ((before * (before / middle).log()).sum(-1) + (after * (after / middle).log()).sum(-1))
    assert change.peak == pytest.approx(float(rows.max()), abs=1e-5)
    for (place, token), value in change.shifts.items():
        assert value == pytest.approx(float(after[place, token] - before[place, token]), abs=1e-5)
    (same,) = policy.changes([first], [first], [response])
    assert same.peak == pytest.approx(0.0, abs=1e-6)
    assert not same.shifts


def test_wishes_have_an_effect_on_other_replies_and_empty_complaints_have_none(meter: HintMeter) -> None:
    for wish in ("Too long.", "no emojis from now on", "answer me in Spanish", "Reply as JSON only."):
        assert meter.effect(wish).size > 2 * LEAST_EFFECT
    for words in ("That's wrong, check again.", "Wrong answer.", "tests still fail", "You are mistaken."):
        assert meter.effect(words).size < LEAST_EFFECT / 2


def test_rewordings_of_a_wish_point_the_same_way_and_other_wishes_do_not(meter: HintMeter) -> None:
    short = meter.effect("Shorter, please.")
    assert short.cosine(meter.effect("Keep it brief next time.")) > SAME_DIRECTION
    assert short.cosine(meter.effect("answer me in Spanish")) < SAME_DIRECTION / 2


def test_where_only_own_tokens_are_seen_the_replies_to_both_contexts_are_read(
    builtin: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[tuple[int, ...]]] = []
    whole = builtin.changes

    def noted(before: Any, after: Any, responses: Any, **given: Any) -> list[Change]:
        asked.append([tuple(reply) for reply in responses])
        return whole(before, after, responses, **given)

    monkeypatch.setattr(builtin, "changes", noted)
    monkeypatch.setattr(LocalPolicy, "sees_distributions", False)
    meter = HintMeter(builtin, MODEL, references=2, probes=2, max_tokens=16)
    effect = meter.effect("Answer in Spanish.")
    plain, hinted = asked
    assert plain != hinted
    assert len(effect.peaks) == 2
    assert {row for row, _, _ in effect.shifts} == {0, 1, 2, 3}  # the second replies have rows of their own
    assert effect.cosine(meter.effect("Answer in Spanish.")) == pytest.approx(1.0)


def test_words_that_undo_a_wish_leave_little_of_its_effect(meter: HintMeter) -> None:
    spanish = meter.effect("answer me in Spanish").size
    assert meter.effect("answer me in Spanish", "write it in English please").size < UNDONE * spanish
    assert meter.effect("answer me in Spanish", "Wrong answer.").size > 0.9 * spanish


def test_a_later_wish_can_leave_nothing_for_an_earlier_one_to_do(meter: HintMeter) -> None:
    assert meter.effect_under("Shorter, please.", "Keep it brief next time.") < 0.05
    assert meter.effect_under("Too long.", "answer me in Spanish") > 0.2


def test_compliance_is_low_before_a_wish_is_learnt_and_high_where_replies_follow_it(
    meter: HintMeter, builtin: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before,) = meter.compliance(["answer me in Spanish"])
    assert before < 0.3
    sample = builtin.sample
    hinted = meter._prompts_with(("answer me in Spanish",))
    assert hinted is not None

    def as_wished(prompts: list[tuple[int, ...]], **given: object) -> object:
        return sample([*hinted, *hinted], **given)  # type: ignore[arg-type]

    monkeypatch.setattr(builtin, "sample", as_wished)
    (after,) = meter.compliance(["answer me in Spanish"])
    assert after > 0.8
    assert meter.compliance([]) == []


def test_a_hint_teaches_where_it_does_something_and_a_correction_of_the_answer_does_not(
    meter: HintMeter, builtin: LocalPolicy
) -> None:
    turn = sampled_turn(builtin, "t", "What is the capital of France?")
    selection = HintSelection(meter, Playbook(), version=1, decode=builtin.decode)
    wish = labelled(builtin, "Too long.", "shorter")
    assert selection.choose(wish, " Too long. ", is_reaction=True).hint == "Too long."
    assert [wish.text for wish in selection.playbook.wishes] == ["Too long."]
    choice = selection.choose(turn, "Wrong answer.", is_reaction=True)
    assert choice.hint is None
    assert "does not act on these words" in choice.refusal
    assert [wish.text for wish in selection.playbook.wishes] == ["Too long."]


@pytest.mark.parametrize(
    "words",
    ["That is wrong.", "still wrong", "You got that one wrong.", "Nope, try again."],
)
def test_what_acts_like_an_empty_complaint_on_an_unlikely_reply_teaches_nothing(
    meter: HintMeter, builtin: LocalPolicy, words: str
) -> None:
    """A terse reply that an earlier wish taught is unlikely to the base model: any complaint makes it unlikelier."""
    turn = sampled_turn(builtin, "t", "What is the colour of grass?")
    ids = (*builtin.encode("Grass: green."), builtin.tokenizer.eos_token_id)
    turn = replace(
        turn, completion=replace(turn.completion, token_ids=ids, sampling_logprobs=(-0.1,) * len(ids))
    )
    change = meter.effect_on_turn(turn, words)
    assert change is not None
    assert change.peak >= LEAST_OWN_EFFECT
    choice = HintSelection(meter, Playbook(), version=1, decode=builtin.decode).choose(
        turn, words, is_reaction=True
    )
    assert choice.hint is None
    assert "only tell the model that the reply is wrong" in choice.refusal
    wish = meter.effect_on_turn(turn, "Reply as JSON only.")
    assert wish is not None
    assert meter.likeness_to_empty_complaints(turn, wish) < SAME_DIRECTION


def test_words_that_the_model_does_not_know_are_replaced_by_a_canonical_wording_of_their_wish(
    meter: HintMeter, builtin: LocalPolicy
) -> None:
    selection = HintSelection(meter, Playbook(), version=1, decode=builtin.decode)
    for words in ("kürzer bitte", "plus court svp", "moins long"):
        turn = labelled(builtin, words, "shorter")
        assert selection.choose(turn, words, is_reaction=True).hint == CANONICAL["shorter"]
    known = labelled(builtin, "Keep it brief next time.", "shorter")
    choice = selection.choose(known, "Keep it brief next time.", is_reaction=True)
    assert choice.hint == "Keep it brief next time."  # the person's own words where the model acts on them


def test_what_the_model_misses_in_words_that_it_half_understands_is_added(
    meter: HintMeter, builtin: LocalPolicy
) -> None:
    selection = HintSelection(meter, Playbook(), version=1, decode=builtin.decode)
    half = "Shorter please, and no emoji."
    assert meter.effect(half).size >= LEAST_EFFECT
    turn = labelled(builtin, half, "shorter", "no_emoji")
    assert selection.choose(turn, half, is_reaction=True).hint == f"{half} {CANONICAL['shorter']}"
    assert [wish.labels for wish in selection.playbook.wishes] == [{"shorter", "no_emoji"}]
    whole = "Please keep it short and without emoji."
    turn = labelled(builtin, whole, "shorter", "no_emoji")
    assert selection.choose(turn, whole, is_reaction=True).hint == whole


class Scripted:
    """A meter that knows how much of the label "shorter" and how much of "no_emoji" each text has."""

    compares = True

    def __init__(self, **shares: tuple[float, float]) -> None:
        self._shares = {CANONICAL["shorter"]: (1.0, 0.0), CANONICAL["no_emoji"]: (0.0, 1.0), **shares}

    def effect(self, text: str) -> Effect:
        shifts = {(0, 0, token): share for token, share in enumerate(self._shares.get(text, (0.0, 0.0)))}
        return Effect(peaks=(max(self._shares.get(text, (0.0, 0.0))),), shifts=shifts)


@pytest.mark.parametrize(
    ("own", "added", "canonical", "chosen"),
    [
        ((0.9, 0.6), (1.0, 1.0), (1.0, 1.0), "own"),
        ((0.9, 0.2), (0.9, 0.5), (1.0, 1.0), "added"),
        ((0.9, 0.2), (0.9, 0.4), (0.8, 0.7), "canonical"),
        ((0.9, 0.2), (0.4, 0.9), (0.4, 0.3), "added"),
        ((0.9, 0.2), (0.9, 0.2), (0.4, 0.1), "own"),
    ],
)
def test_the_first_wording_that_has_half_of_each_label_is_taken_or_that_which_has_most(
    own: tuple[float, float], added: tuple[float, float], canonical: tuple[float, float], chosen: str
) -> None:
    both = f"{CANONICAL['shorter']} {CANONICAL['no_emoji']}"
    texts = {"own": "words", "added": f"words {CANONICAL['no_emoji']}", "canonical": both}
    meter = Scripted(**{texts["own"]: own, texts["added"]: added, texts["canonical"]: canonical})
    wording = effective_wording(meter, "t", "words", ["shorter", "no_emoji"])  # type: ignore[arg-type]
    assert wording.text == texts[chosen]
    meter.compares = False  # effects along other replies: no share of one is a share of the other
    assert effective_wording(meter, "t", "words", ["shorter", "no_emoji"]).text == "words"  # type: ignore[arg-type]


def test_words_stay_where_their_label_has_no_effect_on_the_model(
    meter: HintMeter, builtin: LocalPolicy
) -> None:
    """The test model knows no lists: no wording could say more than the person's."""
    words = "Too long, and no lists."
    assert meter.effect(CANONICAL["no_lists"]).size < LEAST_EFFECT <= meter.effect(words).size
    wording = effective_wording(meter, "t", words, ["no_lists"])
    assert (wording.text, wording.labels) == (words, ("no_lists",))


def test_a_hint_that_withdraws_a_wish_is_taught_by_what_remains(
    meter: HintMeter, builtin: LocalPolicy
) -> None:
    selection = HintSelection(meter, Playbook(), version=1, decode=builtin.decode)
    wish = labelled(builtin, "no emojis from now on", "no_emoji")
    assert selection.choose(wish, "no emojis from now on", is_reaction=True).hint
    undone = labelled(builtin, "emojis are fine again", "emoji")
    assert selection.choose(undone, "emojis are fine again", is_reaction=True).hint == ""
    assert selection.playbook.wishes == ()
    (gone,) = selection.playbook.withdrawn
    assert gone.text == "no emojis from now on"


@pytest.mark.parametrize(
    ("reply", "words", "is_withdrawn"),
    [
        ("The colour of a banana is **yellow**! 😊", "Mi pantalla no muestra esos emojis.", False),
        ("The colour of a banana is **yellow**!", "Mi pantalla no muestra esos emojis.", True),
        ("The colour of a banana is **yellow**!", "You may use emoji as you like.", True),
    ],
)
def test_words_without_a_label_withdraw_no_wish_that_the_reply_did_not_follow(
    meter: HintMeter, builtin: LocalPolicy, reply: str, words: str, is_withdrawn: bool
) -> None:
    """Of a reply with emoji the words say that the wish was not followed, whatever the model makes of them."""
    wish = CANONICAL["no_emoji"]
    assert meter.effect(wish, words).size < UNDONE * meter.effect(wish).size
    selection = HintSelection(meter, Playbook(), version=1, decode=builtin.decode)
    assert selection.choose(labelled(builtin, wish, "no_emoji"), wish, is_reaction=True).hint
    about = labelled(builtin, words)
    ids = tuple(builtin.tokenizer.encode(reply + "<|im_end|>", add_special_tokens=False))
    about = replace(about, completion=replace(about.completion, text=reply, token_ids=ids))

    choice = selection.choose(about, words, is_reaction=True)

    assert [one.text for one in selection.playbook.withdrawn] == [wish] * is_withdrawn
    assert [one.text for one in selection.playbook.wishes] == [wish] * (not is_withdrawn)
    assert (choice.hint, "did not follow" in choice.refusal) == (
        ("", False) if is_withdrawn else (None, True)
    )


def test_a_complaint_that_makes_the_model_forget_a_named_wish_teaches_nothing(
    meter: HintMeter, builtin: LocalPolicy
) -> None:
    words = "Where do I put the import?"
    selection = HintSelection(meter, Playbook(), version=1, decode=builtin.decode)
    wish = labelled(builtin, "no emojis from now on", "no_emoji")
    assert selection.choose(wish, "no emojis from now on", is_reaction=True).hint
    choice = selection.choose(labelled(builtin, words), words, is_reaction=True)
    assert choice.hint is None
    assert "forgets an earlier wish" in choice.refusal
    assert [wish.text for wish in selection.playbook.active] == ["no emojis from now on"]


def test_words_that_put_themselves_into_the_reply_are_an_answer_and_no_preference(
    meter: HintMeter, builtin: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = sampled_turn(builtin, "t", "What is the capital of France?")
    token = builtin.tokenizer("Lyon", add_special_tokens=False)["input_ids"][0]
    copied = Change(peak=0.5, shifts={(3, token): 0.6})
    given = {"No, it is Lyon.": copied}
    monkeypatch.setattr(meter, "effect_on_turn", lambda turn, words, **more: given.get(words))
    selection = HintSelection(meter, Playbook(), version=1, decode=builtin.decode)
    choice = selection.choose(turn, "No, it is Lyon.", is_reaction=True)
    assert choice.hint is None
    assert "an answer to this question" in choice.refusal
    given["No, it is Lyon."] = replace(copied, shifts={(3, 5): 0.6})
    assert selection.choose(turn, "No, it is Lyon.", is_reaction=True).hint == "No, it is Lyon."


def test_a_version_that_loses_a_wish_at_once_or_over_time_is_refused(meter: HintMeter) -> None:
    playbook = stated("Shorter, please.")
    wish = playbook.wishes[0]

    def lost(before: float, now: float, best: float = 0.0, count: int = 24) -> bool:
        book = replace(playbook, wishes=(replace(wish, best=best),))
        shares = [Shares(now={wish.text: share}, count=count) for share in (before, now)]
        return bool(lost_wishes(book, *shares))

    assert lost(0.95, 0.6)
    assert not lost(0.95, 0.75)
    assert lost(0.7, 0.6, best=1.0)  # little by little
    assert not lost(0.6, 0.6, best=1.0)  # no worse than its parent
    assert not lost(0.1, 0.4)
    assert not lost(1.0, 0.5, count=4)  # two of four replies
    assert lost(1.0, 0.25, count=4)


def test_small_talk_of_training_is_not_the_small_talk_that_is_measured() -> None:
    def folded(text: str) -> str:
        return "".join(c for c in text.casefold() if c.isalnum())

    assert not {folded(text) for text in SMALL_TALK} & {folded(text) for text in _SMALL_TALK}


def test_small_talk_is_answered_behind_an_answer_and_taught_by_the_base_model_with_the_wishes(
    builtin: LocalPolicy,
) -> None:
    training = WishTraining(builtin, MODEL, seed=0, share=0.1, max_tokens=16)
    samples = training.small_talk(stated("Shorter, please."), number=1)
    assert len(samples) == SMALL_TALK_SAMPLES
    for sample in samples:
        prompt, hinted = builtin.decode(sample.prompt_ids), builtin.decode(sample.teacher_prompt_ids or ())
        assert any(text in prompt for text in SMALL_TALK)
        assert "Shorter, please." in hinted
        assert "Shorter, please." not in prompt
        assert sample.kind is SampleKind.ANCHOR
    again = training.small_talk(stated("Shorter, please."), number=1)
    assert [sample.prompt_ids for sample in again] == [sample.prompt_ids for sample in samples]


@pytest.mark.parametrize(
    ("wish", "label", "words", "opposite"),
    [
        ("no emojis from now on", "no_emoji", "Emoji allowed.", "emoji"),
        ("Make it shorter.", "shorter", "It does not have to be short.", "longer"),
        ("Reply as JSON only.", "json", "It does not have to be JSON.", "prose"),
    ],
)
def test_words_that_the_model_takes_for_what_they_withdraw_are_no_wish(
    builtin: LocalPolicy, meter: HintMeter, wish: str, label: str, words: str, opposite: str
) -> None:
    assert meter.effect(words).size >= LEAST_EFFECT
    assert meter.effect(words).cosine(meter.effect(wish)) >= SAME_DIRECTION
    selection = HintSelection(meter, Playbook(), version=1, decode=builtin.decode)
    assert selection.choose(labelled(builtin, wish, label), wish, is_reaction=True).hint == wish
    choice = selection.choose(labelled(builtin, words, opposite), words, is_reaction=True)
    assert choice.hint == ""  # the teacher reads the other wishes only
    assert selection.playbook.wishes == ()
    assert [one.text for one in selection.playbook.withdrawn] == [wish]
