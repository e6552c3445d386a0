"""Corrections without any word of blame: "It's Canberra." after a reply that named Sydney. Sans-IO.

No word shows that such a message is a complaint; the reply before it does. The message is no more than a name or a number, which stands neither
in the request nor in the reply, and the short reply gave another one.
"""

from __future__ import annotations

import re

from scorers.lexicon import DECLINING, WORDS
from scorers.reactions import fold

#: A longer reply gives so many names that another one corrects none of them.
_MAX_REPLY = 220
#: Names or numbers of an answer.
_MAX_ANSWER = 3

_DENIED = rf"(?:(?:{DECLINING}|wrong|actually|sorry|hm+)\b\W+)+"
_STATED = (
    r"(?:(?:it|that|this|he|she|they)(?:['’]s| is| was| are| were)|(?:es|das|er|sie) (?:ist|war|sind|heißt)|c['’](?:est|était)|(?:es|era|fue|son)|è|é|foi"
    r"|(?:het|dat) (?:is|was)|det (?:är|var)|to (?:jest|był[ao]?)|это|це|(?:the|der|die|das|la|le|el|il|o|a|de) \w+ (?:is|ist|est|es|è|é))"
)
_ANSWER = re.compile(
    rf"\A\W*(?:{_DENIED}(?:{_STATED}\s+)?|{_STATED}\s+)(?:the |der |die |das |la |le |el |in |am |on )?(?P<answer>[^\n?¿,;:]{{1,40}}?)[.!\s]*\Z",
    re.IGNORECASE,
)
_BARE_NUMBER = re.compile(r"\A(?P<number>\d[\d.,]*\d|\d)[.!]*\Z")
_TOKEN = re.compile(r"\d[\d.,]*\d|\w+")
#: Words of thanks and praise, which are no answer ("Nein Danke").
_KIND_WORDS = frozenset(
    fold(" ".join(f"{classes['thank']} {classes['good']}" for classes in WORDS.values())).split()
)


def names_other_answer(text: str, reply: str, prompt: str) -> bool:
    """Whether a message only gives another name or number than the reply did."""
    found = _ANSWER.match(text.strip())
    stated = reply.strip()
    if not 0 < len(stated) <= _MAX_REPLY or stated.endswith("?"):
        return False
    if found is None:
        return _is_other_number(text, stated, prompt)
    answer = _TOKEN.findall(found["answer"])
    known = set(fold(f"{prompt} {reply}").split())
    is_new = not (known | _KIND_WORDS) & set(fold(found["answer"]).split())
    if not 0 < len(answer) <= _MAX_ANSWER or not is_new:
        return False
    asked = set(fold(prompt).split())
    given = [token for token in _names_and_numbers(stated) if fold(token) not in asked]
    if all(token[0].isdigit() for token in answer):
        return any(token[0].isdigit() for token in given)
    return all(token[0].isupper() for token in answer) and any(not token[0].isdigit() for token in given)


def is_bare_number(text: str) -> bool:
    """Whether a message is nothing but a number."""
    return _BARE_NUMBER.match(text.strip()) is not None


def _is_other_number(text: str, reply: str, prompt: str) -> bool:
    """Whether a message is a bare number, the reply gave another one, and the request had none that could be asked about next."""
    number = _BARE_NUMBER.match(text.strip())
    given = re.findall(r"\d[\d.,]*", reply)
    return bool(number and given and number["number"] not in given and not re.search(r"\d", prompt))


def _names_and_numbers(text: str) -> list[str]:
    """Return the numbers of a text, and its words with a capital letter inside a sentence."""
    found: list[str] = []
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
        tokens = _TOKEN.findall(sentence)
        found += [
            t
            for i, t in enumerate(tokens)
            if t[0].isdigit() or (t[0].isupper() and (i > 0 or len(tokens) == 1))
        ]
    return found
