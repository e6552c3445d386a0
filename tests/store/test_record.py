import asyncio
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from migrations import upgrade
from store import schema
from store.errors import AliasMoved, ClaimLost, RecordError, RecordTooNew, RecordUnavailable
from store.hashing import digest
from store.lifecycle import DropReason, Stage
from store.queries.proxy import MAX_TIPS_PER_KEY
from store.record import Record
from store.values import (
    AdapterState,
    AdapterVersion,
    Completion,
    Feedback,
    FollowUp,
    Heartbeat,
    Json,
    Relation,
    StepReport,
    TurnKind,
    Waiting,
    WishReading,
    WishScope,
)
from tests.making import make_answer, make_turn, make_verdict

USER: Json = {"role": "user", "content": "¿qué? 😊"}
REPLY: Json = {"role": "assistant", "content": "ok"}
SHORTER: Json = {"role": "user", "content": [{"type": "text", "text": "shorter"}]}
POLICY = "patina-tiny"


def database(url: str) -> sqlite3.Connection:
    return sqlite3.connect(url.removeprefix("sqlite+aiosqlite:///"))


def adapter(version: int, **changes: object) -> AdapterVersion:
    made = AdapterVersion(
        policy=POLICY,
        version=version,
        path=f"/adapters/{version}",
        content_hash="0" * 32,
        parent_version=version - 1,
        state=AdapterState.PUBLISHED,
        reason="",
        method="combine",
        metrics={"loss": 0.5},
        created_at=2_000.0 + version,
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # test values by name


def step(version: int | None, **changes: object) -> StepReport:
    made = StepReport(
        step_id=f"step-{version}",
        policy=POLICY,
        method="combine",
        started_at=1_900.0,
        finished_at=2_000.0,
        version=version,
        error=None,
        metrics={},
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # test values by name


async def answered(record: Record, count: int = 1) -> list[str]:
    """Record ``count`` turns, each answered by a next one."""
    ids = []
    for i in range(count):
        first = make_turn(f"t{i}", session_id=f"s{i}")
        second = make_turn(
            f"t{i}-next",
            [*first.messages, REPLY, SHORTER],
            session_id=f"s{i}",
            parent_turn_id=f"t{i}",
            turn_index=1,
            relation=Relation.NEXT,
            prompt_token_ids=(1, 2, 3, 5, 6, 7),
            next_state=make_answer(f"t{i}", f"t{i}-next", "shorter", messages=(SHORTER,)),
        )
        await record.write_turns([first, second])
        ids.append(first.turn_id)
    return ids


async def scored(record: Record, count: int = 1) -> list[str]:
    ids = await answered(record, count)
    for turn_id in ids:
        await record.add_verdict(make_verdict(turn_id))
    return ids


async def test_a_turn_comes_back_exactly_as_it_was_written(record: Record) -> None:
    messages: list[Json] = [
        {"role": "system", "content": "be kind"},
        USER,
        {"role": "assistant", "content": None},
    ]
    await record.write_turns([make_turn("t", messages, text="hé 🎉")])
    (row,) = await record.trajectories()
    assert row["messages"] == messages
    assert [list(m) for m in row["messages"]] == [list(m) for m in messages]
    assert (row["completion"], row["completion_token_ids"], row["sampling_logprobs"]) == (
        "hé 🎉",
        [5, 6],
        [-0.5, -0.25],
    )
    assert (row["stage"], row["kind"], row["relation"]) == ("recorded", "main", "first")


async def test_the_view_is_plain_sql(record: Record, record_url: str) -> None:
    await answered(record)
    with database(record_url) as connection:
        row = connection.execute(
            "SELECT next_role, next_text, stage, json_extract(messages, '$[0].content')"
            " FROM trajectories WHERE turn_id = 't0'"
        ).fetchone()
    connection.close()
    assert row == ("user", "shorter", "answered", "hi")


async def test_writing_a_turn_twice_changes_nothing(record: Record) -> None:
    turn = make_turn("t")
    await record.write_turns([turn, turn])
    await record.write_turns([turn])
    assert (await record.status()).turns == 1


async def test_each_message_is_stored_once_even_when_the_system_prompt_changes_every_turn(
    record: Record, record_url: str
) -> None:
    history = []
    for i in range(50):
        history += [{"role": "user", "content": f"question {i}"}]
        system = {"role": "system", "content": f"it is {i} o'clock"}
        await record.write_turns(
            [make_turn(f"t{i}", [system, *history], turn_index=i, created_at=1_000.0 + i)]
        )
        history += [{"role": "assistant", "content": f"answer {i}"}]
    with database(record_url) as connection:
        (messages,) = connection.execute("SELECT count(*) FROM messages").fetchone()
        (nodes,) = connection.execute("SELECT count(*) FROM nodes").fetchone()
    connection.close()
    assert messages == 50 + 99 + 1  # system prompts, questions and answers, one request body
    assert nodes == 50 + 99
    rows = await record.trajectories(limit=100)
    assert rows[-1]["messages"][0]["content"] == "it is 49 o'clock"
    assert rows[-1]["messages"][-1]["content"] == "question 49"
    assert len(rows[-1]["messages"]) == 100
    assert await record.verify() == []


async def test_prompt_ids_are_rebuilt_exactly_though_only_what_is_new_is_stored(
    record: Record, record_url: str
) -> None:
    ids: tuple[int, ...] = ()
    for i in range(5):
        ids = (*ids, 100 + i)
        await record.write_turns(
            [
                make_turn(
                    f"t{i}",
                    parent_turn_id=f"t{i - 1}" if i else None,
                    turn_index=i,
                    prompt_token_ids=ids,
                    completion=Completion(token_ids=(i, i), sampling_logprobs=(-1.0, -1.0)),
                )
            ]
        )
        ids = (*ids, i, i) if i != 2 else (*ids, 7)  # the third reply comes back altered by the client
    with database(record_url) as connection:
        stored = connection.execute("SELECT prompt_token_ids FROM turns ORDER BY turn_index").fetchall()
    connection.close()
    assert [json.loads(row[0]) for row in stored] == [[100], [101], [102], [7, 103], [104]]
    await record.write_turns(
        [make_turn("last", parent_turn_id="t4", next_state=make_answer("t4", "last", "x"))]
    )
    await record.add_verdict(make_verdict("t4"))
    (turn,) = await record.claim(POLICY, 1, worker="w", lease_s=60)
    assert turn.prompt_token_ids == (100, 0, 0, 101, 1, 1, 102, 7, 103, 3, 3, 104)


async def test_of_a_prompt_sent_many_times_only_the_newest_turns_are_read(record: Record) -> None:
    count = MAX_TIPS_PER_KEY + 5
    await record.write_turns(
        [make_turn(f"t{i}", request_key="same", reply_key="reply", created_at=float(i)) for i in range(count)]
    )
    tips = await record.tips_for("alice", ["other", "reply", "same"])
    newest = [f"t{i}" for i in reversed(range(5, count))]
    assert [t.turn_id for t in tips.requests["same"]] == newest
    assert [t.turn_id for t in tips.replies["reply"]] == newest


async def test_tips_are_found_by_both_keys_within_their_scope(record: Record) -> None:
    await answered(record)
    tips = await record.tips_for("alice", ["reply-t0", "request-t0-next", "reply-t0-next"])
    assert [t.turn_id for t in tips.replies["reply-t0"]] == ["t0"]
    assert not tips.replies["reply-t0"][0].is_newest
    assert tips.replies["reply-t0-next"][0].is_newest
    assert tips.requests["request-t0-next"][0].turn_index == 1
    bob = await record.tips_for("bob", ["reply-t0"])
    assert (bob.replies, bob.requests) == ({}, {})


async def test_the_newest_main_turn_of_a_named_session_is_its_tip(record: Record) -> None:
    await answered(record)
    await record.write_turns([make_turn("title", session_id="s0", turn_index=9, kind=TurnKind.SIDE)])
    tip = await record.session_tip("alice", "s0")
    assert tip is not None
    assert tip.turn_id == "t0-next"
    assert await record.session_tip("bob", "s0") is None


async def test_turns_are_found_by_id_completion_and_exchange(record: Record) -> None:
    await record.write_turns([make_turn("t", [USER], text=" fine ")])
    assert await record.find_turn("alice", "t") == "t"
    assert await record.find_turn("alice", "chatcmpl-t") == "t"
    assert await record.find_turn("bob", "t") is None
    assert await record.find_exchange("alice", "¿qué? 😊", "fine") == "t"
    assert await record.find_exchange("alice", "something else", "fine") is None


async def test_an_exchange_that_an_earlier_version_recorded_is_found(record: Record) -> None:
    await record.write_turns([make_turn("t", [USER], text="one\ntwo ")])
    earlier = sa.update(schema.turns).values(completion_key=digest("one\ntwo"))
    await record._database.write(lambda connection: connection.execute(earlier))
    assert await record.find_exchange("alice", "¿qué? 😊", "one\ntwo") == "t"


async def test_the_walk_from_recorded_to_trained(record: Record) -> None:
    (turn_id,) = await answered(record)
    (waiting,) = await record.answered(10)
    assert waiting.turn_id == turn_id
    assert waiting.next_states[0].messages == (SHORTER,)
    await record.add_verdict(
        make_verdict(turn_id, wish=WishReading(text="no emoji", scope=WishScope.LASTING))
    )
    assert await record.waiting() == {
        POLICY: Waiting(
            scored=1,
            ready=1,
            oldest_since=1_020.0,
            complaints=1,
            complaint_since=1_020.0,
            newest_complaint=1_020.0,
        )
    }
    (claimed,) = await record.claim(POLICY, 8, worker="w", lease_s=60)
    assert (claimed.verdict.value, claimed.verdict.hint) == (-1, "shorter please")
    assert claimed.verdict.wish == WishReading(text="no emoji", scope=WishScope.LASTING)
    assert await record.claim(POLICY, 8, worker="other", lease_s=60) == []
    await record.publish(adapter(1), [turn_id], step(1), worker="w")
    fate = (await record.fates([turn_id]))[turn_id]
    assert (fate.stage, fate.trained_in_version) == (Stage.TRAINED, 1)
    assert (await record.aliases())[POLICY].version == 1
    assert [t.turn_id for t in await record.trained_turns(POLICY, version=1)] == [turn_id]
    progress = await record.turn_progress("alice", turn_id)
    assert progress is not None
    assert (progress.policy, progress.is_live, progress.fate) == (POLICY, True, fate)
    assert await record.turn_progress("bob", turn_id) is None
    assert await record.verify() == []


async def test_a_turn_is_live_while_its_version_or_one_made_from_it_serves(record: Record) -> None:
    (turn_id,) = await answered(record)
    await record.add_verdict(make_verdict(turn_id))
    await record.claim(POLICY, 8, worker="w", lease_s=60)
    await record.publish(adapter(1), [turn_id], step(1), worker="w")
    await record.publish(adapter(2), [], step(2), worker="w")
    found = []
    for version in (2, 1, 0):
        if version != 2:
            await record.rollback(POLICY, version)
        progress = await record.turn_progress("alice", turn_id)
        assert progress is not None
        found.append(progress.is_live)
    assert found == [True, True, False]


@pytest.mark.parametrize(
    "follow_up",
    [None, FollowUp(text="¿Y Perú? 😊"), FollowUp(text="And the capital of Peru?", is_question=True)],
)
async def test_a_verdict_keeps_its_follow_up_apart_from_its_detail(
    record: Record, follow_up: FollowUp | None
) -> None:
    (turn_id,) = await answered(record)
    await record.add_verdict(make_verdict(turn_id, follow_up=follow_up, detail={"votes": [-1]}))
    (claimed,) = await record.claim(POLICY, 8, worker="w", lease_s=60)
    assert claimed.verdict.follow_up == follow_up
    assert claimed.verdict.detail == {"votes": [-1]}


async def test_a_follow_up_of_an_older_release_is_read_from_the_detail(
    record: Record, record_url: str
) -> None:
    (turn_id,) = await answered(record)
    await record.add_verdict(make_verdict(turn_id))
    with sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///")) as connection:
        connection.execute(
            """UPDATE verdicts SET detail = '{"opinions":[],"follow_up":"why?","follow_up_is_question":true}'"""
        )
    connection.close()
    (claimed,) = await record.claim(POLICY, 8, worker="w", lease_s=60)
    assert claimed.verdict.follow_up == FollowUp(text="why?", is_question=True)
    assert claimed.verdict.detail == {"opinions": []}


async def test_what_is_ready_depends_on_whether_the_method_reads_verdicts(record: Record) -> None:
    complaint, thanks, neutral, wish = await answered(record, 4)
    assert await record.waiting() == {}
    await record.add_verdict(make_verdict(complaint, -1))
    await record.add_verdict(make_verdict(thanks, 1, source="feedback"))
    await record.add_verdict(make_verdict(neutral, 0))
    stated = WishReading(text="Shorter.", scope=WishScope.LASTING)
    await record.add_verdict(make_verdict(wish, 0, wish=stated))

    async def ready(**given: Any) -> int:
        found = (await record.waiting(**given))[POLICY]
        assert found.scored == 4
        return found.ready

    assert await ready() == 3
    assert await ready(sources=()) == 1  # wishes alone
    assert await ready(sources=("feedback",)) == 2
    assert await ready(wishes=False) == 2
    assert await ready(wishes=False, sources=("feedback",)) == 1


async def test_complaints_are_claimed_before_thanks_that_waited_longer(record: Record) -> None:
    first, second, third, fourth = await answered(record, 4)
    await record.add_verdict(make_verdict(first, 1))
    await record.add_verdict(make_verdict(second, 0))
    assert (await record.waiting())[POLICY].complaint_since is None
    await record.add_verdict(make_verdict(third, -1))
    await record.add_verdict(make_verdict(fourth, 0, hint="Shorter."))
    assert (await record.waiting())[POLICY].complaint_since is not None
    claimed = await record.claim(POLICY, 3, worker="w", lease_s=60)
    assert [turn.turn_id for turn in claimed] == [second, third, fourth]


async def test_a_claim_whose_lease_ran_out_goes_back_and_the_late_worker_cannot_publish(
    record: Record,
) -> None:
    ids = await scored(record, 2)
    await record.claim(POLICY, 8, worker="dead", lease_s=10, now=5_000)
    assert await record.release_expired(now=5_005) == 0
    assert await record.renew("dead", 20, now=5_005) == 2
    assert await record.release_expired(now=5_020) == 0
    assert await record.release_expired(now=5_030) == 2
    await record.claim(POLICY, 1, worker="new", lease_s=60, now=5_031)
    with pytest.raises(ClaimLost, match="2 of 2 turns are not claimed by dead"):
        await record.publish(adapter(1), ids, step(1), worker="dead")
    assert await record.aliases() == {}
    assert await record.adapters(POLICY) == []
    assert (await record.fates(ids))[ids[0]].stage is Stage.CLAIMED


async def test_two_trainers_never_claim_the_same_turn(record: Record, record_url: str) -> None:
    await scored(record, 12)
    other = await Record.open(record_url)
    claims = await asyncio.gather(
        *(store.claim(POLICY, 2, worker=f"w{i}", lease_s=60) for i, store in enumerate([record, other] * 4))
    )
    await other.close()
    ids = [turn.turn_id for claim in claims for turn in claim]
    assert len(ids) == len(set(ids)) == 12


async def test_explicit_feedback_is_idempotent_and_answers_the_turn(record: Record) -> None:
    await record.write_turns([make_turn("t")])
    given = Feedback(
        feedback_id="f", turn_id="t", score=-1.0, text="too long", idempotency_key="k", created_at=1_100.0
    )
    assert await record.add_feedback(given)
    assert not await record.add_feedback(replace(given, feedback_id="g"))
    (waiting,) = await record.answered(10)
    assert [f.feedback_id for f in waiting.feedback] == ["f"]


async def test_feedback_after_the_verdict_asks_for_a_new_one_and_after_training_changes_nothing(
    record: Record,
) -> None:
    (turn_id,) = await scored(record)
    given = Feedback(
        feedback_id="f", turn_id=turn_id, score=1.0, text="", idempotency_key="k", created_at=1_100.0
    )
    await record.add_feedback(given)
    assert (await record.fates([turn_id]))[turn_id].stage is Stage.ANSWERED
    await record.add_verdict(make_verdict(turn_id, 1))
    await record.claim(POLICY, 1, worker="w", lease_s=60)
    await record.publish(adapter(1), [turn_id], step(1), worker="w")
    await record.add_feedback(replace(given, feedback_id="late", idempotency_key="late"))
    assert (await record.fates([turn_id]))[turn_id].stage is Stage.TRAINED


@pytest.mark.parametrize(
    "lacks", [{"token_ids": ()}, {"sampling_logprobs": ()}, {"token_ids": (), "sampling_logprobs": ()}]
)
async def test_a_turn_without_tokens_is_scored_and_stays_dropped(record: Record, lacks: Any) -> None:
    turn = make_turn("a", main_drop_reason=DropReason.NO_TOKENS, drop_reason=DropReason.NO_TOKENS)
    turn = replace(turn, completion=replace(turn.completion, **lacks))
    await record.write_turns([turn])
    assert (await record.fates(["a"]))["a"].drop_reason is DropReason.NO_TOKENS
    reacted = make_turn(
        "b", parent_turn_id="a", turn_index=1, next_state=make_answer("a", "b", "shorter please")
    )
    await record.write_turns([reacted])
    assert [one.turn_id for one in await record.answered(10)] == ["a"]
    await record.add_verdict(make_verdict("a"), most_per_hour=1)
    row = next(row for row in await record.trajectories() if row["turn_id"] == "a")
    assert (row["stage"], row["drop_reason"], row["verdict"], row["hint"]) == (
        "dropped",
        "no_tokens",
        -1,
        "shorter please",
    )
    assert await record.claim("patina-tiny", 8, worker="w", lease_s=60) == []
    # later feedback is scored as well
    given = Feedback(
        feedback_id="f", turn_id="a", score=1.0, text="", idempotency_key="k", created_at=2_000.0
    )
    assert await record.add_feedback(given)
    assert [one.turn_id for one in await record.answered(10)] == ["a"]


async def test_feedback_revives_a_turn_dropped_for_lack_of_it_but_not_a_broken_one(record: Record) -> None:
    (turn_id,) = await answered(record)
    await record.add_verdict(make_verdict(turn_id, None), drop=DropReason.ABSTAINED)
    await record.write_turns([make_turn("broken", drop_reason=DropReason.TOKEN_MISMATCH)])
    for name in (turn_id, "broken"):
        await record.add_feedback(
            Feedback(
                feedback_id=name, turn_id=name, score=1.0, text="", idempotency_key=name, created_at=1_100.0
            )
        )
    fates = await record.fates([turn_id, "broken"])
    assert (fates[turn_id].stage, fates[turn_id].drop_reason) == (Stage.ANSWERED, None)
    assert (fates["broken"].stage, fates["broken"].drop_reason) == (
        Stage.DROPPED,
        DropReason.TOKEN_MISMATCH,
    )


async def test_closing_a_session_ends_the_wait_of_its_unanswered_turns_only(record: Record) -> None:
    (turn_id,) = await answered(record)
    await record.write_turns([make_turn("other", session_id="elsewhere")], done=[("alice", "s0")])
    fates = await record.fates([turn_id, "t0-next"])
    assert fates[turn_id].stage is Stage.ANSWERED
    assert fates["t0-next"].drop_reason is DropReason.NO_NEXT_STATE


async def test_a_second_next_state_is_kept_beside_the_first(record: Record) -> None:
    (turn_id,) = await answered(record)
    await record.write_turns(
        [
            make_turn(
                "edit",
                parent_turn_id=turn_id,
                next_state=make_answer(
                    turn_id, "edit", "longer", relation=Relation.BRANCH, created_at=2_000.0
                ),
            )
        ]
    )
    (waiting,) = await record.answered(10)
    assert [s.text for s in waiting.next_states] == ["shorter", "longer"]
    row = next(r for r in await record.trajectories() if r["turn_id"] == turn_id)
    assert row["next_text"] == "longer"


async def test_a_rejected_version_is_kept_with_its_reason_and_never_live(record: Record) -> None:
    first, second = await scored(record, 2)
    await record.claim(POLICY, 8, worker="w", lease_s=60)
    refused = adapter(1, state=AdapterState.REJECTED, reason="entropy fell to 0.1 of before")
    await record.reject(refused, step(1, error=refused.reason), worker="w", release=[first], drop=[second])
    fates = await record.fates([first, second])
    assert (fates[first].stage, fates[second].drop_reason) == (Stage.SCORED, DropReason.GATE_REJECTED)
    assert await record.aliases() == {}
    assert await record.next_version(POLICY) == 2
    with pytest.raises(RecordError, match="cannot serve: it is rejected"):
        await record.rollback(POLICY, 1)


async def test_rollback_moves_the_alias_and_keeps_the_history_of_moves(record: Record) -> None:
    (turn_id,) = await scored(record)
    await record.claim(POLICY, 1, worker="w", lease_s=60)
    await record.publish(adapter(1), [turn_id], step(1), worker="w")
    await record.rollback(POLICY, 0)
    assert [(m.version, m.actor) for m in await record.alias_moves(POLICY)] == [
        (1, "trainer"),
        (0, "rollback"),
    ]
    with pytest.raises(RecordError, match="no version 7"):
        await record.rollback(POLICY, 7)


async def test_a_version_whose_parent_is_not_live_any_more_is_not_published(record: Record) -> None:
    first, second = await scored(record, 2)
    await record.claim(POLICY, 2, worker="w", lease_s=60)
    await record.publish(adapter(1), [first], step(1), worker="w")
    await record.rollback(POLICY, 0)
    with pytest.raises(AliasMoved, match="replace version 1, and version 0 was made live meanwhile"):
        await record.publish(replace(adapter(2), parent_version=1), [second], step(2), worker="w")
    assert [m.version for m in await record.alias_moves(POLICY)] == [1, 0]
    assert (await record.fates([second]))[second].stage is Stage.CLAIMED
    await record.publish(replace(adapter(2), parent_version=0), [second], step(2), worker="w")
    assert (await record.aliases())[POLICY].version == 2


async def test_a_late_worker_gets_claim_lost_before_alias_moved(
    record: Record,
) -> None:
    ids = await scored(record, 1)
    await record.claim(POLICY, 1, worker="late", lease_s=10, now=5_000)
    await record.release_expired(now=5_020)
    await record.claim(POLICY, 1, worker="new", lease_s=60, now=5_021)
    await record.publish(adapter(1), ids, step(1), worker="new")
    with pytest.raises(ClaimLost, match="1 of 1 turns"):
        await record.publish(adapter(1), ids, step(1), worker="late")
    assert [m.version for m in await record.alias_moves(POLICY)] == [1]


async def test_pausing_is_remembered(record: Record) -> None:
    assert not await record.is_paused()
    await record.set_paused(True)
    assert await record.is_paused()
    await record.set_paused(False)
    assert (await record.status()).training == "running"


async def test_status_counts_by_stage_and_reason(record: Record) -> None:
    await answered(record, 2)
    await record.write_turns([make_turn("title", kind=TurnKind.SIDE, drop_reason=DropReason.SIDE_TURN)])
    await record.heartbeat(Heartbeat(process="proxy", pid=1, state="serving", detail={"late": 0}, at=9.0))
    await record.heartbeat(Heartbeat(process="proxy", pid=2, state="serving", detail={"late": 1}, at=10.0))
    status = await record.status()
    assert status.stages == {"answered": 2, "recorded": 2, "dropped": 1}
    assert status.drop_reasons == {"side_turn": 1}
    assert status.kinds == {"main": 4, "side": 1}
    assert [(b.pid, b.detail) for b in status.heartbeats] == [(2, {"late": 1})]


async def test_paging_through_all_turns_meets_each_once(record: Record) -> None:
    await answered(record, 7)
    seen = [row["turn_id"] async for row in record.all_turns(batch=3)]
    assert len(seen) == len(set(seen)) == 14


async def test_a_locked_record_says_so_and_the_same_write_succeeds_later(record_url: str) -> None:
    record = await Record.open(record_url, busy_timeout_s=0.05)
    other = database(record_url)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecordUnavailable, match="locked"):
        await record.write_turns([make_turn("t")])
    other.rollback()
    other.close()
    await record.write_turns([make_turn("t")])
    assert (await record.status()).turns == 1
    await record.close()


async def test_a_write_that_fails_half_way_leaves_nothing(record: Record) -> None:
    good, bad = make_turn("good"), make_turn("bad", link_confidence=None)
    with pytest.raises(RecordError):
        await record.write_turns([good, bad])
    assert (await record.status()).turns == 0
    assert await record.verify() == []


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (
            "UPDATE messages SET body = json_set(body, '$.content', 'another text') WHERE body LIKE '%hi%'",
            "hashes to",
        ),
        ("DELETE FROM nodes WHERE depth = 0", "missing"),
        ("UPDATE turn_states SET stage = 'trained' WHERE turn_id = 't0'", "trained_in_version None"),
        ("UPDATE turns SET sampling_logprobs = '[-0.5]' WHERE turn_id = 't0'", "2 ids but 1 logprobs"),
        ("DELETE FROM turn_states WHERE turn_id = 't0'", "has no state"),
        ("UPDATE turns SET parent_turn_id = 'gone' WHERE turn_id = 't0-next'", "parent gone is not there"),
        ("UPDATE turns SET prompt_base_turn_id = 'gone' WHERE turn_id = 't0-next'", "rests on turn gone"),
    ],
)
async def test_verify_finds_what_was_tampered_with(
    record: Record, record_url: str, tamper: str, message: str
) -> None:
    await answered(record)
    assert await record.verify() == []
    with database(record_url) as connection:
        connection.execute(tamper)
    connection.close()
    wrong = await record.verify()
    assert any(message in sentence for sentence in wrong), wrong


async def test_a_record_of_a_newer_patina_is_refused_and_left_alone(record_url: str) -> None:
    with database(record_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(RecordTooNew, match="newer Patina"):
        await Record.open(record_url)
    with pytest.raises(RecordTooNew, match="update Patina"):
        await asyncio.to_thread(upgrade, record_url)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "patina.db").write_bytes(b"not a database at all" * 100)
    url = f"sqlite+aiosqlite:///{tmp_path / 'patina.db'}"
    with pytest.raises(RecordError, match="not a database"):
        await asyncio.to_thread(upgrade, url)


async def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordUnavailable, match="is not there"):
        await Record.open(f"sqlite+aiosqlite:///{tmp_path / 'no' / 'patina.db'}")


async def test_a_write_of_another_process_ends_the_wait_for_a_change(record: Record, record_url: str) -> None:
    other = await Record.open(record_url)
    notice = other.change_notice()
    assert not await notice.wait(0.05)
    await record.write_turns([make_turn("t1")])
    assert await notice.wait(20.0)
    notice.close()
    await other.close()


async def test_a_heartbeat_ends_no_wait_for_a_change(record: Record) -> None:
    notice = record.change_notice()
    await record.heartbeat(Heartbeat(process="scorer", pid=1, state="running", detail={}, at=1.0))
    assert not await notice.wait(0.1)
    notice.close()
