"""The whole loop, step by step: `python -m lab.bench.loop --backend vllm`.

A Patina in a fresh folder on the test model, used with the openai SDK: a user complains until version 1 is live, complains about
something else until version 2 is, and rolls back. Every step is observed from outside (the replies, and the version in the record) and
timed; prints JSON, exit code 1 when a step did not happen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import openai

from lab.evals.client import NO_TRAINING
from lab.evals.stack import Stack
from lab.models import TOY, toy_settings
from store.errors import ConfigError
from store.record import Record
from store.settings import read_settings

QUESTIONS = ("What is the capital of France?", "Tell me the capital of Japan.", "What is 2 plus 3?")
COMPLAINTS = ("Please keep your answers short, and no emoji.", "Answer in Spanish, please.")
#: Asked greedily of every version; the same version has to say the same.
PROBE = "What is the capital of Norway?"
#: Complaints of a version, and the batch size: one step takes them all.
_COMPLAINTS_PER_VERSION = 6
_READY_S = 900.0


class Loop:
    """A user of a running Patina."""

    def __init__(self, stack: Stack, patience_s: float) -> None:
        self._stack = stack
        self._patience_s = patience_s
        self._client = openai.OpenAI(
            base_url=stack.base_url, api_key=stack.key, max_retries=0, timeout=patience_s
        )

    def run(self) -> dict[str, Any]:
        """Chat, complain, roll back; return the measurements. Raises: TimeoutError when a step did not."""
        replies: dict[int, str] = {0: self._probe(0)}
        seconds: dict[str, float] = {}
        live = 0
        # While complaints arrive and while a version is looked at, no step begins.
        asyncio.run(self._pause(True))
        for name, complaint in zip(("first", "second"), COMPLAINTS, strict=True):
            began = time.monotonic()
            self._complain(complaint)
            self._until(self._are_scored, "a verdict on each complaint")
            asyncio.run(self._pause(False))
            self._until(partial(self._is_beyond, live), f"a {name} version")
            seconds[f"{name}_version_s"] = round(time.monotonic() - began, 1)
            asyncio.run(self._pause(True))
            self._until(self._rests, "the end of the step that was under way")
            live = self._live()
            replies[live] = self._probe(live)
        began = time.monotonic()
        back = sorted(replies)[-2]
        asyncio.run(self._roll_back(back))
        self._until(lambda: self._live() == back, "the rollback")
        seconds["rollback_s"] = round(time.monotonic() - began, 1)
        again = self._probe(back)
        backend = self._stack.status()["proxy"]["backend"]
        return {
            "engine": backend["capabilities"]["engine"],
            "versions": sorted(replies),
            "rolled_back_to": back,
            "same_as_before": again == replies[back],
            "differs_between_versions": replies[back] != replies[max(replies)],
            "held": backend["held"],
            "replies": replies,
            **seconds,
        }

    def _live(self) -> int:
        return int(self._stack.status()["proxy"]["backend"]["live"])

    def _is_beyond(self, version: int) -> bool:
        return self._live() > version

    def _are_scored(self) -> bool:
        return int(self._stack.status()["stages"].get("scored", 0)) >= _COMPLAINTS_PER_VERSION

    def _rests(self) -> bool:
        status = self._stack.status()
        backend = status["proxy"]["backend"]
        return bool(
            status["processes"]["trainer"]["state"] == "paused" and backend["live"] == backend["wanted"]
        )

    def _complain(self, complaint: str) -> None:
        for i in range(_COMPLAINTS_PER_VERSION):
            question: Any = {"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}
            first = self._client.chat.completions.create(model=TOY.name, messages=[question], max_tokens=100)
            answer: Any = {"role": "assistant", "content": first.choices[0].message.content}
            follow_up: Any = {"role": "user", "content": complaint}
            self._client.chat.completions.create(
                model=TOY.name, messages=[question, answer, follow_up], max_tokens=60
            )

    def _probe(self, version: int) -> str:
        """Ask, and see in the record that this version answered."""
        raw = self._client.chat.completions.with_raw_response.create(
            model=TOY.name,
            messages=[{"role": "user", "content": PROBE}],
            max_tokens=60,
            temperature=0,
            # The weights alone: a rollback does not take back what was stated meanwhile.
            extra_headers={**NO_TRAINING, "x-patina-wishes": "off"},
        )
        turn = raw.headers["x-patina-turn"]
        found = self._until(lambda: asyncio.run(self._version_of(turn)), f"turn {turn} in the record")
        if found[0] != version:
            raise ConfigError(f"version {version} is live, and {found[0]} answered")
        return raw.parse().choices[0].message.content or ""

    async def _version_of(self, turn: str) -> tuple[int] | None:
        record = await self._record()
        try:
            rows = await record.trajectories(limit=50, newest_first=True)
        finally:
            await record.close()
        return next(((row["adapter_version"],) for row in rows if row["turn_id"] == turn), None)

    async def _roll_back(self, version: int) -> None:
        record = await self._record()
        try:
            await record.rollback(TOY.name, version)
        finally:
            await record.close()

    async def _pause(self, is_paused: bool) -> None:
        record = await self._record()
        try:
            await record.set_paused(is_paused)
        finally:
            await record.close()

    async def _record(self) -> Record:
        return await Record.open(read_settings({"home": self._stack.home}).database_url)

    def _until(self, condition: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + self._patience_s
        while time.monotonic() < end:
            if found := condition():
                return found
            time.sleep(0.2)
        raise TimeoutError(f"{what} did not come within {self._patience_s:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.loop", description=__doc__)
    parser.add_argument("--backend", choices=("embedded", "vllm", "tinker"), default="vllm")
    parser.add_argument("--tinker-base-url", default="", help="as for run.py; the server has the test model")
    parser.add_argument("--vllm-python", default="", help="as for run.py")
    parser.add_argument(
        "--colocate", choices=("auto", "share", "sleep"), default="auto", help="as for run.py"
    )
    parser.add_argument("--learning", default="", help="as for run.py")
    parser.add_argument(
        "--patience-s", type=float, default=600.0, help="for each step (default: %(default)s)"
    )
    given = parser.parse_args()
    wishes: dict[str, Any] = {
        "backend": given.backend,
        "colocate": given.colocate,
        "batch_size": _COMPLAINTS_PER_VERSION,
        "max_wait_s": 3.0,
    }
    if given.vllm_python:
        wishes["vllm_python"] = given.vllm_python
    if given.learning:
        wishes["learning"] = given.learning
    if given.tinker_base_url:
        wishes["tinker_base_url"] = given.tinker_base_url
    began = time.monotonic()
    try:
        with Stack(toy_settings(wishes), ready_s=_READY_S) as stack:
            ready = round(time.monotonic() - began, 1)
            found = Loop(stack, given.patience_s).run()
    except (ConfigError, TimeoutError) as exc:
        print(f"lab.bench.loop: {exc}", file=sys.stderr)
        return 1
    print(json.dumps({**vars(given), "ready_s": ready, **found}, indent=1))
    return 0 if found["same_as_before"] else 1


if __name__ == "__main__":
    sys.exit(main())
