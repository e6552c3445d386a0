"""Free wordings of the six wishes: a grammar of its own, in several registers and languages, with typing errors. Pure.

No wording is a template of the scorer's word lists, of the test model's recipe or of the trainer's anchors: a test compares
them. So what a policy learns from these words it has understood, not looked up. In a pattern "{one|other}" is a choice.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Literal

Language = Literal["en", "de", "es", "fr", "it"]
#: Weight of each language.
_LANGUAGES: Mapping[Language, float] = {"en": 0.72, "de": 0.09, "es": 0.09, "fr": 0.05, "it": 0.05}
#: Share of utterances with typing errors, and of those typed in lower case without a final mark.
_TYPOS, _CARELESS = 0.2, 0.25

_WISHES: Mapping[str, Mapping[Language, tuple[str, ...]]] = {
    "concise": {
        "en": (
            "{Half|A third} of {that|this} would have done", "One short line is {plenty|all that I read}",
            "I stop reading behind the first {line|sentence} anyway", "You {bury|hide} the answer under {a pile of words|a speech}",
            "On my tiny screen only one short sentence fits", "That is a lot of scrolling for {one fact|such a small thing}",
            "A short sentence was what I was hoping for", "Answer first, chatter never", "Why the novel? A brief answer does it",
            "Short and to the point is how I like {it|them}", "Fewer words would make me happy",
            "I would be glad about a brief answer for once", "Boil it down to {one|a single} short sentence",
            "Spare me the speech, one brief sentence does it", "Short answers suit me much better than {these essays|this}",
        ),
        "de": (
            "{Ein kurzer Satz|Eine Zeile} reicht mir völlig", "Fass dich bitte kürzer, ich lese das unterwegs",
            "So einen Roman wollte ich gar nicht", "Geht das auch in einem Satz?",
        ),
        "es": (
            "Con una frase corta me basta", "Me pierdo con tanto rollo, al grano", "¿Puedes resumirlo en una línea?",
            "Tanta palabrería me sobra",
        ),
        "fr": ("Une seule phrase me suffit", "Tu pourrais aller droit au but ?", "Je n'ai pas le temps de lire un roman"),
        "it": ("Mi basta una frase breve", "Vai al sodo, per cortesia", "Non ho tempo per un romanzo"),
    },
    "no_emoji": {
        "en": (
            "The little {yellow faces|pictures} {can go|have to go}, words alone will do",
            "Who ordered the {emoji parade|confetti}? Text without emoji is what I read",
            "My terminal shows empty boxes where you put emoji", "Letters only, my screen cannot show emoji",
            "Spare me the {emoji|smileys}, words alone will do", "I am allergic to {emoji|smileys} in answers",
            "Kindly keep the {emoji|emojis|smileys} to yourself", "Text free of {smileys|emoji} suits me better",
            "It reads like a teenager's chat with all that emoji", "Emoji make it hard to paste this into a report",
            "An answer has to get by without {an emoji|smileys} here", "For a grown-up like me, emoji ruin {it|the text}",
        ),
        "de": (
            "Die bunten Bildchen nerven, {Worte genügen|Text genügt}", "Ohne Smileys wäre es mir lieber",
            "Ich bin kein Teenager, verzichte auf Emojis", "Diese Gesichter stören beim Vorlesen",
        ),
        "es": (
            "Las caritas me estorban, solo letras", "Prefiero leerlo sin dibujitos ni emojis",
            "Ahórrate los emojis, que esto es para el trabajo", "Mi pantalla no muestra esos emojis",
        ),
        "fr": ("Les petits bonshommes jaunes, très peu pour moi", "Des mots suffisent, laisse tomber les émojis"),
        "it": ("Le faccine lasciale perdere", "Bastano le parole, niente faccine"),
    },
    "plain": {
        "en": (
            "My viewer puts literal {asterisks|stars} around words, bare text is safer", "The bold bits break my {script|mail}",
            "Your markdown ends up in my {mail|notes} as stars", "Could the answer come as bare text without markup?",
            "It goes into a .txt file, so bare text without bold", "Bold type is of no use to me here, plain characters are",
            "My screen shows ** around {things|words}, plain characters will do", "Markdown is lost on me, the screen reader spells it out",
            "Those stars are read aloud to me, bare text is better", "Decoration such as bold only gets in my way",
        ),
        "de": (
            "Bei mir kommen lauter Sternchen an, reiner Text genügt", "Verzichte auf die fetten Wörter",
            "Das landet in einer Textdatei, also ohne Auszeichnung",
        ),
        "es": (
            "Me salen asteriscos por todas partes, mejor texto sin adornos", "La negrita me estropea el correo",
            "Va a un archivo de texto, sin marcas",
        ),
        "fr": ("Je vois des étoiles autour des mots, du texte brut suffit", "Le gras ne sert à rien chez moi"),
        "it": ("Vedo asterischi ovunque, meglio testo semplice", "Il grassetto qui non serve"),
    },
    "formal": {
        "en": (
            "{Imagine|Pretend} that you are writing to {a judge|the board|an ambassador}",
            "My {boss|professor} reads these, so mind your manners and sound serious",
            "We are not buddies, a serious and formal voice suits this better", "That is how one talks in a pub, not in an office",
            "A businesslike and formal voice would be appropriate", "Slang and cheering have no place in {my report|a contract}",
            "Could it sound like a formal letter from a bank?", "Less cheerleading, more civil servant: formal it must be",
            "A formal register befits {this|my} office", "I read these out to the board, they have to sound formal",
        ),
        "de": (
            "Das liest mein Chef, etwas mehr Ernst wäre angebracht", "Wir sind hier nicht in der Kneipe",
            "Ein förmlicher Ton stünde dem besser",
        ),
        "es": (
            "Esto lo lee mi jefa, un tono más serio vendría bien", "No somos colegas, trátame de usted",
            "Suena a charla de bar, mejor como una carta oficial",
        ),
        "fr": ("Mon chef lit cela, un ton plus sérieux conviendrait", "On n'est pas au bistrot, vouvoyez-moi"),
        "it": ("Lo legge il mio capo, ci vuole un tono serio", "Non siamo al bar, mi dia del Lei"),
    },
    "spanish": {
        "en": (
            "My grandmother reads this, and she knows only Spanish", "Spanish is what we speak {here|at home}",
            "I am practising my Spanish, so let us have {it|everything} that way", "The Spanish version, if you would be so kind",
            "Could we carry on in the language of Cervantes?", "All {other pages|my notes} are Spanish, yours has to match",
            "English is hard for me, Spanish I know well", "Everyone on our team reads Spanish, so go for that",
            "Madrid office here: Spanish is the rule for every answer",
        ),
        "de": ("Auf Spanisch wäre mir das lieber", "Meine Oma versteht bloß Spanisch"),
        "es": (
            "Por aquí hablamos castellano", "¿Me lo cuentas otra vez, pero español?", "Mi abuela no entiende el inglés, en castellano mejor",
            "Pásalo al español, anda", "En mi idioma, que es el español",
        ),
        "fr": ("Plutôt en espagnol si possible", "Ma grand-mère ne comprend que l'espagnol"),
        "it": ("Meglio in spagnolo", "Mia nonna capisce soltanto lo spagnolo"),
    },
    "json": {
        "en": (
            "This gets piped into jq, so anything but JSON blows up", "json.loads() chokes on {that|your sentence}",
            "The parser says unexpected token, it takes JSON alone", "My {client|frontend} takes one JSON object with an answer key",
            "Wrap {it|the answer} into JSON for me", "Machines read this, hand over JSON", "Emit JSON and the pipeline is happy",
            "A machine sits at the other end, and its only tongue is JSON", "Bare JSON on one line is what the importer takes",
            "The webhook rejects sentences and accepts JSON",
        ),
        "de": ("Das liest eine Maschine, die kann bloß JSON", "Mein Parser stolpert über Sätze, JSON wäre richtig"),
        "es": ("Esto lo lee un programa que solo traga JSON", "El importador rechaza frases, pásale JSON"),
        "fr": ("C'est une machine qui lit, il lui faut du JSON", "Mon script plante, il attend du JSON"),
        "it": ("Lo legge un programma, gli serve JSON", "Il parser si blocca, vuole JSON"),
    },
}  # fmt: skip
_THANKS: Mapping[Language, tuple[str, ...]] = {
    "en": (
        "Spot on", "That is the ticket", "Yep, like that", "This works for me", "Just how I like it", "Now we are talking",
        "Bingo", "Ah, now that I call an answer", "Lovely job", "You are getting the hang of it",
    ),
    "de": ("So mag ich das", "Passt wunderbar", "Ja, so soll es sein"),
    "es": ("Así me gusta", "Eso es, justo así", "Ahora sí"),
    "fr": ("Voilà, comme ça", "C'est tout à fait ce que j'espérais"),
    "it": ("Ecco, proprio così", "Così va benissimo"),
}  # fmt: skip
#: Phrases before a wish, by register: curt, polite, rambling, in the manner of tickets.
_OPENERS: Mapping[Language, tuple[str, ...]] = {
    "en": (
        "", "", "", "", "Sorry to be a bother: ", "If I may: ", "A small wish: ", "Long day here, anyway: ",
        "My sister saw this and laughed. ", "NB: ", "fyi: ", "Review comment: ",
    ),
    "de": ("", "", "Nur so am Rande: ", "Wenn ich mir was wünschen darf: "),
    "es": ("", "", "Una cosita: ", "Si no es molestia: "),
    "fr": ("", "", "Petite remarque : "),
    "it": ("", "", "Una cosa: "),
}  # fmt: skip


def phrase_wishes(names: Sequence[str], rng: random.Random) -> str:
    """Return one message that words these wishes, all in one language.

    Raises:
        KeyError: a wish without wordings.
    """
    language = _language(rng)
    sentences = [_render(rng.choice(_WISHES[name][language]), rng) for name in names]
    return _typed(rng.choice(_OPENERS[language]) + " ".join(_ended(text) for text in sentences), rng)


def phrase_thanks(rng: random.Random) -> str:
    """Return thanks."""
    return _typed(_ended(_render(rng.choice(_THANKS[_language(rng)]), rng)), rng)


def has_wordings(name: str) -> bool:
    return name in _WISHES


def every_wording() -> frozenset[str]:
    """Return every sentence of the grammar, without openers and typing errors."""
    patterns = [text for some in (*_WISHES.values(), _THANKS) for texts in some.values() for text in texts]
    return frozenset(reading for pattern in patterns for reading in _readings(pattern))


def add_typos(text: str, rng: random.Random) -> str:
    """Return the text with one or two typing errors in words of five letters or more; other words stay as they are."""
    places = [match.span() for match in re.finditer(r"[^\W\d_]{5,}", text)]
    for start, end in sorted(rng.sample(places, min(len(places), rng.choice((1, 2)))), reverse=True):
        word = text[start:end]
        at = rng.randrange(1, len(word) - 1)
        text = text[:start] + rng.choice(
            (
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],  # swapped
                word[:at] + word[at + 1 :],  # left out
                word[:at] + word[at] + word[at:],  # doubled
            )
        ) + text[end:]  # fmt: skip
    return text


def _language(rng: random.Random) -> Language:
    return rng.choices(list(_LANGUAGES), weights=list(_LANGUAGES.values()))[0]


def _render(pattern: str, rng: random.Random) -> str:
    return re.sub(r"\{([^}]*)\}", lambda match: rng.choice(match[1].split("|")), pattern)


def _readings(pattern: str) -> list[str]:
    match = re.search(r"\{([^}]*)\}", pattern)
    if match is None:
        return [pattern]
    return [
        reading
        for choice in match[1].split("|")
        for reading in _readings(pattern[: match.start()] + choice + pattern[match.end() :])
    ]


def _ended(text: str) -> str:
    return text if text[-1] in ".!?" else f"{text}."


def _typed(text: str, rng: random.Random) -> str:
    if rng.random() < _TYPOS:
        text = add_typos(text, rng)
    if rng.random() < _CARELESS:
        text = text.lower().rstrip(".")
    return text
