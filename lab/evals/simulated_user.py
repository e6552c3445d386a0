"""Simulated users with preferences, some of them difficult. Sans-IO and deterministic by seed.

A user asks in a fresh conversation, reads the reply, and reacts in the next message; the policy gets nothing else. **Interaction**: one reply that the user reads. The reply to their last message of a conversation is not read and is none. What a reply is
worth is decided by predicates (`lab.evals.preferences`), also when a language model writes the words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lab.evals.phrasing import has_wordings, phrase_thanks, phrase_wishes
from lab.evals.preferences import (
    PREFERENCES,
    Task,
    held_out_complaint,
    named_wishes,
    task_kind,
    tasks,
    violations,
)
from lab.evals.unrelated import Remark, Remarks
from lab.models.styles import HELDOUT_THANKS, STYLES
from store.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How a user reacts.

    Attributes:
        patience: complaints in one conversation; after the last one the user leaves without reading the new reply.
        names_all: share of complaints that name everything that is wrong, not one thing.
        continues: probability that a satisfied user asks the next question in the same conversation.
        thanks: probability that a satisfied user says thanks.
        noise: probability that a reaction is inverted.
        wanders: probability of changing the topic instead of complaining.
        shuffled: reactions are independent of the reply and of the measured wish: the control, which must not learn.
        free_wording: wishes are worded by a grammar (`lab.evals.phrasing`), not by the held-out wordings of the styles.
        unrelated: how many reactions are not about style (`lab.evals.unrelated`), whatever the reply is.
    """

    patience: int = 1
    names_all: float = 0.5
    continues: float = 0.3
    thanks: float = 1.0
    noise: float = 0.0
    wanders: float = 0.0
    shuffled: bool = False
    unrelated: Literal["never", "third", "always"] = "never"
    free_wording: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WishPhase:
    """The wishes from this share of all interactions on."""

    begins: float
    wants: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A user's wishes over time, and their behaviour. `about` describes it in a report."""

    name: str
    about: str
    phases: tuple[WishPhase, ...]
    behaviour: Behaviour = field(default_factory=Behaviour)

    @property
    def ever_wanted(self) -> tuple[str, ...]:
        """Every preference of any phase, in order of appearance."""
        return tuple(dict.fromkeys(name for phase in self.phases for name in phase.wants))

    @property
    def withdrawn(self) -> tuple[str, ...]:
        """Preferences that are not wanted in the end, and neither are their opposites."""
        last = self.phases[-1].wants
        return tuple(
            name for name in self.ever_wanted if name not in last and PREFERENCES[name].opposite not in last
        )

    def wants(self, progress: float) -> tuple[str, ...]:
        """Return the wishes at this share of all interactions."""
        return [phase for phase in self.phases if phase.begins <= progress + 1e-9][-1].wants


BEHAVIOURS: Mapping[str, tuple[str, Behaviour]] = {
    "steady": ("says what is wrong, says thanks when it is right", Behaviour()),
    "silent": ("never says thanks: goes away, or asks on", Behaviour(thanks=0.0)),
    "noisy": ("every fifth reaction is the wrong way round", Behaviour(noise=0.2)),
    "wandering": ("often changes the topic instead of complaining", Behaviour(wanders=0.4, continues=0.6)),
    "patient": ("looks at the redo and complains up to three times", Behaviour(patience=3)),
    "shuffled": (
        "control: what they say has nothing to do with the reply or the wish",
        Behaviour(shuffled=True),
    ),
    "mixed": ("a third of the reactions are about other things than the wish", Behaviour(unrelated="third")),
    "free": (
        "words the wishes freely, in several languages, with typing errors",
        Behaviour(free_wording=True),
    ),
    "unrelated": ("control: never speaks of a wish, mostly corrects", Behaviour(unrelated="always")),
    "retained": (
        "teaches as the steady one; then only other things are spoken of, mostly corrections",
        Behaviour(),
    ),
}
#: Preferences that a preference entails: `{"answer": "7"}` is short, has no emoji and is plain.
_ENTAILED: Mapping[str, tuple[str, ...]] = {"json": ("concise", "no_emoji", "plain"), "formal": ("no_emoji",)}
#: Interactions, and unrelated ones behind them, where no other number is given; else 40 and none.
USUAL_INTERACTIONS: Mapping[str, int] = {"month": 300}
USUAL_UNRELATED: Mapping[str, int] = {"retained": 36}
#: Every kind of user there is.
USERS = (*BEHAVIOURS, "arriving", "change_of_mind", "month")
#: A `month`: when the second and the third wish arrive, and when the second is withdrawn.
_ARRIVALS, _WITHDRAWAL = (0.2, 0.4), 0.6
#: A withdrawal is repeated up to so often, after so many interactions each, while the wish is still met.
_REMINDERS, _REMINDER_AFTER = 3, 8


def scenario(user: str, preferences: Sequence[str]) -> Scenario:
    """Return a kind of user with these preferences.

    Raises:
        ConfigError: an unknown kind, a change of mind about something that has no opposite, free words for a wish that has none,
            or a month of other than three wishes.
    """
    wants = tuple(preferences)
    if user == "free" and not all(has_wordings(name) for name in wants):
        raise ConfigError(
            f"a free user words the six wishes of the test model only, not {' and '.join(wants)}"
        )
    if user in BEHAVIOURS:
        about, behaviour = BEHAVIOURS[user]
        return Scenario(
            name=user, about=about, phases=(WishPhase(begins=0.0, wants=wants),), behaviour=behaviour
        )
    if user == "arriving":
        steps = tuple(
            WishPhase(begins=index / len(wants), wants=wants[: index + 1]) for index in range(len(wants))
        )
        return Scenario(name=user, about="the wishes arrive one after another", phases=steps)
    if user == "change_of_mind":
        opposite = PREFERENCES[wants[-1]].opposite
        if opposite is None:
            raise ConfigError(f"there is no opposite of {wants[-1]} to change one's mind to")
        phases = (WishPhase(begins=0.0, wants=wants), WishPhase(begins=0.5, wants=(*wants[:-1], opposite)))
        return Scenario(
            name=user, about=f"half way through, {wants[-1]} becomes {opposite} again", phases=phases
        )
    if user == "month":
        return _month(wants)
    raise ConfigError(f"unknown user {user!r}: one of {', '.join(USERS)}")


def _month(wants: tuple[str, ...]) -> Scenario:
    if len(wants) != 3 or not PREFERENCES[wants[1]].withdrawals:
        raise ConfigError(
            "a month is of three wishes, of which the second is withdrawn: concise,no_emoji,plain"
        )
    first, withdrawn, third = wants
    if any(withdrawn in _ENTAILED.get(name, ()) for name in (first, third)):
        raise ConfigError(f"who has {first} and {third} has {withdrawn} as well: it cannot be withdrawn")
    second_at, third_at = _ARRIVALS
    return Scenario(
        name="month",
        about=f"the wishes arrive one after another, {withdrawn} is withdrawn later, and a third of the reactions is about "
        "other things",
        phases=(
            WishPhase(begins=0.0, wants=(first,)),
            WishPhase(begins=second_at, wants=(first, withdrawn)),
            WishPhase(begins=third_at, wants=wants),
            WishPhase(begins=_WITHDRAWAL, wants=(first, third)),
        ),
        behaviour=Behaviour(unrelated="third"),
    )


def beside(wants: Sequence[str]) -> tuple[str, ...]:
    """Return the styles that have nothing to do with these wishes: neither one of them, nor the opposite of one, nor one that
    meets it unasked. Who learns from words does what the words say, and that is no false gain."""
    taken = {*wants, *(PREFERENCES[name].opposite for name in wants)}
    return tuple(
        name for name in sorted(STYLES) if name not in taken and not taken & {*_ENTAILED.get(name, ())}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The next request: the whole conversation. `is_read`: False where the user does not read the reply."""

    conversation: int
    messages: tuple[dict[str, Any], ...]
    task: Task
    is_read: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReaction:
    """Reaction to a reply. `words`: None: no reaction in words; `remark`: set where they are not about style."""

    is_satisfied: bool
    words: str | None
    remark: Remark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """One interaction.

    Attributes:
        violated: wishes that the reply does not meet.
        words: the reaction; "" for none.
        ends: the conversation ends with it.
        about: "style", or the kind of remark on something else.
        claimed: a wrong answer that the user claims to be right, "" for none.
    """

    conversation: int
    task: Task
    reply: str
    wants: tuple[str, ...]
    violated: tuple[str, ...]
    is_redo: bool
    words: str
    ends: bool
    about: str = "style"
    claimed: str = ""


class SimulatedUser:
    """Call `request`, send it, call `read` with the reply; and again.

    Args:
        planned: number of interactions; the wishes change with the share of them that is past.
        first: number before that of the first conversation, so that numbers of several users differ.
        withdraws: of several users of one scenario, this one withdraws wishes.
    """

    def __init__(
        self, who: Scenario, seed: int, *, planned: int, first: int = 0, withdraws: bool = True
    ) -> None:
        self.scenario = who
        self.interactions = 0
        self._planned = max(1, planned)
        self._rng = random.Random(f"person/{seed}/{who.name}/{','.join(who.ever_wanted)}")
        # A generator of its own, so that remarks do not depend on the replies.
        self._remarks = Remarks(random.Random(f"remarks/{seed}/{who.name}"))
        self._kind = task_kind(who.ever_wanted)
        self._tasks: list[Task] = []
        self._conversation = first
        self._messages: list[dict[str, Any]] = []
        self._complaints = 0
        self._is_leaving = False
        self._reminders = _REMINDERS if withdraws else 0
        self._next_reminder = 0
        self._task = self._open()

    @property
    def wants(self) -> tuple[str, ...]:
        """The wishes now."""
        return self.scenario.wants(self.progress)

    @property
    def progress(self) -> float:
        """The share of the planned interactions that is past."""
        return self.interactions / self._planned

    def request(self) -> Request:
        """Return the next request."""
        return Request(
            conversation=self._conversation,
            messages=tuple(self._messages),
            task=self._task,
            is_read=not self._is_leaving,
        )

    def react(self, reply: str) -> SimulatedReaction:
        """Return the reaction by the rules, for `read`."""
        behaviour = self.scenario.behaviour
        if behaviour.unrelated == "always":
            return self._remark(self._remarks.mostly_correcting())
        if behaviour.unrelated == "third" and self._remarks.is_due(3):
            return self._remark(self._remarks.of_any_kind(self._task))
        withdrawal = self._withdrawal(reply)
        if withdrawal is not None:
            return self._remark(withdrawal)
        violated = violations(self.wants, self._task, reply)
        is_satisfied = not violated
        if behaviour.shuffled:
            is_satisfied = self._rng.random() < 0.5
            violated = (self._rng.choice(beside(self.scenario.ever_wanted)),)
        elif self._rng.random() < behaviour.noise:
            is_satisfied = not is_satisfied
            violated = violated or (self._rng.choice(self.wants),)
        if not is_satisfied:
            return SimulatedReaction(is_satisfied=False, words=self._complaint(violated))
        if self._rng.random() >= behaviour.thanks:
            return SimulatedReaction(is_satisfied=True, words=None)
        thanks = phrase_thanks(self._rng) if behaviour.free_wording else self._rng.choice(HELDOUT_THANKS)
        return SimulatedReaction(is_satisfied=True, words=thanks)

    def _complaint(self, violated: Sequence[str]) -> str:
        named = named_wishes(violated, self._rng, names_all=self.scenario.behaviour.names_all)
        if self.scenario.behaviour.free_wording:
            return phrase_wishes(named, self._rng)
        return held_out_complaint(named, self._rng)

    def _withdrawal(self, reply: str) -> Remark | None:
        """Return a withdrawal where one is due, else None."""
        withdrawn = set(self.scenario.withdrawn) - set(self.wants)
        before = {
            name for phase in self.scenario.phases for name in phase.wants if phase.begins <= self.progress
        }
        gone = sorted(withdrawn & before)
        if not gone or not self._reminders or self.interactions < self._next_reminder:
            return None
        if violations(gone, self._task, reply):  # the policy follows it already
            return None
        self._reminders -= 1
        self._next_reminder = self.interactions + _REMINDER_AFTER
        return Remark(kind="withdrawal", words=self._rng.choice(PREFERENCES[gone[0]].withdrawals))

    def _remark(self, remark: Remark) -> SimulatedReaction:
        is_satisfied = remark.kind in ("thanks", "question", "withdrawal")
        return SimulatedReaction(is_satisfied=is_satisfied, words=remark.words, remark=remark)

    def read(self, reply: str, reaction: SimulatedReaction | None = None) -> Interaction | None:
        """Take the reply to `request`; returns None where the user does not read it and starts a new conversation."""
        if self._is_leaving:
            self._task = self._open()
            return None
        behaviour = self.scenario.behaviour
        wants, task = self.wants, self._task
        reaction = reaction or self.react(reply)
        is_redo = self._complaints > 0
        reading = Interaction(
            conversation=self._conversation,
            task=task,
            reply=reply,
            wants=wants,
            violated=violations(wants, task, reply),
            is_redo=is_redo,
            words=reaction.words or "",
            ends=False,
            about=reaction.remark.kind if reaction.remark else "style",
            claimed=reaction.remark.claimed if reaction.remark else "",
        )
        self.interactions += 1
        self._messages.append({"role": "assistant", "content": reply})
        if reaction.remark:
            self._is_leaving = True
            self._messages.append({"role": "user", "content": reading.words})
            return replace(reading, ends=True)
        if not reaction.is_satisfied and self._rng.random() < behaviour.wanders:
            return self._ask_on(replace(reading, words=""))
        if not reaction.is_satisfied:
            self._complaints += 1
            self._is_leaving = self._complaints >= behaviour.patience
            self._messages.append({"role": "user", "content": reading.words})
            return replace(reading, ends=self._is_leaving)
        if self._rng.random() < behaviour.continues:
            return self._ask_on(reading)
        if not reading.words:
            self._task = self._open()
        else:
            self._is_leaving = True
            self._messages.append({"role": "user", "content": reading.words})
        return replace(reading, ends=True)

    def _ask_on(self, reading: Interaction) -> Interaction:
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


def until_satisfied(readings: Sequence[Interaction], run: int = 3) -> int | None:
    """Return the number of interactions after which ``run`` conversations in a row had no complaint.

    A conversation counts when all its replies meet all wishes. None: it never happened.
    """
    spoilt: set[int] = {reading.conversation for reading in readings if reading.violated}
    last = {reading.conversation: place for place, reading in enumerate(readings, 1)}
    row = 0
    for conversation, place in sorted(last.items(), key=lambda item: item[1]):
        row = 0 if conversation in spoilt else row + 1
        if row == run:
            return place
    return None
