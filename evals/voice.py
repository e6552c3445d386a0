"""A language model that plays the person: it reads the reply, knows the wishes, and finds its own words.

It only speaks. What is measured are the predicates of `evals.preferences`, so that a flattering user changes nothing in the numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from evals.people import Reaction, Request
from evals.preferences import PREFERENCES
from scorers.provider import Provider
from store.errors import JudgeError

_ROLE = """You play a person who uses a chat assistant. Your wishes for every reply:
{wishes}

Read the assistant's last reply. Answer with one JSON object and nothing else:
{{"content": true or false, "words": "what you say next to the assistant"}}
"content" is true only if every wish is met. If it is, "words" are short thanks. If not, "words" say in your own way, in one or two \
sentences, what you want otherwise; never write the answer yourself."""
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_MAX_TOKENS = 200


class SpokenUser:
    """See `evals.study.Voice`.

    Args:
        provider: started.
    """

    def __init__(self, provider: Provider, *, temperature: float = 0.7) -> None:
        self._provider = provider
        self._temperature = temperature

    async def react(self, wishes: Sequence[str], request: Request, reply: str) -> Reaction:
        """Return the person's reaction.

        Raises:
            JudgeUnavailable: the model cannot be asked.
            JudgeError: what it says is no reaction.
        """
        text = await self._provider.ask(
            play(wishes, request, reply), temperature=self._temperature, max_tokens=_MAX_TOKENS
        )
        return read_reaction(text)


def play(wishes: Sequence[str], request: Request, reply: str) -> list[dict[str, Any]]:
    """Return the messages that make a model play this person now."""
    listed = "\n".join(f"- {PREFERENCES[name].wish}" for name in wishes)
    talk = "\n\n".join(
        f"{'You' if message['role'] == 'user' else 'Assistant'}: {message['content']}"
        for message in (*request.messages, {"role": "assistant", "content": reply})
    )
    return [
        {"role": "system", "content": _ROLE.format(wishes=listed)},
        {"role": "user", "content": talk},
    ]


def read_reaction(text: str) -> Reaction:
    """Return what the model said.

    Raises:
        JudgeError: there is no such object in it.
    """
    match = _OBJECT.search(text)
    try:
        value = json.loads(match.group(0)) if match else None
    except ValueError:
        value = None
    if (
        not isinstance(value, dict)
        or not isinstance(value.get("content"), bool)
        or not isinstance(value.get("words"), str)
        or not value["words"].strip()
    ):
        raise JudgeError(f"the model that plays the user said no reaction: {text[:120]!r}")
    return Reaction(is_content=value["content"], words=value["words"].strip())
