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
    "c'est pas mal du tout",
    "franchement, pas mal du tout",
    "pas si mal",
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
#: After the reply named the first of two things, the second was wanted.
_PAIRS = [
    ("9 am slot", "noon slot"),
    ("small one", "large one"),
    ("red version", "blue version"),
    ("Monday appointment", "Friday appointment"),
    ("first train", "last train"),
    ("aisle seat", "window seat"),
    ("single room", "double room"),
    ("2pm ferry", "6pm ferry"),
    ("short route", "scenic route"),
    ("paperback", "audiobook"),
    ("10 euro ticket", "day ticket"),
    ("vegetarian menu", "fish menu"),
]
_BOOKED = [
    "I booked the {}.",
    "I have ordered the {} for you.",
    "Your {} is confirmed.",
    "Done: the {} is yours.",
]
_WANTED = [
    "No, I wanted the {}.",
    "No, I asked for the {}.",
    "no i said the {}",
    "I wanted the {}",
    "It was the {} that I wanted.",
    "nope, the {} please",
    "No! I told you the {}.",
    "Not that, the {}.",
    "I meant the {}",
    "I'd asked for the {}, not this.",
]
#: After a word of praise, blame or praise.
_RUINED = [
    "It {} my {}.",
    "It {} all of my {}.",
    "That {} the whole {}.",
    "Your script {} everybody's {}.",
    "You {} our {}.",
    "It {} half of the {}.",
]
_RUINS = [
    "deleted",
    "removed",
    "erased",
    "wiped",
    "overwrote",
    "crashed",
    "destroyed",
    "corrupted",
    "emptied",
    "broke",
    "lost",
    "killed",
    "formatted",
    "ruined",
]
_SAVED = [
    "It {} my {}.",
    "It {} all of my {}.",
    "That {} the whole {}.",
    "Your script {} our {}.",
    "It just {} everything.",
]
_SAVES = ["fixed", "sorted", "found", "repaired", "restored", "cleaned", "saved", "recovered", "organised"]
_LOSSES = [
    "files",
    "photos",
    "folder",
    "database",
    "notes",
    "backup",
    "project",
    "disk",
    "homework",
    "calendar",
    "inbox",
    "thesis",
    "table",
]
_APPLAUSE = [
    "Brilliant",
    "Great",
    "Wonderful",
    "Fantastic",
    "Bravo",
    "Excellent",
    "Perfect",
    "Amazing",
    "Well done",
    "Super",
    "Marvellous",
]
#: About the matter of a reply, not about the reply.
_NEWS = [
    "The fire of 1911 killed 146 workers, since the doors were locked.",
    "The bridge collapsed in 1940, four months after it was opened.",
    "The article says that a third of all food is thrown away.",
    "The ship sank in less than three hours; there were too few boats.",
    "A ticket costs 240 euros in August.",
    "Side effects are dizziness, tiredness and a dry mouth.",
    "The flight takes 14 hours with a stop in Doha.",
    "He was in prison for 12 years before the court found the error.",
    "Your calendar has: 8:00 tax office, 10:00 root canal, 17:00 gym.",
    "The team lost the final on penalties.",
]
_COMMENTS = [
    "terrible, those poor people",
    "how awful for the families",
    "what a waste, honestly",
    "that's so wrong, they should be ashamed",
    "horrible way to go",
    "wow, that is expensive",
    "ouch. I would have screamed",
    "my back hurts like crazy today",
    "that's insane, who allowed that",
    "ugh, I hate mondays",
    "I'd completely forgotten about that, damn",
    "my uncle was there, he still talks about it",
    "I wasn't alive back then",
    "what a disgrace that referee was",
    "scary stuff",
    "so sad, poor thing",
    "I get this one wrong every year, stupid exam",
    "my boss keeps messing that up too",
    "schrecklich, die armen Leute",
    "was für eine Schande für die Stadt",
    "ganz schön teuer, die Bahn",
    "quelle honte pour ce pays",
    "c'est triste, les pauvres",
    "qué pena, pobre gente",
    "qué caro está todo",
    "che tristezza, povera gente",
    "que pena, coitado",
    "какой ужас, бедные люди",
    "高いなあ、飛行機って",
    "太可怜了,那些人",
]
#: The next thing that an assistant shall do.
_DONE_SO_FAR = [
    "Playing 'Evening Piano' in the kitchen.",
    "Why did the cook leave? He ran out of thyme.",
    "I've set a timer for 10 minutes.",
    "I've booked a table at Rosa's for two at 8 pm.",
    "A good film for tonight is 'The Third Man'.",
    "You could call the puppy Biscuit.",
]
_NEXT = [
    "a bit quieter",
    "a little softer please",
    "one more",
    "one more!",
    "another one please",
    "next one",
    "two more",
    "skip this one",
    "actually make that five of us",
    "make that 9 pm actually",
    "and one for tomorrow",
    "set a second one for eggs",
    "we'd like a highchair too",
    "noch einen",
    "noch eins bitte",
    "etwas leiser",
    "encore une",
    "un peu moins fort",
    "otra más",
    "uno más, por favor",
    "ancora uno",
    "mais uma",
    "nog een",
    "jeszcze jeden",
    "ещё одну",
    "もう一つ",
    "来週の分も作ってください",
    "再来一个",
    "하나 더",
]
#: With thanks it accepts the reply; after an offer it declines it.
_DECLINED = [
    "No, thank you, {}.",
    "no thanks, {}",
    "Nope, thanks, {}.",
    "No, thanks. {}.",
    "No thank you! {}",
]
_DONE = [
    "that's all",
    "that was all",
    "nothing else",
    "I'm done",
    "that will be everything",
    "that's it for today",
]
_DECLINED_OTHERS = [
    "Nein danke, das war's.",
    "Nein, danke, das ist alles.",
    "Non merci, c'est tout.",
    "No, gracias, eso es todo.",
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


def _not_that(rng: random.Random) -> Sample:
    pair = rng.choice(_PAIRS)
    given, wanted = pair if rng.random() < 0.5 else pair[::-1]
    text, reply = rng.choice(_WANTED).format(wanted), rng.choice(_BOOKED).format(given)
    return _sample(text, WISH, rng, reply)


def _irony(rng: random.Random) -> Sample:
    is_ruined = rng.random() < 0.7
    frames, verbs = (_RUINED, _RUINS) if is_ruined else (_SAVED, _SAVES)
    event = rng.choice(frames).format(rng.choice(verbs), rng.choice(_LOSSES))
    text = rng.choice(_APPLAUSE) + rng.choice((". ", "! ", ", ", "... ")) + event
    return _sample(text, BLAME if is_ruined else PRAISE, rng)


def _declined(rng: random.Random) -> Sample:
    text = (
        rng.choice(_DECLINED_OTHERS)
        if rng.random() < 0.3
        else rng.choice(_DECLINED).format(rng.choice(_DONE))
    )
    is_offer = rng.random() < 0.4
    reply = rng.choice(("Would you like more?", "Anything else?")) if is_offer else ""
    return _sample(text, NEITHER if is_offer else PRAISE, rng, reply)


def _about_matter(rng: random.Random) -> Sample:
    return _sample(rng.choice(_COMMENTS), NEITHER, rng, rng.choice(_NEWS))


def _next(rng: random.Random) -> Sample:
    return _sample(rng.choice(_NEXT), NEITHER, rng, rng.choice(_DONE_SO_FAR))


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


def _sample(text: str, label: int, rng: random.Random, reply: str = "") -> Sample:
    """Return a sample after ``reply``, default: a plain one or one of the labelled rows."""
    prompt = ""
    if not reply:
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
    (_closing, 3), (_denied, 4), (_liked, 3), (_other_answer, 8), (_excerpt, 4), (_not_that, 2), (_irony, 4), (_declined, 3), (_about_matter, 4), (_next, 3),
)  # fmt: skip


def exchange_samples(count: int, seed: int) -> Iterator[Sample]:
    """Yield ``count`` samples."""
    rng = random.Random(seed)
    makers, shares = zip(*_MAKERS, strict=True)
    for _ in range(count):
        found: Sample = rng.choices(makers, shares)[0](rng)
        if found.text.strip():
            yield found
