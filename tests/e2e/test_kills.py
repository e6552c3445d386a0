"""kill -9 of each process in turn while a person chats and complains: nothing is lost, nothing is trained twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import openai
import pytest

from lab.evals.stack import Stack
from store.errors import PatinaError
from store.settings import REPOSITORY, child_environment, read_settings
from tests.waiting import recorded, until

pytestmark = [pytest.mark.slow, pytest.mark.long_run, pytest.mark.timeout(600)]

KILLED = ("trainer", "scorer", "recorder", "proxy", "backend", "dashboard")
QUESTIONS = ("What is the capital of France?", "What is 2 plus 3?", "What is the opposite of hot?")


class Person:
    """Asks and complains in new conversations until stopped, and notes each turn whose reply arrived whole."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._chat, daemon=True)
        self.seen: list[str] = []

    def __enter__(self) -> Person:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(60)

    def _chat(self) -> None:
        asked = 0
        with openai.OpenAI(base_url=self._stack.base_url, api_key=self._stack.key, max_retries=0) as client:
            while not self._stopping.is_set():
                question = {"role": "user", "content": QUESTIONS[asked % len(QUESTIONS)]}
                asked += 1
                try:
                    reply = self._say(client, [question])
                    complaint = {"role": "user", "content": "Shorter please, and no emoji."}
                    self._say(client, [question, {"role": "assistant", "content": reply}, complaint])
                except openai.OpenAIError:
                    time.sleep(0.2)  # what serves was killed; its client learns it, and asks anew

    def _say(self, client: openai.OpenAI, messages: list[dict[str, str]]) -> str:
        raw = client.chat.completions.with_raw_response.create(model="patina-tiny", messages=messages)  # type: ignore[arg-type]
        text = raw.parse().choices[0].message.content or ""
        self.seen.append(raw.headers["x-patina-turn"])
        return text


def test_a_kill_of_each_process_in_turn_loses_nothing_and_trains_nothing_twice(tmp_path: Path) -> None:
    settings = read_settings({"batch_size": 2, "max_wait_s": 2.0})
    with Stack(settings, home=tmp_path / "stack") as stack, Person(stack) as person:
        until(lambda: _live(stack), "a version going live", 240)
        for name in KILLED:
            before = until(lambda n=name: _pids(stack).get(n), f"the {name} running")  # type: ignore[misc]
            os.kill(before, signal.SIGKILL)
            until(
                lambda n=name, b=before: _pids(stack).get(n) not in (None, b),  # type: ignore[misc]
                f"the {name} coming back",
                60,
            )
        live, told = _live(stack), len(person.seen)
        until(lambda: len(person.seen) > told + 4, "replies after the kills", 120)
        until(lambda: _live(stack) > live, "a version after the kills", 240)
    assert len(person.seen) > 20
    with closing(sqlite3.connect(recorded(stack.home))) as connection:
        turns = {row[0] for row in connection.execute("SELECT turn_id FROM trajectories")}
        trained = connection.execute(
            "SELECT trained_in_version, count(*), count(DISTINCT turn_id) FROM trajectories"
            " WHERE trained_in_version IS NOT NULL GROUP BY 1"
        ).fetchall()
        published = {
            version: json.loads(metrics)["turns"]
            for version, metrics in connection.execute("SELECT version, metrics FROM adapters")
            if version in {row[0] for row in trained}
        }
    assert set(person.seen) <= turns
    assert trained
    # Each version is made of the turns that carry its number: no turn stands in two of them.
    assert {version: count for version, count, _ in trained} == published
    assert all(count == distinct for _, count, distinct in trained)
    verified = subprocess.run(
        [sys.executable, "run.py", "verify", f"--home={stack.home}"],
        cwd=REPOSITORY,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def _pids(stack: Stack) -> dict[str, int]:
    try:
        return stack.pids()
    except OSError:  # the proxy, which answers this, is the one that was killed
        return {}


def _live(stack: Stack) -> int:
    try:
        return max(stack.status()["live"].values(), default=0)
    except (OSError, PatinaError):
        return 0
