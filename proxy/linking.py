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
   answered) near the end is one we recorded;
6. else `first`. Below a threshold a new session is started rather than a guess made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from proxy.canonical import History, Mark, Message
from store.hashing import digest
from store.values import Relation, Tip, TurnKind

#: An exchange (question and answer), an answer alone, or an opening shorter than this (canonical characters) is too common
#: to be recognised by.
TELLING_EXCHANGE = 40
TELLING_ANSWER = 100
TELLING_OPENING = 20

#: Of identical conversations that wait for their next turn, those begun within so many seconds are taken in turn.
_SAME_TIME_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The stored turns that a history may rest on, newest first under each key.

    Attributes:
        replies: by key of prompt + reply.
        requests: by key of the prompt.
        exchanges: by `exchange_key` (the last question and its answer, whatever came before).
        identical: turn ids among ``requests`` whose whole body was the same, byte for byte as JSON.
    """

    replies: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    requests: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    exchanges: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    identical: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How a request stands to what was recorded.

    Attributes:
        parent: the turn that is one step up the tree; for a retry the parent of the turn that is repeated.
        answered: the turn whose next state this request is; the parent, or for a retry the repeated turn.
        following: messages that followed ``answered``'s reply.
        session_id: None for a new session.
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    best, mark, candidates = _longest_reply(history, known.replies, session)
    if best is not None:
        kind = _inherited(history, mark, best, kind)
    if session is not None:
        return _in_session(history, known, kind, session, tip, best, mark)
    if kind is TurnKind.MAIN and best is not None and best.kind is TurnKind.SIDE:
        best, mark = _stepped_over(history, known.replies, best, mark, candidates)
    altered = _altered_reply(history, known.requests, mark)
    repeated = _repeated(history, known, best)
    if repeated is not None:
        return _retry(repeated, kind)
    if best is not None and altered is None:
        return _continued(history, best, mark, kind, 1.0, "the history ends a recorded turn")
    evidence = best or (altered[0] if altered is not None else None)
    exchange = _exchange(history, known.exchanges, evidence.session_id if evidence is not None else None)
    if exchange is not None and (mark is None or exchange[1].end > mark.end):
        found, at = exchange
        if evidence is None:
            return _compaction(history, found, at, kind)
        return _continued(history, found, at, kind, 0.9, "a recorded exchange, its history rewritten")
    if altered is not None:
        found, at = altered
        return _continued(
            history,
            found,
            at,
            kind,
            0.8,
            "the prompt before the last answer was recorded, the answer altered",
        )
    return Link(
        relation=Relation.FIRST,
        kind=kind,
        session_id=None,
        parent_turn_id=None,
        turn_index=0,
        answered=None,
        following=(),
        confidence=1.0 if history.is_opening else 0.5,
        reason="opening" if history.is_opening else "nothing recorded is a prefix of it",
    )


def _longest_reply(
    history: History, replies: Mapping[str, Sequence[Tip]], session: str | None
) -> tuple[Tip | None, Mark | None, Sequence[Tip]]:
    for mark in reversed(history.marks):
        if mark.role != "assistant":
            continue
        tips = [t for t in replies.get(mark.key, ()) if session is None or t.session_id == session]
        if tips:
            return _prefer(tips), mark, tips
    return None, None, ()


def _prefer(tips: Sequence[Tip]) -> Tip:
    """Of turns with the same history and reply take one that nothing has followed yet, else the newest.

    Identical conversations of one scope are told apart only by who is still waiting: they are taken in turn. Of several
    answers to one prompt (retries) the newest counts, and once one of them was continued the others wait no more.
    """
    for wanted in (TurnKind.MAIN, TurnKind.SIDE):
        decided = {(t.session_id, t.parent_turn_id) for t in tips if not t.is_newest and t.kind is wanted}
        waiting: dict[tuple[str, str | None], Tip] = {}
        for tip in tips:  # newest first
            place = (tip.session_id, tip.parent_turn_id)
            if tip.is_newest and tip.kind is wanted and place not in decided:
                waiting.setdefault(place, tip)
        if waiting:
            newest = max(t.created_at for t in waiting.values())
            return min(
                (t for t in waiting.values() if newest - t.created_at < _SAME_TIME_S),
                key=lambda t: t.created_at,
            )
    return next((t for t in tips if t.kind is TurnKind.MAIN), tips[0])


def _inherited(history: History, mark: Mark | None, parent: Tip, kind: TurnKind) -> TurnKind:
    """Tool results alone carry on with what their parent was about."""
    if mark is not None and parent.kind is TurnKind.SIDE:
        roles = {m.role for m in history.marks if m.end > mark.end}
        if roles == {"tool"}:
            return TurnKind.SIDE
    return kind


def _stepped_over(
    history: History,
    replies: Mapping[str, Sequence[Tip]],
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
            tips = [t for t in replies.get(other.key, ()) if t.kind is TurnKind.MAIN]
            if tips:
                return _prefer(tips), other
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


def _altered_reply(
    history: History, requests: Mapping[str, Sequence[Tip]], found: Mark | None
) -> tuple[Tip, Mark] | None:
    """Return the newest recorded prompt inside the history, beyond ``found``, and the mark of the answer after it."""
    marks = history.marks
    for i in range(len(marks) - 1, 0, -1):
        if found is not None and marks[i].end <= found.end:
            return None
        if marks[i].role != "assistant":
            continue
        tips = [t for t in requests.get(marks[i - 1].key, ()) if t.kind is TurnKind.MAIN and t.is_newest]
        if tips:
            return _prefer(tips), marks[i]
    return None


def _exchange(
    history: History, exchanges: Mapping[str, Sequence[Tip]], session: str | None
) -> tuple[Tip, Mark] | None:
    """Return the newest recorded exchange in the history; ``session`` is what other evidence says, if any."""
    found = exchanges_of(history)
    if session is None:
        for exchange in found:
            tips = [t for t in exchanges.get(exchange.key, ()) if t.kind is TurnKind.MAIN]
            if tips and exchange.is_telling:
                session = _prefer(tips).session_id
                break
    for exchange in found:
        tips = [
            t
            for t in exchanges.get(exchange.key, ())
            if t.kind is TurnKind.MAIN
            and (t.session_id == session or (session is None and exchange.is_telling))
        ]
        if tips and exchange.mark is not None:
            return _prefer(tips), exchange.mark
    return None


def _continued(
    history: History, parent: Tip, mark: Mark | None, kind: TurnKind, confidence: float, reason: str
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
        confidence=confidence,
        reason=reason,
    )


def _compaction(history: History, parent: Tip, mark: Mark, kind: TurnKind) -> Link:
    following = history.following(mark.end)
    return Link(
        relation=Relation.COMPACTION if kind is TurnKind.MAIN else Relation.NEXT,
        kind=kind,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered=parent.turn_id if kind is TurnKind.MAIN and following else None,
        following=following,
        confidence=0.8,
        reason="the beginning was replaced; a recorded exchange remains",
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
        return _continued(history, best, mark, kind, 1.0, "session named by the client")
    if tip is not None:
        # Clients that name a session may send only what is new: everything after the last answer followed the tip.
        answers = [m for m in history.marks if m.role == "assistant"]
        return _continued(history, tip, answers[-1] if answers else None, kind, 0.9, "newest turn of the named session") if answers else Link(
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
