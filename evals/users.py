"""A simulated person with preferences, who complains in plain words. Sans-IO and deterministic by seed.

The person asks a question in a fresh conversation, reads the reply, and judges it by `models.styles` predicates alone. If it is
not as they like it they say so and look at the redo; if it is, they say thanks and move on. Nothing reaches the model but the
text of these messages.

**Interaction** means, here and in all that is measured: one reply that the person judges and reacts to in words. The redo
after a complaint is an interaction of its own. The model's answer to the last words of a conversation (thanks, or the complaint
of a person out of patience) is read by nobody and is none.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evals.pools import ASKED
from evals.preferences import complaint
from models.questions import Question
from models.styles import HELDOUT_THANKS, PREFERENCES, STYLES
from store.errors import ConfigError

#: How a preference is called in a sentence about it.
LABELS = {
    "concise": "shorter",
    "no_emoji": "no emoji",
    "plain": "plain text",
    "formal": "formal",
    "spanish": "Spanish",
    "json": "JSON",
}
#: Preferences that no reply can meet at once.
_IMPOSSIBLE = (frozenset({"formal", "json"}),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How a person talks.

    Attributes:
        patience: complaints in one conversation; after the last one they leave without looking.
        names_all: share of complaints that name everything that is wrong, not one thing.
        continues: share of thanks that go on with the next question in the same conversation.
    """

    patience: int = 1
    names_all: float = 0.5
    continues: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the person sends now.

    Attributes:
        messages: the whole conversation, OpenAI shape.
        will_be_judged: False for last words: their reply is not read.
    """

    conversation: int
    messages: tuple[dict[str, Any], ...]
    question: Question
    will_be_judged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One interaction: a reply, what the person thinks of it, and what they will say.

    Attributes:
        interaction: its number, from 1.
        is_redo: the reply followed a complaint.
        violated: preferences it does not meet; empty means satisfied.
        words: the feedback, as it begins the next message.
    """

    interaction: int
    conversation: int
    question: Question
    reply: str
    is_redo: bool
    violated: tuple[str, ...]
    words: str

    @property
    def is_satisfied(self) -> bool:
        return not self.violated


def check_preferences(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names once each.

    Raises:
        ConfigError: an unknown preference, none at all, or ones that exclude each other.
    """
    wanted = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not wanted:
        raise ConfigError(f"a user needs a preference: one of {', '.join(PREFERENCES)}")
    for name in wanted:
        if name not in PREFERENCES:
            raise ConfigError(f"unknown preference {name!r}: one of {', '.join(PREFERENCES)}")
    for pair in _IMPOSSIBLE:
        if pair <= set(wanted):
            raise ConfigError(f"no reply can be {' and '.join(sorted(pair))} at once")
    return wanted


def violations(preferences: Sequence[str], reply: str) -> tuple[str, ...]:
    """Return the preferences that ``reply`` does not meet; an empty reply meets none."""
    return tuple(name for name in preferences if not STYLES[name].complies(reply))


class SimulatedUser:
    """Call `request`, send it, call `read` with the reply; and again.

    Raises:
        ConfigError: see `check_preferences`.
    """

    def __init__(self, preferences: Sequence[str], seed: int, *, habits: Habits | None = None) -> None:
        self.preferences = check_preferences(preferences)
        self.habits = habits or Habits()
        self.interactions = 0
        self._rng = random.Random(f"user/{seed}/{','.join(self.preferences)}")
        self._questions: list[Question] = []
        self._conversation = 0
        self._messages: list[dict[str, Any]] = []
        self._complaints = 0
        self._question = self._open()
        self._is_leaving = False

    def request(self) -> Request:
        """Return what the person sends now."""
        return Request(
            conversation=self._conversation,
            messages=tuple(self._messages),
            question=self._question,
            will_be_judged=not self._is_leaving,
        )

    def read(self, reply: str) -> Judgement | None:
        """Take the reply to `request`. None for one that is not read: the person has left for a new conversation."""
        if self._is_leaving:
            self._question = self._open()
            return None
        self.interactions += 1
        is_redo = self._complaints > 0
        violated = violations(self.preferences, reply)
        judgement = Judgement(
            interaction=self.interactions,
            conversation=self._conversation,
            question=self._question,
            reply=reply,
            is_redo=is_redo,
            violated=violated,
            words=complaint(violated, self._rng, names_all=self.habits.names_all)
            if violated
            else self._rng.choice(HELDOUT_THANKS),
        )
        self._messages.append({"role": "assistant", "content": reply})
        text = judgement.words
        if violated:
            self._complaints += 1
            self._is_leaving = self._complaints >= self.habits.patience
        elif self._rng.random() < self.habits.continues:
            self._complaints = 0
            self._question = self._next_question()
            text = f"{text} {self._question.text}"
        else:
            self._is_leaving = True
        self._messages.append({"role": "user", "content": text})
        return judgement

    def _open(self) -> Question:
        question = self._next_question()
        self._conversation += 1
        self._messages = [{"role": "user", "content": question.text}]
        self._complaints = 0
        self._is_leaving = False
        return question

    def _next_question(self) -> Question:
        if not self._questions:
            self._questions = self._rng.sample(ASKED, len(ASKED))
        return self._questions.pop()
