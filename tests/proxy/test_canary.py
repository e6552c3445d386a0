"""A version on trial serves its share of the new conversations, through real gateways and a real record."""

import time
from pathlib import Path
from typing import Any, cast

from store.queries.canary import WINDOW_S
from store.record import Record
from store.values import DrawnConversation, ReleaseStage, StepReport
from tests.proxy.conftest import Gateway
from tests.proxy.test_adapters import backend, is_live, make_adapter, publish, rollback
from tests.waiting import until


def try_version(gateway: Gateway, version: int, folder: Path, share: float) -> None:
    now = time.time()
    step = StepReport(
        step_id=f"step{version}", policy="tiny", method="rl", started_at=now, finished_at=now, version=version,
        error=None, metrics={},
    )  # fmt: skip
    adapter = make_adapter("tiny", version, folder, created_at=now)
    gateway.in_record(lambda record: record.publish(adapter, [], step, worker="w", canary_share=share))
    until(lambda: version in backend(gateway)["loaded"], f"{version} is loaded")
    until(lambda: backend(gateway)["canary"] == version, f"{version} is on trial")


def ask(gateway: Gateway, text: str, *more: str) -> str:
    """Ask within a conversation; returns the backend's name of the version that answered."""
    roles = ["assistant", "user"] * (len(more) // 2)
    messages = [{"role": "user", "content": text}]
    messages += [{"role": role, "content": said} for role, said in zip(roles, more, strict=True)]
    gateway.client.chat.completions.create(model="tiny", messages=cast(Any, messages))
    return str(gateway.upstream.seen[-1].body["model"])


async def drawn_conversations(record: Record) -> list[DrawnConversation]:
    (release,) = await record.canary_releases()
    return await record.drawn_conversations(release, time.time() + 2 * WINDOW_S)


def settle(gateway: Gateway, stage: ReleaseStage) -> None:
    async def move(record: object) -> None:
        (release,) = [
            one
            for one in await record.canary_releases()  # type: ignore[attr-defined]
            if one.stage is ReleaseStage.RUNNING
        ]
        assert await record.settle_release(release, stage, numbers={}, reason="")  # type: ignore[attr-defined]

    gateway.in_record(move)


def test_new_conversations_are_shared_and_each_stays_with_its_version(
    gateway: Gateway, tmp_path: Path
) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    assert ask(gateway, "an old conversation") == "tiny@1"
    gateway.rows(1)
    try_version(gateway, 2, tmp_path, 0.5)
    first = {f"question {i}": ask(gateway, f"question {i}") for i in range(24)}
    assert set(first.values()) == {"tiny@1", "tiny@2"}
    for text, version in first.items():
        assert ask(gateway, text, "an answer", "and then?") == version
    rows = gateway.rows(49)
    recorded = {row["messages"][0]["content"]: row["adapter_version"] for row in rows}
    assert {text: f"tiny@{recorded[text]}" for text in first} == first
    drawn = gateway.in_record(drawn_conversations)
    assert len(drawn) == 24  # the old conversation was not drawn for, and a conversation is drawn for once
    assert sum(one.is_on_trial for one in drawn) == sum(version == "tiny@2" for version in first.values())


def test_a_conversation_that_began_before_the_trial_stays_with_the_live_version(
    gateway: Gateway, tmp_path: Path
) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    old = [f"old question {i}" for i in range(6)]
    for text in old:
        ask(gateway, text)
    gateway.rows(len(old))
    try_version(gateway, 2, tmp_path, 0.99)
    assert {ask(gateway, text, "an answer", "and then?") for text in old} == {"tiny@1"}
    assert "tiny@2" in {ask(gateway, f"new question {i}") for i in range(6)}


def test_a_promoted_version_serves_all_and_a_rolled_back_one_nothing(
    gateway: Gateway, tmp_path: Path
) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    try_version(gateway, 2, tmp_path, 0.5)
    settle(gateway, ReleaseStage.KEPT)
    is_live(gateway, 2)
    assert {ask(gateway, f"after {i}") for i in range(6)} == {"tiny@2"}
    try_version(gateway, 3, tmp_path, 0.5)
    settle(gateway, ReleaseStage.ROLLED_BACK)
    until(lambda: backend(gateway)["canary"] is None, "no version is on trial")
    assert {ask(gateway, f"back {i}") for i in range(6)} == {"tiny@2"}
    until(lambda: 3 not in backend(gateway)["loaded"], "the version is unloaded")


def test_a_person_who_moves_the_alias_ends_the_trial_at_the_gateway(gateway: Gateway, tmp_path: Path) -> None:
    publish(gateway, 1, tmp_path)
    is_live(gateway, 1)
    try_version(gateway, 2, tmp_path, 0.9)
    rollback(gateway, 1)
    until(lambda: backend(gateway)["canary"] is None, "no version is on trial")
    assert {ask(gateway, f"question {i}") for i in range(6)} == {"tiny@1"}
