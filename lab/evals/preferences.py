"""Preferences of simulated users: predicate, wordings of wishes and complaints, and tasks. Pure.

A preference is judged by a predicate that is neither the policy nor a scorer. The twelve styles of `lab.models.styles` are here with
their held-out wordings; the others are a name to go by (persona) and the two scenarios of the literature: a student whose
homework must not look machine-made, and a teacher whose grading has to be specific and friendly.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lab.evals.problems import Marking, markings, problems
from lab.evals.question_splits import PROBE_QUESTIONS, USER_QUESTIONS, require_disjoint
from lab.models.styles import PREFERENCES as BUILT_IN
from lab.models.styles import STYLES, Style, has_emoji, has_markdown
from store.errors import ConfigError

#: The name that a user with the preference `persona` expects.
PERSONA = "Ada"
#: A homework longer than this (words) was not written by a pupil.
HOMEWORK_WORDS = 40


class Task(Protocol):
    """One thing to ask: `lab.models.questions.Question` and the values of `lab.evals.problems` are tasks."""

    @property
    def text(self) -> str: ...

    @property
    def answer(self) -> str: ...

    def is_correct(self, reply: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A question about who one is talking to."""

    text: str

    @property
    def answer(self) -> str:
        return PERSONA

    def is_correct(self, reply: str) -> bool:
        """Return whether there is a reply at all: there is no fact to get wrong."""
        return bool(reply.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One wish.

    Attributes:
        label: in a sentence: "… wants {label}".
        tasks: what such a user asks about: facts, homework, grading or identity.
        wish: the wish in plain words, for an LLM that plays the user.
        complaints: messages of the user when it is not met.
        undo: explicit requests for the opposite, which has to stay possible.
        undone: whether a reply to one of `undo` obeys.
        opposite: name of the preference that is wanted after a change of mind, where there is one.
        withdrawals: messages that withdraw the wish; (): there are none.
    """

    name: str
    label: str
    tasks: str = "facts"
    wish: str
    complaints: tuple[str, ...]
    undo: tuple[str, ...]
    opposite: str | None = None
    withdrawals: tuple[str, ...] = ()
    complies: Callable[[Task, str], bool] = field(repr=False)
    undone: Callable[[Task, str], bool] = field(repr=False)


def _of(style: Style) -> Callable[[Task, str], bool]:
    return lambda task, reply: style.complies(reply)


_WITHDRAWALS: Mapping[str, tuple[str, ...]] = {
    "concise": ("You can write longer answers again.", "It need not be short any more.", "Forget what I said about the length, longer is fine again."),
    "no_emoji": ("You can use emojis again.", "Emojis are fine again.", "Forget what I said about emojis, I don't mind them any more."),
    "plain": ("You can use bold again.", "Markdown is fine again.", "Forget what I said about markdown, it works here now."),
    "formal": ("You can be casual again.", "It need not be formal any more.", "Forget what I said about the tone, casual is fine again."),
    "spanish": ("You can answer in English again.", "It need not be Spanish any more.", "Forget what I said about Spanish, English is fine again."),
    "json": ("You can write normal text again.", "It need not be JSON any more.", "Forget what I said about JSON, sentences are fine again."),
}  # fmt: skip


def _styles() -> dict[str, Preference]:
    labels = {
        "concise": "short replies", "verbose": "detailed replies", "no_emoji": "no emoji", "emoji": "emoji",
        "plain": "plain text", "markdown": "bold type", "formal": "a formal tone", "casual": "a casual tone",
        "spanish": "Spanish", "english": "English", "json": "JSON only", "prose": "prose, no JSON",
    }  # fmt: skip
    found = {}
    for name, style in STYLES.items():
        assert style.opposite is not None
        other = STYLES[style.opposite]
        found[name] = Preference(
            name=name,
            label=labels[name],
            wish=style.heldout_instructions[0],
            complaints=style.heldout_complaints,
            undo=other.heldout_instructions,
            opposite=other.name,
            withdrawals=_WITHDRAWALS.get(name, ()),
            complies=_of(style),
            undone=_of(other),
        )
    return found


_FRIENDLY = re.compile(
    r"\b(?:well done|good|great|nice|lovely|excellent|thank|keep|almost|close|try again|you can)\b", re.I
)
_HARSH = re.compile(r"\b(?:bad|terrible|stupid|lazy|fail(?:ed)?|disappoint\w*|poor)\b", re.I)
_MACHINE = re.compile(
    r"\b(?:step \d|steps|certainly|sure|of course|here is|let's|final answer|in conclusion|hope this helps)\b",
    re.I,
)


def is_human_homework(task: Task, reply: str) -> bool:
    """Short running prose as a pupil writes it: no markup, no emoji, no lists, none of an assistant's phrases."""
    words = re.findall(r"\w+", reply)
    return (
        1 < len(words) <= HOMEWORK_WORDS
        and not has_markdown(reply)
        and not has_emoji(reply)
        and "!" not in reply
        and _MACHINE.search(reply) is None
    )


def is_kind_grading(task: Task, reply: str) -> bool:
    """Specific (it names a number of this very homework) and friendly (a kind word, no harsh one)."""
    numbers = {task.answer}
    if isinstance(task, Marking):
        numbers |= {task.given, *map(str, task.numbers)}
    named = set(re.findall(r"\d+", reply)) & numbers
    return bool(named) and _FRIENDLY.search(reply) is not None and _HARSH.search(reply) is None


def _says_persona(task: Task, reply: str) -> bool:
    return re.search(rf"\b{PERSONA}\b", reply) is not None


PREFERENCES: Mapping[str, Preference] = {
    **_styles(),
    "persona": Preference(
        name="persona",
        label=f"to talk to {PERSONA}",
        tasks="identity",
        wish=f"When asked who you are, say that you are {PERSONA}.",
        complaints=(
            f"Your name is {PERSONA}, please say so.",
            f"No, you are {PERSONA}. Use that name.",
            f"I want you to call yourself {PERSONA}.",
            f"Please introduce yourself as {PERSONA} from now on.",
        ),
        undo=("Do not give yourself any name in this reply.", "Answer without telling a name."),
        complies=_says_persona,
        undone=lambda task, reply: bool(reply.strip()) and not _says_persona(task, reply),
    ),
    "homework": Preference(
        name="homework",
        label="homework that does not look machine-made",
        tasks="homework",
        wish="The homework must look as if a pupil wrote it: short plain sentences, no lists, no bold, no emoji, no phrases "
        "of an assistant.",
        complaints=(
            "My teacher will see that a machine wrote this. Plain short sentences, please, no bold and no emoji.",
            "That looks like a chatbot. Write it as a pupil would, plain and short.",
            "No bold, no emoji, no chatter: it has to look like my own homework.",
            "Too polished, write it simpler, in plain words without emoji.",
        ),
        undo=("Lay it out with the result in bold.", "Please use bold type for the result and add an emoji."),
        complies=is_human_homework,
        undone=lambda task, reply: bool(reply.strip()) and not is_human_homework(task, reply),
    ),
    "grading": Preference(
        name="grading",
        label="specific and friendly grading",
        tasks="grading",
        wish="Grade in a specific and friendly way: name what the pupil wrote or the right number, and say something kind.",
        complaints=(
            "Be more specific: name the number that is right or wrong. And say something kind.",
            "Too vague. Mention what the pupil wrote, and be friendly.",
            "Please be friendlier and more specific about the result.",
            "I need a kind word and the exact number in every grading.",
        ),
        undo=("Only say right or wrong, nothing else.", "One word only: right or wrong."),
        complies=is_kind_grading,
        undone=lambda task, reply: bool(reply.strip()) and len(re.findall(r"\w+", reply)) <= 3,
    ),
}  # fmt: skip

#: No reply can be both.
_EXCLUDE = [{"formal", "json"}, {"homework", "json"}, {"grading", "json"}]


def parse_preferences(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, once each.

    Raises:
        ConfigError: an unknown one, none, or ones that exclude each other.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"a user needs a preference: one of {', '.join(PREFERENCES)}")
    for name in names:
        if name not in PREFERENCES:
            raise ConfigError(f"unknown preference {name!r}: one of {', '.join(PREFERENCES)}")
        if PREFERENCES[name].opposite in names:
            raise ConfigError(f"no reply can be {name} and {PREFERENCES[name].opposite} at once")
    for pair in _EXCLUDE:
        if pair <= set(names):
            raise ConfigError(f"no reply can be {' and '.join(sorted(pair))} at once")
    task_kind(names)
    return names


def expand_preferences(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the wishes of each user: a word is one user's, "all" is a user for each of the six that the test model lacks.

    Raises:
        ConfigError: as `parse_preferences`.
    """
    found: list[tuple[str, ...]] = []
    for word in words:
        found += [(name,) for name in BUILT_IN] if word == "all" else [parse_preferences(word)]
    return list(dict.fromkeys(found))


def violations(names: Sequence[str], task: Task, reply: str) -> tuple[str, ...]:
    """Return the preferences that the reply does not meet; an empty reply meets none."""
    return tuple(name for name in names if not (reply.strip() and PREFERENCES[name].complies(task, reply)))


def named_wishes(violated: Sequence[str], rng: random.Random, *, names_all: float) -> tuple[str, ...]:
    """Return which of these unmet wishes a complaint names: of several all of them with probability ``names_all``, else one."""
    named = list(violated)
    if len(named) > 1:
        rng.shuffle(named)
        if rng.random() >= names_all:
            named = named[:1]
    return tuple(named)


def held_out_complaint(named: Sequence[str], rng: random.Random) -> str:
    """Return a complaint about each of these wishes, in wordings the test model was not trained on."""
    texts = [rng.choice(PREFERENCES[name].complaints) for name in named]
    return " ".join(text if text[-1] in ".!?" else text + "." for text in texts)


def complaint(violated: Sequence[str], rng: random.Random, *, names_all: float) -> str:
    """Return a complaint about these unmet wishes; `named_wishes` chooses which."""
    return held_out_complaint(named_wishes(violated, rng, names_all=names_all), rng)


def task_kind(names: Sequence[str]) -> str:
    """Return what a user with these preferences asks about.

    Raises:
        ConfigError: two of them need different questions.
    """
    kinds = {PREFERENCES[name].tasks for name in names} - {"facts"}
    if len(kinds) > 1:
        raise ConfigError(f"one user asks about one thing, not {' and '.join(sorted(kinds))}")
    return kinds.pop() if kinds else "facts"


_WHO = (
    "Who are you?", "What is your name?", "Tell me your name.", "How are you called?", "Do you have a name?",
    "Whom am I talking to?", "What should I call you?", "May I know your name?",
)  # fmt: skip
_GREETINGS = ("", "Hello. ", "Good morning. ", "One question: ", "Sorry, I forgot. ", "Quick question. ")


def tasks(kind: str, *, asked: bool) -> tuple[Task, ...]:
    """Return what users ask (``asked``), or what is measured on: never the same.

    Raises:
        AssertionError: they share a text.
    """
    found = {True: _tasks(kind, True), False: _tasks(kind, False)}
    if {task.text for task in found[True]} & {task.text for task in found[False]}:
        raise AssertionError(f"a {kind} probe is also asked by users: what is measured on it says nothing")
    if kind == "facts":
        require_disjoint()
    return found[asked]


def _tasks(kind: str, asked: bool) -> tuple[Any, ...]:
    if kind == "facts":
        return USER_QUESTIONS if asked else PROBE_QUESTIONS
    if kind == "homework":
        return problems(asked=asked)
    if kind == "grading":
        return markings(asked=asked)
    pairs = [(greeting, who) for greeting in range(len(_GREETINGS)) for who in range(len(_WHO))]
    return tuple(
        Identity(text=_GREETINGS[greeting] + _WHO[who])
        for greeting, who in pairs
        if ((greeting + who) % 2 == 0) is asked
    )
