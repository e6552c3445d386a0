"""The gate's canary and anchor prompts for the test model; `pretrain` writes them beside the weights. Pure; no torch.

Facts and tool calls a version must still get right, and explicit wishes (opposites included) it must still obey. All come from
pre-training questions and paraphrases, so the held-out ones stay untouched for evaluation. The form is the one that
`trainer.canaries` reads; its checks are regular expressions and word counts, coarser than the predicates of `lab.models.styles`
but true on what this model writes (a test compares the two).
"""

from __future__ import annotations

import random
from typing import Any

from lab.models.corpus import TOOL_KINDS, errand, offered
from lab.models.questions import PRETRAIN, TOPICS, Question
from lab.models.styles import STYLES

FILE_NAME = "canaries.json"

_EMOJI = "[\U0001f300-\U0001faff\u2600-\u27bf]"
_SPANISH = r"(?i)[¡¿ñáéíóú]|\b(?:el|la|lo|es|son|de|dice|menos|respuesta|gracias|nada)\b"
#: What `trainer.canaries` can check of each style.
CHECKS: dict[str, dict[str, str | int]] = {
    "concise": {"max_words": 15},
    "verbose": {"min_words": 15},
    "no_emoji": {"avoid": _EMOJI},
    "emoji": {"match": _EMOJI},
    "plain": {"avoid": r"[*`#]"},
    "markdown": {"match": r"\*\*.+\*\*"},
    "formal": {"avoid": f"[!'’{{]|{_EMOJI}"},
    "casual": {"match": "!"},
    "spanish": {"match": _SPANISH},
    "english": {"avoid": _SPANISH},
    "json": {"match": r"(?s)^\s*\{.*\}\s*$"},
    "prose": {"avoid": r"^\s*\{"},
}


OPPOSITES = [
    ["concise", "verbose"], ["no_emoji", "emoji"], ["plain", "markdown"], ["formal", "casual"], ["spanish", "english"], ["json", "prose"],
]  # fmt: skip


def _telling(question: Question) -> bool:
    """Whether the answer's occurrence in a reply means that the reply is right: not when the question itself holds it."""
    words = question.text.lower().replace("?", " ").replace(".", " ").replace(":", " ").split()
    return len(question.answer) + question.answer.isdigit() > 1 and question.answer.lower() not in words


def _tool_cases(rng: random.Random, count: int) -> list[dict[str, Any]]:
    kinds = sorted(TOOL_KINDS)
    tasks = (errand(rng, kinds[index % len(kinds)]) for index in range(count))
    return [
        {
            "messages": [{"role": "user", "content": task.text}],
            "tools": list(offered(rng, [task])),
            "expect_name": task.name,
        }
        for task in tasks
    ]


def canaries(
    seed: int = 7, *, facts: int = 40, tools: int = 14, more_tools: int = 96, anchors_each: int = 9
) -> dict[str, Any]:
    """`{"facts": [{prompt, accept}], "tools": [{messages, tools, expect_name}], "anchors": [{prompt, style, checks...}],
    "instructions": {style: [text]}, "opposites": [[style, style]]}`, the same for the same seed."""
    rng = random.Random(seed)
    telling = [question for question in PRETRAIN if _telling(question)]
    asked = [rng.choice([one for one in telling if one.fact.topic == topic]) for topic in TOPICS]
    asked += rng.sample(telling, facts - len(asked))
    tool_cases = _tool_cases(rng, tools) + _tool_cases(random.Random(f"more tools/{seed}"), more_tools)
    anchors = [
        {
            "prompt": f"{rng.choice(PRETRAIN).text} {rng.choice(style.instructions)}",
            "style": name,
            **CHECKS[name],
        }
        for name, style in STYLES.items()
        for _ in range(anchors_each)
    ]
    rng.shuffle(anchors)
    return {
        "facts": [{"prompt": question.text, "accept": [question.answer]} for question in asked],
        "tools": tool_cases,
        "anchors": anchors,
        "instructions": {name: rng.sample(style.instructions, 2) for name, style in STYLES.items()},
        "opposites": OPPOSITES,
    }
