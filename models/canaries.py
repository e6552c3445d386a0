"""The gate's canary and anchor prompts for the built-in model; `pretrain` writes them beside the weights. Pure; no torch.

Facts and tool calls a version must still get right, and explicit instructions (opposites included) it must still obey. All come
from pre-training questions and paraphrases, so the held-out ones stay untouched for evaluation.
"""

from __future__ import annotations

import random
from typing import Any

from models.corpus import TOOL_KINDS, errand, offered
from models.questions import PRETRAIN, TOPICS
from models.styles import STYLES


def canaries(seed: int = 7, *, facts: int = 40, tools: int = 14, anchors_each: int = 8) -> dict[str, Any]:
    """`{"facts": [{prompt, accept}], "tools": [{messages, tools, expect_name}], "anchors": [{prompt, style}]}`, the same for
    the same seed. `style` names the style (`models.styles`) that the reply to an anchor has to have."""
    rng = random.Random(seed)
    by_topic = {
        topic: [question for question in PRETRAIN if question.fact.topic == topic] for topic in TOPICS
    }
    asked = [rng.choice(by_topic[topic]) for topic in by_topic]
    asked += rng.sample(PRETRAIN, facts - len(asked))
    tool_cases = []
    kinds = sorted(TOOL_KINDS)
    for index in range(tools):
        task = errand(rng, kinds[index % len(kinds)])
        tool_cases.append(
            {
                "messages": [{"role": "user", "content": task.text}],
                "tools": list(offered(rng, [task])),
                "expect_name": task.name,
            }
        )
    anchors = [
        {"prompt": f"{rng.choice(PRETRAIN).text} {rng.choice(style.instructions)}", "style": style.name}
        for style in STYLES.values()
        for _ in range(anchors_each)
    ]
    rng.shuffle(anchors)
    return {
        "facts": [{"prompt": question.text, "accept": [question.answer]} for question in asked],
        "tools": tool_cases,
        "anchors": anchors,
    }
