"""The word patterns and the classifier, read together: what a message says about the reply before it.

A pattern decides alone only where its measured precision is high (`PRECISE`, `scorers/precision.json`); every other pattern needs the
classifier to agree, and a classifier that is sure of the opposite overrules even a precise one (sarcasm praises in words). The
classifier decides alone where it is sure enough. What is left is undecided: a judge may know better.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scorers import lexicon
from scorers.classifier import Classifier, Reading, default_classifier
from scorers.features import ends_in_question, tokens_of
from scorers.hints import content_words, repeats_reply
from scorers.lexicon import NEGATORS
from scorers.other_answer import is_bare_number, names_other_answer
from scorers.reactions import (
    Reaction,
    Role,
    bounded,
    classify,
    fold,
    read_reaction,
    split_sentences,
    starts_task,
    without_code,
)
from scorers.wish_labels import EMOJI, label_wishes

PRECISION_TABLE = Path(__file__).parent / "precision.json"

#: Least precision, and least number of measured cases, with which a pattern decides alone.
PRECISE, ENOUGH_CASES = 0.97, 12
#: Least probability with which the classifier decides alone: on reactions that it was not trained on, .95 of what it reads is right
#: (lab/research/2026-11-27-half-understood-wishes.md).
ALONE_COMPLAINT, ALONE_PRAISE = 0.84, 0.87
#: ... with which it does where the words state a style (`label_wishes`); a task that names a style ("a JSON schema for a user") is below.
STATED_COMPLAINT = 0.4
#: ... with which it does where they stand in a part of their own, and with which an event may turn praise into sarcasm.
SURE_COMPLAINT, SURE_PRAISE = 0.6, 0.68
#: ... and before a judge is asked. What is decided with less yields to a judge that disagrees.
CERTAIN = 0.9
#: Least probability with which it confirms a complaint, and praise, that a pattern found but cannot decide alone: sarcasm praises.
AGREES, AGREES_PRAISE = 0.8, 0.6
#: ... with which a bare "no" is a complaint, and with which a part that only blames is left out of the hint.
LEANS = 0.5
#: ... with which it overrules a pattern that could.
OVERRULES = 0.9
#: Confidence of a message that only gives another name or number than the reply; a judge may disagree.
OTHER_ANSWER = 0.8
#: Texts with more characters are documents as often as reactions: a sentence at either end has to react by itself.
_LONG = 300
#: A part of a complaint is praise or a question of its own from this probability on.
_ASIDE = 0.6

#: What other people wrote, and what the reply said: several words between marks, or a line behind ">".
_QUOTATION = re.compile(
    r"\"[^\"\n]*\s[^\"\n]*\"|“[^”\n]*\s[^”\n]*”|„[^“”\n]*\s[^“”\n]*[“”]|«[^»\n]*\s[^»\n]*»|「[^」\n]{3,}」"
    r"|(?<!\w)'[^'\n]*\s[^'\n]*'(?!\w)|(?m:^>.*$)"
)
#: An emoji that a phrase is about: "no more 😊 please", not "thanks 😊".
_NAMED_EMOJI = re.compile(
    rf"(?i)(?<!\w)((?:{lexicon.BEFORE_THING})\s+)[{EMOJI}\ufe0f]+(?:\s*[{EMOJI}\ufe0f]+)*"
)
_LIKING = re.compile(rf"\s*(?:{lexicon.LIKING})\b", re.IGNORECASE)
#: Whole messages: "No, that is all." and "not bad at all".
_CLOSING = re.compile(rf"\W*(?:(?:{lexicon.DECLINING})\W+)?(?:{lexicon.CLOSING})[^\w?]*", re.IGNORECASE)
_NO = re.compile(rf"\W*(?:{lexicon.DECLINING})\W*", re.IGNORECASE)
_DENIED_FAULT = re.compile(rf"\W*(?:{lexicon.DENIED_FAULT})[^\w?]*", re.IGNORECASE)
#: Stands for a quotation. The training data hide words in the same way.
_UNKNOWN = "qxzvq"
#: Words of the reply at the head of a message: between marks, behind ">", or few and asked about.
_EXCERPT = re.compile(
    r"(?:[\"“„«「](?P<quoted>[^\"”“»」\n]{1,80})[\"”“»」]|>\s*(?P<line>[^\n]{1,200})\n|(?P<asked>[^\n.!?？؟]{1,40})[?？؟]+)(?P<rest>.*)\Z",
    re.DOTALL,
)
#: Words that may stand between them.
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
#: A longer message denies more than a word, and from this probability of a complaint on it denies the reply.
_MAX_DENIAL, _HINTS_AT = 10, 0.25
#: Least probability of a complaint behind them.
_DOUBTED = 0.5
#: Characters in which quotations are sought.
_MOST_QUOTED = 4000

#: An event that follows praise is against the reply from this probability of a complaint on.
_AGAINST = 0.8

#: ... and may be sarcasm from this one on.
_SUSPICIOUS = 0.3

#: A message that opens with praise leans towards a complaint from this probability on.
_LEANS = 0.7
#: Thanks are meant more often than praise.
_THANKS = frozenset(fold(" ".join(classes["thank"] for classes in lexicon.WORDS.values())).split())
#: Where the first clause of a message ends.
_CLAUSE = re.compile(r"\s*[,.;:!…\n–—，、。！；]+\s*(?=\w)|\s+-+\s+")
_CONTRAST = re.compile(
    rf"\s*(?:[,;.!]|\s[-–—])?\s+(?=(?:{lexicon.CONTRAST})\b)|\s*[,，、。]?\s*(?={lexicon.CONTRAST_UNSPACED})"
    r"|\s+[-–—]+\s+|(?<=[。！？])",
    re.IGNORECASE,
)
_LEADING = re.compile(
    rf"^(?:[\s,;:.!?–—-]|(?:{lexicon.JOINT})\b(?=\s)|{lexicon.JOINT_UNSPACED})+", re.IGNORECASE
)

#: A part that says only when a wish holds belongs to the wish before it.
_WHEN = re.compile(rf"(?:(?:{lexicon.BEFORE_WHEN})\s)?(?:{lexicon.WHEN})\W*", re.IGNORECASE)

#: "You can use emojis again" allows something for the future; it does not say that the reply was bad.
_PERMITS = re.compile(rf"\b(?:{lexicon.PERMITS})\b", re.IGNORECASE)
_AGAIN = re.compile(rf"\b(?:{lexicon.AGAIN})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a message says about the reply before it.

    Attributes:
        value: -1 complaint, correction or wish; +1 praise or acceptance; None: undecided.
        confidence: in [0, 1].
        hint: the person's words that state a wish or correction, None where there are none.
        source: "rule" or "classifier", what decided; "" when undecided.
        is_sure: no judge needs to be asked: a precise pattern or a certain classifier decided.
        patterns: names of the word patterns that matched.
        reading: the classifier's probabilities.
        reason: one sentence for a person.
    """

    value: int | None
    confidence: float
    hint: str | None
    source: str
    is_sure: bool
    patterns: tuple[str, ...]
    reading: Reading
    reason: str


@cache
def _precise_patterns() -> frozenset[str]:
    """Names ("-1 pattern") of the patterns that decide alone."""
    table = json.loads(PRECISION_TABLE.read_text(encoding="utf-8"))
    return frozenset(
        name
        for name, row in table["patterns"].items()
        if row["right"] >= PRECISE * row["cases"] and row["cases"] >= ENOUGH_CASES
    )


def is_precise(pattern: str, value: int) -> bool:
    """Whether a word pattern may decide alone for ``value``."""
    return f"{value:+d} {pattern}" in _precise_patterns()


def read_message(
    text: str, *, reply: str = "", prompt: str = "", classifier: Classifier | None = None
) -> Message:
    """Read ``text``, a person's message that followed ``reply``.

    Args:
        prompt: what the reply answers; a message that repeats it word for word is undecided.
        classifier: default: the one of this repository.
    """
    network = classifier or default_classifier()
    text = _name_emoji(text)
    own = _own_words(text)
    reading = network.read(own, reply=reply, prompt=prompt)
    reaction = read_reaction(own, reply=reply)
    value, confidence, source, reason = _decide(own, reaction, reading)
    is_other_answer = value != 1 and reading.neither < OVERRULES and names_other_answer(text, reply, prompt)
    if is_other_answer and value is None:
        value, confidence, source = -1, OTHER_ANSWER, "rule"
        reason = "it only gives another name or number than the reply"
    if value is None and reading.complaint >= LEANS and _is_bare_no(own, reply):
        value, confidence, source = -1, reading.complaint, "classifier"
        reason = f"a bare no, classifier: complaint {reading.complaint:.2f}"
    if value is None and (wish := _no_then_wish(own, reply, network)) is not None:
        value, confidence, source = -1, wish, "classifier"
        reason = f"a bare no, then words of their own with a complaint of {wish:.2f}"
    if value is None and (scorn := _praise_then_harm(own, reply, reading, network)) is not None:
        value, confidence, source = -1, scorn, "classifier"
        reason = f"classifier: praise, then an event against the reply, complaint {scorn:.2f}"
    if value is None and reading.complaint >= _HINTS_AT and _denies_reply(own, reply, prompt):
        value, confidence, source = -1, OTHER_ANSWER, "classifier"
        reason = f"it denies a word of the reply; classifier: complaint {reading.complaint:.2f}"
    if value is None and (scorn := _after_excerpt(text, reply, prompt, reading, network)) is not None:
        value, confidence, source = -1, scorn, "classifier"
        reason = f"words of the reply or request repeated, then a complaint of {scorn:.2f}"
    if source == "classifier" and value == -1 and not is_other_answer and is_bare_number(text):
        value, confidence, source = None, 0.0, ""
        reason = "a number may be what is asked next"
    if (
        value != -1
        and reading.neither < OVERRULES
        and reading.praise < AGREES_PRAISE
        and (wish := _opening_wish(text, reply, network)) is not None
    ):
        value, confidence, source = -1, wish, "classifier"
        reason = f"classifier: complaint {wish:.2f} in a sentence of its own"
    if source == "classifier" and len(text) > _LONG and not _has_sentence(text, reply, value, network):
        value, confidence, source = None, 0.0, ""
        reason = "a long text without a sentence that reacts by itself"
    if source == "classifier" and value == -1 and confidence < CERTAIN and _is_bare_question(text):
        value, confidence, source = None, 0.0, ""
        reason = f"a question that does not speak of the reply; complaint {reading.complaint:.2f}"
    if value == 1 and (doubt := _doubts_praise(own, reply, reaction, network)):
        value, confidence, source = None, 0.0, ""
        reason = doubt
    if source == "classifier" and value == -1 and _PERMITS.search(text) and _AGAIN.search(text):
        value, confidence, source = None, 0.0, ""
        reason = "it allows something for the future and does not say that the reply was bad"
    if value == -1 and not is_other_answer and _says_what_is_liked(own):
        value, confidence, source = None, 0.0, ""
        reason = "it says what is liked"
    value, confidence, source, reason = _read_whole(text, prompt) or (value, confidence, source, reason)
    hint = None
    if value == -1:
        own_hint = bounded([text.strip()]) if is_other_answer else None
        hint = own_hint or _hint(text, reply, reaction, reading, network)
    return Message(
        value=value,
        confidence=round(confidence, 3),
        hint=hint,
        source=source,
        is_sure=value is not None
        and (
            max(reading.complaint, reading.praise) >= CERTAIN
            or (source == "rule" and any(is_precise(name, value) for name in reaction.patterns))
        ),
        patterns=reaction.patterns,
        reading=reading,
        reason=reason,
    )


def _name_emoji(text: str) -> str:
    """Return a message with a word for each emoji that it speaks of; "no 😂" does not speak of one."""
    named = _NAMED_EMOJI.sub(r"\1emojis", text)
    return named if len(tokens_of(named)) > 2 else text


def _read_whole(text: str, prompt: str) -> tuple[int | None, float, str, str] | None:
    """Return value, confidence, source and reason of a message that is known as a whole, otherwise None."""
    if prompt and fold(prompt) == fold(text):
        return None, 0.0, "", "it repeats the request word for word"
    if _DENIED_FAULT.fullmatch(text):
        return 1, CERTAIN, "rule", "it denies a fault"
    if _CLOSING.fullmatch(text):
        return None, 0.0, "", "it ends the conversation"
    return None


def _says_what_is_liked(text: str) -> bool:
    """Whether one sentence says what is liked, without a contrast after it."""
    return bool(_LIKING.match(text)) and not _CONTRAST.search(text) and len(split_sentences(text)) == 1


def _own_words(text: str) -> str:
    """Return a message with a word without a meaning for each quotation, and without the text that a task is about."""
    head, colon, about = text.partition(":")
    if colon and about.strip() and starts_task(head) and read_reaction(head).value is None:
        return head
    unquoted = _QUOTATION.sub(_UNKNOWN, text[:_MOST_QUOTED]) + text[_MOST_QUOTED:]
    return unquoted if content_words(unquoted.replace(_UNKNOWN, " ")) else text


def _decide(text: str, reaction: Reaction, reading: Reading) -> tuple[int | None, float, str, str]:
    likely = f"classifier: complaint {reading.complaint:.2f}, praise {reading.praise:.2f}"
    names = ", ".join(reaction.patterns)
    if reaction.value in (-1, 1):
        agreed = reading.complaint if reaction.value == -1 else reading.praise
        opposed = reading.praise if reaction.value == -1 else reading.complaint
        precise = any(is_precise(name, reaction.value) for name in reaction.patterns)
        if agreed >= (AGREES if reaction.value == -1 else AGREES_PRAISE):
            return (
                reaction.value,
                max(agreed, reaction.confidence),
                "rule",
                f"pattern {names}, confirmed by the {likely}",
            )
        if precise and opposed < OVERRULES and reading.neither < OVERRULES:
            return (
                reaction.value,
                reaction.confidence,
                "rule",
                f"pattern {names}, precise enough to decide alone",
            )
    if reading.complaint >= ALONE_COMPLAINT or (reading.complaint >= STATED_COMPLAINT and label_wishes(text)):
        return -1, reading.complaint, "classifier", likely
    if reading.praise >= (OVERRULES if reaction.value == -1 else ALONE_PRAISE):
        return 1, reading.praise, "classifier", likely
    if reaction.value is not None:
        return (
            None,
            0.0,
            "",
            f"pattern {names} is not precise enough to decide alone and the {likely} does not confirm it",
        )
    return None, 0.0, "", f"undecided: {likely}"


def _is_bare_no(text: str, reply: str) -> bool:
    """Whether a message is nothing but "no", and answers no question."""
    words = tokens_of(text)
    return (
        0 < len(words) <= 3
        and words[0] in NEGATORS
        and not any(w[0].isalnum() for w in words if w not in NEGATORS)
        and not ends_in_question(reply)
    )


def _no_then_wish(text: str, reply: str, network: Classifier) -> float | None:
    """Return the probability that what follows a bare "no" is a complaint: "No, answer in one word."."""
    opening, rest = _after_opening(text)
    if not rest or not (
        _is_bare_no(opening, reply) or (_NO.fullmatch(opening) and not ends_in_question(reply))
    ):
        return None
    complaint = network.read(rest, reply=reply).complaint
    return complaint if complaint >= SURE_COMPLAINT else None


def _doubts_praise(text: str, reply: str, reaction: Reaction, network: Classifier) -> str:
    """Return why words of praise may not be praise, or "": they stand in a question, or an event against the reply follows them."""
    opening, rest = _after_opening(text)
    whole, first, event = (network.read(part, reply=reply) for part in (text, opening, rest))
    if not rest or first.praise < _ASIDE:
        asks = ends_in_question(text) or _is_bare_question(text)
        return "a question with words of praise" if asks and reaction.value != 1 else ""
    if _is_own_matter(rest):
        return ""
    if event.complaint >= _AGAINST:
        return f"praise, then an event against the reply; complaint {event.complaint:.2f}"
    suspicious = event.complaint >= _SUSPICIOUS or whole.praise < SURE_PRAISE
    if (
        event.praise < _ASIDE
        and suspicious
        and whole.praise < CERTAIN
        and not _THANKS & set(fold(opening).split())
    ):
        return f"praise, then an event that may be sarcasm; praise {whole.praise:.2f}"
    return ""


def _denies_reply(text: str, reply: str, prompt: str) -> bool:
    """Whether a short message says "not" before a word that only the reply has, and names something that the reply has not: "pies, nie kot"."""
    tokens = [token for token in tokens_of(text) if token[0].isalnum()]
    if len(tokens) > _MAX_DENIAL or ends_in_question(reply):
        return False
    theirs, asked = set(tokens_of(reply)), set(tokens_of(prompt))
    denied = {
        word
        for negator, *after in zip(tokens, tokens[1:], [*tokens[2:], ""], strict=False)
        if negator in NEGATORS
        for word in after
        if word in theirs - asked - NEGATORS and (len(word) > 2 or not word.isascii())
    }
    return bool(denied) and bool(set(tokens) - theirs - asked - NEGATORS)


def _after_excerpt(text: str, reply: str, prompt: str, whole: Reading, network: Classifier) -> float | None:
    """Return the probability that a message which first repeats words of the reply or request complains of them: "45 minutes? For an egg?"."""
    found = _EXCERPT.match(text.strip())
    if found is None:
        return None
    words = fold(found["quoted"] or found["line"] or found["asked"]).split()
    source = fold(f"{prompt} {reply}")
    if not words or not set(words) - NEGATORS or not set(words) <= set(source.split()) | _LINKS:
        return None
    rest = found["rest"].strip()
    read = network.read(rest, reply=reply) if rest else whole
    complaint = max(read.complaint, whole.complaint)
    return complaint if complaint >= _DOUBTED and min(read.neither, whole.neither) < 0.5 else None


def _praise_then_harm(text: str, reply: str, whole: Reading, network: Classifier) -> float | None:
    """Return the probability that an event behind words of praise is a complaint, if the whole message is rather one too."""
    opening, rest = _after_opening(text)
    if whole.complaint < _LEANS or not rest or network.read(opening, reply=reply).praise < _ASIDE:
        return None
    complaint = network.read(rest, reply=reply).complaint
    return complaint if complaint >= _AGAINST else None


def _after_opening(text: str) -> tuple[str, str]:
    """Split after the first clause; the second part is "" where there is none."""
    found = _CLAUSE.search(text)
    return (text[: found.start()], text[found.end() :].strip()) if found else (text, "")


def _is_bare_question(text: str) -> bool:
    """Whether a message is nothing but a new question, by its form: what the classifier says of its words is then less certain."""
    sentences = classify(text)
    return bool(sentences) and all(one.role is Role.QUESTION for one in sentences)


def _has_sentence(text: str, reply: str, value: int | None, network: Classifier) -> bool:
    """Whether one of the first two sentences or the last one says by itself what the whole text was read as."""
    sentences = split_sentences(without_code(text))
    for sentence in [*sentences[:2], *sentences[-1:]]:
        reading = network.read(sentence, reply=reply)
        if (reading.complaint if value == -1 else reading.praise) >= SURE_COMPLAINT and len(
            sentence
        ) <= _LONG:
            return True
    return False


def _opening_wish(text: str, reply: str, network: Classifier) -> float | None:
    """Return the probability of a wish in a sentence of its own that no question or task precedes, if a pattern agrees."""
    sentences = split_sentences(without_code(text[:1000]))
    if not 2 <= len(sentences) <= 6:
        return None
    for sentence in sentences:
        if _is_own_matter(sentence) and read_reaction(sentence).value is None:
            return None
        reading = network.read(sentence, reply=reply)
        stated = reading.wish + reading.fault
        own = read_reaction(sentence, reply=reply)
        if own.value != -1 or stated <= reading.blame:
            continue
        if stated >= SURE_COMPLAINT:
            return stated
        if reading.neither < OVERRULES and any(is_precise(name, -1) for name in own.patterns):
            return own.confidence
    return None


def _hint(text: str, reply: str, reaction: Reaction, reading: Reading, network: Classifier) -> str | None:
    """The words that state a wish, a correction or a fault: without praise, questions of their own and quotes of the reply."""
    kept: list[str] = []
    dropped = False
    parts = _parts(text)
    # As a whole it is sarcasm or a bare rejection: only a part that is a wish by itself can teach.
    needs_wish = len(parts) > 1 and reading.blame >= SURE_COMPLAINT
    asks = False
    for part, opens in parts:
        bare = _LEADING.sub("", part).strip() if opens or len(parts) > 1 else part
        if not bare:
            continue
        own = network.read(bare) if len(parts) > 1 else reading
        is_rule_complaint = len(parts) > 1 and read_reaction(bare).value == -1
        states = own.wish + own.fault
        if (own.praise >= _ASIDE and not is_rule_complaint) or (needs_wish and own.wish < SURE_COMPLAINT):
            dropped = True
        elif asks and not (own.complaint >= SURE_COMPLAINT and own.fault + own.blame > own.wish):
            dropped = True  # "What is X? Keep it short." is about the next reply
        elif own.neither >= _ASIDE and not is_rule_complaint and _is_own_matter(bare):
            dropped, asks = True, asks or bool(kept)
        elif own.blame > states and own.blame >= LEANS and not _has_matter(bare, reaction):
            dropped = True
        elif repeats_reply(bare, reply):
            dropped = True  # the reply itself is no hint
        else:
            kept.append(bare)
    if not kept or not content_words(" ".join(kept)):
        return None  # "wrong": nothing that a teacher could use
    if not dropped and without_code(text) == text.strip():
        return bounded([text.strip()])
    return bounded([" ".join(kept)])


def _parts(text: str) -> list[tuple[str, bool]]:
    """Sentences, cut again where a contrast begins; with each, whether it opens with one."""
    found: list[tuple[str, bool]] = []
    for sentence in split_sentences(without_code(text[:4000]))[:40]:
        pieces = [piece for piece in _CONTRAST.split(sentence) if piece and piece.strip()]
        # "just shorter" has nothing before its "just"
        merged: list[str] = []
        for piece in pieces:
            is_alone = len(tokens_of(piece)) < 2 or _WHEN.fullmatch(piece.strip())
            if merged and (len(tokens_of(merged[-1])) < 1 or is_alone):
                merged[-1] += " " + piece
            else:
                merged.append(piece)
        found += [(piece.strip(), index > 0) for index, piece in enumerate(merged)]
    return found


def _is_own_matter(part: str) -> bool:
    """Whether a part that says nothing of the reply is a question, a task or thanks rather than an explanation."""
    roles = {sentence.role for sentence in classify(part)}
    return bool(roles & {Role.QUESTION, Role.THANKS}) or starts_task(part) or "?" in part or "？" in part


def _has_matter(part: str, reaction: Reaction) -> bool:
    """Whether a rejection names something: "the date is wrong" does, "wrong" and sarcasm do not."""
    return reaction.value == -1 and reaction.hint is not None and len(fold(part).split()) >= 7
