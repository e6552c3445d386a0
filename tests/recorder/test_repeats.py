"""Repeated requests through the real linking and the real rules: only a person who asks again complains.

The table is made of scenarios, each with several prompts, paces and shapes of history. A case is the requests of one or several clients; what
is right is the set of turns that `rule:retry` judges.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from recorder.turns import ClassifiedExchange, classify_exchange
from scorers.reader import read_turn
from tests.recorder.exchanges import assistant, make_captured, recording, user
from wire.chat_request import parse_chat

PROMPTS = (
    "How do I read a CSV file in Python?",
    "What is the capital of Poland, and how many people live there?",
    "Schreib mir bitte eine kurze Absage an den Vermieter.",
    "Check the disk usage of the server and report anything unusual.",
    "用 Python 写一个读取 CSV 文件的函数。",
)
FOLLOW_UPS = ("And what about the second file?", "How does that work in Rust?", "Which of them is older?")


@dataclass
class Case:
    """The requests of one case, in the order in which they end.

    Attributes:
        now: seconds; each request begins there and takes two seconds.
        complaints: names of the turns that a person rejected.
    """

    name: str
    random: random.Random
    prompt: str
    before: list[dict[str, Any]]
    now: float = 1_000_000.0
    exchanges: list[ClassifiedExchange] = field(default_factory=list)
    complaints: set[str] = field(default_factory=set)

    def ask(
        self,
        messages: list[dict[str, Any]] | None = None,
        *,
        client: str = "chat",
        took: float = 2.0,
        cut: bool = False,
        **body: Any,
    ) -> tuple[str, list[dict[str, Any]]]:
        """Send a request; returns its turn id and the history with its reply. The clock moves to the reply's end."""
        sent = messages if messages is not None else [*self.before, user(self.prompt)]
        name = f"{self.name}-{len(self.exchanges)}"
        reply = f"This is answer {len(self.exchanges)} of {self.name}, in one sentence."
        made = make_captured(
            name, sent, reply, client=client, key_name=self.name, created_at=self.now, finished_at=self.now + took,
            chat=parse_chat(orjson.dumps({"model": "m", "messages": sent, **body})),
        )  # fmt: skip
        if cut:
            made.reply.completions[0].finish_reason = None
        self.exchanges.append(classify_exchange(made))
        self.now += took
        return f"turn_{name}", [*sent, assistant(reply)]

    def wait(self, least: float, most: float) -> None:
        self.now += self.random.uniform(least, most)

    def go_on(self, history: list[dict[str, Any]], **more: Any) -> None:
        """Continue a conversation at a person's pace."""
        self.wait(5, 60)
        self.ask([*history, user(self.random.choice(FOLLOW_UPS))], **more)


def regenerate(case: Case) -> None:
    first, _ = case.ask()
    case.wait(1.5, 60)
    _, history = case.ask()
    case.go_on(history)
    case.complaints = {first}


def regenerate_twice(case: Case) -> None:
    first, _ = case.ask()
    case.wait(3, 40)
    second, _ = case.ask()
    case.wait(3, 40)
    _, history = case.ask()
    case.go_on(history)
    case.complaints = {first, second}


def anger(case: Case) -> None:
    first, _ = case.ask()
    case.wait(60, 600)
    _, history = case.ask()
    case.go_on(history)
    case.complaints = {first}


def regenerate_and_leave(case: Case) -> None:
    case.ask()
    case.wait(2, 60)
    case.ask()


def regenerate_and_return_to_the_first(case: Case) -> None:
    _, history = case.ask()
    case.wait(2, 60)
    case.ask()
    case.go_on(history)


def regenerate_a_cut_reply(case: Case) -> None:
    case.ask(cut=True)
    case.wait(2, 60)
    _, history = case.ask()
    case.go_on(history)


def edited_much_later(case: Case) -> None:
    _, history = case.ask()
    case.go_on(history)
    case.wait(10, 60)
    _, again = case.ask()
    case.go_on(again)


def cron(case: Case) -> None:
    period = case.random.choice([60.0, 300.0, 600.0, 3600.0])
    for _ in range(5):
        case.ask()
        case.now += period - 2.0


def heartbeat_in_a_conversation(case: Case) -> None:
    _, history = case.ask()
    for _ in range(4):
        case.now += 30.0
        case.ask([*history, user("Report your status in one line, or OK when nothing changed.")])
    case.go_on(history)


def samples_in_parallel(case: Case) -> None:
    start = case.now
    histories = []
    for _ in range(4):
        case.now = start + case.random.uniform(0, 0.5)
        histories.append(case.ask(took=3.0 + case.random.random())[1])
    case.now = start + 6.0
    case.go_on(case.random.choice(histories))


def samples_one_after_another(case: Case) -> None:
    histories = []
    for _ in range(4):
        histories.append(case.ask(temperature=1.0)[1])
        case.now += case.random.uniform(0.01, 0.4)
    case.go_on(case.random.choice(histories))


def samples_with_seeds(case: Case) -> None:
    for seed in range(4):
        _, history = case.ask(seed=seed)
        case.wait(1, 5)
    case.go_on(history)


def load_test(case: Case) -> None:
    for _ in range(12):
        case.ask(took=0.3)
        case.now += case.random.uniform(0.0, 0.2)


def smoke_test(case: Case) -> None:
    for _ in range(3):
        case.ask(client="curl")
        case.wait(5, 900)


def another_client(case: Case) -> None:
    case.ask()
    case.wait(20, 600)
    _, history = case.ask(client="curl")
    case.go_on(history, client="curl")


def fifty_minutes_later(case: Case) -> None:
    case.ask()
    case.wait(2700, 3600)
    _, history = case.ask()
    case.go_on(history)


def probing_twice(case: Case) -> None:
    for _ in range(2):
        for probe in PROMPTS:
            case.ask([user(probe)], client="probe")
            case.now += case.random.uniform(0.1, 3.0)
        case.wait(10, 600)


def sdk_retry_after_a_time_out(case: Case) -> None:
    case.ask(cut=True)
    case.now += case.random.choice([0.5, 1.0, 2.0, 4.0])
    _, history = case.ask()
    case.go_on(history)


def plain_conversation(case: Case) -> None:
    _, history = case.ask()
    case.go_on(history)


SCENARIOS: tuple[Callable[[Case], None], ...] = (
    regenerate, regenerate_twice, anger, regenerate_and_leave, regenerate_and_return_to_the_first, regenerate_a_cut_reply, edited_much_later,
    cron, heartbeat_in_a_conversation, samples_in_parallel, samples_one_after_another, samples_with_seeds, load_test, smoke_test,
    another_client, fifty_minutes_later, probing_twice, sdk_retry_after_a_time_out, plain_conversation, regenerate,
)  # fmt: skip


def make_cases() -> list[Case]:
    """Return ten cases of each scenario: five prompts, as an opening and inside a conversation."""
    cases = []
    for number, scenario in enumerate(SCENARIOS):
        for i, prompt in enumerate(PROMPTS):
            for is_opening in (True, False):
                name = f"{scenario.__name__}-{number}-{i}-{'opening' if is_opening else 'later'}"
                case = Case(name=name, random=random.Random(name), prompt=prompt, before=[])
                if not is_opening:
                    _, history = case.ask([user(f"Good morning, this is conversation {name}.")])
                    case.before = history
                    case.wait(5, 60)
                scenario(case)
                cases.append(case)
    return cases


@pytest.mark.long_run  # 200 conversations
async def test_only_a_person_who_asks_again_and_goes_on_complains(record_url: str) -> None:
    cases = make_cases()
    assert len(cases) == 200
    async with recording(record_url) as (recorder, record):
        for exchange in (exchange for case in cases for exchange in case.exchanges):
            await recorder.write([exchange])
        answered = await record.answered(10_000)  # of all cases at once: each has a key of its own
    repeated: dict[str, set[str]] = {case.name: set() for case in cases}
    for turn in answered:
        if read_turn(turn, now=0.0)[0].source == "rule:retry":
            repeated[turn.key_name].add(turn.turn_id)
    wrong = {case.name: repeated[case.name] for case in cases if repeated[case.name] != case.complaints}
    assert sum(bool(case.complaints) for case in cases) == 40
    assert len(wrong) <= 0.03 * len(cases), wrong


@pytest.mark.parametrize(
    "scenario", [regenerate, regenerate_twice, another_client, samples_one_after_another]
)
async def test_the_verdict_is_the_same_after_a_restart(
    record_url: str, scenario: Callable[[Case], None]
) -> None:
    case = Case(name=scenario.__name__, random=random.Random(1), prompt=PROMPTS[0], before=[])
    scenario(case)
    for exchange in case.exchanges:
        async with recording(record_url) as (recorder, record):  # nothing is remembered
            await recorder.write([exchange])
            answered = await record.answered(100)
    found = {t.turn_id: read_turn(t, now=0.0)[0] for t in answered}
    assert {name: v.source for name, v in found.items() if v.value} == dict.fromkeys(
        case.complaints, "rule:retry"
    )


async def test_the_turns_of_a_tool_loop_share_in_the_next_words(record_url: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    opening = [user("Which files are in this folder, please?")]
    looped = [*opening, called, {"role": "tool", "tool_call_id": "c", "content": "ls: cannot access"}]
    ended = [*looped, assistant("There is one file."), user("No, that is wrong. Shorter, please.")]
    exchanges = []
    for name, messages, reply in (
        ("a", opening, ""),
        ("b", looped, "There is one file."),
        ("c", ended, "a.py"),
    ):
        made = make_captured(name, messages, reply)
        if name == "a":
            made.reply.completions[0].tool_calls = (call,)
        exchanges.append(classify_exchange(made))
    async with recording(record_url) as (recorder, record):
        for exchange in exchanges:
            await recorder.write([exchange])
        verdicts = {t.turn_id: read_turn(t, now=0.0)[0] for t in await record.answered(10)}
    assert {name: (v.value, v.source, v.share) for name, v in verdicts.items()} == {
        "turn_a": (-1, "rule:tool_loop", 0.3),
        "turn_b": (-1, "rule:complaint", 1.0),
    }
    assert (verdicts["turn_a"].hint, bool(verdicts["turn_b"].hint)) == (None, True)
