"""What a person's message says about the reply before it, and what it asks of replies.

One classifier (`scorers.classifier`) reads the message as a whole and each of its clauses; word patterns are among its features. What follows
from its probabilities is here: the verdict, the words that may teach, and the words that state a wish, with its scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.classifier import Classifier, Reading, default_classifier
from scorers.evidence import says_nothing
from scorers.hints import content_words, repeats_reply
from scorers.lexicon import JUDGEMENTS
from scorers.own_words import Clause, clauses, hide_foreign
from scorers.reactions import MAX_REACTION, Role, bounded, classify, read_reaction, starts_task
from store.values import WishReading, WishScope

#: Least probability of a complaint, and of praise, with which a message is one: on reactions that it was not trained on, .95 of what the
#: classifier reads so is right (lab/research/2026-11-29-reader.md).
COMPLAINT, PRAISE = 0.84, 0.87
#: ... of a complaint where a clause states a lasting wish or is a certain complaint; and of any reaction for such a wish: a task with such words in
#: its text is none.
STATED = 0.5
#: ... before a judge is asked. What is decided with less yields to a judge that disagrees.
CERTAIN = 0.9
#: Least probability that a clause asks something of replies.
ASKS = 0.5
#: From this probability on a clause is praise, blame, or none of it, and no hint.
ASIDE = 0.6
#: Longer texts are documents as often as reactions, in characters: their first two clauses and the last are read.
LONG = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a message says about the reply before it.

    Attributes:
        value: -1 complaint, correction or wish; +1 praise or acceptance; None: undecided.
        confidence: in [0, 1].
        hint: the person's words that state a wish or correction, None where there are none.
        wish: what it asks of replies, None where it asks nothing of them.
        source: "rule" where a word pattern says the same, otherwise "classifier"; "" when undecided.
        is_sure: no judge needs to be asked.
        patterns: names of the word patterns that matched.
        reading: the classifier's probabilities of the whole message.
        reason: one sentence for a person.
    """

    value: int | None
    confidence: float
    hint: str | None
    wish: WishReading | None
    source: str
    is_sure: bool
    patterns: tuple[str, ...]
    reading: Reading
    reason: str


@dataclass(frozen=True, slots=True)
class _Read:
    """A clause and the classifier's probabilities of it."""

    clause: Clause
    reading: Reading

    @property
    def asks(self) -> float:
        return 1 - self.reading.scopes["none"]

    @property
    def is_blame(self) -> bool:
        """Whether it rather says what is bad than what is wanted: "Too long."."""
        if self.reading.fault + self.reading.blame > self.reading.wish:
            return True
        return not JUDGEMENTS.isdisjoint(read_reaction(self.clause.text).patterns)


def read_message(
    text: str, *, reply: str = "", prompt: str = "", classifier: Classifier | None = None
) -> Message:
    """Read ``text``, a person's message that followed ``reply``.

    Args:
        prompt: what the reply answers; a message that repeats it word for word, a bare number that corrects none, and a farewell are undecided.
        classifier: default: the one of this repository.
    """
    network = classifier or default_classifier()
    is_void = says_nothing(text, reply, prompt)
    parts = [] if is_void else clauses(text)
    own = hide_foreign(text).strip()
    if len(own) > LONG:
        own = " ".join(part.text for part in (*parts[:2], *parts[2:][-1:]))[: 2 * LONG]
    reading = network.read(own, reply=reply, prompt=prompt)
    read = [
        _Read(part, network.read(part.text, reply=reply, prompt=prompt, before=part.before, after=part.after))
        for part in parts
    ]
    wish, asked = _find_wish(text, read)
    if wish is not None and wish.scope is WishScope.LASTING and reading.complaint + reading.praise < STATED:
        wish, asked = None, []
    is_lasting = wish is not None and wish.scope is WishScope.LASTING
    # A wish, or a certain complaint before anything else, is less plain in the whole message than by itself.
    plain = asked if is_lasting else [one for one in read[:1] if one.reading.complaint >= CERTAIN]
    complaint = max([reading.complaint, *(one.reading.complaint for one in plain)])
    praise = reading.praise
    if wish is not None and wish.scope is WishScope.WITHDRAWAL and len(read) > 1:
        # A withdrawal is no opinion of the reply: praise before it counts by itself.
        first = network.read(read[0].clause.text, reply=reply, prompt=prompt)
        praise = first.praise if first.praise >= CERTAIN else praise
    value: int | None = None
    if not is_void and reading.complaint >= (STATED if plain else COMPLAINT):
        value = -1
    elif not is_void and praise >= PRAISE:
        value = 1
    confidence = {-1: complaint, 1: praise}.get(value or 0, 0.0)
    hint = None
    if value == -1:
        hint = bounded([wish.text]) if wish is not None and is_lasting else _hint(text, reply, reading, read)
    reaction = read_reaction(own, reply=reply)
    reason = f"complaint {reading.complaint:.2f}, praise {reading.praise:.2f}"
    if wish is not None:
        reason += f"; {wish.scope.value} wish {max(one.asks for one in asked):.2f}"
    return Message(
        value=value,
        confidence=round(confidence, 3),
        hint=hint,
        wish=wish,
        source="" if value is None else "rule" if reaction.value == value else "classifier",
        is_sure=value is not None and confidence >= CERTAIN,
        patterns=reaction.patterns,
        reading=reading,
        reason=f"classifier: {reason}",
    )


def _find_wish(text: str, read: Sequence[_Read]) -> tuple[WishReading | None, list[_Read]]:
    """Return the wish, and the clauses that state it: neighbours of one scope, without blame beside what is wanted."""
    asking = [one for one in read if one.asks >= ASKS]
    if not asking:
        return None, []
    weight = {scope: sum(one.reading.scopes[scope] for one in asking) for scope in WishScope}
    scope = max(WishScope, key=lambda one: weight[one])
    stating = [
        one for one in asking if max(WishScope, key=lambda s: one.reading.scopes[s]) is scope
    ] or asking
    wanted = [one for one in stating if not one.is_blame] or stating
    run = [wanted[0]]
    for one in wanted[1:]:
        if read.index(one) == read.index(run[-1]) + 1:
            run.append(one)
        elif one.asks > max(before.asks for before in run):
            run = [one]
    words = text[run[0].clause.start : run[-1].clause.end]
    return (WishReading(text=words, scope=scope), run) if len(words) <= MAX_REACTION else (None, [])


def _hint(text: str, reply: str, reading: Reading, read: Sequence[_Read]) -> str | None:
    """The words that state a correction or a fault: without praise, questions of their own and quotes of the reply."""
    kept: list[_Read] = []
    # As a whole it is sarcasm or a bare rejection: only a part that is a wish by itself can teach.
    needs_wish = len(read) > 1 and reading.blame >= ASIDE
    for one in read:
        own, words = one.reading, text[one.clause.start : one.clause.end]
        is_complaint = len(read) > 1 and read_reaction(one.clause.text).value == -1
        if (own.praise >= ASIDE and not is_complaint) or (needs_wish and own.wish < ASIDE):
            continue
        if own.neither >= ASIDE and not is_complaint and _is_own_matter(one.clause.text):
            if kept:
                break  # "What is X? Keep it short." is about the next reply
            continue
        if (
            own.blame > own.wish + own.fault
            and own.blame >= ASKS
            and not (own.fault > 0.2 and len(words.split()) > 6)
        ):
            continue
        if not repeats_reply(words, reply):
            kept.append(one)
    words = (
        text.strip()
        if len(kept) == len(read)
        else " ".join(text[k.clause.start : k.clause.end] for k in kept)
    )
    if not content_words(words):
        return None  # "wrong": nothing that a teacher could use
    return bounded([words])


def _is_own_matter(part: str) -> bool:
    """Whether a clause that says nothing of the reply is a question, a task or thanks rather than an explanation."""
    roles = {sentence.role for sentence in classify(part)}
    return bool(roles & {Role.QUESTION, Role.THANKS}) or starts_task(part) or "?" in part or "？" in part
