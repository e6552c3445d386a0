"""Reading a person's next message as a reaction to the reply before it. Sans-IO; the words are in `scorers.lexicon`.

The unit is the sentence (split further at commas where a part of it reacts by itself). A sentence is a complaint or correction,
thanks, a question or task of its own, or just a statement. A new question is never a complaint, however it is worded: only
sentences that speak of the reply (or order its form) count. An undecided reaction stays None, for a judge.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from scorers.lexicon import (
    ANY_LANGUAGE,
    APPLAUSE,
    ASKS_FOR_A_NAME,
    BUT,
    PATTERNS,
    POLITE,
    PROTEST,
    SCENE,
    TAG,
    WEAK_TASK,
    WORDS,
    YOU_ARE,
    Kind,
    Pattern,
)

#: Longest hint that is made of a person's words, in characters. Longer reactions are cut between sentences.
MAX_REACTION = 400
#: Only so much of a message is read: reactions stand at its beginning, pasted documents do not react.
_MAX_READ = 4000
_MAX_SENTENCES = 40
_MAX_WORDS = 60
#: Thanks stand before one of the first so many commas.
_MAX_CUTS = 4
#: A question of at most so many words may be a bare wish ("shorter?").
_FRAGMENT = 4


class Role(StrEnum):
    COMPLAINT = "complaint"
    THANKS = "thanks"
    QUESTION = "question"  #: or a new task
    STATEMENT = "statement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """`text` is as written; `kept` is the part of it that complains (without a leading thank-you)."""

    text: str
    role: Role
    kept: str
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What a message says about the reply before it.

    Attributes:
        value: -1 complaint or correction, +1 thanks or praise, None: it does not say.
        confidence: in [0, 1], the rule's own estimate.
        hint: the complaining words, bounded; None unless `value` is -1.
        patterns: names of what matched.
    """

    value: int | None
    confidence: float
    hint: str | None
    patterns: tuple[str, ...]


def fold(text: str) -> str:
    """Lower case without accents, apostrophes as spaces, words separated by single spaces."""
    decomposed = unicodedata.normalize("NFKD", text.casefold().replace("’", "'"))
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return " ".join(re.findall(r"\w+", plain))


def _fold_pattern(regex: str) -> str:
    decomposed = unicodedata.normalize("NFKD", regex)
    plain = "".join(c for c in decomposed if not unicodedata.combining(c))
    return plain.replace("'", " ?").replace("ß", "ss")


@dataclass(frozen=True, slots=True)
class _Language:
    form: re.Pattern[str]
    format_name: re.Pattern[str]
    mark: re.Pattern[str]
    verb_first: re.Pattern[str]
    ask: re.Pattern[str]
    task: re.Pattern[str]
    polite: re.Pattern[str]
    known: frozenset[str]
    patterns: tuple[tuple[Pattern, re.Pattern[str]], ...]


def _alternatives(words: str) -> str:
    folded = sorted({_fold_pattern(word) for word in words.split()}, key=len, reverse=True)
    return rf"(?<!\w)(?>(?:{'|'.join(folded)})(?!\w))"


def _words(text: str) -> list[str]:
    return fold(text).split()


@cache
def _languages() -> tuple[_Language, ...]:
    everywhere = frozenset(
        word
        for classes in WORDS.values()
        for name in ("adj", "noun", "lang")
        for word in fold(classes[name]).split()
    )
    built = []
    for name, classes in WORDS.items():
        slots = {key: _alternatives(words) for key, words in classes.items()}
        # Names of languages and formats are used in any language ("en English please", "auf Spanisch, no JSON").
        for key in ("noun", "lang"):
            slots[key] = _alternatives(" ".join(other[key] for other in WORDS.values()))
        # One flat alternation of single words: a word that two classes share must not be tried twice at every place,
        # or a message of such words takes for ever.
        runs = {w for key in ("fill", "reply", "noun", "adj") for w in _words(classes[key])}
        runs |= {w for other in WORDS.values() for w in _words(other["noun"])}
        slots["pre"] = rf"(?:(?:{'|'.join(sorted(runs, key=len, reverse=True))}) )*?"

        def make(regex: str, slots: dict[str, str] = slots) -> re.Pattern[str]:
            for key, value in slots.items():
                regex = regex.replace("{" + key + "}", value)
            return re.compile(_fold_pattern(regex))

        known = everywhere.union(
            *(fold(classes[key]).split() for key in ("fill", "reply", "verb", "mark", "bad", "good", "thank"))
        )
        built.append(
            _Language(
                form=make("(?:{adj}|{noun}|{lang})"),
                format_name=make("(?:{adj} )?(?:{lang}|json|yaml|xml|csv|plain text|markdown)"),
                mark=make("(?:{mark}|(?:in|en|auf|as|como|als) (?:{lang}|{noun}))"),
                verb_first=make(
                    "^(?:(?:please|bitte|just|always|now|and|so|then|por favor|i|je|ich|only) )*(?:{style}|{verb})"
                ),
                ask=make("^(?:(?:and|but|so|y|und|et|ok|okay|now|also|then) )?(?:{ask})"),
                task=make("^(?:(?:and|please|bitte|por favor|y|und|et) )?(?:{task})"),
                polite=make("^" + POLITE[name]),
                known=known,
                patterns=tuple((pattern, make(pattern.regex)) for pattern in PATTERNS[name]),
            )
        )
    return tuple(built)


_PART = re.compile(r"\s*(?:,|;|:|\s[-–—]\s)\s*")
_YOU_ARE = re.compile(YOU_ARE, re.IGNORECASE)
_SCENE = re.compile(SCENE)
_TAG = re.compile(TAG, re.IGNORECASE)
_ASKS_FOR_A_NAME = re.compile(_fold_pattern(ASKS_FOR_A_NAME))
_CODE = re.compile(r"```.*?(?:```|$)|~~~.*?(?:~~~|$)", re.DOTALL)


def split_sentences(text: str) -> list[str]:
    """Cut at sentence ends and line breaks; dots inside numbers and names stay."""
    pieces: list[str] = []
    for line in text.splitlines():
        start = 0
        for match in re.finditer(r"[.!?…;]+[\"'”»)\]]*(?=\s|$)", line):
            pieces.append(line[start : match.end()].strip())
            start = match.end()
        pieces.append(line[start:].strip())
    return [piece for piece in pieces if piece]


def without_code(text: str) -> str:
    """Remove fenced code, and lines that are a traceback or a log rather than words."""
    lines = _CODE.sub(" ", text).splitlines()
    kept = [line for line in lines if not _looks_like_code(line)]
    return "\n".join(kept).strip()


def _looks_like_code(line: str) -> bool:
    bare = line.strip()
    if not bare:
        return False
    if re.match(r"(Traceback \(most recent|File \"|at \S+\(|>>> |\$ |\d{4}-\d\d-\d\d[T ]\d\d:)", bare):
        return True
    letters = sum(c.isalpha() or c.isspace() for c in bare)
    return len(bare) > 20 and letters / len(bare) < 0.6


def read_reaction(text: str, *, reply: str = "") -> Reaction:
    """Read ``text``, a person's message that followed ``reply``."""
    return reaction_of(text, classify(text, reply=reply))


def reaction_of(text: str, sentences: list[Sentence]) -> Reaction:
    """Read a message by its sentences (`classify`)."""
    names = tuple(s.pattern for s in sentences if s.pattern)
    if any(s.role is Role.COMPLAINT for s in sentences):
        return Reaction(value=-1, confidence=0.9, hint=_hint(text, sentences), patterns=names)
    if any(s.role is Role.THANKS for s in sentences):
        return Reaction(value=1, confidence=0.9, hint=None, patterns=names)
    applause = sum(c in APPLAUSE for c in text[:_MAX_READ])
    protest = sum(c in PROTEST for c in text[:_MAX_READ])
    if protest > applause:
        return Reaction(value=-1, confidence=0.7, hint=None, patterns=("emoji",))
    if applause > protest and not any(s.role is Role.QUESTION for s in sentences):
        return Reaction(value=1, confidence=0.7, hint=None, patterns=("emoji",))
    return Reaction(value=None, confidence=0.0, hint=None, patterns=())


def classify(text: str, *, reply: str = "") -> list[Sentence]:
    """Say of each sentence what it is. Instructions that follow a new question belong to it and are no complaint."""
    sentences: list[Sentence] = []
    asked = reply.rstrip().endswith("?")
    after_question = False
    for raw in split_sentences(without_code(text[:_MAX_READ]))[:_MAX_SENTENCES]:
        sentence = _classify_sentence(raw, after_question=after_question, answers_a_question=asked)
        sentences.append(sentence)
        after_question = after_question or sentence.role is Role.QUESTION
    if not any(s.pattern in _scene_patterns() for s in sentences):
        return sentences
    if asked and _ASKS_FOR_A_NAME.search(fold(split_sentences(reply)[-1])):
        role = Role.STATEMENT
    elif _is_scene(sentences):
        role = Role.QUESTION
    else:
        return sentences
    return [
        Sentence(text=s.text, role=role, kept=s.text) if s.pattern in _scene_patterns() else s
        for s in sentences
    ]


@cache
def _scene_patterns() -> frozenset[str]:
    everywhere = (*ANY_LANGUAGE, *(pattern for patterns in PATTERNS.values() for pattern in patterns))
    return frozenset({"you-are", *(pattern.name for pattern in everywhere if pattern.sets_scene)})


def _is_scene(sentences: list[Sentence]) -> bool:
    """Whether who the assistant is to be goes with something it is to do: a role play, and a task of its own."""
    return any(
        sentence.role is Role.QUESTION
        or _SCENE.search(fold(sentence.text))
        or any(_is_real_task(part) for part in re.split(r"\s*[,;:]\s*|\s(?:and|und|et|y)\s", sentence.text))
        for sentence in sentences
    )


def _is_real_task(part: str) -> bool:
    """Whether a clause opens with the verb of a task ("write …"), politeness aside."""
    folded = re.sub(r"^(?:(?:please|bitte|por favor|and|then|now|so) )+", "", fold(part))
    first = folded.partition(" ")[0]
    if first in ("tell", "list") and folded.startswith((f"{first} me", f"{first} the", f"{first} us")):
        return True
    return first in _task_verbs() and not _orders_form(folded)


@cache
def _task_verbs() -> frozenset[str]:
    verbs = {word for classes in WORDS.values() for word in _words(classes["task"])}
    return frozenset(verbs - set(_words(WEAK_TASK)))


def _names_the_assistant(raw: str) -> bool:
    """Whether a name follows "you are", by its capital letter."""
    found = _YOU_ARE.search(raw.strip())
    if found is None:
        return False
    words = _words(found["name"])
    return bool(words) and not any(word in language.known for word in words for language in _languages())


def _classify_sentence(raw: str, *, after_question: bool, answers_a_question: bool) -> Sentence:
    head, tail = _leading_thanks(raw)
    if tail:
        rest = _read(tail, after_question=after_question, answers_a_question=answers_a_question)
        if rest is not None and rest[0] is Role.COMPLAINT:
            return Sentence(text=raw, role=Role.COMPLAINT, kept=tail, pattern=rest[1])
    found = _read(raw, after_question=after_question, answers_a_question=answers_a_question)
    if found is not None:
        role, name = found
        if role is Role.THANKS and after_question:  # "What is 2 + 2? Thanks!" thanks for what is to come
            return Sentence(text=raw, role=Role.STATEMENT, kept=raw)
        return Sentence(text=raw, role=role, kept=raw, pattern=name)
    if head:
        return Sentence(
            text=raw, role=Role.STATEMENT if after_question else Role.THANKS, kept=raw, pattern=head
        )
    role = Role.QUESTION if _asks(fold(raw), raw) else Role.STATEMENT
    return Sentence(text=raw, role=role, kept=raw)


def _leading_thanks(raw: str) -> tuple[str, str]:
    """Return (pattern name, what follows) when the sentence opens with thanks or praise, else ("", "")."""
    cut = re.search(rf"\s*[,;:–—-]+\s+|\s+(?={BUT}\s)", raw, re.IGNORECASE)
    for _ in range(_MAX_CUTS):
        if cut is None:
            break
        head = raw[: cut.start()]
        name = _match(fold(head), Kind.PRAISE, question=False)
        if name:
            tail = re.sub(rf"^\s*{BUT}\s*,?\s+", "", raw[cut.end() :], flags=re.IGNORECASE)
            return name, tail.strip()
        cut = re.compile(rf"\s*[,;:–—]+\s+|\s+(?={BUT}\s)", re.IGNORECASE).search(raw, cut.end())
    return "", ""


def _read(raw: str, *, after_question: bool, answers_a_question: bool) -> tuple[Role, str] | None:
    folded = fold(raw)
    if not folded:
        return None
    question = _asks(folded, raw)
    kinds = (Kind.JUDGEMENT,) if after_question else (Kind.JUDGEMENT, Kind.INSTRUCTION)
    parts = [part for part in _PART.split(raw) if part.strip()]
    candidates = [folded]
    if not question and len(parts) > 1 and not _is_task(parts[0]):
        candidates += [fold(part) for part in parts]
    for candidate in candidates:
        for kind in kinds:
            name = _match(candidate, kind, question=question)
            if name and not (answers_a_question and name in ("no-that", "no-opener", "nein", "non")):
                return Role.COMPLAINT, name
        if not question and not after_question and _orders_form(candidate):
            return Role.COMPLAINT, "form"
    if not (question or after_question or answers_a_question or "?" in raw) and _names_form(folded):
        return Role.COMPLAINT, "form"
    if not (question or after_question or "?" in _TAG.sub(".", raw)) and any(
        _names_the_assistant(part) for part in (raw, *parts)
    ):
        return Role.COMPLAINT, "you-are"
    if question:
        return None
    for candidate in candidates:
        name = _match(candidate, Kind.PRAISE, question=False)
        if name:
            return Role.THANKS, name
    return None


def _match(folded: str, kind: Kind, *, question: bool) -> str:
    words = folded.split()
    if not words or len(words) > _MAX_WORDS:
        return ""
    for language in _languages():
        for pattern, regex in language.patterns:
            if pattern.kind is not kind or (question and not pattern.in_question):
                continue
            match = regex.search(folded)
            if match is None:
                continue
            if pattern.residue is None:
                return pattern.name
            rest = (folded[: match.start()] + " " + folded[match.end() :]).split()
            if sum(word not in language.known for word in rest) <= pattern.residue:
                return pattern.name
    for pattern, regex in _any_language():
        if pattern.kind is kind and not question and regex.search(folded):
            return pattern.name
    return ""


@cache
def _any_language() -> tuple[tuple[Pattern, re.Pattern[str]], ...]:
    return tuple((pattern, re.compile(_fold_pattern(pattern.regex))) for pattern in ANY_LANGUAGE)


#: "Tell me about the French language" has only words of form in it and is a topic all the same.
_ABOUT = re.compile(r"\b(?:about|sobre|uber|a propos)\b")


def _orders_form(folded: str) -> bool:
    """Whether every content word is about the form of a reply and something in it makes it a request."""
    words = folded.split()
    if len(words) > 25 or _ABOUT.search(folded):
        return False
    for language in _languages():
        if language.form.search(folded) is None:
            continue
        rest = sum(word not in language.known for word in words)
        request = language.verb_first.search(folded) or language.polite.search(folded)
        if rest == 0 and (request or language.mark.search(folded)):
            return True
    return False


def _names_form(folded: str) -> bool:
    """Whether the whole sentence is the name of a language or format ("Spanish!", "Valid JSON.")."""
    return len(folded.split()) <= 2 and any(
        language.format_name.fullmatch(folded) is not None for language in _languages()
    )


def _asks(folded: str, raw: str) -> bool:
    """Whether the sentence is a question or task about something else than the reply's form."""
    if raw.rstrip("\"'”»)] ").endswith(":"):
        return True
    raw = _TAG.sub(".", raw)
    folded = " ".join(folded.split()[:_MAX_WORDS])
    for language in _languages():
        if language.polite.search(folded):
            return False
    if raw.rstrip("\"'”»)] ").endswith("?"):
        if re.search(r"^(?:please|pls|bitte|por favor)\b|\b(?:please|(?:would|could|can|will) you)$", folded):
            return False
        opens = any(language.ask.search(folded) for language in _languages())
        return opens or len(folded.split()) > _FRAGMENT
    english, *others = _languages()
    if english.ask.search(folded) and re.match(
        r"(?:and |but |so )?(?:how|what|which|who|where|when|is there|are there)\b", folded
    ):
        return True
    return any(language.ask.search(folded) and "¿" in raw for language in others)


def _is_task(part: str) -> bool:
    """Whether the first part of a sentence is a task of its own, so that "…, in detail" belongs to it."""
    return starts_task(part) and not _orders_form(fold(part))


def starts_task(raw: str) -> bool:
    """Whether a sentence opens like a new task ("write …", "now …")."""
    folded = " ".join(fold(raw).split()[:_MAX_WORDS])
    return any(language.task.search(folded) for language in _languages())


def _hint(text: str, sentences: list[Sentence]) -> str:
    """The words that complain: all of the message, less thanks and what is a question or task of its own."""
    kept = [
        s.kept
        for s in sentences
        if s.role is Role.COMPLAINT or (s.role is Role.STATEMENT and not starts_task(s.text))
    ]
    whole = all(s.kept == s.text for s in sentences) and len(kept) == len(sentences)
    hint = text.strip() if whole and without_code(text) == text.strip() else " ".join(kept)
    if len(hint) <= MAX_REACTION:
        return hint
    return bounded([s.kept for s in sentences if s.role is Role.COMPLAINT])


def bounded(pieces: list[str], limit: int = MAX_REACTION) -> str:
    """Join as many whole pieces as fit into ``limit`` characters; a single longer one is cut at a word."""
    taken: list[str] = []
    for piece in pieces:
        if taken and len(" ".join([*taken, piece])) > limit:
            break
        taken.append(piece)
    joined = " ".join(taken)
    return joined if len(joined) <= limit else joined[:limit].rsplit(" ", 1)[0] + " …"
