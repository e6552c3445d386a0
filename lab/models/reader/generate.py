"""Grammars -> labelled reactions. One seed gives the same samples on every machine.

A grammar file (``phrases/<language>.txt``) has sections ``name:`` of templates, one a line. ``(a|b|)`` is a choice, ``{name}``
another section of the same file or of ``shared.txt``, ``\\n`` a line break, a backslash keeps the next character as it is.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.models.questions import ONLINE

PHRASES = Path(__file__).parent / "phrases"

#: Classes of the model, in the order of its outputs.
CLASSES = ("neither", "praise", "wish", "fault", "blame")
NEITHER, PRAISE, WISH, FAULT, BLAME = range(len(CLASSES))

#: Templates separate their slots by spaces, which Chinese and Japanese do not write.
_TIGHT = re.compile(r"(?<=[぀-ヿ㐀-鿿、。!?]) (?=[぀-ヿ㐀-鿿\w])|(?<=\w) (?=[぀-ヿ㐀-鿿])")

#: The reply before a generated message, by whether it ends in a question.
REPLY = {True: "Would you like more?", False: "Here it is."}

Node = str | tuple[str, "tuple[Node, ...]"]  # text, ("seq" | "choice" | "ref", parts)


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated reaction.

    Attributes:
        label: index into `CLASSES`; None: not known.
        scopes: indices into `lab.models.reader.wishes.SCOPES` of which one is right; (): not known.
        before, after: of a clause, the rest of its message.
        reply, prompt: the reply before it and the request that it answered; a generated one has no request.
        family: section or composition that it comes from, for leaving one out.
    """

    text: str
    label: int | None
    reply: str
    language: str
    family: str
    prompt: str = ""
    scopes: tuple[int, ...] = ()
    before: str = ""
    after: str = ""


class MissingSection(ValueError):
    """A grammar has no section of this name."""


class Grammar:
    """The templates of one language. A small one has only the ``PLAIN_…`` sections and what they need.

    Raises:
        ValueError: a bracket is not closed.
        MissingSection: `expand` was asked for a section that is not there.
    """

    def __init__(self, text: str, shared: str = "", *, language: str = "en") -> None:
        self.language = language
        self._sections: dict[str, list[Node]] = {}
        self._weights: dict[str, list[float]] = {}
        for source in (shared, text):
            own = _sections(source)
            for name, lines in own.items():
                self._sections[name] = [_parse(line) for line in lines]
        for name in self._sections:
            self._weights[name] = [min(self._size(node, 3), 5000.0) ** 0.45 for node in self._sections[name]]

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def expand(self, name: str, rng: random.Random) -> str:
        """Return one random expansion of a section."""
        if name == "word":
            return _pseudo_word(rng)
        if name not in self._sections:
            raise MissingSection(f"{self.language}: there is no section {name!r}")
        node = rng.choices(self._sections[name], self._weights[name])[0]
        text = re.sub(r"  +", " ", self._render(node, rng)).strip(" ")
        return _TIGHT.sub("", text) if self.language in ("zh", "ja") else text

    def _render(self, node: Node, rng: random.Random) -> str:
        if isinstance(node, str):
            return node
        kind, parts = node
        if kind == "seq":
            return "".join(self._render(part, rng) for part in parts)
        if kind == "choice":
            return self._render(rng.choice(parts), rng)
        name = parts[0]
        assert isinstance(name, str)
        return self.expand(name, rng)

    def _size(self, node: Node, depth: int) -> float:
        if isinstance(node, str):
            return 1.0
        kind, parts = node
        if kind == "ref":
            name = parts[0]
            assert isinstance(name, str)
            return min(25.0, float(len(self._sections.get(name, ())) or 1.0))
        sizes = [self._size(part, depth) for part in parts]
        if kind == "choice":
            return sum(sizes)
        product = 1.0
        for size in sizes:
            product *= size
        return product


def _sections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if re.fullmatch(r"\w+:", line):
            name = line[:-1]
            found.setdefault(name, [])
        elif line.strip() and not line.startswith("#") and name:
            found[name].append(line)
    return found


def _parse(line: str) -> Node:
    node, at = _parse_sequence(line, 0, top=True)
    if at != len(line):
        raise ValueError(f"unbalanced brackets in {line!r}")
    return node


def _parse_sequence(line: str, at: int, *, top: bool) -> tuple[Node, int]:
    parts: list[Node] = []
    text = ""
    while at < len(line):
        char = line[at]
        if char == "\\" and at + 1 < len(line):
            text += "\n" if line[at + 1] == "n" else line[at + 1]
            at += 2
        elif char == "(" and (group := _parse_choice(line, at + 1)) is not None:
            parts += [text, group[0]]
            text, at = "", group[1]
        elif char == "{" and (name := re.match(r"\{(\w+)\}", line[at:])):
            parts += [text, ("ref", (name.group(1),))]
            text, at = "", at + name.end()
        elif not top and char in "|)":
            break
        else:
            text += char
            at += 1
    parts.append(text)
    return ("seq", tuple(part for part in parts if part != "")), at


def _parse_choice(line: str, at: int) -> tuple[Node, int] | None:
    """Parse after ``(``; None when no bracket closes it, so that the bracket is a character of its own (":(")."""
    options: list[Node] = []
    while True:
        node, at = _parse_sequence(line, at, top=False)
        options.append(node)
        if at >= len(line):
            return None
        if line[at] == ")":
            return ("choice", tuple(options)), at + 1
        at += 1


def _pseudo_word(rng: random.Random) -> str:
    syllables = (
        "ka",
        "lo",
        "mi",
        "ra",
        "ten",
        "bor",
        "vel",
        "zu",
        "shi",
        "pan",
        "dor",
        "el",
        "gri",
        "mo",
        "sta",
        "wen",
        "qua",
    )
    word = "".join(rng.choice(syllables) for _ in range(rng.randint(2, 3)))
    return word.capitalize() if rng.random() < 0.8 else word


def load_grammars(folder: Path = PHRASES) -> dict[str, Grammar]:
    """Read every grammar, by language, in the order of their names."""
    shared = (folder / "shared.txt").read_text(encoding="utf-8")
    return {
        path.stem: Grammar(path.read_text(encoding="utf-8"), shared, language=path.stem)
        for path in sorted(folder.glob("*.txt"))
        if path.stem != "shared"
    }


# -- messages of several parts

Made = tuple[str, int, bool]
Recipe = Callable[[Grammar, random.Random], Made]


def _asks(rng: random.Random, share: float = 0.3) -> bool:
    return rng.random() < share


def _one(section: str, label: int, share: float = 0.3) -> Recipe:
    def make(grammar: Grammar, rng: random.Random) -> Made:
        return grammar.expand(section, rng), label, _asks(rng, share)

    return make


def _joined(
    *sections: str, label: int, by: Sequence[str] = (". ", ", ", "! ", "\n", " - ", "... ", " ")
) -> Recipe:
    def make(grammar: Grammar, rng: random.Random) -> Made:
        text = grammar.expand(sections[0], rng)
        for section in sections[1:]:
            mark = rng.choice(by)
            if text[-1:] in ".!?…":
                mark = rng.choice((" ", " ", "\n"))
            text += mark + grammar.expand(section, rng)
        return text, label, _asks(rng)

    return make


def _but(first: str, second: str, label: int) -> Recipe:
    def make(grammar: Grammar, rng: random.Random) -> Made:
        head = grammar.expand(first, rng).rstrip(".!…")
        mark = rng.choice((", ", " ", ". ", "! ", "; ", ", "))
        return f"{head}{mark}{grammar.expand('but', rng)} {grammar.expand(second, rng)}", label, _asks(rng)

    return make


def _opened(section: str, label: int, share: float = 0.3) -> Recipe:
    def make(grammar: Grammar, rng: random.Random) -> Made:
        return f"{grammar.expand('opener', rng)} {grammar.expand(section, rng)}", label, _asks(rng, share)

    return make


def _after_praise(praise: str, section: str, label: int) -> Recipe:
    """Words of praise, then an event: only the event says whether they are meant."""

    def make(grammar: Grammar, rng: random.Random) -> Made:
        mark = rng.choice((", ", ", ", ". ", "! ", "... ", " ", " - ", "\n"))
        return f"{grammar.expand(praise, rng)}{mark}{grammar.expand(section, rng)}", label, _asks(rng, 0.1)

    return make


def _quoted(grammar: Grammar, rng: random.Random) -> Made:
    """Return a task about a text that reacts to something else."""
    task = grammar.expand("TASK", rng).rstrip(".!?: ")
    text = grammar.expand(rng.choice(("PRAISE", "BAD", "WISH", "FAULT", "PLAIN_PRAISE", "HARM")), rng)
    opening, closing = rng.choice(
        (('"', '"'), ("'", "'"), ("“", "”"), ("", ""), ("", ""), ("\n", ""), ("«", "»"))
    )
    return f"{task}: {opening}{text}{closing}", NEITHER, _asks(rng)


#: Real questions: the ones that the test model is asked online. Its held-out ones stay unseen.
QUESTIONS: tuple[str, ...] = tuple(question.text for question in ONLINE)

#: (family, share, what makes a sample). Shares are relative.
FAMILIES: tuple[tuple[str, float, Recipe], ...] = (
    ("ask", 13, _one("ASK", NEITHER)),
    ("question", 4, lambda g, r: (r.choice(QUESTIONS), NEITHER, _asks(r))),
    (
        "question-thanked",
        1.5,
        lambda g, r: (
            f"{g.expand('thanks', r).capitalize()}{r.choice('!.,')} {r.choice(QUESTIONS)}",
            PRAISE,
            _asks(r),
        ),
    ),
    ("task", 10, _one("TASK", NEITHER)),
    ("state", 7, _one("STATE", NEITHER)),
    ("answer", 6, _one("ANSWER", NEITHER, 1.0)),
    ("ack", 4, _one("ACK", NEITHER)),
    ("neither-opened", 3, lambda g, r: _opened(r.choice(("ASK", "TASK", "STATE")), NEITHER)(g, r)),
    (
        "neither-two",
        5,
        lambda g, r: _joined(
            r.choice(("STATE", "ASK", "ACK")), r.choice(("STATE", "ASK", "TASK")), label=NEITHER
        )(g, r),
    ),
    (
        "answer-more",
        2,
        lambda g, r: (*_joined("ANSWER", r.choice(("ASK", "STATE", "TASK")), label=NEITHER)(g, r)[:2], True),
    ),
    (
        "ask-how",
        1.5,
        lambda g, r: _joined(
            r.choice(("ASK", "TASK")), "HOW" if "HOW" in g else "ASK", label=NEITHER, by=(". ", "? ", ", ")
        )(g, r),
    ),
    ("ask-wish", 0.7, lambda g, r: _joined("ASK", "WISH", label=NEITHER, by=("? ",))(g, r)),
    (
        "canonical",
        5,
        lambda g, r: (g.expand("CANONICAL" if "CANONICAL" in g else "WISH", r), WISH, _asks(r, 0.15)),
    ),
    ("praise", 15, _one("PRAISE", PRAISE)),
    ("praise-opened", 1.5, _opened("PRAISE", PRAISE)),
    ("praise-two", 4, _joined("PRAISE", "PRAISE", label=PRAISE)),
    (
        "praise-next",
        5.5,
        lambda g, r: _joined("PRAISE", r.choice(("ASK", "TASK")), label=PRAISE, by=(". ", "! ", "\n", "!! "))(
            g, r
        ),
    ),
    (
        "praise-short-next",
        3,
        lambda g, r: _joined(
            "good", r.choice(("ASK", "ASK", "TASK")), label=PRAISE, by=(", ", "! ", ". ", ", ")
        )(g, r),
    ),
    ("wish", 11, _one("WISH", WISH)),
    ("wish-opened", 2.5, _opened("WISH", WISH)),
    ("wish-two", 2, _joined("WISH", "WISH", label=WISH, by=(". ", ", ", " and ", "! ", "\n"))),
    ("correction", 8, _one("CORRECTION", WISH, 0.08)),
    ("correction-opened", 1.5, _opened("CORRECTION", WISH, 0.08)),
    ("praise-but-wish", 5, lambda g, r: _but("PRAISE", r.choice(("WISH", "WISH", "CORRECTION")), WISH)(g, r)),
    ("praise-wish", 1.5, _joined("PRAISE", "WISH", label=WISH, by=(". ", "! ", "\n"))),
    (
        "blame-wish",
        3,
        lambda g, r: _joined(r.choice(("BAD", "FAULT")), r.choice(("WISH", "CORRECTION")), label=WISH)(g, r),
    ),
    ("wish-next", 3, lambda g, r: _joined("WISH", "ASK", label=WISH, by=(". ", "! ", "\n"))(g, r)),
    ("fault", 10, _one("FAULT", FAULT)),
    ("fault-opened", 1.5, _opened("FAULT", FAULT)),
    ("fault-two", 2, lambda g, r: _joined(r.choice(("BAD", "FAULT")), "FAULT", label=FAULT)(g, r)),
    ("praise-but-fault", 2, lambda g, r: _but("PRAISE", "FAULT", FAULT)(g, r)),
    ("blame", 6, _one("BAD", BLAME, 0.0)),
    ("blame-opened", 1, _opened("BAD", BLAME, 0.0)),
    ("blame-two", 1, _joined("BAD", "BAD", label=BLAME)),
    ("sarcasm", 7, _one("SARCASM", BLAME)),
    (
        "sarcasm-more",
        1.5,
        lambda g, r: _joined("SARCASM", r.choice(("FAULT", "BAD", "SARCASM")), label=BLAME)(g, r),
    ),
    ("irony", 6, _after_praise("ironic", "HARM", BLAME)),
    ("irony-mild", 2, _after_praise("good", "HARM", BLAME)),
    ("irony-thanks", 1.5, _after_praise("thanks", "HARM", BLAME)),
    ("irony-last", 1.5, _joined("HARM", "ironic", label=BLAME)),
    ("harm", 4, _one("HARM", FAULT, 0.1)),
    ("pleased", 4, _one("PLEASED", PRAISE)),
    ("pleased-praise", 3, _after_praise("good", "PLEASED", PRAISE)),
    ("pleased-ironic", 1.5, _after_praise("ironic", "PLEASED", PRAISE)),
    ("plan", 2.5, _one("PLAN", NEITHER)),
    ("plan-praise", 5, _after_praise("good", "PLAN", PRAISE)),
    ("plan-thanks", 2, _after_praise("thanks", "PLAN", PRAISE)),
    ("task-quoted", 2.5, _quoted),
    ("plain-neither", 46, _one("PLAIN_NEITHER", NEITHER)),
    (
        "plain-neither-two",
        5,
        lambda g, r: _joined(
            "PLAIN_NEITHER", r.choice(("PLAIN_NEITHER", "ASK", "STATE")), label=NEITHER, by=(". ", ", ", "\n")
        )(g, r),
    ),
    ("thanks", 4, lambda g, r: (g.expand(r.choice(("thanks", "thanks", "good")), r), PRAISE, _asks(r))),
    ("plain-praise", 18, _one("PLAIN_PRAISE", PRAISE)),
    (
        "plain-praise-next",
        5,
        lambda g, r: _joined("PLAIN_PRAISE", "PLAIN_NEITHER", label=PRAISE, by=(". ", "! ", "\n", "!! "))(
            g, r
        ),
    ),
    ("plain-wish", 20, _one("PLAIN_WISH", WISH)),
    ("plain-wish-opened", 2, _opened("PLAIN_WISH", WISH)),
    ("plain-praise-but-wish", 3, lambda g, r: _but("PLAIN_PRAISE", "PLAIN_WISH", WISH)(g, r)),
    ("plain-fault", 14, _one("PLAIN_FAULT", FAULT)),
    (
        "plain-fault-two",
        2,
        lambda g, r: _joined("PLAIN_FAULT", r.choice(("PLAIN_FAULT", "PLAIN_WISH")), label=FAULT)(g, r),
    ),
    ("plain-blame", 12, _one("PLAIN_BLAME", BLAME, 0.1)),
    ("common-praise", 5, _one("COMMON_PRAISE", PRAISE)),
    ("common-blame", 5, _one("COMMON_BLAME", BLAME, 0.1)),
    ("common-wish", 6, _one("COMMON_WISH", WISH, 0.15)),
)


# -- noise, as people type

_ABBREVIATIONS = (
    (r"\byou\b", "u"), (r"\byour\b", "ur"), (r"\bare\b", "r"), (r"\bplease\b", "pls"), (r"\bplease\b", "plz"), (r"\bthanks\b", "thx"),
    (r"\bthank you\b", "ty"), (r"\bbecause\b", "cuz"), (r"\bthough\b", "tho"), (r"\bwith\b", "w/"), (r"\bwithout\b", "w/o"),
    (r"\bdon't\b", "dont"), (r"\bwhat\b", "wat"), (r"\bgreat\b", "gr8"), (r"\bnext\b", "nxt"), (r"\bthe\b", "da"), (r"\bit's\b", "its"),
    (r"\bthat's\b", "thats"), (r"\bmake\b", "mk"), (r"\bpor favor\b", "xfa"), (r"\bque\b", "q"), (r"\bbitte\b", "btte"),
    (r"\bs'il te plaît\b", "stp"), (r"\bs'il vous plaît\b", "svp"), (r"\bmuito obrigado\b", "mto obg"), (r"\bnicht\b", "nich"),
)  # fmt: skip
_TAILS = (
    " lol",
    " tbh",
    " imo",
    " haha",
    " :)",
    " :(",
    " 😅",
    " mate",
    " bro",
    " man",
    " dude",
    " btw",
    " y'know",
    " ok?",
    " k?",
    "…",
    " ...",
    " 🙏",
)


def add_noise(text: str, rng: random.Random, language: str) -> str:
    """Change case, marks, accents and letters as hurried people do."""
    if rng.random() < 0.45:
        text = text[:1].lower() + text[1:] if rng.random() < 0.4 else text.lower()
    elif rng.random() < 0.6:
        text = text[:1].upper() + text[1:]
    elif rng.random() < 0.12:
        text = text.upper()
    roll = rng.random()
    if roll < 0.25:
        text = text.rstrip(".!?…")
    elif roll < 0.32:
        text += rng.choice(("!", "!!", "!!!", ".", "..", "…"))
    if rng.random() < 0.12:
        text = text.replace("'", "").replace("’", "")
    if rng.random() < 0.06:
        text = re.sub(r"[,;]", "", text)
    if rng.random() < 0.12:
        for pattern, short in rng.sample(_ABBREVIATIONS, 8):
            text = re.sub(pattern, short, text, flags=re.IGNORECASE)
    if rng.random() < 0.2:
        text = _without_accents(text)
    if rng.random() < 0.34:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            text = _typo(text, rng)
    if language == "en" and rng.random() < 0.04:
        text += rng.choice(_TAILS)
    if rng.random() < HIDDEN_MESSAGES:
        text = hide_words(text, rng)
    return text


def _without_accents(text: str) -> str:
    import unicodedata

    decomposed = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(c for c in decomposed if not 0x300 <= ord(c) <= 0x36F))


#: Share of the messages in which words are hidden, and share of the words that are.
HIDDEN_MESSAGES, HIDDEN_WORDS = 0.4, 0.2


def hide_words(text: str, rng: random.Random) -> str:
    """Replace some words by letters without a meaning: real people use words that no template has, which must count for nothing."""
    return re.sub(r"[^\W\d_]+", lambda word: _hidden(word.group(), rng), text)


def _hidden(word: str, rng: random.Random) -> str:
    if _WITHOUT_SPACES.search(word):
        return "".join(chr(rng.randint(0x4E00, 0x9FA5)) if rng.random() < HIDDEN_WORDS else c for c in word)
    if rng.random() >= HIDDEN_WORDS:
        return word
    first, last = next((a for a in _ALPHABETS if a[0] <= ord(word[-1]) <= a[1]), _ALPHABETS[0])
    return "".join(chr(rng.randint(first, last)) for _ in word)


_WITHOUT_SPACES = re.compile(r"[぀-ヿ㐀-鿿]")
#: First and last letter: Latin, Cyrillic, Arabic, Devanagari, Hangul.
_ALPHABETS = ((0x61, 0x7A), (0x430, 0x44F), (0x627, 0x64A), (0x915, 0x939), (0xAC00, 0xD7A3))

_NEAR = {
    "a": "sq",
    "e": "rw",
    "i": "uo",
    "o": "ip",
    "s": "ad",
    "t": "ry",
    "n": "bm",
    "r": "et",
    "l": "k",
    "h": "gj",
    "c": "xv",
    "m": "n",
    "u": "yi",
    "d": "sf",
    "p": "o",
}


def _typo(text: str, rng: random.Random) -> str:
    places = [
        i
        for i in range(1, len(text) - 1)
        if text[i].isalpha() and text[i - 1].isalpha() and not "぀" <= text[i] <= "鿿"
    ]
    if not places:
        return text
    at = rng.choice(places)
    kind = rng.random()
    if kind < 0.4:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :] if text[at + 1].isalpha() else text
    if kind < 0.65:
        return text[:at] + text[at + 1 :]
    if kind < 0.85:
        return text[:at] + text[at] + text[at:]
    near = _NEAR.get(text[at].lower())
    return text[:at] + rng.choice(near) + text[at + 1 :] if near else text


#: Languages whose grammars have no sections but the ``PLAIN_…`` ones.
SMALL = ("bg", "cs", "da", "el", "fa", "fi", "he", "hr", "hu", "id", "no", "ro", "vi")
#: Share of samples by language; the rest share equally.
LANGUAGE_SHARES = {"en": 0.42} | dict.fromkeys(SMALL, 0.015)


def generate(count: int, seed: int, grammars: dict[str, Grammar] | None = None) -> Iterator[Sample]:
    """Yield ``count`` samples."""
    grammars = load_grammars() if grammars is None else grammars
    rng = random.Random(seed)
    names = sorted(grammars)
    others = max(1, len(names) - sum(name in LANGUAGE_SHARES for name in names))
    rest = 1 - sum(share for name, share in LANGUAGE_SHARES.items() if name in names)
    weights = [LANGUAGE_SHARES.get(name, rest / others) for name in names]
    families = [family for family, _, _ in FAMILIES]
    shares = [share for _, share, _ in FAMILIES]
    makers = {family: make for family, _, make in FAMILIES}
    while count:
        language = rng.choices(names, weights)[0]
        family = rng.choices(families, shares)[0]
        grammar = grammars[language]
        try:
            text, label, reply_asks = makers[family](grammar, rng)
        except MissingSection:  # a small grammar has fewer families
            continue
        text = add_noise(text, rng, language)
        if text.strip():
            count -= 1
            yield Sample(
                text=text,
                label=label,
                reply=REPLY[reply_asks],
                language=language,
                family=family,
                scopes=(0,) if family in _NO_WISH else (),
            )


#: Families of one clause that ask nothing of replies.
_NO_WISH = frozenset(
    [
        "correction",
        "ask",
        "task",
        "state",
        "answer",
        "ack",
        "praise",
        "fault",
        "blame",
        "harm",
        "pleased",
        "plan",
        "sarcasm",
        "thanks",
        "task-quoted",
        "plain-neither",
        "plain-praise",
        "plain-fault",
        "plain-blame",
        "common-praise",
        "praise-next",
    ]
)


def checksum(samples: Sequence[Sample]) -> str:
    """Return a SHA-256 over samples, to see that the generator still makes the same ones."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.text}\x00{sample.label}\x00{int(sample.reply == REPLY[True])}\x01".encode())
    return digest.hexdigest()
