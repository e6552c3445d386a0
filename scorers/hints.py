"""Which hints may teach. Sans-IO.

A hint goes into the teacher's context, so what it says is what the policy will learn to do unasked. Three kinds must not pass:
trivial ones ("be better") move nothing, leaking ones carry the answer and teach it by heart, off-topic ones teach noise.
The person's own words are theirs to give: they cannot leak, and only empty ones are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from scorers.lexicon import EMPTY_ADVICE, WORDS
from scorers.reactions import fold, split_sentences
from store.values import AnsweredTurn, Relation

#: Longest hint of a judge, in words: a preference fits into a sentence or two.
MAX_WORDS = 60
#: A judge's hint that shares a run of so many words with the reply quotes it.
QUOTED_RUN = 6
#: … or so many characters, in scripts that do not separate words.
QUOTED_CHARACTERS = 18
#: A whole reply that is shorter than this may occur in a hint: "say Warsaw" after "Warsaw".
MIN_REPLY_WORDS = 3
#: ... or this share of its four-word runs, two at least.
QUOTED_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class HintContext:
    """What a hint is checked against: the reply, and all text of the user before and after it."""

    reply: str
    person: str

    @classmethod
    def of(cls, turn: AnsweredTurn) -> HintContext:
        texts = [message_text(m) for m in turn.messages if m.get("role") == "user"]
        texts += [state.text for state in turn.next_states if state.relation is not Relation.FRAMEWORK_RETRY]
        texts += [feedback.text for feedback in turn.feedback]
        return cls(reply=turn.reply_text, person="\n".join(texts))


def repeats_reply(text: str, reply: str) -> bool:
    """Whether a text contains the reply, or quotes it at length."""
    own, theirs = fold(text).split(), fold(reply).split()
    if len(theirs) >= MIN_REPLY_WORDS and f" {' '.join(theirs)} " in f" {' '.join(own)} ":
        return True
    if _runs(own, QUOTED_RUN) & _runs(theirs, QUOTED_RUN):
        return True
    tight, joined = "".join(own), "".join(theirs)
    return not tight.isascii() and any(
        tight[i : i + QUOTED_CHARACTERS] in joined for i in range(len(tight) - QUOTED_CHARACTERS + 1)
    )


def without_reply(hint: str, reply: str) -> str:
    """Return a hint without the sentences that repeat the reply; "" when nothing else is left."""
    if not repeats_reply(hint, reply):
        return hint
    kept = " ".join(s for s in split_sentences(hint) if not repeats_reply(s, reply))
    return "" if repeats_reply(kept, reply) else kept


def message_text(message: dict[str, Any]) -> str:
    """The text of a message, whatever shape its content has."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            str(p["text"]) for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)
        )
    return ""


@cache
def _classes() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """(words about form, words that say nothing by themselves, countable parts of a reply)."""
    form = frozenset(
        w for words in WORDS.values() for key in ("adj", "noun", "lang") for w in fold(words[key]).split()
    )
    fill = frozenset(
        w
        for words in WORDS.values()
        for key in ("fill", "reply", "verb", "ask", "mark", "thank")
        for w in fold(words[key]).split()
    )
    nouns = frozenset(w for words in WORDS.values() for w in fold(words["noun"]).split())
    empty = frozenset(fold(EMPTY_ADVICE).split())
    # "short" is also a word of praise or blame somewhere; as a wish about form it is never empty. Nor is "talk" ("you talk too much").
    return form, (fill | empty) - form - {"talk"}, nouns


def content_words(text: str) -> frozenset[str]:
    """The words of a text that carry content, folded."""
    _, empty, _ = _classes()
    return frozenset(word for word in fold(text).split() if word not in empty and len(word) > 1)


def check_hint(hint: str, context: HintContext, *, is_reaction: bool) -> str | None:
    """Return why a hint is refused ("trivial: …", "leaking: …", "off-topic: …"), or None when it may teach."""
    form, _, _ = _classes()
    words = fold(hint).split()
    content = content_words(hint)
    if not content:
        return "trivial: it says nothing a teacher could use"
    if is_reaction:
        return None
    if len(content) < 2 and not content & form:
        return "trivial: a single word"
    if len(words) > MAX_WORDS:
        return f"leaking: {len(words)} words are more than a preference needs"
    leak = _leak(hint, context)
    if leak:
        return f"leaking: {leak}"
    if not content & form and not content & (content_words(context.person) | content_words(context.reply)):
        return "off-topic: it shares no word with the conversation and is not about form"
    return None


def _leak(hint: str, context: HintContext) -> str | None:
    form, empty, nouns = _classes()
    person = frozenset(fold(context.person).split())
    words = fold(hint).split()
    for index, word in enumerate(words):
        if not any(c.isdigit() for c in word) or word in person:
            continue
        if any(near in nouns for near in words[index + 1 : index + 3]):
            continue  # "at most 2 sentences" is a preference, not an answer
        return f"the number {word} is not the person's"
    for quoted in re.findall(r"[\"“«„']([^\"”»“']{8,}?)[\"”»“']", hint):
        if fold(quoted) and fold(quoted) not in fold(context.person):
            return f"it quotes what the person did not say: {quoted[:60]!r}"
    # A capital inside a sentence makes a name; what opens a sentence is a capital anyway.
    for match in re.finditer(r"(?<=[\w,;:)\"'’] )[A-ZÄÖÜÉÈÁÍÓÚÑÇ][\w'’-]+", hint):
        parts = fold(match.group(0)).split()
        if any(
            part not in person and part not in form and part not in empty and len(part) > 1 for part in parts
        ):
            return f"the name {match.group(0)} is not the person's"
    reply = fold(context.reply).split()
    runs = _runs(words, 4)
    shared = runs & _runs(reply, 4)
    if _runs(words, QUOTED_RUN) & _runs(reply, QUOTED_RUN):
        return "it quotes the reply"
    if len(shared) >= 2 and len(shared) >= QUOTED_SHARE * len(runs):
        return "it repeats the reply"
    return None


def _runs(words: list[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}
