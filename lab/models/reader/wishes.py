"""Messages that state a wish, its scope, or no wish of the user, as samples: by clause, with the scopes that are right for it.

``wishes/<language>.toml`` has kinds of wishes and frames, which are joined at random; ``wishes/*.txt`` has messages written by hand, whose kinds that
begin with "v" are for measuring alone. Some kinds and frames of the former are held out of the training, too (`HELD_OUT`).
"""

from __future__ import annotations

import json
import random
import re
import tomllib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.models.labelled_rows import read_rows
from lab.models.reader.generate import NEITHER, PRAISE, WISH, Sample, add_noise
from scorers.evidence import scope_words
from scorers.own_words import clauses, hide_foreign

FOLDER = Path(__file__).parent / "wishes"

#: Outputs of the second head.
SCOPES = ("none", "lasting", "once", "answer", "withdrawal")
NONE, LASTING, ONCE, ANSWER, WITHDRAWAL = range(len(SCOPES))
#: Every n-th kind and frame is held out, by the checksum of its name.
HELD_OUT = 6
#: Share of the frames of each sort.
SHARES = {"lasting": 30, "once": 9, "answer": 10, "withdrawal": 12, "foreign": 22, "none": 16, "praise": 6}
LANGUAGE_SHARES = {"en": 60, "de": 14, "fr": 13, "es": 13}
#: Share of the messages with a clause of blame, thanks or a reason around the wish.
SURROUNDED = 0.35
_SLOT = re.compile(r"\{(\w+?)(\d?)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message; ``span`` is the part of it that has the scope."""

    text: str
    scope: str
    language: str
    kind: str
    span: tuple[int, int]
    held_out: bool = False


def is_held_out(name: str) -> bool:
    return zlib.crc32(name.encode()) % HELD_OUT == 0


def hand_written() -> Iterator[Message]:
    """Yield the messages of the text files."""
    for path in sorted(FOLDER.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("#") or not line.strip():
                continue
            head, _, text = line.partition("|")
            language, scope, kind = head.split()
            text = text.replace("\\n", "\n")
            start = max(0, text.find("[["))
            end = text.find("]]") - 2 if "]]" in text else len(text)
            text = text.replace("[[", "").replace("]]", "")
            yield Message(
                text=text,
                scope=scope,
                language=language,
                kind=kind,
                span=(start, end),
                held_out=kind.startswith("v"),
            )


class Wishes:
    """Kinds and frames of one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._data: dict[str, Any] = tomllib.loads((FOLDER / f"{language}.toml").read_text(encoding="utf-8"))

    def make(self, rng: random.Random, *, held_out: bool) -> Message:
        """Return a message; a held-out one has a held-out kind or frame, the others have neither."""
        while True:
            scope = rng.choices(list(SHARES), list(SHARES.values()))[0]
            frame = rng.choice(self._data["frames"][scope])
            used: list[str] = []
            text = self._fill(frame, rng, used)
            if held_out != (is_held_out(frame) or any(is_held_out(kind) for kind in used)):
                continue
            start = 0
            if scope not in ("foreign", "none", "praise") and rng.random() < SURROUNDED:
                part = rng.choice(("blame", "blame", "praise", "why"))
                extra = self._fill(rng.choice(self._data["frames"][part]), rng, [])
                joint = rng.choice((" ", " ", "\n", " - ", "... "))
                if part == "why" and rng.random() < 0.7:
                    return self._message(f"{text} {extra}", scope, (0, len(text)), used, held_out)
                start = len(extra) + len(joint)
                text = f"{extra}{joint}{text}"
            return self._message(text, scope, (start, len(text)), used, held_out)

    def _message(
        self, text: str, scope: str, span: tuple[int, int], used: list[str], held_out: bool
    ) -> Message:
        kind = used[0] if used else ""
        return Message(
            text=text, scope=scope, language=self.language, kind=kind, span=span, held_out=held_out
        )

    def _fill(self, frame: str, rng: random.Random, used: list[str]) -> str:
        """Fill the slots of a frame; the kinds that it gets are added to ``used``."""
        filled = _SLOT.sub(lambda slot: self._slot(slot, rng, used), frame)
        return filled[:1].upper() + filled[1:] if frame[:1] == "{" and rng.random() < 0.7 else filled

    def _slot(self, slot: re.Match[str], rng: random.Random, used: list[str]) -> str:
        if slot[1] + slot[2] in self._data["slots"]:
            return str(rng.choice(self._data["slots"][slot[1] + slot[2]]))
        name = slot[1]
        if name == "wish":
            frames = [f for f in self._data["frames"]["lasting"] if not is_held_out(f)]
            return self._fill(rng.choice(frames), rng, used)
        group = {"do": "orders", "doing": "orders", "thing": "things", "how": "hows"}.get(name)
        if group is None:
            return str(rng.choice(self._data["slots"][name]))
        kind = rng.choice(list(self._data[group]))
        used.append(f"{group} {kind}")
        found = str(rng.choice(self._data[group][kind]))
        found = _SLOT.sub(lambda slot: self._slot(slot, rng, used), found)
        return _gerund(found) if name == "doing" else found


def _gerund(order: str) -> str:
    verb, space, rest = order.partition(" ")
    if verb.endswith("e") and not verb.endswith("ee") and verb != "be":
        verb = verb[:-1]
    elif re.fullmatch(r"[b-df-hj-np-tv-z]*[aeiou][bdgmnpt]", verb):
        verb += verb[-1]
    return f"{verb}ing{space}{rest}"


def made(count: int, seed: int, *, held_out: bool = False) -> Iterator[Message]:
    """Yield ``count`` messages made of kinds and frames."""
    rng = random.Random(seed)
    wishes = {language: Wishes(language) for language in LANGUAGE_SHARES}
    for _ in range(count):
        language = rng.choices(list(LANGUAGE_SHARES), list(LANGUAGE_SHARES.values()))[0]
        yield wishes[language].make(rng, held_out=held_out)


#: Class of the whole message by its sort; None: it is not known.
_LABELS = {"lasting": WISH, "foreign": NEITHER, "praise": PRAISE}


def samples_of(
    message: Message, rng: random.Random, *, noise: bool, reply: str = "", prompt: str = ""
) -> Iterator[Sample]:
    """Yield the whole message, and each of its clauses with the scopes that are right for it."""
    text = message.text
    scope = SCOPES.index(message.scope) if message.scope in SCOPES else NONE
    base = Sample(
        text="",
        label=None,
        reply=reply,
        prompt=prompt,
        language=message.language,
        family=f"scope-{message.scope}",
    )
    parts = clauses(text)
    shown = hide_foreign(text)
    if message.scope in _LABELS:
        yield replace(
            base,
            text=add_noise(text, rng, message.language) if noise else shown,
            label=_LABELS[message.scope],
        )
    for part in parts:
        inside = min(part.end, message.span[1]) - max(part.start, message.span[0]) > 0
        allowed: tuple[int, ...] = (scope,) if inside else (NONE,)
        if scope != NONE and not inside:
            allowed = (NONE, scope)
        words = add_noise(part.text, rng, message.language) if noise else part.text
        yield replace(base, text=words, before=part.before, after=part.after, scopes=allowed)


def scope_samples(count: int, seed: int) -> Iterator[Sample]:
    """Yield samples of ``count`` messages, a third of them written by hand; after replies of the labelled exchanges."""
    rng = random.Random(seed)
    exchanges = [(row.get("reply", ""), row.get("prompt", "")) for row in read_rows_of_replies()]
    by_hand = [message for message in hand_written() if not message.held_out]
    for index in range(count // 3):
        reply, prompt = rng.choice(exchanges)
        yield from samples_of(
            by_hand[index % len(by_hand)], rng, noise=index >= len(by_hand), reply=reply, prompt=prompt
        )
    for index, message in enumerate(made(count - count // 3, seed)):
        reply, prompt = rng.choice(exchanges) if index % 2 else ("", "")
        yield from samples_of(message, rng, noise=bool(index % 3), reply=reply, prompt=prompt)


def read_rows_of_replies() -> list[dict[str, Any]]:
    """Return labelled reactions that have a reply, for their exchanges."""
    path = Path(__file__).parent / "reactions"
    return [
        row
        for name in ("nov27-everyday", "nov27-work", "nov27-topics")
        for row in read_rows(path / f"{name}.jsonl")
    ]


def style_rows() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the messages about six styles (`lab/models/wish_rows.jsonl`) with the scopes that may be right for them."""
    path = Path(__file__).parent.parent / "wish_rows.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield row["text"], style_scopes(row["text"]) if row["labels"] else (NONE,)


def style_scopes(text: str) -> tuple[int, ...]:
    """Return the scopes that a wish about style may have by its words; without such words it is a lasting one."""
    found = scope_words(text)
    others = [
        scope for name, scope in (("once", ONCE), ("answer", ANSWER), ("back", WITHDRAWAL)) if name in found
    ]
    return (LASTING, *others)


def held_out_messages(count: int, seed: int) -> Sequence[Message]:
    """Return messages that nothing was trained on: by hand, and made of held-out kinds or frames."""
    return [*(m for m in hand_written() if m.held_out), *made(count, seed, held_out=True)]
