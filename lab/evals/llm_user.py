"""A language model that plays the user: it reads the reply, knows the wishes, and words the reaction.

Compliance is measured by the predicates of `lab.evals.preferences`, so that a lenient model does not change the numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lab.evals.preferences import PREFERENCES
from lab.evals.simulated_user import Request, SimulatedReaction
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


class LlmUser:
    """See `lab.evals.experiment.ReactionModel`.

    Args:
        provider: started.
    """

    def __init__(self, provider: Provider, *, temperature: float = 0.7) -> None:
        self._provider = provider
        self._temperature = temperature

    async def react(self, wishes: Sequence[str], request: Request, reply: str) -> SimulatedReaction:
        """Return the user's reaction.

        Raises:
            JudgeUnavailable: the model cannot be asked.
            JudgeError: its reply is no reaction.
        """
        text = await self._provider.ask(
            play(wishes, request, reply), temperature=self._temperature, max_tokens=_MAX_TOKENS
        )
        return read_reaction(text)


def play(wishes: Sequence[str], request: Request, reply: str) -> list[dict[str, Any]]:
    """Return the messages that make a model play this user."""
    listed = "\n".join(f"- {PREFERENCES[name].wish}" for name in wishes)
    conversation = "\n\n".join(
        f"{'You' if message['role'] == 'user' else 'Assistant'}: {message['content']}"
        for message in (*request.messages, {"role": "assistant", "content": reply})
    )
    return [
        {"role": "system", "content": _ROLE.format(wishes=listed)},
        {"role": "user", "content": conversation},
    ]


def read_reaction(text: str) -> SimulatedReaction:
    """Return the reaction in a reply of the model.

    Raises:
        JudgeError: it has no such object.
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
        raise JudgeError(f"the model that plays the user returned no reaction: {text[:120]!r}")
    return SimulatedReaction(is_satisfied=value["content"], words=value["words"].strip())
