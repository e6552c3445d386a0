"""OpenClaw from its package, with Telegram on loopback: two people, feedback, a version that goes live, a background run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from store.record import Record
from store.values import StepReport
from tests.clients.backend import ClientBackend
from tests.clients.openclaw_gateway import OTHER, OWNER, OpenClaw, running_openclaw, write_home
from tests.clients.telegram import TOKEN, BotApi, running_bot_api
from tests.proxy.conftest import Gateway, run_gateway_at, score
from tests.proxy.test_adapters import make_adapter
from tests.proxy.upstream import running
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.clients, pytest.mark.long_run, pytest.mark.timeout(1200)]


@dataclass
class OpenClawStack:
    gateway: Gateway
    bot: BotApi
    program: OpenClaw
    folder: Path

    def row_of(self, part: str) -> dict[str, Any]:
        """Return the turn whose prompt holds a text."""
        return next(row for row in self.gateway.rows(1) if part in json.dumps(row["messages"]))

    def newest(self, part: str) -> dict[str, Any] | None:
        """Return the turn whose newest messages hold a text: OpenClaw puts its context into one behind the person's."""
        rows = self.gateway.rows(1)
        return next((row for row in rows if part in json.dumps(row["messages"][-2:-1])), None) or next(
            (row for row in rows if part in json.dumps(row["messages"][-1])), None
        )

    def has_verdict(self, part: str, verdict: int) -> bool:
        self.gateway.in_record(score)
        row = self.newest(part)
        return row is not None and row["verdict"] == verdict

    def score(self, part: str) -> dict[str, Any]:
        """Score what waits, and return the turn whose prompt holds a text."""
        self.gateway.in_record(score)
        return self.row_of(part)

    def publish(self, version: int, turn_id: str) -> None:
        """Publish a version that was trained on a turn, as the trainer does."""
        now = time.time()
        adapter = make_adapter("tiny", version, self.folder, created_at=now)
        step = StepReport(
            step_id=f"step{version}", policy="tiny", method="combine", started_at=now, finished_at=now,
            version=version, error=None, metrics={},
        )  # fmt: skip

        async def work(record: Record) -> None:
            claimed = [turn.turn_id for turn in await record.claim("tiny", 100, worker="w", lease_s=600)]
            assert turn_id in claimed
            await record.release([one for one in claimed if one != turn_id], worker="w")
            await record.publish(adapter, [turn_id], step, worker="w")

        self.gateway.in_record(work)


@pytest.fixture(scope="module")
def stack(empty_record: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenClawStack]:
    folder = tmp_path_factory.mktemp("openclaw")
    record_file = folder / "patina.db"
    record_file.write_bytes(empty_record.read_bytes())
    backend = ClientBackend()
    with (
        running(backend) as url,
        run_gateway_at(url, backend, record_file) as gateway,
        running_bot_api() as bot,
    ):
        write_home(folder / "home", gateway.url)
        with running_openclaw(folder, folder / "home", bot.url, TOKEN) as program:
            yield OpenClawStack(gateway, bot, program, folder)


def test_feedback_is_about_the_last_reply_of_its_own_session(stack: OpenClawStack) -> None:
    bot = stack.bot
    assert bot.converse(OWNER, "/feedback too long").startswith("No recent conversation found.")
    assert "as you  wish." in bot.converse(OWNER, "What is the capital of Norway?")
    assert "as you  wish." in bot.converse(OTHER, "What is the capital of Peru?")
    assert bot.converse(OWNER, "/feedback").startswith("Usage: /feedback")
    bot.write(OWNER, "/feedback Answer shorter, please")  # OTHER's reply is the newest
    mine, other = stack.row_of("Norway"), stack.row_of("Peru")
    assert {mine["kind"], other["kind"]} == {"main"}
    assert {seen.body.get("stream") for seen in stack.gateway.upstream.seen if "chat" in seen.path} == {True}
    assert mine["session_id"] != other["session_id"]
    until(lambda: stack.score("Norway")["verdict"] == -1, "the feedback", 240)
    assert stack.row_of("Peru")["verdict"] is None
    stack.publish(1, mine["turn_id"])
    live = until(lambda: [one for one in bot.texts[OWNER] if one.startswith("learnt in")], "its answer", 240)
    assert live[0].startswith("learnt in tiny@1 (")
    row = stack.row_of("Norway")
    assert (row["verdict"], row["trained_in_version"]) == (-1, 1)
    assert "shorter" in row["hint"]


def test_only_the_owner_takes_a_version_back(stack: OpenClawStack) -> None:
    turn = stack.bot.converse(OTHER, "What is the capital of Chile?")
    assert turn
    before = stack.gateway.in_record(lambda record: record.aliases())
    stack.bot.write(OTHER, "/undo")
    until(lambda: len(stack.bot.texts[OTHER]) > 2, "an answer to /undo", 240)
    assert stack.gateway.in_record(lambda record: record.aliases()) == before
    assert "the base model is live again" in stack.bot.converse(OWNER, "/undo")
    assert stack.gateway.in_record(lambda record: record.aliases())["tiny"].version == 0


def test_good_and_bad_are_verdicts_on_the_last_reply(stack: OpenClawStack) -> None:
    bot = stack.bot
    for person, question, command, verdict in ((OTHER, "Mali", "/good", 1), (OWNER, "Oman", "/bad", -1)):
        assert bot.converse(person, f"What is the capital of {question}?", "Reply")
        bot.write(person, command)
        until(partial(stack.has_verdict, question, verdict), f"the verdict of {command}", 240)


def test_a_reaction_to_a_message_is_about_the_reply_that_it_shows(stack: OpenClawStack) -> None:
    bot = stack.bot
    first, second = (
        bot.converse(OTHER, f"What is the capital of {country}?", "Reply") for country in ("Togo", "Benin")
    )
    assert first != second
    bot.react(OTHER, first, "👎")
    assert bot.converse(OTHER, "What is the capital of Cuba?", "Reply")
    until(partial(stack.has_verdict, "Togo", -1), "the verdict of the reaction", 240)
    assert not stack.has_verdict("Benin", -1)
    assert not stack.has_verdict("Benin", 1)


def test_scheduled_heartbeat_and_memory_runs_are_side_turns(stack: OpenClawStack) -> None:
    program = stack.program
    made = json.loads(program.run("cron", "add", "--name", "job", "--every", "24h", "--session", "isolated", "--message", "Name a colour.", "--no-deliver", "--json"))  # fmt: skip
    program.run("cron", "run", made["id"])
    program.run("system", "event", "--text", "The oven is warm.", "--mode", "now")
    assert stack.bot.converse(OWNER, "What is the capital of Chad?", "Reply")
    for part in ("Name a colour", "The oven is warm", "memory flush"):
        row = until(partial(stack.newest, part), f"the run with {part!r}", 240)
        assert row["kind"] == "side", part
    traffic = stack.gateway.in_record(lambda record: record.client_traffic(100))
    assert sum(one.side_reasons["client_header"] for one in traffic) >= 2
