"""One person's month in fast-forward: `python -m bench.month [--turns 3000] [--batch-size 16] [--seed 0] [--output month.jsonl]`.

Three wishes arrive one after another, the second is withdrawn, and at nine tenths one taught turn is forgotten with `run.py forget`. Record, rules,
training, gate and forget are the real ones; HTTP, journal, linking and serving are left out, so that 3,000 turns take an hour and not a
month. One line of JSON is written for each twentieth of the turns: what the policy does at unseen questions, and what training did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

from evals.client import MAX_REPLY_TOKENS
from evals.preferences import PREFERENCES, tasks
from evals.simulated_user import Interaction, Request, SimulatedUser, scenario
from migrations import upgrade
from scorers.reader import read_turn
from store.lifecycle import Stage
from store.record import Record
from store.settings import REPOSITORY, Settings, read_settings
from store.values import (
    BASE_VERSION,
    AdapterState,
    Completion,
    Json,
    LogprobMode,
    NewTurn,
    NextState,
    Relation,
    TurnKind,
)
from trainer.protocol import Reply
from trainer.version_trainer import LocalVersionTrainer
from trainer.worker import TrainerWorker

WISHES = ("concise", "no_emoji", "plain")
#: Conversations of the one person at the same time; their replies are sampled in one batch.
TABS, PROBES, REPORTS = 16, 32, 20
_FORGET_AT = 0.9


class Month:
    """One home, one trainer and one person.

    Args:
        report: receives each line of the report.
    """

    def __init__(
        self, record: Record, settings: Settings, turns: int, seed: int, report: Callable[[Json], None]
    ) -> None:
        self._record, self._settings, self._turns, self._report = record, settings, turns, report
        self._trainer = LocalVersionTrainer(settings)
        self._worker = TrainerWorker(record, settings, trainer=self._trainer)
        who = scenario("month", WISHES)
        self._users = [
            SimulatedUser(
                who, 1_000 * seed + tab, planned=turns // TABS, first=100_000 * tab, withdraws=tab == 0
            )
            for tab in range(TABS)
        ]
        self._reactions: Counter[str] = Counter()
        self._forgotten: Json | None = None

    async def play(self) -> None:
        """Play the month."""
        done = reported = 0
        while done < self._turns:
            done += await self._round(done)
            while await self._worker.work_once():
                pass
            if self._forgotten is None and done >= _FORGET_AT * self._turns:
                await self._forget()
            if done * REPORTS // self._turns > reported:
                reported = done * REPORTS // self._turns
                self._report(await self._measure(done))

    async def _round(self, done: int) -> int:
        """Let each conversation go on by one reply and the reaction to it; returns the turns that were recorded."""
        requests = [user.request() for user in self._users]
        prompts = [self._trainer.policy.render(request.messages) for request in requests]
        replies = self._trainer.policy.sample(
            prompts, max_tokens=MAX_REPLY_TOKENS, temperature=1.0, seed=self._settings.seed + done + 1
        )
        count = 0
        for user, request, prompt, reply in zip(self._users, requests, prompts, replies, strict=True):
            text = self._trainer.policy.decode(reply.token_ids)
            read = user.read(text)
            if read is not None:
                count += 1
                self._reactions[read.about if read.words else "silence"] += 1
                turn = self._turn(request, prompt, reply, text, read)
                await self._record.write_turns([turn])
        for answered in await self._record.answered(limit=TABS):
            verdict, drop = read_turn(answered, now=time.time())
            await self._record.add_verdict(verdict, drop=drop)
        return count

    def _turn(
        self, request: Request, prompt: Sequence[int], reply: Reply, text: str, read: Interaction
    ) -> NewTurn:
        turn_id, now = f"turn-{uuid4().hex}", time.time()
        message = {"role": "user", "content": read.words}
        following = NextState(
            turn_id=turn_id, by_turn_id=f"{turn_id[:40]}-after", role="user", text=read.words, messages=(message,),
            relation=Relation.NEXT, created_at=now,
        )  # fmt: skip
        return NewTurn(
            turn_id=turn_id, completion_id=None, session_id=f"session-{request.conversation}", parent_turn_id=None,
            turn_index=len(request.messages) // 2, kind=TurnKind.MAIN, relation=Relation.FIRST, link_reason="month",
            kind_reason="month", link_confidence=1.0, policy=self._settings.policy, key_name="",
            adapter_version=self._trainer.version, client="month", user=None, created_at=now, finished_at=now,
            status_code=200, streamed=False, messages=tuple(dict(one) for one in request.messages), request={},
            completion=Completion(
                text=text, token_ids=reply.token_ids, sampling_logprobs=reply.logprobs,
                finish_reason="stop" if reply.finished else "length",
            ),
            prompt_token_ids=tuple(prompt), temperature=1.0, logprob_mode=LogprobMode.RAW, usage=None,
            request_key=f"request-{turn_id}", reply_key=None,
            earlier_next_states=(following,) if read.words else (),
        )  # fmt: skip

    async def _forget(self) -> None:
        """Forget the newest taught turn that at least five versions were trained after, as `run.py forget` does."""
        policy = self._settings.policy
        trained = await self._record.trained_turns(policy)
        fates = await self._record.fates([turn.turn_id for turn in trained])
        versions = {turn_id: fate.trained_in_version or 0 for turn_id, fate in fates.items()}
        chosen = [
            one for one in trained if one.verdict.hint and versions[one.turn_id] <= self._trainer.version - 5
        ]
        if not chosen:
            return
        turn, started = chosen[0], time.monotonic()
        given = ["--home", str(self._settings.home), "--threads", "1", "--keep-replies"]
        given += ["--batch-size", str(self._settings.batch_size), "--seed", str(self._settings.seed)]
        # The command itself, which opens the record beside this process.
        command = [sys.executable, str(REPOSITORY / "run.py"), "forget", turn.turn_id, *given]
        code = await (await asyncio.create_subprocess_exec(*command)).wait()
        live = (await self._record.aliases())[policy].version
        adapter = await self._record.adapter(policy, live)
        if live == BASE_VERSION or adapter is None:
            self._trainer.reset(policy)
        else:
            self._trainer.load(adapter)
        self._forgotten = {
            "turn": turn.turn_id, "hint": turn.verdict.hint, "trained_in": versions[turn.turn_id], "exit_code": code,
            "live": live, "seconds": round(time.monotonic() - started, 1), "verify": await self._record.verify(),
        }  # fmt: skip

    async def _measure(self, done: int) -> Json:
        """Return a line of the report."""
        asked = tasks("facts", asked=False)[:PROBES]
        prompts = [self._trainer.policy.render([{"role": "user", "content": task.text}]) for task in asked]
        replies = self._trainer.policy.sample(prompts, max_tokens=MAX_REPLY_TOKENS, temperature=0.0)
        texts = [self._trainer.policy.decode(reply.token_ids) for reply in replies]
        adapters = await self._record.adapters(self._settings.policy)
        fates = Counter(adapter.state.value for adapter in adapters)
        status = await self._record.status()
        return {
            "turns": done,
            "wants": list(self._users[0].wants),
            "version": self._trainer.version,
            "complies": {
                wish: sum(PREFERENCES[wish].complies(task, text) for task, text in zip(asked, texts, strict=True)) / PROBES
                for wish in WISHES
            },
            "right": sum(task.is_correct(text) for task, text in zip(asked, texts, strict=True)) / PROBES,
            "versions": {state.value: fates[state.value] for state in AdapterState if fates[state.value]},
            "trained": status.stages.get(Stage.TRAINED.value, 0),
            "dropped": dict(status.drop_reasons),
            "reactions": dict(self._reactions),
            "forget": self._forgotten,
        }  # fmt: skip


async def _run(settings: Settings, turns: int, seed: int, report: Callable[[Json], None]) -> None:
    record = await Record.open(settings.database_url)
    try:
        await Month(record, settings, turns, seed, report).play()
    finally:
        await record.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.month", description="One person's month in fast-forward."
    )
    parser.add_argument("--turns", type=int, default=3_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args(argv)
    started = time.monotonic()

    def report(line: Json) -> None:
        text = json.dumps({**line, "seconds": round(time.monotonic() - started)}, ensure_ascii=False)
        print(text, flush=True)
        if arguments.output is not None:
            with arguments.output.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    with tempfile.TemporaryDirectory(prefix="patina-") as folder:
        settings = read_settings(
            {
                "home": folder,
                "threads": 1,
                "canary_share": 0.0,
                "seed": arguments.seed,
                "batch_size": arguments.batch_size,
            }
        )
        upgrade(settings.database_url)
        asyncio.run(_run(settings, arguments.turns, arguments.seed, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
