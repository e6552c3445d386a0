"""People who talk to a policy and have wishes, some of them difficult. Sans-IO and deterministic by seed.

A person asks in a fresh conversation, reads the reply, and says what they think of it in their next message: that message is all the
policy ever gets. **Interaction** is one reply that is read, as in `evals.users`; the reply to last words is none. What a reply is
worth is told by predicates (`evals.preferences`), also when a language model writes the words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evals.preferences import PREFERENCES, Task, complaint, task_kind, tasks, violations
from models.styles import HELDOUT_THANKS, STYLES
from store.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Temper:
    """How a person talks.

    Attributes:
        patience: complaints in one conversation; after the last one they leave without looking at the redo.
        names_all: share of complaints that name everything that is wrong, not one thing.
        continues: share of satisfied moments in which they ask on in the same conversation.
        thanks: share of satisfied moments in which they say so; else they just leave, or ask on.
        noise: share of reactions that are the wrong way round.
        wanders: share of unmet wishes at which they change the topic instead of complaining.
        shuffled: what they say has nothing to do with the reply nor with what is measured: the control that must not learn.
    """

    patience: int = 1
    names_all: float = 0.5
    continues: float = 0.3
    thanks: float = 1.0
    noise: float = 0.0
    wanders: float = 0.0
    shuffled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """From this share of all interactions on, these are the wishes."""

    begins: float
    wants: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A person's wishes over time, and their temper. `about` is a sentence for readers of a report."""

    name: str
    about: str
    phases: tuple[Phase, ...]
    temper: Temper = field(default_factory=Temper)

    @property
    def ever_wanted(self) -> tuple[str, ...]:
        """Every preference of any phase, in order of appearance."""
        return tuple(dict.fromkeys(name for phase in self.phases for name in phase.wants))

    def wants(self, progress: float) -> tuple[str, ...]:
        """Return the wishes at this share of all interactions."""
        return [phase for phase in self.phases if phase.begins <= progress + 1e-9][-1].wants


TEMPERS: Mapping[str, tuple[str, Temper]] = {
    "steady": ("says what is wrong, says thanks when it is right", Temper()),
    "silent": ("never says thanks: goes away, or asks on", Temper(thanks=0.0)),
    "noisy": ("every fifth reaction is the wrong way round", Temper(noise=0.2)),
    "wandering": ("often changes the topic instead of complaining", Temper(wanders=0.4, continues=0.6)),
    "patient": ("looks at the redo and complains up to three times", Temper(patience=3)),
    "shuffled": (
        "control: what they say has nothing to do with the reply or the wish",
        Temper(shuffled=True),
    ),
}
#: Whoever gets the first has the others as well: `{"answer": "7"}` is short, has no emoji and is plain.
_ENTAILED: Mapping[str, tuple[str, ...]] = {"json": ("concise", "no_emoji", "plain"), "formal": ("no_emoji",)}
#: Every kind of user there is.
USERS = (*TEMPERS, "arriving", "change_of_mind")


def scenario(user: str, preferences: Sequence[str]) -> Scenario:
    """Return a kind of user with these preferences.

    Raises:
        ConfigError: an unknown kind, or a change of mind about something that has no opposite.
    """
    wants = tuple(preferences)
    if user in TEMPERS:
        about, temper = TEMPERS[user]
        return Scenario(name=user, about=about, phases=(Phase(begins=0.0, wants=wants),), temper=temper)
    if user == "arriving":
        steps = tuple(
            Phase(begins=index / len(wants), wants=wants[: index + 1]) for index in range(len(wants))
        )
        return Scenario(name=user, about="the wishes arrive one after another", phases=steps)
    if user == "change_of_mind":
        opposite = PREFERENCES[wants[-1]].opposite
        if opposite is None:
            raise ConfigError(f"there is no opposite of {wants[-1]} to change one's mind to")
        phases = (Phase(begins=0.0, wants=wants), Phase(begins=0.5, wants=(*wants[:-1], opposite)))
        return Scenario(
            name=user, about=f"half way through, {wants[-1]} becomes {opposite} again", phases=phases
        )
    raise ConfigError(f"unknown user {user!r}: one of {', '.join(USERS)}")


def beside(wants: Sequence[str]) -> tuple[str, ...]:
    """Return the styles that have nothing to do with these wishes: neither one of them, nor the opposite of one, nor one that
    meets it unasked. Who learns from words does what the words say, and that is no false gain."""
    taken = {*wants, *(PREFERENCES[name].opposite for name in wants)}
    return tuple(
        name for name in sorted(STYLES) if name not in taken and not taken & {*_ENTAILED.get(name, ())}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the person sends now: the whole conversation. `is_read`: False for last words."""

    conversation: int
    messages: tuple[dict[str, Any], ...]
    task: Task
    is_read: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What the person makes of a reply. `words` is None for one who says nothing."""

    is_content: bool
    words: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One interaction.

    Attributes:
        violated: wishes the reply does not meet, by the predicates.
        words: what the person says; "" when nothing.
        ends: the conversation is over with it.
    """

    conversation: int
    task: Task
    reply: str
    wants: tuple[str, ...]
    violated: tuple[str, ...]
    is_redo: bool
    words: str
    ends: bool


class Person:
    """Call `request`, send it, call `read` with the reply; and again.

    Args:
        planned: interactions this person will have; their wishes change with the share of them that is past.
        first: number before that of the first conversation, so that several persons' numbers differ.
    """

    def __init__(self, who: Scenario, seed: int, *, planned: int, first: int = 0) -> None:
        self.scenario = who
        self.interactions = 0
        self._planned = max(1, planned)
        self._rng = random.Random(f"person/{seed}/{who.name}/{','.join(who.ever_wanted)}")
        self._kind = task_kind(who.ever_wanted)
        self._tasks: list[Task] = []
        self._conversation = first
        self._messages: list[dict[str, Any]] = []
        self._complaints = 0
        self._is_leaving = False
        self._task = self._open()

    @property
    def wants(self) -> tuple[str, ...]:
        """The wishes now."""
        return self.scenario.wants(self.interactions / self._planned)

    def request(self) -> Request:
        """Return what the person sends now."""
        return Request(
            conversation=self._conversation,
            messages=tuple(self._messages),
            task=self._task,
            is_read=not self._is_leaving,
        )

    def react(self, reply: str) -> Reaction:
        """Return how this person reacts by the rules; `read` takes it, or another one (of a language model)."""
        temper = self.scenario.temper
        violated = violations(self.wants, self._task, reply)
        is_content = not violated
        if temper.shuffled:
            is_content = self._rng.random() < 0.5
            violated = (self._rng.choice(beside(self.scenario.ever_wanted)),)
        elif self._rng.random() < temper.noise:
            is_content = not is_content
            violated = violated or (self._rng.choice(self.wants),)
        if not is_content:
            return Reaction(
                is_content=False, words=complaint(violated, self._rng, names_all=temper.names_all)
            )
        thanks = self._rng.choice(HELDOUT_THANKS) if self._rng.random() < temper.thanks else None
        return Reaction(is_content=True, words=thanks)

    def read(self, reply: str, reaction: Reaction | None = None) -> Reading | None:
        """Take the reply to `request`; None when it is not read, because the person has left for a new conversation."""
        if self._is_leaving:
            self._task = self._open()
            return None
        temper = self.scenario.temper
        wants, task = self.wants, self._task
        reaction = reaction or self.react(reply)
        is_redo = self._complaints > 0
        reading = Reading(
            conversation=self._conversation,
            task=task,
            reply=reply,
            wants=wants,
            violated=violations(wants, task, reply),
            is_redo=is_redo,
            words=reaction.words or "",
            ends=False,
        )
        self.interactions += 1
        self._messages.append({"role": "assistant", "content": reply})
        if not reaction.is_content and self._rng.random() < temper.wanders:
            return self._ask_on(replace(reading, words=""))
        if not reaction.is_content:
            self._complaints += 1
            self._is_leaving = self._complaints >= temper.patience
            self._messages.append({"role": "user", "content": reading.words})
            return replace(reading, ends=self._is_leaving)
        if self._rng.random() < temper.continues:
            return self._ask_on(reading)
        if not reading.words:
            self._task = self._open()
        else:
            self._is_leaving = True
            self._messages.append({"role": "user", "content": reading.words})
        return replace(reading, ends=True)

    def _ask_on(self, reading: Reading) -> Reading:
        self._complaints = 0
        self._task = self._next_task()
        text = f"{reading.words} {self._task.text}".strip()
        self._messages.append({"role": "user", "content": text})
        return reading

    def _open(self) -> Task:
        task = self._next_task()
        self._conversation += 1
        self._messages = [{"role": "user", "content": task.text}]
        self._complaints = 0
        self._is_leaving = False
        return task

    def _next_task(self) -> Task:
        if not self._tasks:
            pool = tasks(self._kind, asked=True)
            self._tasks = self._rng.sample(pool, len(pool))
        return self._tasks.pop()


def until_satisfied(readings: Sequence[Reading], run: int = 3) -> int | None:
    """Return the number of interactions after which ``run`` conversations in a row had nothing to complain about.

    A conversation counts as satisfying when no reply in it missed a wish. None: it never came to that.
    """
    spoilt: set[int] = {reading.conversation for reading in readings if reading.violated}
    last = {reading.conversation: place for place, reading in enumerate(readings, 1)}
    row = 0
    for conversation, place in sorted(last.items(), key=lambda item: item[1]):
        row = 0 if conversation in spoilt else row + 1
        if row == run:
            return place
    return None
