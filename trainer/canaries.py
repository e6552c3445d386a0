"""The prompts that watch over a model: what it must still know, still call, still obey. Values and a reader; no torch.

A model folder may bring its own `canaries.json`. For all
other models the one beside this file is used. Its form:

    {"facts":        [{"prompt": "...", "accept": ["Paris", ...]}, ...],
     "tools":        [{"messages": [...], "tools": [...], "expect_name": "get_weather"}, ...],
     "anchors":      [{"prompt": "Why ...? Answer at length.", "style": "long",
                       "match": REGEX, "avoid": REGEX, "min_words": 45, "max_words": 40}, ...],
     "instructions": {"long": ["Answer at length.", ...], ...},
     "opposites":    [["long", "short"], ...],
     "questions":    ["How do I wash a wool sweater?", ...]}

An anchor asks for a style in so many words: whatever a person prefers by default, this one wish is explicit. The checks are
optional; without them only the distance to the base model is measured. The gate asks the anchors; versions are held by
replies to `instructions` behind `questions`, in words that no anchor uses, so that nothing is measured by what it was
trained on. `opposites` (may be missing) are styles of which no reply has both.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from store.errors import ConfigError

DEFAULT_FILE = Path(__file__).with_name("canaries.json")
FILE_NAME = "canaries.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A question, and the answers of which one has to occur as words of their own."""

    prompt: str
    accept: tuple[str, ...]

    def is_right(self, reply: str) -> bool:
        """Whether an accepted answer occurs in the reply, markup aside."""
        plain = re.sub(r"[*_`]", "", reply).casefold()
        return any(
            re.search(rf"(?<!\w){re.escape(answer.casefold())}(?!\w)", plain) for answer in self.accept
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCase:
    """A request that has to be answered by a call of one of its tools."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    expect_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorPrompt:
    """A question with an explicit wish for a style.

    Attributes:
        style: name of the wish; anchors of one style are measured together.
        match, avoid: regular expressions the reply must, and must not, contain.
    """

    prompt: str
    style: str
    match: str | None = None
    avoid: str | None = None
    min_words: int | None = None
    max_words: int | None = None

    @property
    def has_check(self) -> bool:
        return any(value is not None for value in (self.match, self.avoid, self.min_words, self.max_words))

    def is_obeyed(self, reply: str) -> bool:
        """Whether the reply has what was asked for, as far as a check can tell; an empty reply obeys nothing."""
        words = len(re.findall(r"\w+", reply))
        return (
            bool(reply.strip())
            and (self.match is None or re.search(self.match, reply) is not None)
            and (self.avoid is None or re.search(self.avoid, reply) is None)
            and (self.min_words is None or words >= self.min_words)
            and (self.max_words is None or words <= self.max_words)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """See the head of this file."""

    facts: tuple[Fact, ...]
    tools: tuple[ToolCase, ...]
    anchors: tuple[AnchorPrompt, ...]
    instructions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    questions: tuple[str, ...] = ()
    opposites: tuple[tuple[str, str], ...] = ()

    def plain_questions(self) -> tuple[str, ...]:
        """Questions without an instruction; where the file lists none, those of the facts."""
        return self.questions or tuple(fact.prompt for fact in self.facts)

    @property
    def digest(self) -> str:
        """Of what is in them: another file of canaries measures a model anew."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    def trained_instructions(self) -> tuple[str, ...]:
        """Instructions in words that no anchor uses, one of every style before a second of any; all of them where the anchors use each."""
        asked = [anchor.prompt for anchor in self.anchors]
        unseen = [
            [text for text in texts if not any(text in prompt for prompt in asked)]
            for texts in self.instructions.values()
        ]
        found = unseen if any(unseen) else self.instructions.values()
        return tuple(text for turn in zip_longest(*found) for text in turn if text is not None)


def as_message(question: str) -> dict[str, Any]:
    """Return a question as the message of a user."""
    return {"role": "user", "content": question}


def load_canaries(model: str) -> Canaries:
    """The canaries of a model: its own, or else the general ones.

    Raises:
        ConfigError: the file is not of the form above.
    """
    own = Path(model).expanduser() / FILE_NAME
    return read_canaries(own if own.is_file() else DEFAULT_FILE)


def read_canaries(path: Path) -> Canaries:
    """Read one file.

    Raises:
        ConfigError: it cannot be read or is not of the form above.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        result = Canaries(
            facts=tuple(
                Fact(prompt=_text(one, "prompt"), accept=tuple(map(str, one["accept"])))
                for one in data["facts"]
            ),
            tools=tuple(
                ToolCase(
                    messages=tuple(map(dict, one["messages"])),
                    tools=tuple(map(dict, one["tools"])),
                    expect_name=_text(one, "expect_name"),
                )
                for one in data["tools"]
            ),
            anchors=tuple(_anchor(one) for one in data["anchors"]),
            instructions=_instructions(data.get("instructions", {})),
            questions=tuple(map(str, data.get("questions", ()))),
            opposites=tuple((str(one), str(other)) for one, other in data.get("opposites", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise ConfigError(
            f"the canaries in {path} cannot be read: {type(error).__name__}: {error}"
        ) from error
    if not result.facts or not result.anchors:
        raise ConfigError(
            f"the canaries in {path} hold no facts or no anchors: the gate could not see a collapse"
        )
    return result


def _text(one: Mapping[str, Any], key: str) -> str:
    value = one[key]
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key} is not a text")
    return value


def _instructions(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not all(isinstance(texts, list) for texts in value.values()):
        raise TypeError("instructions are a list of texts for each style")
    if not all(isinstance(text, str) and text for texts in value.values() for text in texts):
        raise TypeError("an instruction is not a text")
    return {style: tuple(texts) for style, texts in value.items()}


def _anchor(one: Mapping[str, Any]) -> AnchorPrompt:
    for pattern in (one.get("match"), one.get("avoid")):
        if pattern is not None:
            re.compile(pattern)
    return AnchorPrompt(
        prompt=_text(one, "prompt"),
        style=str(one.get("style", "")),
        match=one.get("match"),
        avoid=one.get("avoid"),
        min_words=one.get("min_words"),
        max_words=one.get("max_words"),
    )
