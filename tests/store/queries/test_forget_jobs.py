"""While something is forgotten, what is under way does not bring it back; and what it is about is found in every form."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from store.errors import MadeOfForgotten, RecordError
from store.record import Record
from store.values import (
    AdapterState,
    Conversation,
    Feedback,
    ForgetJob,
    ForgetStage,
    Relation,
    Selection,
    StepRole,
)
from tests.making import make_turn, make_verdict
from tests.store.queries.test_forget import KEY, POLICY, SENTINEL, fill, next_turn, said, train

AT = 100.0


async def begin(record: Record, *, key_name: str = "", **selection: Any) -> ForgetJob:
    job_id = await record.ask_to_forget(Selection(**selection), key_name=key_name, now=AT)
    return await record.delete_asked(job_id, key=KEY, now=AT)


async def known(record: Record) -> set[str]:
    return {row["turn_id"] for row in await record.trajectories()}


# ---- jobs


async def test_a_job_is_taken_up_once_and_moves_by_its_stage_alone(record: Record) -> None:
    await fill(record)
    wanted = Selection(turn="three")
    job_id = await record.ask_to_forget(wanted, now=AT)
    assert await record.ask_to_forget(wanted, now=AT) == job_id
    assert await record.ask_to_forget(wanted, key_name="alice", now=AT + 1) != job_id
    assert await record.holds_training()
    first = await record.delete_asked(job_id, key=KEY, now=AT)
    assert await record.delete_asked(job_id, key=KEY, now=AT + 1) == first
    assert (first.stage, first.deleted_at) == (ForgetStage.DELETED, AT)
    _, other = await record.open_forget_jobs()
    nothing = await record.delete_asked(other.job_id, key=KEY, now=AT)  # the first took it along
    assert (nothing.stage, nothing.state) == (ForgetStage.DONE, "forgotten")
    assert not await record.change_forget_job(job_id, stage=ForgetStage.ASKED, to=ForgetStage.DONE)
    assert await record.holds_training()
    for stage, to in (
        (ForgetStage.DELETED, ForgetStage.UNLEARNT),
        (ForgetStage.UNLEARNT, ForgetStage.CLEANED),
        (ForgetStage.CLEANED, ForgetStage.DONE),
    ):
        assert await record.change_forget_job(job_id, stage=stage, waits="the disk")
        assert [one.waits for one in await record.open_forget_jobs()] == ["the disk"]
        assert await record.change_forget_job(job_id, stage=stage, to=to, detail={"complete": False})
        assert not await record.holds_training()
    (done,) = [one for one in await record.forget_jobs() if one.job_id == job_id]
    assert (done.state, await record.open_forget_jobs()) == ("incomplete", [])
    assert [one.job_id for one in await record.forget_jobs("alice")] == [other.job_id]
    with pytest.raises(RecordError, match="no forget"):
        await record.delete_asked("other", key=KEY)


# ---- what is under way


@pytest.mark.parametrize(
    ("changes", "is_recorded"),
    [
        ({"messages": said("Hello", "Hi", f"{SENTINEL} again")}, False),
        ({"messages": said(SENTINEL.replace(" ", "\n"))}, False),
        ({"messages": said("Hello"), "text": SENTINEL}, False),
        ({"messages": said("Hello"), "tool_calls": ({"function": {"arguments": SENTINEL}},)}, False),
        ({"messages": said("And a wasp?")}, False),  # a message that was removed, word for word
        ({"messages": said("Hello"), "parent_turn_id": "three"}, False),
        ({"messages": said(SENTINEL), "key_name": "bob"}, True),
        ({"messages": said(SENTINEL), "created_at": AT}, True),  # sent again: recorded again
        ({"messages": said("And a hornet?")}, True),
        ({"messages": said("What is a bee?")}, True),
    ],
)
async def test_a_reply_in_flight_is_recorded_only_without_what_is_forgotten(
    record: Record, changes: dict[str, Any], is_recorded: bool
) -> None:
    """Row 4 of the second attack: it was recorded after the receipt."""
    await fill(record)
    await begin(record, turn="three")
    changes = {"created_at": AT - 1, "session_id": "flight", **changes}
    calls = changes.pop("tool_calls", ())
    turn = make_turn("flight", changes.pop("messages"), **changes)
    turn = replace(turn, completion=replace(turn.completion, tool_calls=calls))
    feedback = Feedback(
        feedback_id="g", turn_id="one", score=1.0, text=f"say {SENTINEL}", idempotency_key="g", created_at=AT - 1
    )  # fmt: skip
    await record.write_turns([turn], feedback=[feedback])
    assert ("flight" in await known(record)) is is_recorded
    assert not any(one["feedback"] for one in (await record.judgements(["one"])).values())
    follow = make_turn("follow", said("Hello"), parent_turn_id="flight", created_at=AT - 0.5)
    await record.write_turns([turn, follow])  # from the journal once more
    assert ("flight" in await known(record)) is is_recorded
    assert ("follow" in await known(record)) is is_recorded


@pytest.mark.parametrize(
    ("changes", "is_recorded"),
    [
        ({"messages": said("Hello", "Hi", f"{SENTINEL} again")}, False),
        ({"messages": said("  My PIN is,\n> sentinel 4711... and it is a SECRET")}, False),
        ({"messages": said("Hello"), "text": SENTINEL}, False),
        ({"messages": said("Hello"), "tool_calls": ({"function": {"arguments": json.dumps({"a": SENTINEL})}},)}, False),
        ({"messages": [{"role": "system", "content": SENTINEL}, *said("Hello")]}, False),
        ({"messages": said(SENTINEL), "key_name": "bob"}, True),
        ({"messages": said(SENTINEL), "created_at": AT}, True),  # sent again: recorded again
        ({"messages": said("my pin is SENTINEL-4712 and it is a secret")}, True),
        ({"messages": said("And a hornet?")}, True),
    ],
)  # fmt: skip
async def test_a_text_is_known_again_by_its_digest_when_the_forget_is_done(
    record: Record, changes: dict[str, Any], is_recorded: bool
) -> None:
    """A segment of the journal that another host brings late, or an import: nothing but digests knew the words by then."""
    await fill(record)
    job = await begin(record, turn="three")
    kept = {name: job.detail[name] for name in ("keys", "texts", "reactions")}
    assert "sentinel" not in json.dumps(kept).lower()
    for stage, to in pairwise([*ForgetStage][1:]):
        await record.change_forget_job(job.job_id, stage=stage, to=to, detail=kept)
    assert await record.open_forget_jobs() == []
    changes = {"created_at": AT - 1, "session_id": "late", **changes}
    calls = changes.pop("tool_calls", ())
    turn = make_turn("late", changes.pop("messages"), **changes)
    turn = replace(turn, completion=replace(turn.completion, tool_calls=calls))
    feedback = Feedback(
        feedback_id="g", turn_id="one", score=1.0, text=f"say {SENTINEL}", idempotency_key="g", created_at=AT - 1
    )  # fmt: skip
    await record.write_turns([turn], feedback=[feedback])
    assert ("late" in await known(record)) is is_recorded
    assert not any(one["feedback"] for one in (await record.judgements(["one"])).values())


async def test_a_verdict_that_was_under_way_does_not_bring_a_forgotten_reaction_back(record: Record) -> None:
    await fill(record)
    await begin(record, turn="three")  # the reaction to "two"
    await record.add_verdict(make_verdict("two", hint=SENTINEL))
    assert (await record.judgements(["two"]))["two"]["verdicts"] == []


@pytest.mark.parametrize("role", [StepRole.SERVED, StepRole.STATED, StepRole.RECENT])
async def test_a_version_that_was_under_way_with_a_forgotten_reaction_is_refused(
    record: Record, role: StepRole
) -> None:
    await fill(record)
    await begin(record, turn="three")
    with pytest.raises(MadeOfForgotten):
        await train(record, 1, parent=0, others={role: ("two",)})
    assert await record.adapters(POLICY) == []


# ---- what it is about


@pytest.mark.parametrize(
    "messages",
    [
        said("My code is 4711"),
        [{"role": "system", "content": "Known: my code is 4711."}, *said("Hello")],
        said("Remember:\n> my code\n  is\t4711 <end>"),
        said("Hello", "my code is 4711", "Thanks"),
    ],
)
async def test_a_short_text_with_a_number_is_found_in_other_conversations(
    record: Record, messages: list[Any]
) -> None:
    """Row 5 of the second attack."""
    await record.write_turns(
        [
            make_turn("pin", said("My code is 4711", "Noted.", "Thanks!"), created_at=1.0),
            make_turn("again", messages, session_id="other", created_at=2.0),
            make_turn("thanks", said("Hello", "Hi", "Thanks!"), session_id="third", created_at=3.0),
            make_turn("bob", messages, session_id="bob's", key_name="bob", created_at=4.0),
        ]
    )
    closure = await record.find_closure(Selection(turn="pin"))
    assert (closure.selected, closure.quotes) == (("pin",), ("again",))
    assert closure.not_searched >= 1


async def test_items_of_conversations_are_found_and_go_with_their_turns(record: Record) -> None:
    """Row 6 of the second attack."""
    texts = ("My dog is called Rex.", "Fine.", f"I said {SENTINEL}")
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": one}]} for one in texts
    ]
    for key_name in ("alice", "bob"):
        made = Conversation(conversation_id=f"conv_{key_name}", metadata={}, created_at=1.0)
        await record.add_conversation(key_name, made, items)

    async def left(key_name: str) -> list[str]:
        found = await record.conversation(key_name, f"conv_{key_name}")
        return [] if found is None else [one.item["content"][0]["text"] for one in found.added]

    closure = await record.find_closure(Selection(match=SENTINEL))  # no turn holds it
    assert {name for name, _ in closure.items} == {"conv_alice", "conv_bob"}
    await record.forget(Selection(match=SENTINEL, key_name="alice"), key=KEY)
    assert await left("alice") == list(texts[:2])
    assert await left("bob") == list(texts)
    turn = make_turn("dog", said("My dog is called Rex.", "I see.", "Good?"), session_id="conv_alice")
    await record.write_turns([turn])
    await record.forget(Selection(turn="dog"), key=KEY)
    assert await left("alice") == ["Fine."]
    await record.forget(Selection(key_name="bob"), key=KEY)
    assert await record.conversation("bob", "conv_bob") is None


async def test_a_person_cannot_remove_what_another_said_by_saying_the_same(record: Record) -> None:
    words = "shorter answers and no bullet lists, please"
    await record.write_turns(
        [
            make_turn("mine", said(words), created_at=1.0),
            make_turn("theirs", said("Hello"), key_name="bob", session_id="b", created_at=2.0),
            next_turn("next", "theirs", said("Hello", "ok", words), words, key_name="bob", session_id="b", created_at=3.0),
        ]
    )  # fmt: skip
    await record.add_verdict(make_verdict("theirs", hint=words))
    await train(record, 1, "theirs", parent=0)
    done = await record.forget(Selection(turn="mine"), key=KEY)
    assert (done.closure.turns, done.closure.reactions, done.closure.tainted) == (("mine",), (), {})
    assert (await record.judgements(["theirs"]))["theirs"]["verdicts"][0]["hint"] == words


async def test_an_id_names_its_own_turn_whatever_completion_has_the_same_name(record: Record) -> None:
    await record.write_turns(
        [
            make_turn("mine", said("Hello")),
            make_turn("theirs", said("Hi"), completion_id="mine", key_name="bob", session_id="b"),
        ]
    )
    assert (await record.find_closure(Selection(turn="mine"))).selected == ("mine",)
    assert (await record.find_closure(Selection(turn="last"))).selection.turn in ("mine", "theirs")


async def test_continuations_of_quotes_edits_and_retries_go_and_replies_to_others_stay(
    record: Record,
) -> None:
    q1 = "What is a bee?"
    await fill(record)
    history = said(f"I said: {SENTINEL}", "ok", "Go on")
    await record.write_turns(
        [
            next_turn("after quote", "quote", history, "Go on", session_id="later", created_at=10.0),
            make_turn("retry", said(q1, "An insect.", "Shorter please!", "Bug.", SENTINEL), relation=Relation.RETRY, created_at=11.0),
            make_turn("edit", said(q1, "An insect.", "Shorter please!", "Bug.", SENTINEL, "Hm.", "So?"), created_at=12.0),
        ]
    )  # fmt: skip
    await train(record, 1, "three")
    await record.write_turns(
        [
            make_turn(f"by {name}", said("Good morning"), key_name=name, session_id=name, adapter_version=1, created_at=20.0)
            for name in ("alice", "bob")
        ]
    )  # fmt: skip
    closure = (await record.forget(Selection(turn="three"), key=KEY)).closure
    assert {"after quote", "retry", "edit", "by alice"} <= set(closure.turns)
    assert await known(record) == {"one", "two", "same", "bob", "by bob"}


async def test_a_pruned_version_never_goes_live_and_a_chain_goes_to_its_end(record: Record) -> None:
    await fill(record)
    await train(record, 1, "one")
    await train(record, 2)
    await train(record, 3, others={StepRole.SERVED: ("three",)})  # only served, never in a batch
    for version in (4, 5, 6):
        await train(record, version)  # each from the one before
    await record.mark_pruned(POLICY, [2])
    closure = (await record.forget(Selection(turn="three"), key=KEY)).closure
    assert closure.tainted == {POLICY: (3, 4, 5, 6)}
    assert await record.live_version(POLICY) == 1
    states = [one.state for one in await record.adapters(POLICY)]
    assert states == [AdapterState.PUBLISHED, AdapterState.PRUNED, *[AdapterState.FORGOTTEN] * 4]
