"""The page over a record with two keys, one published version and hostile text."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from dashboard.app import Dashboard, create_app
from dashboard.sign_in import SignIn
from store.journal import JournalWriter
from store.keys import KeyFile, Keyring
from store.record import Record
from store.record_handle import RecordHandle
from store.settings import read_settings
from store.values import AdapterState, AdapterVersion, StepReport, WishReading, WishScope
from tests.making import make_answer, make_turn, make_verdict

OWNER_KEY = "patina-owner"
#: Markup and control characters, as a client or a model may send them.
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e & \"'"
POLICY = "patina-tiny"


async def fill(record: Record, hostile: str = HOSTILE) -> None:
    """Write a trained complaint of alice, a dropped turn of bob, and version 1; ``hostile`` is all that clients, people and models wrote."""
    first = make_turn("t1", [{"role": "user", "content": hostile}], text=hostile, client=hostile)
    answer = make_answer("t1", "t2", hostile)
    second = make_turn(
        "t2",
        [
            {"role": "user", "content": hostile},
            {"role": "assistant", "content": hostile},
            {"role": "user", "content": "shorter"},
        ],
        parent_turn_id="t1",
        turn_index=1,
        created_at=1_002.0,
        next_state=answer,
    )
    other = make_turn(
        "b1",
        [{"role": "user", "content": "bob's secret"}],
        text="bob's answer",
        key_name="bob",
        session_id="bobs",
        created_at=1_003.0,
    )
    await record.write_turns([first, second, other])
    await record.add_verdict(
        make_verdict("t1", hint=hostile, wish=WishReading(text=hostile, scope=WishScope.LASTING))
    )
    (turn,) = await record.claim(POLICY, 8, worker="w", lease_s=60)
    version = AdapterVersion(
        policy=POLICY,
        version=1,
        path="/nowhere",
        content_hash="0" * 64,
        parent_version=0,
        state=AdapterState.PUBLISHED,
        reason=f'1 complaint; "{hostile}"',
        method="combine",
        metrics={
            "turns": 1, "loss": 0.5, "queue_s": 3.0, "claim_s": 0.25, "teach_s": 1.5, "train_s": 2.0, "gate_s": 0.5, "write_s": 0.125,
            "device": {"interrupted_s": 1.5, "interruptions": 2},
            "gate": {"after": {"facts": 1.0, "kl": 0.03, "examples": {"Q?": "short"}}, "base": {"facts": 1.0, "examples": {"Q?": "at length", "R?": "r"}}},
        },
        created_at=1_050.0,
    )  # fmt: skip
    step = StepReport(
        step_id="step1",
        policy=POLICY,
        method="combine",
        started_at=1_040.0,
        finished_at=1_049.0,
        version=1,
        error=None,
        metrics=version.metrics,
    )
    await record.publish(version, [turn.turn_id], step, worker="w")
    failed = StepReport(
        step_id="step2",
        policy=POLICY,
        method="combine",
        started_at=1_060.0,
        finished_at=1_061.0,
        version=None,
        error=hostile,
        metrics={},
    )
    await record.write_step(failed)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def dashboard(record_url: str, tmp_path: Path, keys: KeyFile) -> Dashboard:
    return Dashboard(
        settings=read_settings({"home": tmp_path}),
        record=RecordHandle(lambda: Record.open(record_url)),
        keys=Keyring(OWNER_KEY, named=keys),
        sign_in=SignIn(tmp_path / "sign_in"),
        journal=JournalWriter(tmp_path / "journal", "dashboard"),
        gateway_url="http://127.0.0.1:9",
        first_key=OWNER_KEY,
    )


@pytest_asyncio.fixture
async def page(record: Record, dashboard: Dashboard) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the page; it has no cookie yet."""
    await fill(record)
    transport = httpx.ASGITransport(create_app(dashboard))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await dashboard.close()


async def sign_in(page: httpx.AsyncClient, key: str = OWNER_KEY) -> None:
    reply = await page.post("/dashboard/sign-in", data={"key": key})
    assert reply.status_code == 303
