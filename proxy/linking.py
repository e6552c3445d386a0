"""Which conversation does this request continue? Sans-IO: a history and the stored turns it may rest on in, a `Link` out.

Clients of a chat API re-send the whole history, so a request names its own parent: the stored turn whose prompt + reply is
the longest prefix of its messages. The caller fetches the candidates (`History.keys`) from the record: pure, I/O, pure.

What is decided, in this order:

1. a session named by the client: its newest turn, unless the history itself names another turn of it;
2. `next` / `branch`: the longest stored prefix that ends with a reply. Housekeeping (side) turns that stand in between are
   stepped over, so that the person's next words answer the person's last turn, not a heartbeat;
3. `retry`: the very same prompt asked again, an implicit negative for the turn it repeats. A conversation that starts again
   from its first message is a new session; only an identical body while nothing has followed is a retry of it;
4. the reply was altered beyond recognition, but the prompt before it is known: as 2, less certain;
5. `compaction`: the beginning was dropped or replaced by a summary, but an exchange (what was asked and what was
   answered) near the end is one we recorded, word for word or with other words around it, or the summary is. Where a later turn had
   kept what came after the summary and this one has not, the person went back: a branch that answers nothing;
6. a fresh request that *quotes* recorded turns: a history written out as one prompt goes on with it, anything else works on
   the conversation and is housekeeping of its session. Housekeeping that came first is joined by the opening it quotes;
7. else `first`. Below a threshold a new session is started rather than a guess made.

Each way of linking has its confidence (`CONFIDENCE`), which is recorded with the turn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.canonical import History, Mark, Message
from proxy.quotes import FOUND, Quote, last_words, newest_words
from proxy.words import content_text
from store.hashing import digest
from store.values import Relation, Tip, TurnKind

#: An exchange (question and answer), an answer alone, or an opening shorter than this (canonical characters) is too common
#: to be recognised by.
TELLING_EXCHANGE = 40
TELLING_ANSWER = 100
TELLING_OPENING = 20

#: Lines found on a page, fewer characters than this are chance.
TELLING_LINES = 12
#: An answer of another agent that is heard as a user's words: shorter ones people say as well.
TELLING_ECHO = 24

SUMMARISED = "the beginning was replaced by a recorded summary"

#: How sure each way of linking is.
CONFIDENCE: Mapping[str, float] = {
    "the history ends a recorded turn": 1.0,
    "the same prompt asked again": 1.0,
    "opening": 1.0,
    "a recorded exchange, its history rewritten": 0.9,
    "newest turn of the named session": 0.9,
    "the prompt quotes a recorded exchange and waits for the next line": 0.9,
    "the beginning was replaced; a recorded exchange remains": 0.8,
    "the oldest part was dropped; a recorded exchange remains": 0.9,
    SUMMARISED: 0.8,
    "the prompt before the last answer was recorded, the answer altered": 0.8,
    "a recorded exchange with other words around it": 0.7,
    "a side turn's answer stands in its history": 0.7,
    "quotes a recorded exchange": 0.9,
    "quotes a recorded answer": 0.7,
    "quotes a recorded question": 0.6,
    "the housekeeping before it quotes it": 0.8,
    "the first message was edited": 0.6,
    "the first message after a recorded summary was edited": 0.6,
    "nothing recorded is a prefix of it": 0.5,
}

#: Of identical conversations that wait for their next turn, those begun within so many seconds are taken in turn.
_SAME_TIME_S = 3600.0
#: … and, of those that have only just begun, with no more than so many main turns between one and the next.
_BESIDE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """Housekeeping that came before the conversation it is about."""

    session_id: str


@dataclass(slots=True, kw_only=True)
class Known:
    """The stored turns that a history may rest on, newest first under each key.

    Attributes:
        replies: by key of prompt + reply.
        requests: by key of the prompt.
        exchanges: by `exchange_key` (the last question and its answer, whatever came before).
        identical: turn ids among ``requests`` whose whole body was the same, byte for byte as JSON.
        same_setting: turn ids that had the very system prompt of this request.
        order: turn id -> which main turn of its scope it was; consecutive numbers were sent one after the other.
        openings: first turns that the opening of this request extends or cuts short, newest first.
        quotes: turns whose words stand in a fresh request, or in what was put before a history.
        echoes: turns whose exchange stands in the history with other words around it, and the number of its mark.
        orphans: housekeeping that quotes this opening and has no conversation yet, oldest first.
        echo_of: the turn whose answer is heard again as this request's user message.
        checked: turns that this request looks at with another system prompt, to fill in a form.
        is_silent: the reply to this request is a token that only a program reads.
        waits_for_line: the request is a dialogue written out, and the next speaker's name stands at its end.
        is_of_the_past: the request is a chore that is only done for conversations that have been held: a summary, a memory.
        is_ordered: the request is fresh, and says what a recorded turn told one of its tools.
    """

    replies: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    requests: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    exchanges: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    identical: Collection[str] = ()
    same_setting: Collection[str] = ()
    order: Mapping[str, int] = field(default_factory=dict)
    openings: Sequence[Tip] = ()
    quotes: Sequence[Quote] = ()
    echoes: Sequence[tuple[Quote, int]] = ()
    orphans: Sequence[Orphan] = ()
    echo_of: Quote | None = None
    checked: Collection[str] = ()
    is_silent: bool = False
    waits_for_line: bool = False
    is_ordered: bool = False
    is_of_the_past: bool = False


@dataclass(slots=True, kw_only=True)
class Link:
    """How a request stands to what was recorded.

    Attributes:
        parent: the turn that is one step up the tree; for a retry the parent of the turn that is repeated.
        answered: the turn whose next state this request is; the parent, or for a retry the repeated turn.
        following: messages that followed ``answered``'s reply; where the history is written out in one prompt, the
            person's newest words in it.
        session_id: None for a new session.
        kind_reason: why it is of this kind, where the conversation tells and not the request by itself.
    """

    relation: Relation
    kind: TurnKind
    session_id: str | None
    parent_turn_id: str | None
    turn_index: int
    answered: str | None
    following: tuple[Message, ...]
    confidence: float
    reason: str
    kind_reason: str | None = None


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A key to find a recorded answer by, apart from the history before it.

    Attributes:
        mark: the answer inside the history; None when the key is of a turn that is being recorded.
        is_telling: long enough to be recognised by alone; a short one only counts inside a session known otherwise.
    """

    key: str
    mark: Mark | None
    is_telling: bool


def exchange_keys(
    root: str, question: Mark | None, answer_own: str, answer_size: int, mark: Mark | None = None
) -> list[Exchange]:
    """Return the keys of a question with its answer and of the answer alone, the more telling first.

    The second because clients wrap questions, and take the wrapping off again, but echo answers.
    """
    keys = []
    if question is not None:
        size = question.size + answer_size
        key = digest("exchange", root, question.last, answer_own)
        keys.append(Exchange(key=key, mark=mark, is_telling=size >= TELLING_EXCHANGE))
    key = digest("answer", root, answer_own)
    keys.append(Exchange(key=key, mark=mark, is_telling=answer_size >= TELLING_ANSWER))
    return keys


def exchanges_of(history: History) -> list[Exchange]:
    """Return the keys of every exchange in the history, newest first."""
    marks = history.marks
    found: list[Exchange] = []
    for i in range(len(marks) - 1, -1, -1):
        if marks[i].role == "assistant":
            question = marks[i - 1] if i else None
            found += exchange_keys(history.root, question, marks[i].own, marks[i].size, marks[i])
    return found


def link(
    history: History, known: Known, kind: TurnKind, *, session: str | None = None, tip: Tip | None = None
) -> Link:
    """Decide what a request continues.

    Args:
        kind: what the request is by itself (`classify`); a turn that only carries on with tool results takes over
            its parent's kind.
        session: session named by the client.
        tip: newest main turn of that session.
    """
    best, mark, candidates = _longest_reply(history, known, session)
    kind_reason = None
    if best is not None and _carries_on(history, mark, best):
        kind, kind_reason = TurnKind.SIDE, "carries on with a side turn's tools"
    if kind is TurnKind.MAIN and session is None and _is_echo(known.echo_of, best):
        kind, kind_reason = TurnKind.SIDE, "agent_to_agent"
    if kind is TurnKind.MAIN and session is None and best is not None and best.turn_id in known.checked:
        kind, kind_reason = TurnKind.SIDE, "guardrail"
    if kind is TurnKind.MAIN and session is None and known.is_silent:
        kind, kind_reason = TurnKind.SIDE, "silent_reply"
    if kind is TurnKind.MAIN and session is None and known.is_ordered:
        kind, kind_reason = TurnKind.SIDE, "subagent"
    found = _decide(history, known, kind, session, tip, best, mark, candidates)
    return replace(found, kind_reason=kind_reason) if found.kind_reason is None else found


def _decide(
    history: History,
    known: Known,
    kind: TurnKind,
    session: str | None,
    tip: Tip | None,
    best: Tip | None,
    mark: Mark | None,
    candidates: Sequence[Tip],
) -> Link:
    if session is not None:
        return _in_session(history, known, kind, session, tip, best, mark)
    if kind is TurnKind.MAIN and best is not None and best.kind is TurnKind.SIDE:
        best, mark = _stepped_over(history, known, best, mark, candidates)
    altered = _altered_reply(history, known, mark)
    repeated = _repeated(history, known, best)
    if repeated is not None:
        # Two conversations with the same words have the same chores: what quotes one is not asked again for the other.
        about = _quoting(history, known, kind) if history.is_opening else None
        if about is not None and about.session_id != repeated.session_id:
            return about
        if about is not None or kind is TurnKind.MAIN or not history.is_opening:
            return _retry(repeated, kind if about is None else about.kind)
    if best is not None and altered is None:
        # Something behind it may have been changed (old tool results are cleared): a later exchange of the same session counts more.
        later = _exchange(history, known, best.session_id) if mark is not None else None
        if later is not None and mark is not None and later[1].end > mark.end:
            return _continued(history, *later, kind, "a recorded exchange, its history rewritten")
        return _continued(history, best, mark, kind, "the history ends a recorded turn")
    exchange = _exchange(history, known, best.session_id if best is not None else None)
    if exchange is None and altered is not None:
        exchange = _exchange(history, known, altered[0].session_id)
    if exchange is not None and (mark is None or exchange[1].end > mark.end):
        found, at = exchange
        if best is None and (altered is None or altered[0].session_id != found.session_id):
            return _shortened(history, known, found, at, kind)
        return _continued(history, found, at, kind, "a recorded exchange, its history rewritten")
    if altered is not None:
        found, at = altered
        reason = "the prompt before the last answer was recorded, the answer altered"
        return _continued(history, found, at, kind, reason)
    echo = _echo(history, known)
    if echo is not None:
        return _continued(history, *echo, kind, "a recorded exchange with other words around it")
    return (
        _quoting(history, known, kind)
        or _echoed_side(history, known, kind)
        or _reopened(history, known, kind)
        or _first(history, known, kind)
    )


def _reopened(history: History, known: Known, kind: TurnKind) -> Link | None:
    """The very first message was edited: its words were carried on, or cut short, and the conversation starts again."""
    if kind is TurnKind.SIDE or not known.openings or known.orphans:
        return None
    if known.requests.get(history.request_key):
        return None  # these very words opened a conversation before: it is another one
    return _edited(known.openings[0], kind, "the first message was edited")


def _edited(edited: Tip, kind: TurnKind, reason: str) -> Link:
    """Return a link beside ``edited``, in whose place something else was asked: that answers nothing."""
    return Link(
        relation=Relation.BRANCH,
        kind=kind,
        session_id=edited.session_id,
        parent_turn_id=edited.parent_turn_id,
        turn_index=edited.turn_index,
        answered=None,
        following=(),
        confidence=CONFIDENCE[reason],
        reason=reason,
    )


def _first(history: History, known: Known, kind: TurnKind) -> Link:
    reason = "opening" if history.is_opening else "nothing recorded is a prefix of it"
    session = None
    if known.orphans:
        session, reason = known.orphans[0].session_id, "the housekeeping before it quotes it"
    return Link(
        relation=Relation.FIRST,
        kind=kind,
        session_id=session,
        parent_turn_id=None,
        turn_index=0,
        answered=None,
        following=(),
        confidence=CONFIDENCE[reason],
        reason=reason,
    )


# ------------------------------------------------------------------------ quotes


def _is_echo(echo: Quote | None, best: Tip | None) -> bool:
    """Another agent's answer is heard as a user's words: not the answer that this history itself goes on from."""
    return (
        echo is not None and echo.size >= TELLING_ECHO and (best is None or echo.tip.turn_id != best.turn_id)
    )


def _quoting(history: History, known: Known, kind: TurnKind) -> Link | None:
    """Link a request by the recorded turns that it quotes, if it quotes any."""
    telling = [q for q in known.quotes if q.size >= TELLING_LINES]
    exchanges = [q for q in telling if q.is_exchange]
    if kind is TurnKind.MAIN:
        if history.is_opening and known.waits_for_line and exchanges:
            last = max(exchanges, key=lambda q: (q.place, q.tip.is_newest, q.tip.created_at))
            return _written_out(history, last.tip)
        summaries = [q for q in telling if _is_summary(q) and q.newest]
        if summaries:
            last = max(summaries, key=lambda q: q.tip.created_at)
            return _summarised(history, known, last)
        if exchanges and history.is_opening:
            return _about(_most(exchanges), "quotes a recorded exchange", "works on a recorded conversation")
        return None
    if not history.is_opening:
        return None
    answers = [q for q in telling if q.said >= FOUND]
    if exchanges:
        return _about(_most(exchanges), "quotes a recorded exchange")
    if answers:
        return _about(_most(answers), "quotes a recorded answer")
    asked = [q for q in known.quotes if q.asked >= FOUND and not q.has_chore]
    # An opening that was carried on long ago may be asked anew in a moment: then a title is about what comes, a summary never.
    questions = [q for q in asked if q.tip.is_newest] or [
        q for q in asked if q.size >= TELLING_LINES and (q.tip.turn_index or known.is_of_the_past)
    ]
    return _about(_most(questions), "quotes a recorded question") if questions else None


def _is_summary(quote: Quote) -> bool:
    return quote.tip.kind is TurnKind.SIDE and quote.said >= FOUND and quote.size >= TELLING_LINES


def _most(quotes: Sequence[Quote]) -> Quote:
    """Of the turns a chore quotes take the newest of the conversation that is quoted most; of equal ones the latest."""
    sizes: dict[str, int] = {}
    for quote in quotes:
        sizes[quote.tip.session_id] = sizes.get(quote.tip.session_id, 0) + quote.size

    def rank(quote: Quote) -> tuple[bool, int, float]:
        return not quote.has_chore, sizes[quote.tip.session_id], quote.tip.created_at

    session = max(quotes, key=rank).tip.session_id
    return max((q for q in quotes if q.tip.session_id == session), key=lambda q: q.tip.created_at)


def _about(quote: Quote, reason: str, kind_reason: str | None = None) -> Link:
    """Housekeeping of the quoted turn's session."""
    return Link(
        relation=Relation.NEXT,
        kind=TurnKind.SIDE,
        session_id=quote.tip.session_id,
        parent_turn_id=quote.tip.turn_id,
        turn_index=quote.tip.turn_index + 1,
        answered=None,
        following=(),
        confidence=CONFIDENCE[reason],
        reason=reason,
        kind_reason=kind_reason,
    )


def _written_out(history: History, parent: Tip) -> Link:
    text = "\n".join(content_text(m.get("content")) for m in history.messages if m.get("role") == "user")
    words = {"role": "user", "content": last_words(text)}
    reason = "the prompt quotes a recorded exchange and waits for the next line"
    return Link(
        relation=Relation.NEXT if parent.is_newest else Relation.BRANCH,
        kind=TurnKind.MAIN,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered=parent.turn_id,
        following=(words,),
        confidence=CONFIDENCE[reason],
        reason=reason,
    )


def _summarised(history: History, known: Known, quote: Quote) -> Link | None:
    """The history before this request is a summary that a side turn of the session wrote."""
    parent = quote.newest
    if parent is None:
        return None
    if quote.is_left_behind:
        # What came after the summary is gone: the person went back, and nobody can see to which turn.
        reason = "the first message after a recorded summary was edited"
        return _edited(replace(parent, parent_turn_id=None), TurnKind.MAIN, reason)
    words = newest_words(history.messages)
    if known.waits_for_line:
        words = last_words(words)
    following = ({"role": "user", "content": words},) if history.is_opening else _newest(history)
    return Link(
        relation=Relation.COMPACTION,
        kind=TurnKind.MAIN,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered=parent.turn_id,
        following=following,
        confidence=CONFIDENCE[SUMMARISED],
        reason=SUMMARISED,
    )


def _newest(history: History) -> tuple[Message, ...]:
    answers = [m.end for m in history.marks if m.role == "assistant"]
    return history.following(answers[-1] if answers else 0)


def _echo(history: History, known: Known) -> tuple[Tip, Mark] | None:
    """Return the newest recorded exchange that stands in the history with other words around it."""
    for quote, number in known.echoes:
        is_telling = quote.said >= FOUND and (
            (quote.asked > 0 and quote.size >= TELLING_LINES)
            or (quote.asks_nothing and quote.size >= TELLING_EXCHANGE)
        )
        if is_telling and quote.tip.kind is TurnKind.MAIN:
            return quote.tip, history.marks[number]
    return None


def _echoed_side(history: History, known: Known, kind: TurnKind) -> Link | None:
    """A side turn's answer (a plan, a summary) was put into the history as if it had been said in it."""
    for quote, _ in known.echoes:
        if quote.said < FOUND or quote.size < TELLING_ECHO or quote.tip.kind is TurnKind.MAIN:
            continue
        if quote.newest is not None:
            return _summarised(history, known, quote)
        reason = "a side turn's answer stands in its history"
        return Link(
            relation=Relation.FIRST,
            kind=kind,
            session_id=quote.tip.session_id,
            parent_turn_id=None,
            turn_index=0,
            answered=None,
            following=(),
            confidence=CONFIDENCE[reason],
            reason=reason,
        )
    return None


def _carries_on(history: History, mark: Mark | None, parent: Tip) -> bool:
    """Tool results alone carry on with what their parent, a side turn, was about."""
    if mark is None or parent.kind is TurnKind.MAIN:
        return False
    return {m.role for m in history.marks if m.end > mark.end} == {"tool"}


# ------------------------------------------------------------------- exact keys


def _longest_reply(
    history: History, known: Known, session: str | None
) -> tuple[Tip | None, Mark | None, Sequence[Tip]]:
    for mark in reversed(history.marks):
        if mark.role != "assistant":
            continue
        tips = [t for t in known.replies.get(mark.key, ()) if session is None or t.session_id == session]
        if tips:
            return _prefer(tips, known), mark, tips
    return None, None, ()


def _prefer(tips: Sequence[Tip], known: Known) -> Tip:
    """Of turns with the same history and reply take one that nothing has followed yet, else the newest.

    Where some had the very system prompt of this request (another character, another mode), only those count.
    Identical conversations of one scope are told apart only by who is still waiting: those begun together are taken in turn. Of several
    answers to one prompt (retries) the newest counts, and once one of them was continued the others wait no more.
    """
    alike = [t for t in tips if t.turn_id in known.same_setting]
    if alike and len(alike) < len(tips) and any(t.is_newest for t in alike):
        tips = alike
    for wanted in (TurnKind.MAIN, TurnKind.SIDE):
        decided = {(t.session_id, t.parent_turn_id) for t in tips if not t.is_newest and t.kind is wanted}
        waiting: dict[tuple[str, str | None], Tip] = {}
        for tip in tips:  # newest first
            place = (tip.session_id, tip.parent_turn_id)
            if tip.is_newest and tip.kind is wanted and place not in decided:
                waiting.setdefault(place, tip)
        if waiting:
            return _begun_together(list(waiting.values()), known)[-1]
    return next((t for t in tips if t.kind is TurnKind.MAIN), tips[0])


def _begun_together(waiting: Sequence[Tip], known: Known) -> list[Tip]:
    """Return the newest of identical conversations and those that went on beside it, newest first.

    One that was left alone while others were held is over: a person does not go back to it to say the same again.
    """
    together = [waiting[0]]
    for tip in waiting[1:]:
        newer = together[-1]
        if newer.created_at - tip.created_at >= _SAME_TIME_S:
            break
        if newer.turn_id in known.order and tip.turn_id in known.order:
            apart = known.order[newer.turn_id] - known.order[tip.turn_id]
            if apart > (_BESIDE if tip.turn_index == 0 else 1):
                break
        together.append(tip)
    return together


def _stepped_over(
    history: History,
    known: Known,
    best: Tip,
    mark: Mark | None,
    candidates: Sequence[Tip],
) -> tuple[Tip, Mark | None]:
    """Return the longest prefix that is a main turn; the side turn itself when there is none."""
    for candidate in candidates:
        if candidate.kind is TurnKind.MAIN:
            return candidate, mark
    for other in reversed(history.marks):
        if other.role == "assistant" and (mark is None or other.end < mark.end):
            tips = [t for t in known.replies.get(other.key, ()) if t.kind is TurnKind.MAIN]
            if tips:
                return _prefer(tips, known), other
    return best, mark


def _repeated(history: History, known: Known, best: Tip | None) -> Tip | None:
    same = known.requests.get(history.request_key, ())
    if history.is_opening:
        if sum(mark.size for mark in history.marks) < TELLING_OPENING:
            return None
        return next((t for t in same if t.turn_id in known.identical and t.is_newest), None)
    if best is not None and best.is_newest:
        return None  # another conversation with the same beginning is still waiting for exactly this
    if best is not None:
        return next((t for t in same if t.session_id == best.session_id), None)
    return same[0] if same else None


def _altered_reply(history: History, known: Known, found: Mark | None) -> tuple[Tip, Mark] | None:
    """Return the newest recorded prompt inside the history, beyond ``found``, and the mark of the answer after it."""
    marks = history.marks
    for i in range(len(marks) - 1, 0, -1):
        if found is not None and marks[i].end <= found.end:
            return None
        if marks[i].role != "assistant":
            continue
        same = known.requests.get(marks[i - 1].key, ())
        tips = [t for t in same if t.kind is TurnKind.MAIN and t.is_newest]
        if tips:
            return _prefer(tips, known), marks[i]
    return None


def _exchange(history: History, known: Known, session: str | None) -> tuple[Tip, Mark] | None:
    """Return the newest recorded exchange in the history; ``session`` is what other evidence says, if any."""
    if not known.exchanges:
        return None  # nobody has asked for them: the newest answer tells. Making all their keys would cost as much as the history is long
    found = exchanges_of(history)
    if session is None:
        # A summary that we saw being written says whose conversation it is the beginning of.
        session = next((q.tip.session_id for q in known.quotes if _is_summary(q)), None)
    if session is None:
        for exchange in found:
            tips = [t for t in known.exchanges.get(exchange.key, ()) if t.kind is TurnKind.MAIN]
            if tips and exchange.is_telling:
                session = _prefer(tips, known).session_id
                break
    for exchange in found:
        tips = [
            t
            for t in known.exchanges.get(exchange.key, ())
            if t.kind is TurnKind.MAIN
            and (t.session_id == session or (session is None and exchange.is_telling))
        ]
        if tips and exchange.mark is not None:
            return _prefer(tips, known), exchange.mark
    return None


def _continued(
    history: History,
    parent: Tip,
    mark: Mark | None,
    kind: TurnKind,
    reason: str,
    confidence: float | None = None,
) -> Link:
    following = history.following(mark.end if mark is not None else len(history.messages))
    return Link(
        relation=Relation.NEXT if parent.is_newest or kind is TurnKind.SIDE else Relation.BRANCH,
        kind=kind,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered=parent.turn_id if kind is TurnKind.MAIN and following else None,
        following=following,
        confidence=CONFIDENCE[reason] if confidence is None else confidence,
        reason=reason,
    )


def _starts_inside(known: Known, parent: Tip) -> bool:
    """The first words that are left are words of the session itself, not a summary of it."""
    mine = [q for q in known.quotes if q.tip.session_id == parent.session_id]
    return any(q.tip.kind is TurnKind.MAIN for q in mine) and not any(_is_summary(q) for q in mine)


def _shortened(history: History, known: Known, parent: Tip, mark: Mark, kind: TurnKind) -> Link:
    """The beginning is gone: a summary stands in its place, or nothing does."""
    following = history.following(mark.end)
    dropped = "the oldest part was dropped; a recorded exchange remains"
    replaced = "the beginning was replaced; a recorded exchange remains"
    reason = dropped if _starts_inside(known, parent) else replaced
    return Link(
        relation=Relation.COMPACTION if kind is TurnKind.MAIN else Relation.NEXT,
        kind=kind,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered=parent.turn_id if kind is TurnKind.MAIN and following else None,
        following=following,
        confidence=CONFIDENCE[reason],
        reason=reason,
    )


def _retry(repeated: Tip, kind: TurnKind) -> Link:
    return Link(
        relation=Relation.RETRY,
        kind=kind,
        session_id=repeated.session_id,
        parent_turn_id=repeated.parent_turn_id,
        turn_index=repeated.turn_index,
        answered=repeated.turn_id if kind is TurnKind.MAIN and repeated.kind is TurnKind.MAIN else None,
        following=(),
        confidence=1.0,
        reason="the same prompt asked again",
    )


def _in_session(
    history: History,
    known: Known,
    kind: TurnKind,
    session: str,
    tip: Tip | None,
    best: Tip | None,
    mark: Mark | None,
) -> Link:
    """The client named the session: only turns of it count, and its newest one is the parent when history tells no other."""
    same = [t for t in known.requests.get(history.request_key, ()) if t.session_id == session]
    if same and (best is None or not best.is_newest):
        return _retry(same[0], kind)
    if best is not None:
        return _continued(history, best, mark, kind, "session named by the client", 1.0)
    if tip is not None:
        # Clients that name a session may send only what is new: everything after the last answer followed the tip.
        answers = [m for m in history.marks if m.role == "assistant"]
        return _continued(history, tip, answers[-1] if answers else None, kind, "newest turn of the named session") if answers else Link(
            relation=Relation.NEXT,
            kind=kind,
            session_id=session,
            parent_turn_id=tip.turn_id,
            turn_index=tip.turn_index + 1,
            answered=tip.turn_id if kind is TurnKind.MAIN else None,
            following=history.messages,
            confidence=0.9,
            reason="newest turn of the named session",
        )  # fmt: skip
    return Link(
        relation=Relation.FIRST,
        kind=kind,
        session_id=session,
        parent_turn_id=None,
        turn_index=0,
        answered=None,
        following=(),
        confidence=1.0,
        reason="session named by the client",
    )
