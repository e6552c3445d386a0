"""Wishes: stated and withdrawn by verdicts, changed by trainer and owner, forgotten with the turns that state them."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from store.errors import RecordError
from store.lifecycle import DropReason
from store.record import Record
from store.values import Selection, Verdict, WishReading, WishScope, WishState
from tests.making import make_answer, make_turn, make_verdict

POLICY = "patina-tiny"
PROMPT, RETIRED, WITHDRAWN = WishState.PROMPT, WishState.RETIRED, WishState.WITHDRAWN


class Talk:
    """Adds turns whose reactions state wishes, a second apart."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.count = 0

    async def say(
        self,
        text: str,
        scope: WishScope = WishScope.LASTING,
        *,
        turn_id: str = "",
        drop: DropReason | None = None,
        **changes: Any,
    ) -> str:
        self.count += 1
        turn_id = turn_id or f"t{self.count}"
        session = f"s-{turn_id}"
        asked = make_turn(
            turn_id, [{"role": "user", "content": f"question {turn_id}"}], session_id=session, **changes
        )
        next_id = f"{turn_id}-next"
        followed = make_turn(
            next_id,
            [*asked.messages, {"role": "assistant", "content": "ok"}, {"role": "user", "content": text}],
            session_id=session,
            parent_turn_id=turn_id,
            turn_index=1,
            next_state=make_answer(turn_id, next_id, text),
            **changes,
        )
        await self.record.write_turns([asked, followed])
        await self.record.add_verdict(self.verdict(turn_id, text, scope), drop=drop)
        return turn_id

    def verdict(self, turn_id: str, text: str, scope: WishScope = WishScope.LASTING) -> Verdict:
        self.count += 1
        return make_verdict(
            turn_id, wish=WishReading(text=text, scope=scope), created_at=1_020.0 + self.count
        )

    async def list(self, policy: str = POLICY) -> list[tuple[str, WishState]]:
        return [(wish.text, wish.state) for wish in await self.record.wishes(policy)]


@pytest.fixture
def talk(record: Record) -> Talk:
    return Talk(record)


async def texts(record: Record) -> tuple[str, ...]:
    _, found = await record.wishes_since(None)
    assert found is not None
    return found.get(POLICY, ())


async def test_a_lasting_wish_is_in_the_prompt_and_a_restated_one_is_there_once(talk: Talk) -> None:
    first = await talk.say("Call me Captain.")
    await talk.say("Shorter, please.")
    again = await talk.say("call me captain")
    captain, shorter = await talk.record.wishes(POLICY)
    assert (captain.text, captain.state, captain.edited, captain.measures) == (
        "Call me Captain.",
        PROMPT,
        False,
        {},
    )
    assert [(one.turn_id, one.text) for one in captain.statements] == [
        (first, "Call me Captain."),
        (again, "call me captain"),
    ]
    assert captain.changed_at > shorter.changed_at > captain.created_at
    # The one that was stated last is read last.
    assert await texts(talk.record) == ("Shorter, please.", "Call me Captain.")


@pytest.mark.parametrize("scope", [WishScope.ONCE, WishScope.ANSWER])
async def test_a_wish_about_this_answer_or_just_once_changes_nothing(talk: Talk, scope: WishScope) -> None:
    await talk.say("With emoji, just this once.", scope)
    assert await talk.list() == []


async def test_a_complaint_without_a_wish_changes_nothing(talk: Talk) -> None:
    await talk.say("Call me Captain.")
    await talk.record.add_verdict(make_verdict("t1", created_at=2_000.0))
    assert await talk.list() == [("Call me Captain.", PROMPT)]


@pytest.mark.parametrize(
    ("stated", "text"),
    [
        ("Call me Captain.", "You can stop calling me captain."),
        ("Bitte ohne Aufzählungszeichen", "Aufzählungen sind doch wieder in Ordnung"),
        ("No emojis, please.", "I changed my mind, an emoji is fine."),
        ("请叫我船长", "不用再叫我船长了"),
    ],
)
async def test_a_withdrawal_takes_back_the_wish_that_it_shares_a_word_with(
    talk: Talk, stated: str, text: str
) -> None:
    await talk.say(stated)
    await talk.say("Answer in rhymes.")
    await talk.say(text, WishScope.WITHDRAWAL)
    assert await talk.list() == [(stated, WITHDRAWN), ("Answer in rhymes.", PROMPT)]


async def test_a_withdrawal_takes_the_wish_that_shares_most_and_of_equal_ones_the_newest(talk: Talk) -> None:
    await talk.say("Write short sentences in French.")
    await talk.say("Write short answers.")
    await talk.say("No short French sentences any more.", WishScope.WITHDRAWAL)
    await talk.say("Short titles, too.")
    await talk.say("It need not be short.", WishScope.WITHDRAWAL)
    assert [state for _, state in await talk.list()] == [WITHDRAWN, PROMPT, WITHDRAWN]


async def test_a_withdrawal_that_shares_no_word_acts_as_an_instruction(talk: Talk) -> None:
    await talk.say("Call me Captain.")
    await talk.say("I preferred it when you were chatty.", WishScope.WITHDRAWAL)
    assert await texts(talk.record) == ("Call me Captain.", "I preferred it when you were chatty.")


async def test_a_retired_or_withdrawn_wish_that_is_stated_again_is_back_in_the_prompt(talk: Talk) -> None:
    for state in (RETIRED, WITHDRAWN):
        await talk.say("Call me Captain.")
        (wish,) = await talk.record.wishes(POLICY)
        changed = await talk.record.change_wish(wish.wish_id, state=state, measures={"weights": 0.9})
        assert (changed.state, changed.measures) == (state, {"weights": 0.9})
        assert await texts(talk.record) == ()
    await talk.say("Call me Captain!")
    assert await texts(talk.record) == ("Call me Captain.",)


async def test_a_retired_wish_can_be_withdrawn(talk: Talk) -> None:
    await talk.say("Call me Captain.")
    (wish,) = await talk.record.wishes(POLICY)
    await talk.record.change_wish(wish.wish_id, state=RETIRED)
    await talk.say("No more Captain.", WishScope.WITHDRAWAL)
    assert await talk.list() == [("Call me Captain.", WITHDRAWN)]


async def test_a_turn_that_is_scored_again_does_not_bring_back_what_was_removed_since(talk: Talk) -> None:
    turn_id = await talk.say("Call me Captain.")
    (wish,) = await talk.record.wishes(POLICY)
    await talk.record.change_wish(wish.wish_id, state=WITHDRAWN)
    await talk.record.add_verdict(talk.verdict(turn_id, "Call me Captain."))
    assert await talk.list() == [("Call me Captain.", WITHDRAWN)]


async def test_other_words_found_in_the_same_turn_replace_the_earlier_reading(talk: Talk) -> None:
    turn_id = await talk.say("Call me")
    await talk.record.add_verdict(talk.verdict(turn_id, "Call me Captain."))
    (wish,) = await talk.record.wishes(POLICY)
    assert (wish.text, [one.turn_id for one in wish.statements]) == ("Call me Captain.", [turn_id])


async def test_a_wish_beyond_the_hour_s_limit_does_not_act_and_one_without_tokens_does(talk: Talk) -> None:
    await talk.say("Call me Captain.", drop=DropReason.OVER_LIMIT)
    await talk.say("Shorter.", drop=DropReason.NO_TOKENS)
    assert await talk.list() == [("Shorter.", PROMPT)]


async def test_wishes_of_two_policies_are_apart(talk: Talk) -> None:
    await talk.say("Call me Captain.")
    await talk.say("Call me Captain.", turn_id="b", policy="patina-tiny.bob")
    await talk.say("No Captain.", WishScope.WITHDRAWAL, turn_id="c", policy="patina-tiny.bob")
    assert await talk.list() == [("Call me Captain.", PROMPT)]
    assert await talk.list("patina-tiny.bob") == [("Call me Captain.", WITHDRAWN)]
    assert len(await talk.record.wishes()) == 2


async def test_the_owner_s_words_replace_the_person_s(talk: Talk) -> None:
    await talk.say("Call me Captain.")
    (before,) = await talk.record.wishes(POLICY)
    await talk.record.change_wish(before.wish_id, measures={"told": 0.5})
    wish = await talk.record.change_wish(before.wish_id, text="Say Captain.", now=5_000.0)
    assert (wish.text, wish.edited, wish.measures, wish.changed_at) == ("Say Captain.", True, {}, 5_000.0)
    assert [one.text for one in wish.statements] == ["Call me Captain."]
    await talk.say("Call me Captain, please.")  # other words: another wish, until the trainer merges them
    await talk.say("Call me Captain.")  # the words of its statement
    assert [len(one.statements) for one in await talk.record.wishes(POLICY)] == [2, 1]
    with pytest.raises(RecordError, match="needs words"):
        await talk.record.change_wish(wish.wish_id, text=" ")
    with pytest.raises(RecordError, match="no wish 77"):
        await talk.record.change_wish(77, state=RETIRED)


async def test_only_a_change_that_a_prompt_shows_is_noticed(talk: Talk) -> None:
    await talk.say("Call me Captain.")
    seen, _ = await talk.record.wishes_since(None)
    (wish,) = await talk.record.wishes(POLICY)
    await talk.record.change_wish(wish.wish_id, measures={"told": 0.5})
    await talk.record.change_wish(wish.wish_id, state=PROMPT, now=9_000.0)  # as it is
    assert await talk.record.wishes_since(seen) == (seen, None)
    await talk.record.change_wish(wish.wish_id, state=WITHDRAWN, now=1.0)  # by a clock that is behind
    later, found = await talk.record.wishes_since(seen)
    assert (found, later != seen) == ({}, True)


async def test_merged_wishes_are_one_with_all_statements(talk: Talk) -> None:
    await talk.say("Call me Captain.")
    await talk.say("Captain is my name.")
    await talk.say("Call me Captain.", turn_id="b", policy="patina-tiny.bob")
    one, other, bob = await talk.record.wishes()
    await talk.record.merge_wishes(one.wish_id, [one.wish_id, other.wish_id])
    (wish,) = await talk.record.wishes(POLICY)
    assert (wish.text, len(wish.statements)) == ("Call me Captain.", 2)
    await talk.say("captain is my name")
    assert len(await talk.record.wishes(POLICY)) == 1
    await talk.record.merge_wishes(wish.wish_id, [other.wish_id])  # it was merged before
    with pytest.raises(RecordError, match="another policy"):
        await talk.record.merge_wishes(wish.wish_id, [bob.wish_id])


async def test_a_merged_wish_has_the_wording_given_and_acts_as_the_newest_of_them(talk: Talk) -> None:
    await talk.say("Still too long for me.")
    await talk.say("Use more words.")
    await talk.say("Keep it short.")
    first, longer, newest = await talk.record.wishes(POLICY)
    await talk.record.change_wish(first.wish_id, state=RETIRED)
    seen, _ = await talk.record.wishes_since(None)
    await talk.record.merge_wishes(first.wish_id, [newest.wish_id], text="Keep it short.")
    merged, _ = await talk.record.wishes(POLICY)
    assert (merged.wish_id, merged.text, merged.state) == (first.wish_id, "Keep it short.", PROMPT)
    assert not merged.edited
    _, texts = await talk.record.wishes_since(seen)
    assert texts == {POLICY: (longer.text, "Keep it short.")}


async def test_the_words_of_an_owner_outlive_a_merge(talk: Talk) -> None:
    await talk.say("Still too long for me.")
    await talk.say("Keep it short.")
    first, second = await talk.record.wishes(POLICY)
    await talk.record.change_wish(second.wish_id, text="At most two lines.")
    await talk.record.merge_wishes(first.wish_id, [second.wish_id], text="At most two lines.")
    (merged,) = await talk.record.wishes(POLICY)
    assert (merged.text, merged.edited) == ("At most two lines.", True)
    await talk.say("Shorter.")
    (_, third) = await talk.record.wishes(POLICY)
    await talk.record.merge_wishes(first.wish_id, [third.wish_id], text="Shorter.")
    (merged,) = await talk.record.wishes(POLICY)
    assert (merged.text, merged.edited) == ("At most two lines.", True)


async def forget(record: Record, turn_id: str, **more: Any) -> None:
    await record.forget(Selection(turn=turn_id), key=b"k", **more)


async def test_a_wish_goes_with_its_last_statement_and_else_takes_other_words(talk: Talk) -> None:
    first = await talk.say("Call me Captain.")
    second = await talk.say("call me captain")
    await forget(talk.record, first)
    (wish,) = await talk.record.wishes(POLICY)
    assert (wish.text, [one.turn_id for one in wish.statements]) == ("call me captain", [second])
    await forget(talk.record, f"{second}-next")  # the message that states it, not the turn that it is about
    assert await talk.record.wishes() == ()
    assert await talk.record.verify() == []


async def test_an_edited_wish_keeps_the_owner_s_words_until_its_last_statement_goes(talk: Talk) -> None:
    first, second = await talk.say("Call me Captain."), await talk.say("call me captain")
    (wish,) = await talk.record.wishes(POLICY)
    await talk.record.change_wish(wish.wish_id, text="Say Captain.")
    await forget(talk.record, first)
    assert await texts(talk.record) == ("Say Captain.",)
    await forget(talk.record, second)
    assert await talk.record.wishes() == ()


async def test_a_wish_and_its_statements_are_checked_against_each_other(talk: Talk, record_url: str) -> None:
    await talk.say("Call me Captain.")
    await talk.say("Shorter.")
    assert await talk.record.verify() == []
    connection = sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("DELETE FROM turns WHERE turn_id = 't1'")  # its statement goes with it
    connection.execute("UPDATE wish_statements SET wish_id = 9")
    connection.commit()
    connection.close()
    found = [line for line in await talk.record.verify() if line.startswith("wish ")]
    assert found == [
        "wish 1: no turn states it",
        "wish 2: no turn states it",
        "wish 9: it is not there, but a turn states it",
    ]


async def served_with(record: Record, turn_id: str, text: str, **changes: Any) -> None:
    turn = make_turn(
        turn_id, session_id=turn_id, created_at=3_000.0, wish_text=text, wish_place="behind", **changes
    )
    await record.write_turns([turn])


def stored_turns(url: str) -> dict[str, tuple[str, str]]:
    connection = sqlite3.connect(url.removeprefix("sqlite+aiosqlite:///"))
    rows = connection.execute("SELECT turn_id, wish_text, prompt_token_ids FROM turns").fetchall()
    connection.close()
    return {turn_id: (text, ids) for turn_id, text, ids in rows}


async def test_what_was_answered_with_a_forgotten_wish_in_the_prompt_goes_with_it(
    talk: Talk, record_url: str
) -> None:
    first = await talk.say("Call me\nCaptain.")
    await talk.say("Shorter.")
    await served_with(talk.record, "with", "Shorter.\nCall me Captain.")
    await served_with(talk.record, "without", "Shorter.")
    await served_with(talk.record, "other-key", "Call me Captain.", key_name="bob")
    closure = await talk.record.find_closure(Selection(turn=first))
    assert closure.replies == ("with",)
    await forget(talk.record, first)
    assert {"with", first, f"{first}-next"}.isdisjoint(stored_turns(record_url))
    assert stored_turns(record_url)["without"] == ("Shorter.", "[1,2,3]")
    assert stored_turns(record_url)["other-key"] == ("", "[]")


async def test_a_kept_reply_holds_no_forgotten_wish(talk: Talk, record_url: str) -> None:
    first = await talk.say("Call me Captain.")
    await served_with(talk.record, "with", "Call me Captain.")
    await forget(talk.record, first, with_replies=False)
    assert stored_turns(record_url)["with"] == ("", "[]")
    assert (await talk.record.fates(["with"]))["with"].drop_reason is DropReason.FORGOTTEN
    assert await talk.record.verify() == []


async def test_words_that_another_turn_still_states_keep_their_replies(talk: Talk, record_url: str) -> None:
    first = await talk.say("Call me Captain.")
    await talk.say("Call me Captain.")
    await served_with(talk.record, "with", "Call me Captain.")
    await forget(talk.record, first)
    assert stored_turns(record_url)["with"] == ("Call me Captain.", "[1,2,3]")


async def test_a_claimed_turn_has_what_was_added_to_its_prompt(talk: Talk) -> None:
    await talk.say("Call me Captain.", wish_text="Shorter.", wish_place="system")
    (turn,) = await talk.record.claim(POLICY, 1, worker="w", lease_s=60)
    assert (turn.wish_text, turn.wish_place) == ("Shorter.", "system")
    assert turn.verdict.wish == WishReading(text="Call me Captain.", scope=WishScope.LASTING)
