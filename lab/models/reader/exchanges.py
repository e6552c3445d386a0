"""Reactions that only the reply before them explains, and whole phrases of which a few words are not enough: one example of each word pattern.

The patterns of `scorers.evidence` are features of the classifier: it learns what they mean from these samples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from lab.models.questions import PRETRAIN, other_answers
from lab.models.reader.generate import BLAME, FAULT, NEITHER, PRAISE, WISH, Sample, add_noise
from lab.models.reader.wishes import NONE, read_rows_of_replies

_CLOSING = [
    "No, that's all.",
    "That is all for now.",
    "that's everything",
    "no, nothing else",
    "Nothing more for today.",
    "I'm good for now.",
    "no, I'm done",
    "That will be all.",
    "nope, all set",
    "Nein, das war alles.",
    "Das war's.",
    "nein, nichts weiter",
    "Das ist alles für heute.",
    "non, rien d'autre",
    "C'est tout pour aujourd'hui.",
    "ce sera tout",
    "non c'est bon",
    "no, nada más",
    "Eso es todo por hoy.",
    "Sería todo.",
    "no, niente altro",
    "È tutto per ora.",
    "não, mais nada",
    "Era só isso.",
    "nee, dat was alles",
    "Verder niets.",
    "nie, to wszystko",
    "nej, det var allt",
    "hayır, hepsi bu",
    "нет, больше ничего",
    "Это всё на сегодня.",
    "ні, це все",
]
_DENIED = [
    "not bad",
    "Not bad!",
    "not too bad",
    "hey, not bad at all",
    "pretty not bad",
    "no complaints",
    "no complaints here",
    "not half bad",
    "Nicht übel.",
    "gar nicht schlecht",
    "echt nicht schlecht",
    "nicht verkehrt",
    "da kann man nicht meckern",
    "Pas mal !",
    "vraiment pas mal",
    "rien à redire",
    "No está mal.",
    "no está nada mal",
    "nada mal, pues",
    "niente male",
    "Non è male.",
    "nada mau",
    "niet slecht",
    "helemaal niet slecht",
    "niezłe",
    "nie jest źle",
    "inte illa",
    "inte så dumt",
    "fena değil",
    "неплохо",
    "очень неплохо",
    "совсем неплохо",
    "недурно",
    "непогано",
    "зовсім непогано",
    "悪くないね",
    "真不错",
    "还不错啊",
]
_LIKED = [
    "I love the {}",
    "I like the {}",
    "I like your {}",
    "Good that there are {}",
    "Nice to see {}",
    "I really enjoy the {}",
    "I like that you use {}",
    "glad that you kept the {}",
    "ich mag die {}",
    "Mir gefallen die {}",
    "schön, dass du {} nimmst",
    "ich mag deine {}",
    "j'aime les {}",
    "j'adore tes {}",
    "me gustan los {}",
    "me encantan tus {}",
    "mi piacciono i {}",
    "gosto dos {}",
]
_THINGS = [
    "emojis",
    "lists",
    "examples",
    "tables",
    "short answers",
    "jokes",
    "Emojis",
    "Listen",
    "Beispiele",
    "Witze",
    "exemples",
    "listes",
    "ejemplos",
    "chistes",
    "esempi",
    "exemplos",
]
_STATED = [
    "It's {}.",
    "It's the {}.",
    "It's the {}!",
    "no, the {}",
    "nope, the {}",
    "Actually the answer is {}",
    "Actually it's the {}",
    "Actually the word is {}",
    "The other one, {}.",
    "it is {}",
    "That's {}.",
    "no, {}",
    "No, it's {}.",
    "nope. {}",
    "wrong, {}",
    "Actually it is {}",
    "Actually it's {}!",
    "Sorry, it was {}.",
    "It was {}.",
    "Es ist {}.",
    "nein, {}",
    "Das ist {}.",
    "C'est {} !",
    "non, {}",
    "c'était {}",
    "Es {}.",
    "no, es {}",
    "Era {}",
    "È {}.",
    "no, {}!",
    "É {}.",
    "Het is {}.",
    "nee, {}",
    "To jest {}",
    "nie, {}",
    "Det är {}.",
    "nej, {}",
    "Это {}.",
    "нет, {}",
    "Це {}",
    "The answer is {}.",
]
_DOUBTS = [
    "really?",
    "for that?",
    "seriously?",
    "no.",
    "that can't be",
    "come on",
    "are you joking?",
    "with children?",
    "in winter?",
    "for two people?",
    "no way",
    "never heard of it",
    "im Ernst?",
    "wirklich?",
    "sérieux ?",
    "¿en serio?",
    "davvero?",
]
_ASKS = [
    "Is it free?",
    "What is that?",
    "where is it?",
    "How much is it?",
    "how do you spell it?",
    "tell me more",
    "Was ist das?",
    "c'est quoi ?",
    "¿qué es?",
    "and how far?",
    "Since when?",
]


def _closing(rng: random.Random) -> Sample:
    return _sample(rng.choice(_CLOSING), NEITHER, rng)


def _denied(rng: random.Random) -> Sample:
    text = rng.choice(_DENIED)
    if rng.random() < 0.2:
        return _sample(text.rstrip(".!") + "?", NEITHER, rng)
    if rng.random() < 0.25:
        return _sample(
            text.rstrip(".!")
            + rng.choice((", but too long.", ", aber zu lang", ", mais trop long", ", pero muy largo")),
            WISH,
            rng,
        )
    return _sample(text, PRAISE, rng)


def _liked(rng: random.Random) -> Sample:
    return _sample(rng.choice(_LIKED).format(rng.choice(_THINGS)), PRAISE, rng)


def _other_answer(rng: random.Random) -> Sample:
    question = rng.choice(PRETRAIN)
    fact = question.fact
    reply = fact.statement(spanish=False, bold=rng.random() < 0.3) + "."
    other = rng.choice(other_answers(fact))
    prompt = f"What about {fact.answer}?" if rng.random() < 0.1 else question.text
    text, label = rng.choice(_STATED).format(other), WISH
    roll = rng.random()
    if roll < 0.15:
        text = other
    elif roll < 0.35:
        text, label = f"And {other}?", NEITHER
    return Sample(
        text=text, label=label, reply=reply, prompt=prompt, language="en", family="exchange", scopes=(NONE,)
    )


def _exchange(rng: random.Random) -> tuple[str, str]:
    row = rng.choice(_ROWS)
    return row.get("reply", ""), row.get("prompt", "")


def _excerpt(rng: random.Random) -> Sample:
    reply, prompt = _exchange(rng)
    words = [word.strip(".,!?:;") for word in reply.split() if len(word) > 4] or ["that"]
    at = rng.randrange(len(words))
    quoted = " ".join(words[at : at + rng.choice((1, 1, 2, 3))])
    opening = rng.choice(("{}? ", "{}?? ", '"{}" ', "> {}\n", '"{}" - ')).format(quoted)
    is_doubt = rng.random() < 0.6
    text = opening + rng.choice(_DOUBTS if is_doubt else _ASKS)
    label = rng.choice((FAULT, BLAME)) if is_doubt else NEITHER
    return Sample(
        text=text, label=label, reply=reply, prompt=prompt, language="en", family="exchange", scopes=(NONE,)
    )


def _sample(text: str, label: int, rng: random.Random) -> Sample:
    reply, prompt = _exchange(rng) if rng.random() < 0.5 else ("Here it is.", "")
    noisy = add_noise(text, rng, "en") if rng.random() < 0.4 else text
    return Sample(
        text=noisy,
        label=label,
        reply=reply,
        prompt=prompt,
        language="en",
        family="exchange",
        scopes=() if label == WISH else (NONE,),
    )


_ROWS = read_rows_of_replies()
#: Makers and their shares.
_MAKERS: tuple[tuple[Callable[[random.Random], Sample], int], ...] = (
    (_closing, 3), (_denied, 4), (_liked, 3), (_other_answer, 8), (_excerpt, 4),
)  # fmt: skip


def exchange_samples(count: int, seed: int) -> Iterator[Sample]:
    """Yield ``count`` samples."""
    rng = random.Random(seed)
    makers, shares = zip(*_MAKERS, strict=True)
    for _ in range(count):
        found: Sample = rng.choices(makers, shares)[0](rng)
        if found.text.strip():
            yield found
