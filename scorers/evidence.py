"""What word patterns find in a message, as names for `scorers.features`. Sans-IO; the words are in `scorers.lexicon`.

A name says what was found, not what follows from it: how much each one means is learnt with the weights of the classifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scorers import lexicon
from scorers.lexicon import NEGATORS
from scorers.other_answer import is_bare_number, names_other_answer
from scorers.reactions import classify, fold, reaction_of, starts_task

#: Whole messages: "No, that is all." and "not bad at all".
_CLOSING = re.compile(rf"\W*(?:(?:{lexicon.DECLINING})\W+)?(?:{lexicon.CLOSING})[^\w?]*", re.IGNORECASE)
_DENIED_FAULT = re.compile(rf"\W*(?:{lexicon.DENIED_FAULT})[^\w?]*", re.IGNORECASE)
_NO = re.compile(rf"\W*(?:{lexicon.DECLINING})(?:\W+|\Z)", re.IGNORECASE)
_LIKING = re.compile(rf"\s*(?:{lexicon.LIKING})\b", re.IGNORECASE)
_CONTRAST = re.compile(rf"\b(?:{lexicon.CONTRAST})\b", re.IGNORECASE)
_PERMITS = re.compile(rf"\b(?:{lexicon.PERMITS})\b", re.IGNORECASE)
_SCOPES = {
    name: re.compile(
        rf"\b(?:{words})\b|{lexicon.SCOPE_UNSPACED[name]}",
        re.IGNORECASE,
    )
    for name, words in lexicon.SCOPE_WORDS.items()
}
#: Words of the reply at the head of a message: between marks, behind ">", or few and asked about.
_EXCERPT = re.compile(
    r"(?:[\"“„«「](?P<quoted>[^\"”“»」\n]{1,80})[\"”“»」]|>\s*(?P<line>[^\n]{1,200})\n|(?P<asked>[^\n.!?？؟]{1,40})[?？؟]+)(?P<rest>.*)\Z",
    re.DOTALL,
)
#: Only so much of a message is searched for the words of a scope, and of the text around a clause, in characters.
_MAX_SEARCHED, _MAX_AROUND = 400, 200
#: Tokens at either end of the text around a clause.
_NEAR = 4


def evidence(text: str, reply: str, prompt: str) -> Iterator[str]:
    """Yield the names of what is found in a message or clause."""
    sentences = classify(text, reply=reply)
    reaction = reaction_of(text, sentences)
    yield f"p {reaction.value}"
    for name in reaction.patterns:
        yield f"p {reaction.value} {name}"
    roles = [sentence.role.name[0] for sentence in sentences[:4]]
    yield f"roles {''.join(roles)}"
    if starts_task(text):
        yield "task"
    yield from _scopes(text)
    if _LIKING.match(text):
        yield f"liking {int(bool(_CONTRAST.search(text)))}"
    if _CLOSING.fullmatch(text):
        yield "closing"
    if _DENIED_FAULT.fullmatch(text):
        yield "denied fault"
    if no := _NO.match(text):
        asked = int(reply.rstrip().endswith(("?", "？", "؟")))
        yield f"no {asked} {int(no.end() == len(text))}"
    if reply:
        yield from _against_reply(text, reply, prompt)


def says_nothing(text: str, reply: str, prompt: str) -> bool:
    """Whether a message ends the conversation, repeats its request, or is a number that corrects none of the reply."""
    if _CLOSING.fullmatch(text) or (prompt and fold(prompt) == fold(text)):
        return True
    return is_bare_number(text) and not names_other_answer(text, reply, prompt)


def scope_words(text: str) -> list[str]:
    """Return of which scopes a message has words: "lasting", "once", "answer", "back" (a withdrawal)."""
    return [name for name, pattern in _SCOPES.items() if pattern.search(text[:_MAX_SEARCHED])]


def _scopes(text: str) -> Iterator[str]:
    found = scope_words(text)
    for name in found:
        yield f"scope {name}"
    yield f"scopes {' '.join(found)}"
    if "back" in found and _PERMITS.search(text[:_MAX_SEARCHED]):
        yield "permits again"


def _against_reply(text: str, reply: str, prompt: str) -> Iterator[str]:
    """Names of how a message stands to the words of the reply."""
    if names_other_answer(text, reply, prompt):
        yield "other answer"
    if is_bare_number(text):
        yield "bare number"
    if prompt and fold(prompt) == fold(text):
        yield "repeats request"
    if _denies(text, reply, prompt):
        yield "denies reply"
    excerpt = _EXCERPT.match(text.strip())
    if excerpt:
        words = fold(excerpt["quoted"] or excerpt["line"] or excerpt["asked"]).split()
        new = set(words) - set(fold(f"{prompt} {reply}").split()) - _LINKS
        if words and not new:
            rest = "?" if "?" in excerpt["rest"] else "." if excerpt["rest"].strip() else ""
            yield f"excerpt {int(excerpt['asked'] is not None)} {rest}"


#: Words that may stand between those of the reply.
_LINKS = frozenset(
    [
        "a",
        "an",
        "the",
        "in",
        "for",
        "at",
        "with",
        "this",
        "that",
        "ein",
        "eine",
        "der",
        "die",
        "das",
        "un",
        "une",
        "le",
        "la",
        "el",
        "il",
        "o",
        "um",
        "e",
        "i",
        "y",
        "et",
        "und",
        "and",
    ]
)


def _denies(text: str, reply: str, prompt: str) -> bool:
    """Whether a message says "not" before a word that only the reply has, and names something that the reply has not: "pies, nie kot"."""
    tokens = fold(text[:_MAX_SEARCHED]).split()
    theirs, asked = set(fold(reply).split()), set(fold(prompt).split())
    denied = {
        word
        for negator, *after in zip(tokens, tokens[1:], [*tokens[2:], ""], strict=False)
        if negator in NEGATORS
        for word in after
        if word in theirs - asked - NEGATORS and (len(word) > 2 or not word.isascii())
    }
    return bool(denied) and bool(set(tokens) - theirs - asked - NEGATORS)


def around(before: str, after: str) -> Iterator[str]:
    """Yield the names of what stands before and after a clause."""
    for side, text in (("b", before), ("a", after)):
        if not text:
            continue
        near = text[-_MAX_AROUND:] if side == "b" else text[:_MAX_AROUND]
        words = fold(text[:_MAX_AROUND]).split()
        last = fold(near).split()
        yield f"{side} any"
        for index, word in enumerate(words[:_NEAR]):
            yield f"{side} {word}"
            yield f"{side} {index} {word}"
        if len(words) > 1:
            yield f"{side} {words[0]} {words[1]}"
        for word in last[-_NEAR:]:
            yield f"{side} end {word}"
        yield f"{side} mark {text[-1] if side == 'b' else text[:1]}"
        for mark in ("?", ":", "\n", "qxzvq"):
            if mark in near:
                yield f"{side} has {mark}"
        if starts_task(near):
            yield f"{side} task"
