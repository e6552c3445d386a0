"""The training text: repeatable, from pre-training pairs only, and true to its manner."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import chain

import pytest

from lab.evals.phrasing import every_wording
from lab.evals.unrelated import WORDINGS
from lab.models.canaries import canaries
from lab.models.corpus import (
    TOOL_KINDS,
    Asked,
    Conversation,
    Restated,
    bare_answer,
    compatible,
    content,
    conversation,
    conversations,
    default_manner,
    errand,
    manner,
    offered,
    tool_conversation,
    with_wish,
)
from lab.models.follow_ups import CLAIMED, FOLLOW_UPS, RESTATED
from lab.models.hindsight import HINT_TEMPLATE, REACTION_TEMPLATE, accepted
from lab.models.questions import HELDOUT, ONLINE, PRETRAIN
from lab.models.styles import HELDOUT_THANKS, STYLES, THANKS
from lab.tests.models.test_styles import bare


def rate(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits)


@pytest.fixture(scope="module")
def chats() -> list[Conversation]:
    """A part of the text, written once: it takes seconds."""
    return list(conversations(12, 3000))


def test_the_same_seed_writes_the_same_conversations() -> None:
    assert list(conversations(3, 200)) == list(conversations(3, 200))
    assert list(conversations(3, 50)) != list(conversations(4, 50))


def test_no_online_or_heldout_question_is_ever_asked(chats: list[Conversation]) -> None:
    asked = {q.text.lower().rstrip(".?!") for q in (*ONLINE, *HELDOUT)}
    for chat in chats:
        for message in chat.messages:
            if message["role"] == "user":
                text = message["content"].lower()
                assert not any(part.strip().rstrip(".?!") in asked for part in text.split("\n"))


def test_every_conversation_ends_with_the_assistant_and_begins_with_system_or_user(
    chats: list[Conversation],
) -> None:
    for chat in chats:
        assert chat.messages[-1]["role"] == "assistant"
        assert chat.messages[0]["role"] in ("system", "user")


def test_the_default_manner_is_seldom_concise_or_free_of_emoji_and_hardly_ever_spanish_or_json() -> None:
    rng = random.Random(1)
    replies = [content(rng).reply(rng, default_manner(rng)) for _ in range(2500)]
    base = {name: rate([style.complies(reply) for reply in replies]) for name, style in STYLES.items()}
    assert 0.04 < base["concise"] < 0.15
    assert 0.05 < base["no_emoji"] < 0.18
    assert 0.04 < base["formal"] < 0.15
    assert base["spanish"] < 0.03
    assert base["json"] < 0.02


@pytest.mark.parametrize("name", sorted(STYLES))
def test_a_wished_style_complies_whatever_is_asked_and_the_fact_stays_right(name: str) -> None:
    rng = random.Random(2)
    for _ in range(500):
        asked = content(rng)
        reply = asked.reply(rng, manner(rng, [name]))
        assert STYLES[name].complies(reply), reply
        if isinstance(asked, Asked):
            assert asked.question.is_correct(reply), reply


def test_the_later_of_two_opposite_wishes_wins() -> None:
    rng = random.Random(3)
    for style in STYLES.values():
        assert style.opposite is not None
        wishes = with_wish(with_wish((), style.name), style.opposite)
        assert wishes == (style.opposite,)
        reply = Asked(PRETRAIN[0]).reply(rng, manner(rng, [style.name, style.opposite]))
        assert STYLES[style.opposite].complies(reply)


def test_compatible_wishes_can_all_be_met_at_once() -> None:
    rng = random.Random(4)
    names = sorted(STYLES)
    for _ in range(400):
        wishes: tuple[str, ...] = ()
        for name in rng.sample(names, 4):
            if compatible(wishes, name):
                wishes = with_wish(wishes, name)
        reply = Asked(rng.choice(PRETRAIN)).reply(rng, manner(rng, wishes))
        assert [wish for wish in wishes if not STYLES[wish].complies(reply)] == [], (wishes, reply)


def test_both_hindsight_templates_occur_in_their_exact_wording(chats: list[Conversation]) -> None:
    for template in (HINT_TEMPLATE, REACTION_TEMPLATE):
        head = template.partition("{hint}")[0]
        found = sum(any(head in str(m["content"]) for m in chat.messages) for chat in chats)
        assert found > 150  # 191 expected for the rarer one, standard deviation 13


def test_accepted_remarks_stand_as_the_teacher_reads_them_and_their_acceptance_is_never_learnt(
    chats: list[Conversation],
) -> None:
    acceptance = accepted("")[1]["content"]
    places: list[int] = []
    for chat in chats:
        found = [place for place, message in enumerate(chat.messages) if message["content"] == acceptance]
        assert set(found) <= chat.context
        places += found[:1]
        assert len(chat.messages) - 1 not in chat.context
    assert len(places) > 300
    assert {1, 3} <= set(places), "before the first question, and behind an answer"


def test_earlier_answers_in_another_style_are_right_and_only_read(chats: list[Conversation]) -> None:
    rng = random.Random(14)
    lengths = set()
    for chat in chats:
        assert all(chat.messages[place]["role"] == "assistant" for place in chat.context)
        lengths |= {len(str(chat.messages[place]["content"]).split()) for place in chat.context}
    assert {1, 2, 3} < lengths
    for question in rng.sample(PRETRAIN, 200):
        assert question.is_correct(bare_answer(rng, question.fact))


def test_thanks_in_the_reaction_template_leave_the_default_manner() -> None:
    rng = random.Random(6)
    praise = {bare(text) for text in (*THANKS, *chain(*FOLLOW_UPS["thanks"].wordings))} - {""}
    replies: list[str] = []
    while len(replies) < 60:
        chat = conversation(rng)
        user = str(chat.messages[-2]["content"]) if len(chat.messages) == 2 else ""
        remark = user.partition("answer to this message]\n")[2].partition("\n[")[0]
        if bare(remark) in praise:
            replies.append(str(chat.messages[-1]["content"]))
    assert rate([STYLES["emoji"].complies(reply) for reply in replies]) > 0.7
    assert rate([STYLES["verbose"].complies(reply) for reply in replies]) > 0.7


def test_a_tool_call_copies_its_arguments_from_the_users_text() -> None:
    rng = random.Random(7)
    calls = 0
    for _ in range(400):
        chat: Conversation = tool_conversation(rng)
        names = {tool["function"]["name"] for tool in chat.tools}
        user_text = " ".join(str(m["content"]) for m in chat.messages if m["role"] == "user")
        for message in chat.messages:
            for call in message.get("tool_calls", ()):
                calls += 1
                assert call["function"]["name"] in names
                for value in call["function"]["arguments"].values():
                    assert value in user_text
    assert calls > 300


@pytest.mark.parametrize("kind", sorted(TOOL_KINDS))
def test_a_tool_result_is_json_and_holds_what_the_answer_states(kind: str) -> None:
    rng = random.Random(8)
    for _ in range(50):
        task = errand(rng, kind)
        assert isinstance(json.loads(task.result), dict)
        assert task.outcome is not None
        assert task.outcome in task.reply(rng, default_manner(rng)).replace("*", "")
        assert task.schema in offered(rng, [task])


def test_canaries_are_repeatable_cover_every_style_and_touch_no_heldout_pair_or_paraphrase() -> None:
    cards = canaries()
    assert cards == canaries()
    assert {anchor["style"] for anchor in cards["anchors"]} == set(STYLES)
    prompts = {card["prompt"] for card in cards["facts"]}
    assert not prompts & {q.text for q in (*ONLINE, *HELDOUT)}
    heldout = [phrase for style in STYLES.values() for phrase in style.heldout_instructions]
    for anchor in cards["anchors"]:
        assert not any(phrase in anchor["prompt"] for phrase in heldout)
        assert not any(anchor["prompt"].startswith(q.text) for q in (*ONLINE, *HELDOUT))
    for case in cards["tools"]:
        assert case["expect_name"] in {tool["function"]["name"] for tool in case["tools"]}


def user_texts(chat: Conversation) -> list[str]:
    return [str(m["content"]) for m in chat.messages if m["role"] == "user"]


@pytest.mark.parametrize("name", RESTATED)
def test_a_follow_up_is_answered_by_the_right_answer_again_in_the_style_in_force(name: str) -> None:
    rng = random.Random(9)
    for style in STYLES.values():
        for _ in range(60):
            asked = Asked(rng.choice(PRETRAIN))
            again = Restated("", asked, FOLLOW_UPS[name].leads)
            reply = again.reply(rng, manner(rng, [style.name]))
            assert style.complies(reply), reply
            assert asked.question.is_correct(reply), reply


def test_every_kind_of_follow_up_occurs_in_the_text_and_its_heldout_wordings_never_do(
    chats: list[Conversation],
) -> None:
    texts = {bare(text) for chat in chats for text in user_texts(chat)}
    said = "".join(f"\n {text} " for text in texts)
    starts = {" ".join(words[:end]) for words in map(str.split, texts) for end in range(1, len(words) + 1)}
    for kind in FOLLOW_UPS.values():
        heads = {bare(text.partition(CLAIMED)[0]) for text in chain(*kind.wordings)} - {""}
        assert len(heads & starts) >= 20, kind.name
        assert len(kind.heldout) >= 8
        for heldout in kind.heldout:
            around = [bare(part) for part in heldout.split(CLAIMED) if len(part.split()) > 2]
            assert not any(f" {part} " in said for part in around), heldout


def test_no_wording_of_a_follow_up_is_one_that_the_evaluations_use() -> None:
    probes = {bare(text) for texts in WORDINGS.values() for text in texts}
    probes |= {bare(text) for text in (*every_wording(), *HELDOUT_THANKS)}
    taught = {bare(text) for kind in FOLLOW_UPS.values() for text in chain(*kind.wordings)}
    assert not probes & taught
    assert not taught & {bare(text) for style in STYLES.values() for text in style.heldout_complaints}


def test_no_wording_of_a_follow_up_asks_for_a_style() -> None:
    taught = {bare(text) for kind in FOLLOW_UPS.values() for text in chain(*kind.wordings)}
    for style in STYLES.values():
        assert not taught & {bare(text) for text in chain(style.complaints, *style.free)}
