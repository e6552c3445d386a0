"""The same code on PostgreSQL, against a real server that this file starts and stops. Skips where none is installed."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import create_async_engine

from cli.main import main
from cli.recorded_traffic import draft_of, parse_line
from migrations import upgrade
from recorder.worker import REJECTED, RecorderWorker
from serving.ports import free_port
from store.errors import RecordUnavailable
from store.journal import EntryKind, JournalWriter, segments
from store.lifecycle import Stage
from store.record import Record
from store.schema import TRAJECTORY_COLUMNS, metadata
from store.values import Feedback, Heartbeat, Selection, WishReading, WishScope
from tests.kill_points import die_at_each, run_until
from tests.making import make_answer, make_turn, make_verdict
from tests.proxy.test_main import process, recording, send_requests, write_settings
from tests.proxy.upstream import Upstream, running
from tests.store.queries.test_forget import fill, train
from tests.store.test_record import POLICY, SHORTER, adapter, step
from tests.waiting import until
from wire.captured_exchange import dump_exchange

pytest.importorskip("asyncpg")
SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
pytestmark = pytest.mark.skipif(
    not SERVERS, reason="no PostgreSQL server here (Debian: apt-get install postgresql)"
)


def _not_root() -> dict[str, int]:
    """PostgreSQL refuses to run as root; its Debian package makes a user for it."""
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of an empty database on a server of our own."""
    binaries = SERVERS[-1].parent
    as_whom = _not_root()
    folder = Path("/tmp") / f"patina-pg-{os.getpid()}"  # short: a socket's path has at most 107 bytes
    folder.mkdir(mode=0o700)
    try:
        if as_whom:
            os.chown(folder, as_whom["user"], as_whom["group"])
        data = folder / "data"
        subprocess.run(
            [binaries / "initdb", "-D", data, "-A", "trust", "-U", "patina", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
            **as_whom,  # type: ignore[call-overload]  # user and group
        )
        port = free_port()
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            **as_whom,  # type: ignore[call-overload]  # user and group
        )
        try:
            url = f"postgresql+asyncpg://patina@127.0.0.1:{port}/postgres"
            for _ in range(600):
                ready = subprocess.run(
                    [binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q"], check=False
                )
                if ready.returncode == 0:
                    break
                assert process.poll() is None, "the server ended"
                time.sleep(0.1)
            upgrade(url)
            yield url
        finally:
            process.send_signal(signal.SIGINT)  # ends it without waiting for connections to close
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_record_of_release_0_2_0_gets_exactly_the_declared_tables(server: str) -> None:
    released = Path(__file__).parent / "released" / "0.2.0-postgresql.sql"
    old = sa.make_url(server).set(database="released")
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(sa.text("CREATE DATABASE released"))
    await engine.dispose()
    engine = create_async_engine(old)
    async with engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.execute(released.read_text(encoding="utf-8"))
    await asyncio.to_thread(upgrade, old.render_as_string(hide_password=False))
    async with engine.connect() as connection:
        found = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync), metadata)
        )
        rows = await connection.execute(sa.text("SELECT * FROM trajectories"))
        assert tuple(rows.keys()) == TRAJECTORY_COLUMNS
    await engine.dispose()
    assert found == []


async def test_the_walk_from_recorded_to_trained_is_the_same_on_postgresql(server: str) -> None:
    await asyncio.to_thread(upgrade, server)  # a second time changes nothing
    record = await Record.open(server)
    system = {"role": "system", "content": "it is 9 o'clock"}
    question = {"role": "user", "content": "¿qué? 😊"}
    first = make_turn("t", [system, question], text="ok")
    second = make_turn(
        "t2",
        [system, question, {"role": "assistant", "content": "ok"}, SHORTER],
        parent_turn_id="t",
        turn_index=1,
        prompt_token_ids=(1, 2, 3, 5, 6, 7),
        created_at=1_010.0,
        next_state=make_answer("t", "t2", "shorter", messages=(SHORTER,)),
    )
    await record.write_turns([first, second])
    await record.write_turns([first])
    assert [tip.turn_id for tip in (await record.tips_for("alice", ["reply-t"])).replies["reply-t"]] == ["t"]
    assert await record.session_tip("alice", "session") is not None
    given = Feedback(
        feedback_id="f", turn_id="t", score=-1.0, text="", idempotency_key="k", created_at=1_012.0
    )
    assert await record.add_feedback(given)
    assert not await record.add_feedback(given)
    assert [turn.turn_id for turn in await record.answered(10)] == ["t"]
    await record.add_verdict(make_verdict("t", wish=WishReading(text="shorter", scope=WishScope.LASTING)))
    assert (await record.waiting())[POLICY].ready == 1
    claims = await asyncio.gather(*(record.claim(POLICY, 4, worker=f"w{i}", lease_s=60) for i in range(4)))
    assert sum(len(claim) for claim in claims) == 1
    (turn,) = [turn for claim in claims for turn in claim]
    assert turn.verdict.wish == WishReading(text="shorter", scope=WishScope.LASTING)
    (worker,) = (f"w{i}" for i, claim in enumerate(claims) if claim)
    await record.publish(adapter(1), ["t"], step(1), worker=worker)
    assert [v.value for v in await record.recent_verdicts(POLICY, 8)] == [-1]
    await record.heartbeat(Heartbeat(process="proxy", pid=1, state="running", detail={}, at=1.0))
    await record.heartbeat(Heartbeat(process="proxy", pid=2, state="running", detail={}, at=2.0))
    await record.set_paused(True)
    rows = await record.trajectories()
    assert [row["messages"] for row in rows] == [list(first.messages), list(second.messages)]
    assert (rows[0]["stage"], rows[0]["trained_in_version"], rows[0]["next_text"]) == (
        Stage.TRAINED,
        1,
        "shorter",
    )
    assert [row["turn_id"] async for row in record.all_turns(batch=1)] == ["t", "t2"]
    status = await record.status()
    assert (status.turns, status.live, status.training) == (2, {POLICY: 1}, "paused")
    (traffic,) = await record.client_traffic(10)
    assert (traffic.client, traffic.main, traffic.linked, traffic.followed, traffic.trained) == (
        "test",
        2,
        0,
        1,
        1,
    )
    (wish,) = await record.wishes(POLICY)
    assert [one.turn_id for one in wish.statements] == ["t"]
    assert (await record.change_wish(wish.wish_id, text="Brief.")).edited
    seen, texts = await record.wishes_since(None)
    assert texts == {POLICY: ("Brief.",)}
    assert await record.wishes_since(seen) == (seen, None)
    assert await record.unused_complaints(POLICY, since=0.0) == []
    await record.rollback(POLICY, 0)
    assert (await record.aliases())[POLICY].version == 0
    assert await record.verify() == []
    await record.close()


async def test_a_server_that_is_away_is_reported() -> None:
    with pytest.raises(RecordUnavailable, match="cannot be reached"):
        await Record.open("postgresql+asyncpg://patina@127.0.0.1:1/postgres")


async def test_two_homes_share_one_record_and_a_conversation_goes_on_across_them(
    server: str, tmp_path: Path
) -> None:
    """Two hosts, each with a gateway, a journal and a recorder, and one PostgreSQL."""

    async def open_record() -> Record:
        return await Record.open(server)

    question = {"role": "user", "content": "Which is the longest river of Europe?"}
    reply = {"role": "assistant", "content": "The Volga."}
    requests = [[question], [question, reply, {"role": "user", "content": "How long is it?"}]]
    homes = [tmp_path / "one", tmp_path / "two"]
    workers = [RecorderWorker(home, open_record) for home in homes]
    names = []
    for seq, (home, worker, messages) in enumerate(zip(homes, workers, requests, strict=True), 900):
        line = {"seq": seq, "time": 2e9 + seq, "body": {"model": "m", "messages": messages},
                "response": {"choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]}}  # fmt: skip
        captured = draft_of(parse_line(json.dumps(line).encode(), "test", seq))
        assert captured is not None
        journal = JournalWriter(home, "proxy")
        assert journal.append(EntryKind.EXCHANGE, dump_exchange(captured, None)) is None
        assert await worker.step()
        names.append(segments(home)[0].name)
    record = await Record.open(server)
    first, second = [row for row in await record.trajectories() if row["turn_id"] >= "turn_00000900"][-2:]
    assert (second["parent_turn_id"], second["session_id"]) == (first["turn_id"], first["session_id"])
    assert set(names) <= set(await record.journal_offsets())
    await workers[1].stop(5.0)  # removes nothing of the other home's
    assert names[0] in await record.journal_offsets()
    await workers[0].stop(5.0)
    await record.close()


@pytest.mark.slow
def test_of_two_live_gateways_on_one_record_one_is_killed_and_each_turn_is_recorded_once(
    server: str, tmp_path: Path
) -> None:
    """Two hosts: each its own home, port, journal and recorder. Gateway and recorder of the first die with -9 under load."""
    homes = [tmp_path / "one", tmp_path / "two"]
    ports = [free_port(), free_port()]
    ended: tuple[list[str], list[str]] = ([], [])
    with ExitStack() as stack:
        url = stack.enter_context(running(Upstream(base="patina-tiny", chunk_delay_s=0.002)))
        settings = [
            write_settings(home, port, database=server) for home, port in zip(homes, ports, strict=True)
        ]
        first, second = (
            stack.enter_context(process(path, port, "--backend-url", url))
            for path, port in zip(settings, ports, strict=True)
        )
        recorder = stack.enter_context(recording(settings[0]))
        stack.enter_context(recording(settings[1]))
        threads = [
            threading.Thread(target=send_requests, args=(port, f"{port} {number}", seen))
            for port, seen in zip(ports, ended, strict=True)
            for number in range(2)
        ]
        for thread in threads:
            thread.start()
        until(lambda: all(len(seen) >= 10 for seen in ended), "both hosts answering")
        recorder.kill()
        until(lambda: len(ended[0]) >= 20, "the first host answering")
        first.kill()
        before = len(ended[1])
        until(lambda: len(ended[1]) >= before + 10, "the other host answering")
        second.kill()
        for thread in threads:
            thread.join()
        with recording(settings[0]):  # started again, as the supervisor does
            until(
                lambda: not any(segments(home / "journal") for home in homes), "both journals being recorded"
            )
    rows = asyncio.run(turns_of(server))
    assert Counter(row for row in rows if row in {*ended[0], *ended[1]}) == Counter([*ended[0], *ended[1]])
    assert [list((home / "journal" / REJECTED).glob("*")) for home in homes] == [[], []]


async def turns_of(url: str) -> list[str]:
    """Return the ids of all recorded turns, after a check of the whole record."""
    record = await Record.open(url)
    try:
        assert await record.verify() == []
        return [str(row["turn_id"]) for row in await record.trajectories(limit=100_000)]
    finally:
        await record.close()


async def test_what_is_forgotten_is_in_no_row_on_postgresql(server: str) -> None:
    admin = create_async_engine(server, isolation_level="AUTOCOMMIT")
    async with admin.connect() as connection:
        await connection.execute(sa.text("CREATE DATABASE forgetting"))
    await admin.dispose()
    url = server.removesuffix("/postgres") + "/forgetting"
    await asyncio.to_thread(upgrade, url)
    record = await Record.open(url)
    try:
        await fill(record)
        await train(record, 1, "three", "same")
        done = await record.forget(Selection(turn="three"), with_replies=True, key=b"k" * 32)
        await record.scrub()
        assert sorted(done.turns) == ["four", "quote", "three"]
        assert done.closure.tainted == {"patina-tiny": (1,)}
        assert (done.closure.clean, (await record.aliases())["patina-tiny"].version) == (
            {"patina-tiny": 0},
            0,
        )
        assert await record.known_turns(["one", "two", "three", "four", "quote", "same"]) == {
            "one",
            "two",
            "same",
        }
        assert await record.found_again(list(done.turns), list(done.messages), b"k" * 32) == []
    finally:
        await record.close()
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            rows = {
                table.name: (await connection.execute(sa.select(table))).all()
                for table in metadata.sorted_tables
            }
    finally:
        await engine.dispose()
    assert [name for name, found in rows.items() if "SENTINEL" in repr(found)] == []


async def administer(server: str, *statements: str) -> None:
    admin = create_async_engine(server, isolation_level="AUTOCOMMIT")
    async with admin.connect() as connection:
        for statement in statements:
            await connection.execute(sa.text(statement))
    await admin.dispose()


async def fill_forgetting(url: str) -> None:
    record = await Record.open(url)
    await fill(record)
    await train(record, 1, "three", "same")
    await record.close()


async def texts_and_stages(url: str) -> tuple[list[str], list[str]]:
    """Return the tables that hold the sentinel, and the stages of the forgets."""
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        rows = {one.name: (await connection.execute(sa.select(one))).all() for one in metadata.sorted_tables}
    await engine.dispose()
    holding = [name for name, found in rows.items() if "SENTINEL" in repr(found)]
    return holding, [row.stage for row in rows["forget_jobs"]]


def kill_on_postgresql(server: str, home: Path, step: int) -> int:
    """Kill a forget at every ``step``-th statement or file operation; returns the number of points."""
    base = server.removesuffix("/postgres")
    asyncio.run(administer(server, "CREATE DATABASE template_of_forgets"))
    upgrade(f"{base}/template_of_forgets")
    asyncio.run(fill_forgetting(f"{base}/template_of_forgets"))
    url = f"{base}/killed"

    def forget() -> int:
        return main(
            ["forget", "three", "--home", str(home), "--served-model-name", POLICY, "--database", url]
        )

    def attempt(last: int) -> tuple[int | None, int]:
        shutil.rmtree(home, ignore_errors=True)
        (home / "run").mkdir(parents=True)
        asyncio.run(
            administer(
                server,
                "DROP DATABASE IF EXISTS killed WITH (FORCE)",
                "CREATE DATABASE killed TEMPLATE template_of_forgets",
            )
        )
        ended = run_until(forget, last)
        assert run_until(forget, 0)[0] == 0, last
        assert asyncio.run(texts_and_stages(url)) == ([], ["done"]), last
        assert len(list((home / "receipts").iterdir())) == 1, last
        return ended

    points = die_at_each(attempt, step)
    asyncio.run(administer(server, "DROP DATABASE killed WITH (FORCE)", "DROP DATABASE template_of_forgets"))
    return points


def test_a_forget_that_is_killed_is_finished_on_postgresql(server: str, tmp_path: Path) -> None:
    assert kill_on_postgresql(server, tmp_path / "home", 31) > 60


@pytest.mark.long_run
@pytest.mark.timeout(900)
def test_a_forget_may_be_killed_at_every_statement_on_postgresql(server: str, tmp_path: Path) -> None:
    kill_on_postgresql(server, tmp_path / "home", 1)
