"""Text and context of a reaction -> hashed features, for training and inference alike. Sans-IO.

Text of others in the message is hidden first (`scorers.own_words`). Features are word 1- to 3-grams (with anchors at both ends, one-word gaps and negation), character 2- to 5-grams of each word, a
few facts about shape, what the message has in common with the request and the reply before it ("not ⟨reply⟩", "asked for ⟨request⟩"), the word
patterns that it matches (`scorers.evidence`), and of a clause the text around it.
Case, accents, apostrophes and repeated letters are folded. Scripts without spaces contribute character 1- to 3-grams as their words.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterator
from itertools import pairwise

from scorers import lexicon
from scorers.evidence import around, evidence
from scorers.lexicon import NEGATORS

#: Features of one message at most; reactions are short, pasted documents are not read to the end.
MAX_TOKENS = 80
#: Characters read from the head and, of longer messages, from the tail.
_HEAD, _TAIL = 600, 300
#: Characters of request and reply in which words of the message are looked up.
_CONTEXT = 600
#: Words of at least so many letters are compared, by as many of their first letters: the others are in every text.
_STEM = (4, 5)
#: Up to so many tokens, every one of them is crossed with "the reply ended in a question".
_SHORT = 6

#: Emoji: pictographs, flags, dingbats and what joins them.
EMOJI = "\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff\u2600-\u27bf\u2b50\u2b55\u200d"
#: An emoji that a phrase is about: "no more 😊 please", not "thanks 😊".
_NAMED_EMOJI = re.compile(
    rf"(?i)(?<!\w)((?:{lexicon.BEFORE_THING})\s+)[{EMOJI}\ufe0f]+(?:\s*[{EMOJI}\ufe0f]+)*"
)
_FENCE = re.compile(r"```.*?(?:```|$)|~~~.*?(?:~~~|$)", re.DOTALL)
_URL = re.compile(r"https?://\S+|www\.\S+")
_REPEAT = re.compile(r"(.)\1{2,}")
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[?!.,;:\n]+|[^\w\s]", re.UNICODE)
_UNSPACED = re.compile(r"[぀-ヿ㐀-鿿ｦ-ﾟ]")
_VOWELS = re.compile(r"[aeiouyаеиоуыэюяіїє]")
_DOUBLED = re.compile(r"(.)\1+")
_HANGUL = re.compile(r"[가-힣]")
_NUMBER = re.compile(r"\d+")
_ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s", re.MULTILINE)


def normalise(text: str) -> str:
    """Fold a message: head and tail only, no code blocks, lower case, no accents, no repeated letters."""
    bare = _URL.sub(" ⟨url⟩ ", _FENCE.sub(" ⟨code⟩ ", text)).strip()
    if len(bare) > _HEAD + _TAIL:
        bare = f"{bare[:_HEAD]} ⟨cut⟩ {bare[-_TAIL:]}"
    folded = bare.casefold().replace("’", "'").replace("`", "'").replace("´", "'").replace("ı", "i")
    if not folded.isascii():
        decomposed = unicodedata.normalize("NFKD", folded)
        kept = "".join(c for c in decomposed if not 0x300 <= ord(c) <= 0x36F)
        folded = unicodedata.normalize("NFC", kept).replace("ё", "е")
    folded = re.sub(r"(?<=\w)'(?=\w)", "", folded)
    return _REPEAT.sub(r"\1", folded)


def tokens_of(text: str) -> list[str]:
    """Words, numbers as ``0``, runs of punctuation as their first two marks, other symbols one by one."""
    found: list[str] = []
    for match in _TOKEN.finditer(normalise(text)):
        token = match.group()
        if token[0].isdigit():
            found.append("0" * min(len(token), 2))
        elif token[0] in "?!.,;:\n":
            found.append(token[:2] if token[0] != "\n" else "\n")
        elif _UNSPACED.search(token):
            found.extend(token)
        else:
            found.append(token)
        if len(found) > MAX_TOKENS:
            break
    return found[:MAX_TOKENS]


def _names(text: str, reply: str, prompt: str) -> Iterator[str]:
    reply_asks = ends_in_question(reply)
    tokens = tokens_of(text)
    words = [t for t in tokens if t[0].isalnum() or t[0] not in "?!.,;:\n"]
    count = len(words)
    size = min(count, 4) if count < 5 else 5 + min((count - 5) // 4, 6)
    ends = text.rstrip(" )\"'”»")[-1:] in ("?", "？", "؟")
    asks = int(reply_asks)
    yield from _shape(text, size, ends, asks)
    yield from _ngrams(tokens, words)
    yield from _positions(words, size, ends, asks)
    yield from _negated(tokens)
    yield from _opening(tokens)
    if reply and prompt:
        yield from _shared(text, tokens, reply, prompt, size)
    for word in dict.fromkeys(words):
        yield from _pieces(word)
        yield from _misspelt(word)


def _shape(text: str, size: int, ends: bool, asks: int) -> Iterator[str]:
    question = "?" in text or "？" in text or "؟" in text
    yield f"size {size}"
    yield f"q {int(question)}{int(ends)} {min(size, 6)}"
    yield f"reply asks {asks}"
    yield f"reply asks {asks} {size} {int(question)}"
    if "!" in text or "！" in text:
        yield "bang"
    if len(text) > 4 and text.isupper():
        yield "caps"
    if text[:1].isupper():
        yield "capital"
    if re.search(r"[\"“”«»„]|(?<!\w)'\w", text):
        yield "quotes"
    if "\n" in text.strip():
        yield f"lines {min(text.strip().count(chr(10)), 5)}"
    if ":" in text:
        yield "colon"


def _ngrams(tokens: list[str], words: list[str]) -> Iterator[str]:
    padded = ["^", *tokens, "$"]
    for token in tokens:
        yield f"1 {token}"
    for a, b in pairwise(padded):
        yield f"2 {a} {b}"
    for a, b, c in zip(padded, padded[1:], padded[2:], strict=False):
        yield f"3 {a} {b} {c}"
        if b[0].isalpha() and a != "^" and c != "$":
            yield f"g {a} {c}"
    for a, b in pairwise(words):
        yield f"w {a} {b}"


def _positions(words: list[str], size: int, ends: bool, asks: int) -> Iterator[str]:
    if words:
        yield f"first {words[0]} {asks}"
        yield f"last {words[-1]} {int(ends)}"
        yield f"first {words[0]} {min(size, 6)}"
    if len(words) > 1:
        yield f"first {words[0]} {words[1]} {asks}"
    if len(words) <= _SHORT:
        yield f"all {' '.join(words)} {asks}"
        for word in words:
            yield f"short {word} {asks}"


def _negated(tokens: list[str]) -> Iterator[str]:
    left = 0
    for token in tokens:
        if not token[0].isalnum():
            left = 0 if token[0] in "?!.,;:\n" else left
        elif token in NEGATORS:
            left = 4
        elif left:
            left -= 1
            yield f"not {token}"


def _opening(tokens: list[str]) -> Iterator[str]:
    """The first sentence of several: a reaction that a question follows is not a question that a wish follows."""
    end = next((i for i, t in enumerate(tokens) if t[0] in ".!?\n" and i), len(tokens))
    if end >= len(tokens) - 1:
        return
    opening = ["^", *tokens[: end + 1]]
    for a, b in pairwise(opening):
        yield f"o {b}"
        yield f"o {a} {b}"


def _shared(text: str, tokens: list[str], reply: str, prompt: str, size: int) -> Iterator[str]:
    """Which words are the reply's or the request's: n-grams with a mark in their place, and how many there are."""
    theirs, asked = _stems(tokens_of(reply[:_CONTEXT])), _stems(tokens_of(prompt[:_CONTEXT]))
    marked = ["^"]
    count = {"⟨reply⟩": 0, "⟨request⟩": 0, "⟨new⟩": 0}
    for token, stem in zip(tokens, _stems_of(tokens), strict=True):
        mark = "" if not stem else "⟨reply⟩" if stem in theirs else "⟨request⟩" if stem in asked else "⟨new⟩"
        if mark:
            count[mark] += 1
        marked.append(token if mark in ("", "⟨new⟩") else mark)
    marked.append("$")
    for a, b, c in zip(marked, marked[1:], [*marked[2:], ""], strict=False):
        if "⟨" in a + b:
            yield f"m {a} {b}"
        if "⟨" in a + b + c:
            yield f"m {a} {b} {c}"
    in_reply, in_request, new = (min(number, 4) for number in count.values())
    share = round(4 * (in_reply + in_request) / max(1, sum(count.values())))
    asks = int(ends_in_question(prompt))
    kind = f"{_kind(reply)} {asks}"
    yield f"shared {in_reply} {in_request} {new}"
    yield f"shared {share} {min(size, 6)} {int(ends_in_question(text))}"
    yield f"after {kind} {min(size, 6)} {int(ends_in_question(text))}"
    yield f"after {kind} {share}"
    if len(marked) > 2:
        yield f"after {kind} {marked[1]}"
    numbers = set(_NUMBER.findall(text[:_HEAD]))
    if numbers:
        known, wanted = (set(_NUMBER.findall(one[:_CONTEXT])) for one in (reply, prompt))
        yield f"number {int(bool(numbers & known))}{int(bool(numbers & wanted - known))}{int(bool(numbers - known - wanted))}"


def _kind(reply: str) -> str:
    """Return the form of a reply: code, a list, long or short prose."""
    if "```" in reply:
        return "code"
    if _ITEM.search(reply[:_CONTEXT]):
        return "list"
    return "long" if len(reply) > 160 else "short"


def _stems(tokens: list[str]) -> frozenset[str]:
    return frozenset(stem for stem in _stems_of(tokens) if stem)


def _stems_of(tokens: list[str]) -> Iterator[str]:
    """Yield what each token is compared by, "" for one that is not; of unspaced scripts, the token and the next."""
    for token, after in zip(tokens, [*tokens[1:], ""], strict=False):  # of no token, no pair
        if _UNSPACED.match(token):
            yield token + after if after and _UNSPACED.match(after) else ""
        else:
            yield token[: _STEM[1]] if token[0].isalpha() and len(token) >= _STEM[0] else ""


def _pieces(word: str) -> Iterator[str]:
    if len(word) == 1 or not word[0].isalpha():
        return
    marked = f"<{word[:24]}>"
    shortest, longest = (2, 3) if _HANGUL.search(word) else (3, 5)
    for length in range(shortest, longest + 1):
        for start in range(len(marked) - length + 1):
            yield "c " + marked[start : start + length]


def _misspelt(word: str) -> Iterator[str]:
    """Forms of a word that most typing errors leave alone: its letters in any order, and its consonants."""
    if len(word) < 4 or not word[0].isalpha() or _HANGUL.search(word):
        return
    yield f"k {word[0]}{''.join(sorted(set(word[1:])))}"
    skeleton = _VOWELS.sub("", word)
    if len(skeleton) > 2:
        yield f"v {_DOUBLED.sub(lambda m: m.group(1), skeleton)}"


def features(text: str, *, reply: str = "", prompt: str = "", before: str = "", after: str = "") -> list[int]:
    """Return the 32-bit hashes of what is known of a message or clause, duplicates removed, in order of first occurrence.

    Args:
        text: without text of others (`scorers.own_words.hide_foreign`).
        reply, prompt: the reply that the message follows, and the request that it answered; words are compared only where both are given.
        before, after: of a clause, the rest of its message.
    """
    text = _name_emoji(text[:20_000])
    names = [*_names(text, reply, prompt), *evidence(text, reply, prompt)]
    if before or after:
        names += around(before, after)
    return list(dict.fromkeys(zlib.crc32(name.encode()) for name in names))


def _name_emoji(text: str) -> str:
    """Return a message with a word for each emoji that it speaks of; "no 😂" does not speak of one."""
    named = _NAMED_EMOJI.sub(r"\1emojis", text)
    return named if len(tokens_of(named)) > 2 else text


def ends_in_question(reply: str) -> bool:
    """Whether a reply hands the floor back with a question, so that the next message may be its answer."""
    tail = reply.rstrip().rstrip("*_)\"'”» 😊🙂😀").rstrip()[-1:]
    return tail in ("?", "？", "؟")
