"""Forgetting: what belongs to a turn, and that nothing of it is left in the record's bytes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from store.errors import MadeOfForgotten, RecordError
from store.lifecycle import DropReason, Stage
from store.record import Record
from store.values import (
    AdapterState,
    AdapterVersion,
    Closure,
    Feedback,
    Json,
    NewTurn,
    Relation,
    Selection,
    StepInputs,
    StepReport,
    StepRole,
)
from tests.making import make_answer, make_turn, make_verdict

KEY = b"k" * 32
SENTINEL = "my pin is SENTINEL-4711 and it is a secret"
POLICY = "patina-tiny"


def said(*texts: str) -> list[Json]:
    """Return a history: question, answer, question, ..."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def next_turn(turn_id: str, parent: str, messages: list[Json], reaction: str, **changes: object) -> NewTurn:
    return make_turn(
        turn_id,
        messages,
        parent_turn_id=parent,
        relation=Relation.NEXT,
        next_state=make_answer(parent, turn_id, reaction),
        **changes,
    )


async def fill(record: Record) -> None:
    """A conversation of four turns, the third with the sentinel; a later quote of it; another key's turns."""
    q1, q2, q4 = "What is a bee?", "Shorter please!", "And a wasp?"
    await record.write_turns(
        [
            make_turn("one", said(q1), text="An insect.", created_at=1.0),
            next_turn("two", "one", said(q1, "An insect.", q2), q2, text="Bug.", created_at=2.0),
            next_turn(
                "three",
                "two",
                said(q1, "An insect.", q2, "Bug.", SENTINEL),
                SENTINEL,
                text="I will keep SENTINEL-4711 safe for you.",
                created_at=3.0,
            ),
            next_turn(
                "four",
                "three",
                said(q1, "An insect.", q2, "Bug.", SENTINEL, "I will keep SENTINEL-4711 safe for you.", q4),
                q4,
                text="Also an insect.",
                created_at=4.0,
            ),
            make_turn("quote", said(f"I said: {SENTINEL}"), session_id="later", created_at=5.0),
            make_turn("same", said(q1), session_id="same words", created_at=6.0),
            make_turn("bob", said(q1), key_name="bob", session_id="bob's", created_at=7.0),
        ]
    )
    await record.add_feedback(
        Feedback(
            feedback_id="f",
            turn_id="same",
            score=-1.0,
            text="too long",
            idempotency_key="f",
            created_at=8.0,
        )
    )
    for turn_id in ("one", "two", "three", "same"):
        await record.add_verdict(make_verdict(turn_id, hint=SENTINEL if turn_id == "two" else "shorter"))


async def train(
    record: Record,
    version: int,
    *turn_ids: str,
    path: str | None = None,
    parent: int | None = None,
    policy: str = POLICY,
    others: Mapping[StepRole, tuple[str, ...]] | None = None,
) -> None:
    """Publish a version that was trained on these turns, made from the live one by default."""
    claimed = await record.claim(POLICY, 10, worker="w", lease_s=60)
    await record.release([turn.turn_id for turn in claimed if turn.turn_id not in turn_ids], worker="w")
    inputs = StepInputs(
        turns={
            role: tuple((one, 1) for one in some)
            for role, some in {StepRole.BATCH: turn_ids, **(others or {})}.items()
        },
        settings={},
    )
    words = SENTINEL if any("three" in some for some in (turn_ids, *(others or {}).values())) else "shorter"
    adapter = AdapterVersion(
        policy=policy,
        version=version,
        path=path or f"/adapters/{version}",
        content_hash="",
        parent_version=version - 1 if parent is None else parent,
        state=AdapterState.PUBLISHED,
        reason=f'1 complaint; "{words}"',
        method="rl",
        metrics={"words": words},
        created_at=float(version),
    )
    step = StepReport(
        step_id=f"step-{policy}-{version}",
        policy=policy,
        method="rl",
        started_at=1.0,
        finished_at=2.0,
        version=version,
        error=None,
        metrics={},
        inputs=inputs,
    )
    live = await record.live_version(policy)
    await record.publish(adapter, list(turn_ids), step, worker="w", live=live)


def words_in(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        if path.is_file() and b"SENTINEL-4711" in path.read_bytes():
            yield path.name


async def test_what_belongs_to_a_turn_is_listed_by_kind(record: Record) -> None:
    await fill(record)
    closure = await record.find_closure(Selection(turn="three"))
    assert closure.selected == ("three",)
    assert closure.continuations == ("four",)
    assert closure.quotes == ("quote",)
    assert closure.reactions == ("two",)
    assert closure.tainted == {}
    assert SENTINEL in closure.lines


async def test_nothing_of_it_is_left_in_the_files_while_another_process_has_them_open(
    record: Record, record_url: str, tmp_path: Path
) -> None:
    await fill(record)
    other = await Record.open(record_url)
    assert set(words_in(tmp_path)) & {"patina.db", "patina.db-wal"}
    done = await record.forget(Selection(turn="three"), key=KEY, now=100.0)
    await record.scrub()
    assert list(words_in(tmp_path)) == []
    assert set(done.turns) == {"three", "four", "quote"}
    assert await record.verify() == []
    assert await other.known_turns(["one", "two", "three", "four", "quote", "same", "bob"]) == {
        "one", "two", "same", "bob",
    }  # fmt: skip
    fate = (await other.fates(["two"]))["two"]
    assert (fate.stage, fate.drop_reason) == (Stage.DROPPED, DropReason.FORGOTTEN)
    assert (await other.trajectories(session_id="session"))[0]["completion"] == "An insect."
    await other.close()


@pytest.mark.parametrize("selection", [Selection(turn="three"), Selection(match="SENTINEL-4711")])
async def test_damaged_rows_are_forgotten_too(record: Record, tmp_path: Path, selection: Selection) -> None:
    await fill(record)
    with closing(sqlite3.connect(tmp_path / "patina.db", isolation_level=None)) as database:
        database.execute("UPDATE turns SET tool_calls = '[SENTINEL-4711' WHERE turn_id = 'three'")
        database.execute("UPDATE next_states SET messages = '[' WHERE turn_id = 'one'")
        where = "body LIKE '%\"my pin is SENTINEL-4711%'"
        assert database.execute(f"UPDATE messages SET body = substr(body, 1, 60) WHERE {where}").rowcount
    done = await record.forget(selection, key=KEY)
    await record.scrub()
    assert {"three", "four"} <= set(done.turns)
    assert await record.known_turns(["one", "three", "four"]) == {"one"}
    if selection.match:
        assert list(words_in(tmp_path)) == []


async def test_a_journal_that_still_holds_a_forgotten_turn_does_not_bring_it_back(record: Record) -> None:
    await fill(record)
    done = await record.forget(Selection(turn="quote"), key=KEY)
    await record.write_turns([make_turn("quote", said(SENTINEL)), make_turn("new", said("hello"))])
    assert await record.known_turns(["quote", "new"]) == {"new"}
    assert await record.found_again([*done.turns], done.messages, KEY) == []
    await record.write_turns([make_turn("again", said(f"I said: {SENTINEL}"))])
    assert len(await record.found_again([*done.turns], done.messages, KEY)) == 1


async def test_a_text_is_found_in_what_people_reacted_and_in_every_spelling(record: Record) -> None:
    await fill(record)
    closure = await record.find_closure(Selection(match="sentinel-4711"))
    assert set(closure.selected) == {"two", "three", "four", "quote"}  # "two" for its hint
    with pytest.raises(RecordError, match="no turn for a text"):
        await record.find_closure(Selection(match="never written"))
    assert (await record.find_closure(Selection(key_name="bob"))).turns == ("bob",)


async def test_versions_trained_on_it_and_their_descendants_are_taken_back(record: Record) -> None:
    await fill(record)
    await train(record, 1, "one")
    await train(record, 2, "same", "three")
    await train(record, 3, "two", others={StepRole.SERVED: ("one",)})
    await record.write_turns(
        [make_turn("reply", said("Good morning"), session_id="new", adapter_version=3, created_at=9.0)]
    )
    kept: Closure = await record.find_closure(Selection(turn="three"), with_replies=False)
    assert kept.replies == ("reply",)
    assert "reply" not in kept.turns
    done = await record.forget(Selection(turn="three"), key=KEY)
    assert done.closure.tainted == {POLICY: (2, 3)}
    assert "reply" in done.turns
    assert (await record.aliases())[POLICY].version == 1
    states = [adapter.state for adapter in await record.adapters(POLICY)]
    assert states == [AdapterState.PUBLISHED, AdapterState.FORGOTTEN, AdapterState.FORGOTTEN]
    fates = await record.fates(["one", "two", "same"])
    assert [fates[one].stage for one in ("one", "two", "same")] == [
        Stage.TRAINED, Stage.DROPPED, Stage.SCORED,
    ]  # fmt: skip
    assert await record.verify() == []
    with pytest.raises(RecordError, match="it is forgotten"):
        await record.rollback(POLICY, 2)


async def test_a_step_that_used_it_meanwhile_is_not_published(record: Record) -> None:
    await fill(record)
    await record.forget(Selection(turn="three"), key=KEY)
    with pytest.raises(MadeOfForgotten, match="forgotten meanwhile"):
        await train(record, 1, "one", others={StepRole.SERVED: ("three",)})
    assert await record.adapters(POLICY) == []


@pytest.mark.parametrize("role", list(StepRole))
@pytest.mark.parametrize(("third", "tainted"), [(0, (2,)), (2, (2, 3))])
async def test_a_version_goes_exactly_when_its_inputs_or_its_ancestors_hold_the_turn(
    record: Record, role: StepRole, third: int, tainted: tuple[int, ...]
) -> None:
    await fill(record)
    await train(record, 1, "one", parent=0)
    await train(record, 2, parent=0, others={role: ("three",)})
    await train(record, 3, "two", parent=third)
    closure = (await record.forget(Selection(turn="three"), key=KEY)).closure
    assert closure.tainted == {POLICY: tuple(sorted({*tainted, 3}))}  # "three" is the reaction to "two"
    assert closure.clean == {POLICY: 1}


async def test_a_version_that_does_not_hold_the_turn_stays_live(record: Record) -> None:
    await fill(record)
    await train(record, 1, "three", parent=0)
    await train(record, 2, "same", parent=0)
    closure = (await record.forget(Selection(turn="three"), key=KEY)).closure
    assert (closure.tainted, closure.clean) == ({POLICY: (1,)}, {})
    assert await record.live_version(POLICY) == 2
    assert (await record.fates(["same"]))["same"].stage is Stage.TRAINED


async def test_the_newest_clean_version_that_was_live_before_goes_live(record: Record) -> None:
    await fill(record)
    await train(record, 1, "one", parent=0)
    await train(record, 2, parent=0)
    await train(record, 3, "same", parent=0, others={StepRole.STATED: ("three",)})
    await train(record, 4, parent=0)
    await record.rollback(POLICY, 3)  # a person did not want version 4
    closure = (await record.forget(Selection(turn="three"), key=KEY)).closure
    assert closure.clean == {POLICY: 2}
    fates = await record.fates(["one", "same"])
    assert [fates[one].stage for one in ("one", "same")] == [Stage.TRAINED, Stage.SCORED]
