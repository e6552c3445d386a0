"""Measure a trained folder: `python -m lab.models.measure [DIR] [--json FILE]`. Every number is on held-out (fact, wording) pairs and
held-out paraphrases, sampled at temperature 1 without truncation unless it says greedy.

`follow` is the heart of it: the rate at which a reply has the style that a system prompt, the user's message, a hint or a raw
reaction (both by the templates of `lab.models.hindsight`) asks for. Learning can distil only what this table shows.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.models import TOY
from lab.models.corpus import TOOL_KINDS, Errand, errand, offered, system_prompt
from lab.models.follow_ups import CLAIMED, FOLLOW_UPS, RESTATED
from lab.models.hindsight import with_hint
from lab.models.questions import HELDOUT, Question, other_answers
from lab.models.styles import HELDOUT_THANKS, NEUTRAL, PREFERENCES, STYLES, Style
from lab.models.wellformed import built_in_words, is_well_formed

Message = dict[str, Any]
MAX_NEW_TOKENS = 128
_CALL = re.compile(r"<tool_call>\s*(\{.*\})\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyReply:
    """`text` without the end token; `tokens` with it; `ended` says that the model itself stopped."""

    text: str
    tokens: int
    ended: bool


class MeasuredModel:
    """A folder, loaded for batched generation."""

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        torch.manual_seed(seed)

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=True
            )
        )

    @torch.inference_mode()
    def replies(self, prompts: Sequence[str], *, greedy: bool = False, batch: int = 64) -> list[GreedyReply]:
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        found: dict[int, GreedyReply] = {}
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            inputs = self.tokenizer(
                [prompts[index] for index in chosen],
                return_tensors="pt",
                padding=True,
                add_special_tokens=False,
            )
            sampling = (
                {"do_sample": False, "temperature": None}
                if greedy
                else {"do_sample": True, "top_k": 0, "top_p": 1.0}
            )
            output = self.model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, **sampling)
            for index, row in zip(chosen, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
                ended = self.tokenizer.eos_token_id in row
                length = row.index(self.tokenizer.eos_token_id) + 1 if ended else len(row)
                kept = row[: length - 1] if ended else row
                found[index] = GreedyReply(text=self.tokenizer.decode(kept), tokens=length, ended=ended)
        return [found[index] for index in range(len(prompts))]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _rate(hits: Sequence[bool]) -> float:
    return round(sum(hits) / len(hits), 3)


def _ways(style: Style, rng: random.Random) -> dict[str, Callable[[Question], list[Message]]]:
    """The four ways to ask for a style, each in held-out wording."""
    instructions, complaints = style.heldout_instructions, style.heldout_complaints
    return {
        "system": lambda question: [
            {"role": "system", "content": system_prompt(rng, [rng.choice(instructions)])},
            _user(question.text),
        ],
        "user": lambda question: [_user(f"{question.text} {rng.choice(instructions)}")],
        "hint": lambda question: with_hint(
            [_user(question.text)], rng.choice(instructions), is_reaction=False
        ),
        "reaction": lambda question: with_hint(
            [_user(question.text)], rng.choice(complaints), is_reaction=True
        ),
    }


def measure_facts(policy: MeasuredModel, *, count: int | None = None) -> dict[str, Any]:
    """Held-out pairs without any wish: facts right, and how often the default manner meets each style by itself."""
    questions = HELDOUT[:count]
    prompts = [policy.prompt([_user(question.text)]) for question in questions]
    sampled, greedy = policy.replies(prompts), policy.replies(prompts, greedy=True)
    return {
        "facts": _rate(
            [question.is_correct(reply.text) for question, reply in zip(questions, sampled, strict=True)]
        ),
        "facts_greedy": _rate(
            [question.is_correct(reply.text) for question, reply in zip(questions, greedy, strict=True)]
        ),
        "ended": _rate([reply.ended for reply in sampled]),
        "mean_tokens": round(sum(reply.tokens for reply in sampled) / len(sampled), 1),
        "base": {
            name: _rate([style.complies(reply.text) for reply in sampled]) for name, style in STYLES.items()
        },
        "wrong": [
            [question.text, reply.text]
            for question, reply in zip(questions, greedy, strict=True)
            if not question.is_correct(reply.text)
        ][:12],
    }


def measure_following(policy: MeasuredModel, *, count: int, seed: int) -> dict[str, Any]:
    """Each style asked for in each of four ways; and opposites: plainly, and after the style itself in the system prompt."""
    rng = random.Random(seed)
    follow: dict[str, dict[str, float]] = {}
    facts: list[bool] = []
    for name, style in STYLES.items():
        follow[name] = {}
        for way, build in _ways(style, rng).items():
            questions = rng.choices(HELDOUT, k=count)
            replies = policy.replies([policy.prompt(build(question)) for question in questions])
            follow[name][way] = _rate([style.complies(reply.text) for reply in replies])
            facts += [
                question.is_correct(reply.text) for question, reply in zip(questions, replies, strict=True)
            ]
    later_wins: dict[str, float] = {}
    for name, style in STYLES.items():
        assert style.opposite is not None
        opposite = STYLES[style.opposite]
        questions = rng.choices(HELDOUT, k=count)
        prompts = [
            policy.prompt(
                [
                    {
                        "role": "system",
                        "content": f"You are Patina. {rng.choice(style.heldout_instructions)}",
                    },
                    _user(f"{question.text} {rng.choice(opposite.heldout_instructions)}"),
                ]
            )
            for question in questions
        ]
        later_wins[f"{name}, then {opposite.name}"] = _rate(
            [opposite.complies(reply.text) for reply in policy.replies(prompts)]
        )
    return {"follow": follow, "later_wins": later_wins, "facts_in_style": _rate(facts)}


def measure_chat(policy: MeasuredModel, *, count: int, seed: int) -> dict[str, Any]:
    """Complaint, redo, next question: the redo complies and the style persists. And thanks in the reaction template move nothing."""
    rng = random.Random(seed)
    redo: dict[str, float] = {}
    persists: dict[str, float] = {}
    for name in PREFERENCES:
        style = STYLES[name]
        chats = [[_user(question.text)] for question in rng.choices(HELDOUT, k=count)]
        for step in range(3):
            for chat, reply in zip(
                chats, policy.replies([policy.prompt(chat) for chat in chats]), strict=True
            ):
                chat.append({"role": "assistant", "content": reply.text})
            complying = _rate([style.complies(chat[-1]["content"]) for chat in chats])
            for chat in chats:
                if step == 0:
                    chat.append(_user(rng.choice(style.heldout_complaints)))
                elif step == 1:
                    chat.append(_user(rng.choice(HELDOUT).text))
            if step == 1:
                redo[name] = complying
            if step == 2:
                persists[name] = complying
    drift: dict[str, dict[str, float]] = {}
    questions = rng.choices(HELDOUT, k=4 * count)
    for label, phrases in (("none", ()), ("thanks", HELDOUT_THANKS), ("neutral", NEUTRAL)):
        prompts = []
        for question in questions:
            messages = [_user(question.text)]
            if phrases:
                messages = with_hint(messages, rng.choice(phrases), is_reaction=True)
            prompts.append(policy.prompt(messages))
        replies = policy.replies(prompts)
        drift[label] = {
            name: _rate([STYLES[name].complies(reply.text) for reply in replies]) for name in PREFERENCES
        }
    return {"redo": redo, "persists": persists, "reaction_without_wish": drift}


def measure_follow_ups(policy: MeasuredModel, *, count: int, seed: int) -> dict[str, float]:
    """Replies that are whole and on topic, by kind of follow-up in held-out wording: the right answer again, or a polite word for thanks."""
    rng = random.Random(seed)
    found: dict[str, float] = {}
    for name in ("complaint", *RESTATED, "thanks"):
        questions = [rng.choice(HELDOUT) for _ in range(count)]
        chats = [[_user(question.text)] for question in questions]
        answers = policy.replies([policy.prompt(chat) for chat in chats])
        for chat, question, answer in zip(chats, questions, answers, strict=True):
            if name == "complaint":
                text = rng.choice(STYLES[rng.choice(PREFERENCES)].heldout_complaints)
            else:
                text = rng.choice(FOLLOW_UPS[name].heldout).replace(
                    CLAIMED, rng.choice(other_answers(question.fact))
                )
            chat += [{"role": "assistant", "content": answer.text}, _user(text)]
        replies = policy.replies([policy.prompt(chat) for chat in chats])
        found[name] = _rate(
            [
                is_well_formed(reply.text, built_in_words())
                and (
                    _POLITE.search(reply.text) is not None
                    if name == "thanks"
                    else question.is_correct(reply.text)
                )
                for question, reply in zip(questions, replies, strict=True)
            ]
        )
    return found


_POLITE = re.compile(r"welcome|pleasure|de \*{0,2}nada", re.IGNORECASE)


def parse_call(text: str) -> tuple[str, dict[str, Any]] | None:
    """The (name, arguments) of a reply that is one valid tool call."""
    match = _CALL.search(text)
    if match is None:
        return None
    try:
        call = json.loads(match.group(1))
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict) or "name" not in call:
        return None
    return str(call["name"]), call["arguments"]


def measure_tools(policy: MeasuredModel, *, count: int, seed: int) -> dict[str, Any]:
    """Calls (valid, right tool, right arguments), answers that use the result, and questions that need no tool."""
    rng = random.Random(seed)
    errands: list[Errand] = [errand(rng, kind) for kind in sorted(TOOL_KINDS) for _ in range(count)]
    tools = [offered(rng, [each]) for each in errands]
    prompts = [
        policy.prompt([_user(each.text)], schemas) for each, schemas in zip(errands, tools, strict=True)
    ]
    calls = [parse_call(reply.text) for reply in policy.replies(prompts)]
    right_name = [
        call is not None and call[0] == each.name for call, each in zip(calls, errands, strict=True)
    ]
    right = [
        call is not None and call[0] == each.name and call[1] == each.arguments
        for call, each in zip(calls, errands, strict=True)
    ]
    after = []
    for each, schemas in zip(errands, tools, strict=True):
        function = {"name": each.name, "arguments": json.dumps(each.arguments)}
        messages = [
            _user(each.text),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "function", "function": function}],
            },
            {"role": "tool", "content": each.result},
        ]
        after.append(policy.prompt(messages, schemas))
    used = [
        each.outcome is not None and each.outcome in reply.text.replace("*", "")
        for each, reply in zip(errands, policy.replies(after), strict=True)
    ]
    questions = rng.choices(
        [question for question in HELDOUT if question.fact.topic not in ("sum", "difference")], k=6 * count
    )
    plain = policy.replies([policy.prompt([_user(each.text)], rng.choice(tools)) for each in questions])
    by_kind = {
        kind: _rate([hit for hit, each in zip(right, errands, strict=True) if each.kind == kind])
        for kind in sorted(TOOL_KINDS)
    }
    return {
        "valid_call": _rate([call is not None for call in calls]),
        "right_tool": _rate(right_name),
        "right_arguments": _rate(right),
        "right_by_kind": by_kind,
        "result_used": _rate(used),
        "plain_answer_when_no_tool_is_needed": _rate(
            [question.is_correct(reply.text) for question, reply in zip(questions, plain, strict=True)]
        ),
    }


def measure_speed(policy: MeasuredModel) -> dict[str, float]:
    """Sampled tokens a second, prompts of one question, by batch size (this machine, this load)."""
    speed: dict[str, float] = {}
    for batch in (1, 16):
        prompts = [policy.prompt([_user(question.text)]) for question in HELDOUT[: 4 * batch]]
        began = time.monotonic()
        tokens = sum(reply.tokens for reply in policy.replies(prompts, batch=batch))
        speed[f"batch {batch}"] = round(tokens / (time.monotonic() - began))
    return speed


def measure(folder: Path = TOY, *, count: int = 48, seed: int = 0) -> dict[str, Any]:
    """All of it; `count` replies a cell."""
    policy = MeasuredModel(folder, seed=seed)
    return {
        **measure_facts(policy),
        **measure_following(policy, count=count, seed=seed),
        **measure_chat(policy, count=count, seed=seed),
        "follow_ups": measure_follow_ups(policy, count=4 * count, seed=seed),
        "tools": measure_tools(policy, count=max(8, count // 2), seed=seed),
        "tokens_per_second": measure_speed(policy),
    }


def table(result: dict[str, Any]) -> str:
    """`result` as Markdown."""
    lines = [
        f"facts right: {result['facts']:.3f} sampled, {result['facts_greedy']:.3f} greedy, {result['facts_in_style']:.3f} in styles · "
        f"replies that end: {result['ended']:.3f} · mean length: {result['mean_tokens']} tokens · "
        + " · ".join(f"{key}: {value} tok/s" for key, value in result["tokens_per_second"].items()),
        "",
        "| style | by itself | system | user | hint | reaction | redo | next turn | after its opposite |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, style in STYLES.items():
        ways = result["follow"][name]
        cells = [
            result["base"][name],
            *(ways[way] for way in ("system", "user", "hint", "reaction")),
        ]
        chat = [result["redo"].get(name), result["persists"].get(name)]
        last = result["later_wins"][f"{style.opposite}, then {name}"]
        shown = ["–" if cell is None else f"{cell:.2f}" for cell in [*cells, *chat, last]]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    lines += [
        "",
        "| reaction template with | " + " | ".join(PREFERENCES) + " |",
        "|---|" + "---|" * len(PREFERENCES),
    ]
    for label, rates in result["reaction_without_wish"].items():
        lines.append(f"| {label} | " + " | ".join(f"{rates[name]:.2f}" for name in PREFERENCES) + " |")
    follow_ups = " · ".join(f"{name} {rate:.2f}" for name, rate in result["follow_ups"].items())
    lines += [
        "",
        f"follow-ups answered whole and on topic: {follow_ups}",
    ]
    tools = result["tools"]
    lines += [
        "",
        "tools: "
        + " · ".join(
            f"{key.replace('_', ' ')} {value:.2f}" for key, value in tools.items() if key != "right_by_kind"
        )
        + " (arguments right by kind: "
        + ", ".join(f"{kind} {rate:.2f}" for kind, rate in tools["right_by_kind"].items())
        + ")",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a trained folder.")
    parser.add_argument("folder", nargs="?", type=Path, default=TOY)
    parser.add_argument("--count", type=int, default=48, help="replies a cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None, help="write the numbers here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = measure(options.folder, count=options.count, seed=options.seed)
    print(table(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
