"""Linking: decides which conversation a request continues. Sans-IO: a history and candidate turns in, a `TurnLink` out.

Clients of a chat API send the whole history again, so a request names its own parent: the stored turn whose prompt + reply is the longest prefix
of its messages. The caller fetches the candidates (`History.keys`) from the record: pure, I/O, pure.

Order of the decision:

1. A session named by the client: its newest turn, unless the history names another turn of it.
2. `next` / `branch`: the longest stored prefix that ends with a reply. Side turns in between are skipped, so that the user's next message
   answers the user's last turn and not a heartbeat.
3. `retry`: a person asked the same again: the same client, at a person's pace, after a complete reply that nothing has followed. It answers
   nothing yet: the verdict waits until the newer reply is continued (`TurnIndex.earlier_next_states`). A conversation that starts again from
   its first message is a new session; only an identical body is a retry. Samples of one prompt (n > 1, another seed, sent before an earlier
   reply was complete or faster than a person reads) are a branch that answers nothing; the same opening from another client, or much later,
   is a new session.
4. The reply was altered, but the prompt before it is known: as 2, with less confidence.
5. `compaction`: the beginning was dropped or replaced by a summary, but a prompt with its reply near the end is recorded, exactly or with
   other text around it, or the summary is. Where a later turn kept what followed the summary and this one has not, the user went back: a
   branch that answers nothing.
6. A fresh request that *quotes* recorded turns: a written-out history continues it; anything else works on the conversation and is a side turn
   of its session. A side turn that came first is joined by the opening that it quotes.
7. Otherwise `first`. Below a threshold a new session starts; nothing is guessed.

Each way of linking is a `LinkReason` with a confidence (`CONFIDENCE`). Both are stored with the turn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile

from recorder.canonical import History, Message, RoleRun
from recorder.text_overlap import MATCH_SHARE, Quote, last_utterance, newest_user_text
from store.hashing import digest
from store.texts import content_text
from store.values import Relation, Tip, TurnKind
from wire.user_text import next_state_text

#: A prompt with its reply, a reply alone, or an opening shorter than this (canonical characters) is too common to identify a conversation.
MIN_EXCHANGE_CHARS = 40
MIN_ANSWER_CHARS = 100
MIN_OPENING_CHARS = 20

#: Fewer matching characters than this are chance.
MIN_QUOTE_CHARS = 12
#: A shorter reply that appears as a user message may be the user's own.
MIN_ECHO_CHARS = 24


class LinkReason(StrEnum):
    """Why a request was linked as it was: the code that is stored with the turn."""

    EXACT_PREFIX = "exact_prefix"
    SAME_PROMPT = "same_prompt"
    OPENING = "opening"
    NAMED_SESSION = "named_session"
    NAMED_SESSION_TIP = "named_session_tip"
    REWRITTEN_HISTORY = "rewritten_history"
    WRITTEN_OUT_DIALOGUE = "written_out_dialogue"
    BEGINNING_REPLACED = "beginning_replaced"
    RECORDED_SUMMARY = "recorded_summary"
    ALTERED_REPLY = "altered_reply"
    WRAPPED_EXCHANGE = "wrapped_exchange"
    INSERTED_SIDE_REPLY = "inserted_side_reply"
    QUOTED_EXCHANGE = "quoted_exchange"
    QUOTED_REPLY = "quoted_reply"
    QUOTED_PROMPT = "quoted_prompt"
    QUOTED_BY_SIDE_TURN = "quoted_by_side_turn"
    DROPPED_REPLY = "dropped_reply"
    CORRECTED = "corrected"
    EDITED_OPENING = "edited_opening"
    EDITED_AFTER_SUMMARY = "edited_after_summary"
    NO_RECORDED_PREFIX = "no_recorded_prefix"


#: How certain each way of linking is.
CONFIDENCE: Mapping[LinkReason, float] = {
    LinkReason.EXACT_PREFIX: 1.0,
    LinkReason.SAME_PROMPT: 1.0,
    LinkReason.OPENING: 1.0,
    LinkReason.NAMED_SESSION: 1.0,
    LinkReason.NAMED_SESSION_TIP: 0.9,
    LinkReason.REWRITTEN_HISTORY: 0.9,
    LinkReason.WRITTEN_OUT_DIALOGUE: 0.9,
    LinkReason.BEGINNING_REPLACED: 0.8,
    LinkReason.RECORDED_SUMMARY: 0.8,
    LinkReason.ALTERED_REPLY: 0.8,
    LinkReason.WRAPPED_EXCHANGE: 0.7,
    LinkReason.INSERTED_SIDE_REPLY: 0.7,
    LinkReason.QUOTED_EXCHANGE: 0.9,
    LinkReason.QUOTED_REPLY: 0.7,
    LinkReason.QUOTED_PROMPT: 0.6,
    LinkReason.QUOTED_BY_SIDE_TURN: 0.8,
    LinkReason.DROPPED_REPLY: 0.8,
    LinkReason.CORRECTED: 1.0,
    LinkReason.EDITED_OPENING: 0.6,
    LinkReason.EDITED_AFTER_SUMMARY: 0.6,
    LinkReason.NO_RECORDED_PREFIX: 0.5,
}

#: The sentence that is displayed for each code.
LINK_MEANINGS: Mapping[str, str] = {
    LinkReason.EXACT_PREFIX: "the request repeats a recorded turn and its reply exactly",
    LinkReason.SAME_PROMPT: "the same prompt was sent again",
    LinkReason.OPENING: "the history holds no reply yet",
    LinkReason.NAMED_SESSION: "the client named the session",
    LinkReason.NAMED_SESSION_TIP: "the client named the session; this is its newest turn",
    LinkReason.REWRITTEN_HISTORY: "the history contains a recorded exchange, but what precedes it was rewritten",
    LinkReason.WRITTEN_OUT_DIALOGUE: "the prompt writes out a recorded dialogue and ends where the next line begins",
    LinkReason.BEGINNING_REPLACED: "the beginning of the history was dropped or replaced; a recorded exchange remains",
    LinkReason.RECORDED_SUMMARY: "the beginning of the history was replaced by a recorded summary",
    LinkReason.ALTERED_REPLY: "the prompt before the last reply is recorded; the reply was altered",
    LinkReason.WRAPPED_EXCHANGE: "the history contains a recorded exchange with other text around it",
    LinkReason.INSERTED_SIDE_REPLY: "the history contains the reply of a side turn",
    LinkReason.QUOTED_EXCHANGE: "quotes a recorded exchange",
    LinkReason.QUOTED_REPLY: "quotes a recorded reply",
    LinkReason.QUOTED_PROMPT: "quotes a recorded prompt",
    LinkReason.QUOTED_BY_SIDE_TURN: "an earlier side turn quotes this opening",
    LinkReason.CORRECTED: "what followed showed where it belongs",
    LinkReason.DROPPED_REPLY: "a framework rejected a reply and left it out of the history",
    LinkReason.EDITED_OPENING: "the first message of a recorded conversation was edited",
    LinkReason.EDITED_AFTER_SUMMARY: "the first message after a recorded summary was edited",
    LinkReason.NO_RECORDED_PREFIX: "no recorded turn is a prefix of the history",
}

#: Identical conversations that wait for their next turn are distinguished by order if they began within this many seconds.
_PARALLEL_WINDOW_S = 3600.0
#: … and, for new ones, if at most this many main turns lie between them.
_MAX_TURNS_APART = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """The session of a side turn that preceded the conversation it is about."""

    session_id: str


@dataclass(slots=True, kw_only=True)
class LinkCandidates:
    """The stored turns that a history may continue, newest first under each key.

    Attributes:
        replies: by key of prompt + reply.
        requests: by key of the prompt.
        exchanges: by answer key (`answer_keys`), independent of the history before it.
        same_body: turn ids among ``requests`` with an identical body.
        same_calls: turn ids whose tool calls stand in this request by their very ids.
        nearest_system: turn ids whose system prompt shares most with this request's.
        turn_order: turn id -> number of the main turn of its key; consecutive numbers were sent one after the other.
        openings: first turns that this request's opening extends or shortens, newest first.
        quotes: turns quoted in a fresh request, or in what precedes a history.
        echoes: turns whose exchange the history contains with other text around it, and the number of its run.
        orphans: side turns that quote this opening and have no conversation yet, oldest first.
        rejected: turns whose prompt a framework's text extends where their reply stood.
        echoed_answer: the turn of an agent's reply that is this request's user message.
        inspected: turns that this request reads under another system prompt, to fill in a form.
        awaits_next_line: the request writes out a dialogue and ends with the next speaker's name.
        concerns_past_only: the request is of a kind that exists only for past conversations: a summary, a memory.
        is_structured: the reply is forced into a schema: a program reads it.
        is_delegated: the request is fresh and repeats what a recorded turn passed to a tool.
        same_form: the main turn whose question and answer this request writes out in the same form, and the request's new words;
            one at most.
        is_sample: the request draws another sample for a prompt, which is no opinion about the earlier replies.
        asked_again: turns that a person may have asked again with this request.
    """

    replies: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    requests: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    exchanges: Mapping[str, Sequence[Tip]] = field(default_factory=dict)
    same_body: Collection[str] = ()
    same_calls: Collection[str] = ()
    nearest_system: Collection[str] = ()
    turn_order: Mapping[str, int] = field(default_factory=dict)
    openings: Sequence[Tip] = ()
    quotes: Sequence[Quote] = ()
    echoes: Sequence[tuple[Quote, int]] = ()
    orphans: Sequence[Orphan] = ()
    rejected: Sequence[Tip] = ()
    echoed_answer: str | None = None
    inspected: Collection[str] = ()
    awaits_next_line: bool = False
    is_delegated: bool = False
    same_form: Sequence[tuple[Tip, str]] = ()
    is_sample: bool = False
    asked_again: Collection[str] = ()
    concerns_past_only: bool = False
    is_structured: bool = False


@dataclass(slots=True, kw_only=True)
class TurnLink:
    """How a request relates to the recorded turns.

    Attributes:
        parent_turn_id: the turn one step up the tree; for a retry, the parent of the repeated turn.
        answered_turn_id: the turn whose next state this request is: the parent; None for a retry.
        messages_after: messages that followed the answered turn's reply; in a written-out history, the user's newest text.
        session_id: None for a new session.
        kind_reason: code of the kind, where the conversation decides it and not the request alone.
    """

    relation: Relation
    kind: TurnKind
    session_id: str | None
    parent_turn_id: str | None
    turn_index: int
    answered_turn_id: str | None
    messages_after: tuple[Message, ...]
    confidence: float
    reason: LinkReason
    kind_reason: str | None = None


@dataclass(slots=True, kw_only=True)
class AnswerKey:
    """A key that finds a recorded reply independently of the history before it.

    Attributes:
        run: the reply inside the history; None when the key belongs to a turn that is being recorded.
        is_distinctive: long enough to identify a conversation; a shorter one counts only inside a session that is known otherwise.
    """

    key: str
    run: RoleRun | None
    is_distinctive: bool


def answer_keys(
    root: str, question: RoleRun | None, answer_own: str, answer_size: int, run: RoleRun | None = None
) -> list[AnswerKey]:
    """Return the keys of a prompt with its reply and of the reply alone, the more distinctive one first.

    The second exists because clients wrap prompts, and unwrap them again, but repeat replies exactly.
    """
    keys = []
    if question is not None:
        size = question.size + answer_size
        key = digest("exchange", root, question.last, answer_own)
        keys.append(AnswerKey(key=key, run=run, is_distinctive=size >= MIN_EXCHANGE_CHARS))
    key = digest("answer", root, answer_own)
    keys.append(AnswerKey(key=key, run=run, is_distinctive=answer_size >= MIN_ANSWER_CHARS))
    return keys


def history_answer_keys(history: History) -> list[AnswerKey]:
    """Return the keys of every reply in the history, newest first."""
    runs = history.runs
    found: list[AnswerKey] = []
    for i in range(len(runs) - 1, -1, -1):
        if runs[i].role == "assistant":
            question = runs[i - 1] if i else None
            found += answer_keys(history.root, question, runs[i].own, runs[i].size, runs[i])
    return found


def link(
    history: History,
    candidates: LinkCandidates,
    kind: TurnKind,
    *,
    session: str | None = None,
    tip: Tip | None = None,
) -> TurnLink:
    """Decide what a request continues.

    Args:
        kind: the request's own kind (`classify`); a turn that only continues with tool results takes its parent's kind.
        session: session named by the client.
        tip: newest main turn of that session.
    """
    parent, run, tips = _find_longest_reply(history, candidates, session)
    kind_reason = None
    if parent is not None and _continues_side_turn(history, run, parent):
        kind, kind_reason = TurnKind.SIDE, "side_tool_results"
    if kind is TurnKind.MAIN and session is None:
        before = None if parent is None else parent.turn_id
        checks = {
            "agent_to_agent": candidates.echoed_answer not in (None, before),
            "guardrail": before in candidates.inspected,
            "subagent": candidates.is_delegated,
        }
        kind_reason = next((reason for reason, holds in checks.items() if holds), None)
        kind = kind if kind_reason is None else TurnKind.SIDE
    found = _decide(history, candidates, kind, session, tip, parent, run, tips)
    return replace(found, kind_reason=kind_reason) if found.kind_reason is None else found


def _decide(
    history: History,
    candidates: LinkCandidates,
    kind: TurnKind,
    session: str | None,
    tip: Tip | None,
    parent: Tip | None,
    run: RoleRun | None,
    tips: Sequence[Tip],
) -> TurnLink:
    if session is not None:
        return _session_link(history, candidates, kind, session, tip, parent, run)
    if kind is TurnKind.MAIN and parent is not None and parent.kind is TurnKind.SIDE:
        parent, run = _skip_side_turns(history, candidates, parent, run, tips)
    altered = _find_altered_reply(history, candidates, run)
    again = _repeated_link(history, candidates, kind, parent)
    if again is not None:
        return again
    rejected = _rejected_reply(history, candidates, kind, parent)
    if rejected is not None:
        return rejected
    if parent is not None and altered is None:
        waiting = _waiting_exchange(history, candidates, kind, parent, run)
        if waiting is not None:
            return _continuation_link(history, waiting, run, kind, LinkReason.WRAPPED_EXCHANGE)
        # The history behind the parent may have been rewritten (old tool results cleared): a later exchange of the same session wins.
        later = _find_exchange(history, candidates, parent.session_id) if run is not None else None
        if later is not None and run is not None and later[1].end > run.end:
            return _continuation_link(history, *later, kind, LinkReason.REWRITTEN_HISTORY)
        return _continuation_link(history, parent, run, kind, LinkReason.EXACT_PREFIX)
    exchange = _find_exchange(history, candidates, parent.session_id if parent is not None else None)
    if exchange is None and altered is not None:
        exchange = _find_exchange(history, candidates, altered[0].session_id)
    if exchange is not None and (run is None or exchange[1].end > run.end):
        found, at = exchange
        if parent is None and (altered is None or altered[0].session_id != found.session_id):
            return _shortened_link(history, found, at, kind)
        return _continuation_link(history, found, at, kind, LinkReason.REWRITTEN_HISTORY)
    if altered is not None:
        found, at = altered
        reason = LinkReason.ALTERED_REPLY
        return _continuation_link(history, found, at, kind, reason)
    echo = _rewritten_exchange(history, candidates)
    if echo is not None:
        return _continuation_link(history, *echo, kind, LinkReason.WRAPPED_EXCHANGE)
    return (
        _quote_link(history, candidates, kind)
        or _inserted_side_answer(history, candidates, kind)
        or _reopened_link(history, candidates, kind)
        or _first_link(history, candidates, kind)
    )


def _repeated_link(
    history: History, candidates: LinkCandidates, kind: TurnKind, parent: Tip | None
) -> TurnLink | None:
    """Return the link of a request that repeats a recorded prompt: a person asks again, a program samples, or another side request begins alike."""
    repeated = _find_repeated(history, candidates, kind, parent)
    if repeated is not None and kind is TurnKind.MAIN and history.is_opening and not candidates.is_sample:
        # The same opening from another client, or much later, is another conversation.
        repeated = repeated if repeated.turn_id in candidates.asked_again else None
    if repeated is not None and kind is TurnKind.MAIN and not _is_asked_again(repeated, candidates):
        return _link_beside(repeated, kind, LinkReason.SAME_PROMPT)
    if repeated is not None:
        # Identical conversations have identical side requests: a request that quotes one session is not a retry in another.
        about = _quote_link(history, candidates, kind) if history.is_opening else None
        if about is not None and about.session_id != repeated.session_id:
            return about
        if about is not None or kind is TurnKind.MAIN or not history.is_opening:
            return _link_beside(
                repeated, kind if about is None else about.kind, LinkReason.SAME_PROMPT, Relation.RETRY
            )
    return None


def _rejected_reply(
    history: History, candidates: LinkCandidates, kind: TurnKind, parent: Tip | None
) -> TurnLink | None:
    """Return the continuation of a turn whose reply a framework rejected and left out of the history."""
    for tip in candidates.rejected if kind is TurnKind.MAIN else ():
        if tip.kind is kind and tip.is_newest and (parent is None or tip.parent_turn_id == parent.turn_id):
            found = _continuation_link(history, tip, None, kind, LinkReason.DROPPED_REPLY)
            return replace(found, messages_after=history.messages[-1:], answered_turn_id=tip.turn_id)
    return None


def _reopened_link(history: History, candidates: LinkCandidates, kind: TurnKind) -> TurnLink | None:
    """Return a branch when the first message of a recorded conversation was extended or shortened."""
    if kind is TurnKind.SIDE or not candidates.openings or candidates.orphans:
        return None
    if candidates.requests.get(history.request_key):
        return None  # the same opening exists: this is another conversation
    return _link_beside(candidates.openings[0], kind, LinkReason.EDITED_OPENING)


def _link_beside(
    tip: Tip, kind: TurnKind, reason: LinkReason, relation: Relation = Relation.BRANCH
) -> TurnLink:
    """Return a link beside a turn, which the request edits, samples or asks again; it answers nothing."""
    return TurnLink(
        relation=relation,
        kind=kind,
        session_id=tip.session_id,
        parent_turn_id=tip.parent_turn_id,
        turn_index=tip.turn_index,
        answered_turn_id=None,
        messages_after=(),
        confidence=CONFIDENCE[reason],
        reason=reason,
    )


def _link_first(kind: TurnKind, session_id: str | None, reason: LinkReason, confidence: float) -> TurnLink:
    """Return a link without a parent."""
    return TurnLink(
        relation=Relation.FIRST,
        kind=kind,
        session_id=session_id,
        parent_turn_id=None,
        turn_index=0,
        answered_turn_id=None,
        messages_after=(),
        confidence=confidence,
        reason=reason,
    )


def _first_link(history: History, candidates: LinkCandidates, kind: TurnKind) -> TurnLink:
    reason = LinkReason.OPENING if history.is_opening else LinkReason.NO_RECORDED_PREFIX
    session = None
    if candidates.orphans:
        session, reason = candidates.orphans[0].session_id, LinkReason.QUOTED_BY_SIDE_TURN
    return _link_first(kind, session, reason, CONFIDENCE[reason])


# ------------------------------------------------------------------------ quotes


def _quote_link(history: History, candidates: LinkCandidates, kind: TurnKind) -> TurnLink | None:
    """Return a link by the recorded turns that the request quotes, if any."""
    distinctive = [q for q in candidates.quotes if q.size >= MIN_QUOTE_CHARS]
    exchanges = [q for q in distinctive if q.is_exchange]
    answers = [q for q in distinctive if q.answer_share >= MATCH_SHARE]
    if kind is TurnKind.MAIN:
        if history.is_opening and candidates.awaits_next_line and exchanges:
            last = max(exchanges, key=lambda q: (q.position, q.tip.is_newest, q.tip.created_at))
            text = "\n".join(
                content_text(m.get("content")) for m in history.messages if m.get("role") == "user"
            )
            return _dialogue_link(last.tip, last_utterance(text))
        if candidates.same_form:
            return _dialogue_link(*candidates.same_form[0])
        summaries = [q for q in distinctive if _is_summary(q) and q.newest]
        summary = max(summaries, key=lambda q: q.tip.created_at) if summaries else None
        # A summary with a recorded exchange behind it is being updated; a conversation goes on with new words.
        is_update = (
            summary is not None
            and history.is_opening
            and any(q.position > summary.position for q in exchanges)
        )
        if summary is not None and not is_update:
            return _summary_link(history, candidates, summary)
        if exchanges and history.is_opening:
            return _side_link(
                _most_quoted(exchanges), LinkReason.QUOTED_EXCHANGE, "works_on_recorded_exchange"
            )
        if answers and history.is_opening and candidates.is_structured:
            return _side_link(_most_quoted(answers), LinkReason.QUOTED_REPLY, "works_on_recorded_reply")
        return None
    if not history.is_opening:
        return None
    if exchanges:
        return _side_link(_most_quoted(exchanges), LinkReason.QUOTED_EXCHANGE)
    if answers:
        return _side_link(_most_quoted(answers), LinkReason.QUOTED_REPLY)
    question_share = [
        q for q in candidates.quotes if q.question_share >= MATCH_SHARE and not q.has_same_side_turn
    ]
    # An opening with later turns may be sent again in a moment. A title may then be about the new conversation, a summary never is.
    questions = [q for q in question_share if q.tip.is_newest] or [
        q
        for q in question_share
        if q.size >= MIN_QUOTE_CHARS and (q.tip.turn_index or candidates.concerns_past_only)
    ]
    return _side_link(_most_quoted(questions), LinkReason.QUOTED_PROMPT) if questions else None


def _is_summary(quote: Quote) -> bool:
    return (
        quote.tip.kind is TurnKind.SIDE
        and quote.answer_share >= MATCH_SHARE
        and quote.size >= MIN_QUOTE_CHARS
    )


def _most_quoted(quotes: Sequence[Quote]) -> Quote:
    """Return the newest turn of the conversation that a side request quotes most; among equals the latest."""
    sizes: dict[str, int] = {}
    # Turns with the same text (a summary that was made again) are one quote.
    for session_id, _, size in {(q.tip.session_id, q.position, q.size) for q in quotes}:
        sizes[session_id] = sizes.get(session_id, 0) + size

    def rank(quote: Quote) -> tuple[bool, int, int, float]:
        return not quote.has_same_side_turn, quote.position, sizes[quote.tip.session_id], quote.tip.created_at

    session = max(quotes, key=rank).tip.session_id
    return max((q for q in quotes if q.tip.session_id == session), key=lambda q: q.tip.created_at)


def _side_link(quote: Quote, reason: LinkReason, kind_reason: str | None = None) -> TurnLink:
    """Return a side turn of the quoted turn's session."""
    return TurnLink(
        relation=Relation.NEXT,
        kind=TurnKind.SIDE,
        session_id=quote.tip.session_id,
        parent_turn_id=quote.tip.turn_id,
        turn_index=quote.tip.turn_index + 1,
        answered_turn_id=None,
        messages_after=(),
        confidence=CONFIDENCE[reason],
        reason=reason,
        kind_reason=kind_reason,
    )


def _dialogue_link(parent: Tip, words: str) -> TurnLink:
    reason = LinkReason.WRITTEN_OUT_DIALOGUE
    return TurnLink(
        relation=Relation.NEXT if parent.is_newest else Relation.BRANCH,
        kind=TurnKind.MAIN,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered_turn_id=parent.turn_id,
        messages_after=({"role": "user", "content": words},),
        confidence=CONFIDENCE[reason],
        reason=reason,
    )


def _summary_link(history: History, candidates: LinkCandidates, quote: Quote) -> TurnLink | None:
    """Return the continuation of a session whose recorded summary replaces the history."""
    parent = quote.newest
    if parent is None:
        return None
    if quote.is_left_behind:
        # What followed the summary is gone: the user went back, to an unknown turn.
        reason = LinkReason.EDITED_AFTER_SUMMARY
        return _link_beside(replace(parent, parent_turn_id=None), TurnKind.MAIN, reason)
    words = newest_user_text(history.messages)
    if candidates.awaits_next_line:
        words = last_utterance(words)
    messages_after = (
        ({"role": "user", "content": words},) if history.is_opening else _messages_after_last_answer(history)
    )
    return TurnLink(
        relation=Relation.COMPACTION,
        kind=TurnKind.MAIN,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered_turn_id=parent.turn_id,
        messages_after=messages_after,
        confidence=CONFIDENCE[LinkReason.RECORDED_SUMMARY],
        reason=LinkReason.RECORDED_SUMMARY,
    )


def _messages_after_last_answer(history: History) -> tuple[Message, ...]:
    answers = [m.end for m in history.runs if m.role == "assistant"]
    return history.messages_after(answers[-1] if answers else 0)


def _rewritten_exchange(history: History, candidates: LinkCandidates) -> tuple[Tip, RoleRun] | None:
    """Return the newest recorded exchange that the history contains with other text around it."""
    for quote, number in candidates.echoes:
        is_distinctive = quote.answer_share >= MATCH_SHARE and (
            (quote.question_share > 0 and quote.size >= MIN_QUOTE_CHARS)
            or (quote.has_no_question and quote.size >= MIN_EXCHANGE_CHARS)
        )
        if is_distinctive and quote.tip.kind is TurnKind.MAIN:
            return quote.tip, history.runs[number]
    return None


def _waiting_exchange(
    history: History, candidates: LinkCandidates, kind: TurnKind, parent: Tip, run: RoleRun | None
) -> Tip | None:
    """Return a turn of another conversation that waits and has the exchange before ``run``'s end in another form, where the parent went on."""
    if run is None or kind is TurnKind.SIDE or parent.is_newest or parent.turn_id in candidates.same_calls:
        return None
    for quote, number in candidates.echoes:
        if history.runs[number].end != run.end:
            return None
        is_match = quote.answer_share >= MATCH_SHARE and quote.question_share > 0
        if (
            is_match
            and quote.tip.is_newest
            and quote.tip.kind is TurnKind.MAIN
            and quote.tip.session_id != parent.session_id
        ):
            return quote.tip
    return None


def _inserted_side_answer(history: History, candidates: LinkCandidates, kind: TurnKind) -> TurnLink | None:
    """Return a link to a side turn whose reply (a plan, a summary) was inserted into the history."""
    for quote, _ in candidates.echoes:
        if quote.answer_share < MATCH_SHARE or quote.size < MIN_ECHO_CHARS or quote.tip.kind is TurnKind.MAIN:
            continue
        if quote.newest is not None:
            return _summary_link(history, candidates, quote)
        reason = LinkReason.INSERTED_SIDE_REPLY
        return _link_first(kind, quote.tip.session_id, reason, CONFIDENCE[reason])
    return None


def _continues_side_turn(history: History, run: RoleRun | None, parent: Tip) -> bool:
    """Whether only tool results or a framework's text follow the parent, a side turn."""
    if run is None or parent.kind is TurnKind.MAIN:
        return False
    if {m.role for m in history.runs if m.end > run.end} == {"tool"}:
        return True
    reply = content_text(history.messages[run.end - 1].get("content"))
    found = next_state_text(history.messages_after(run.end), reply, history.system_text)
    return found is not None and found[0] in ("validator", "framework")


# ------------------------------------------------------------------- exact keys


def _find_longest_reply(
    history: History, candidates: LinkCandidates, session: str | None
) -> tuple[Tip | None, RoleRun | None, Sequence[Tip]]:
    for run in reversed(history.runs):
        if run.role != "assistant":
            continue
        tips = [t for t in candidates.replies.get(run.key, ()) if session is None or t.session_id == session]
        if tips:
            return _choose_tip(tips, candidates), run, tips
    return None, None, ()


def _choose_tip(tips: Sequence[Tip], candidates: LinkCandidates) -> Tip:
    """Return, of turns with the same history and reply, one that nothing has followed yet; otherwise the newest.

    Those whose tool calls have the ids that the request has are the request's own. Of the others, if some had the system prompt nearest to
    this one's (another character, another mode), only those count. Identical conversations of one key differ only by which of them waits:
    those that began together are used in order. Of several replies to one prompt (retries) the newest counts, and once one of them was
    continued, the others wait no more.
    """
    tips = [t for t in tips if t.turn_id in candidates.same_calls] or tips
    alike = [t for t in tips if t.turn_id in candidates.nearest_system]
    if any(t.is_newest for t in alike):
        tips = alike
    for wanted in (TurnKind.MAIN, TurnKind.SIDE):
        decided = {(t.session_id, t.parent_turn_id) for t in tips if not t.is_newest and t.kind is wanted}
        waiting: dict[tuple[str, str | None], Tip] = {}
        for tip in tips:  # newest first
            position = (tip.session_id, tip.parent_turn_id)
            if tip.is_newest and tip.kind is wanted and position not in decided:
                waiting.setdefault(position, tip)
        if waiting:
            return _parallel_conversations(list(waiting.values()), candidates)[-1]
    return next((t for t in tips if t.kind is TurnKind.MAIN), tips[0])


def _parallel_conversations(waiting: Sequence[Tip], candidates: LinkCandidates) -> list[Tip]:
    """Return the newest of identical conversations and those held in parallel with it, newest first.

    A conversation that was idle while others continued is over: users do not return to it to send the same message again.
    """
    together = [waiting[0]]
    for tip in waiting[1:]:
        newer = together[-1]
        if newer.created_at - tip.created_at >= _PARALLEL_WINDOW_S:
            break
        if newer.turn_id in candidates.turn_order and tip.turn_id in candidates.turn_order:
            apart = candidates.turn_order[newer.turn_id] - candidates.turn_order[tip.turn_id]
            if apart > (_MAX_TURNS_APART if tip.turn_index == 0 else 1):
                break
        together.append(tip)
    return together


def _skip_side_turns(
    history: History,
    candidates: LinkCandidates,
    parent: Tip,
    run: RoleRun | None,
    tips: Sequence[Tip],
) -> tuple[Tip, RoleRun | None]:
    """Return the longest prefix that is a main turn; the side turn itself when there is none."""
    for candidate in tips:
        if candidate.kind is TurnKind.MAIN:
            return candidate, run
    for other in reversed(history.runs):
        if other.role == "assistant" and (run is None or other.end < run.end):
            tips = [t for t in candidates.replies.get(other.key, ()) if t.kind is TurnKind.MAIN]
            if tips:
                return _choose_tip(tips, candidates), other
    return parent, run


def _find_repeated(
    history: History, candidates: LinkCandidates, kind: TurnKind, parent: Tip | None
) -> Tip | None:
    found = candidates.requests.get(history.request_key, ())
    # A program's request for the same text is asked again by no person.
    repeated_tips = [t for t in found if kind is TurnKind.SIDE or t.kind is kind]
    if history.is_opening:
        if sum(run.size for run in history.runs) < MIN_OPENING_CHARS:
            return None
        return next((t for t in repeated_tips if t.turn_id in candidates.same_body and t.is_newest), None)
    if parent is not None and parent.is_newest:
        return None  # another conversation with the same beginning waits for exactly this request
    if parent is not None:
        return next((t for t in repeated_tips if t.session_id == parent.session_id), None)
    return repeated_tips[0] if repeated_tips else None


def _find_altered_reply(
    history: History, candidates: LinkCandidates, found: RoleRun | None
) -> tuple[Tip, RoleRun] | None:
    """Return the newest recorded prompt inside the history, beyond ``found``, and the run of the reply after it."""
    runs = history.runs
    for i in range(len(runs) - 1, 0, -1):
        if found is not None and runs[i].end <= found.end:
            return None
        if runs[i].role != "assistant":
            continue
        repeated_tips = candidates.requests.get(runs[i - 1].key, ())
        tips = [t for t in repeated_tips if t.kind is TurnKind.MAIN and t.is_newest]
        if tips:
            return _choose_tip(tips, candidates), runs[i]
    return None


def _find_exchange(
    history: History, candidates: LinkCandidates, session: str | None
) -> tuple[Tip, RoleRun] | None:
    """Return the newest recorded exchange in the history; ``session`` is known from other evidence, if any."""
    if not candidates.exchanges:
        return None  # not fetched: the newest reply decides. Computing all keys costs as much as the history is long
    found = history_answer_keys(history)
    if session is None:
        # A recorded summary identifies the conversation whose beginning it replaces.
        session = next((q.tip.session_id for q in candidates.quotes if _is_summary(q)), None)
    if session is None:
        for exchange in found:
            tips = [t for t in candidates.exchanges.get(exchange.key, ()) if t.kind is TurnKind.MAIN]
            if tips and exchange.is_distinctive:
                session = _choose_tip(tips, candidates).session_id
                break
    for exchange in found:
        tips = [
            t
            for t in candidates.exchanges.get(exchange.key, ())
            if t.kind is TurnKind.MAIN
            and (t.session_id == session or (session is None and exchange.is_distinctive))
        ]
        if tips and exchange.run is not None:
            return _choose_tip(tips, candidates), exchange.run
    return None


def _continuation_link(
    history: History,
    parent: Tip,
    run: RoleRun | None,
    kind: TurnKind,
    reason: LinkReason,
    confidence: float | None = None,
) -> TurnLink:
    messages_after = history.messages_after(run.end if run is not None else len(history.messages))
    return TurnLink(
        relation=Relation.NEXT if parent.is_newest or kind is TurnKind.SIDE else Relation.BRANCH,
        kind=kind,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered_turn_id=parent.turn_id if kind is TurnKind.MAIN and messages_after else None,
        messages_after=messages_after,
        confidence=CONFIDENCE[reason] if confidence is None else confidence,
        reason=reason,
    )


def _shortened_link(history: History, parent: Tip, run: RoleRun, kind: TurnKind) -> TurnLink:
    """Return the continuation of a history whose beginning was replaced by a summary or dropped."""
    messages_after = history.messages_after(run.end)
    return TurnLink(
        relation=Relation.COMPACTION if kind is TurnKind.MAIN else Relation.NEXT,
        kind=kind,
        session_id=parent.session_id,
        parent_turn_id=parent.turn_id,
        turn_index=parent.turn_index + 1,
        answered_turn_id=parent.turn_id if kind is TurnKind.MAIN and messages_after else None,
        messages_after=messages_after,
        confidence=CONFIDENCE[LinkReason.BEGINNING_REPLACED],
        reason=LinkReason.BEGINNING_REPLACED,
    )


def _is_asked_again(repeated: Tip, candidates: LinkCandidates) -> bool:
    """Whether a person asked the same again, rather than a program that samples, polls or tests."""
    return repeated.is_newest and not candidates.is_sample and repeated.turn_id in candidates.asked_again


def _session_link(
    history: History,
    candidates: LinkCandidates,
    kind: TurnKind,
    session: str,
    tip: Tip | None,
    parent: Tip | None,
    run: RoleRun | None,
) -> TurnLink:
    """Link within the session that the client named; its newest turn is the parent when the history names no other."""
    repeated_tips = [t for t in candidates.requests.get(history.request_key, ()) if t.session_id == session]
    if repeated_tips and (parent is None or not parent.is_newest):
        if kind is TurnKind.MAIN and not _is_asked_again(repeated_tips[0], candidates):
            return _link_beside(repeated_tips[0], kind, LinkReason.SAME_PROMPT)
        return _link_beside(repeated_tips[0], kind, LinkReason.SAME_PROMPT, Relation.RETRY)
    if parent is not None:
        found = _continuation_link(history, parent, run, kind, LinkReason.NAMED_SESSION, 1.0)
        # Behind a reply that the client put there itself, a person reacts to that one.
        after = tuple(takewhile(lambda message: message.get("role") != "assistant", found.messages_after))
        return replace(found, messages_after=after)
    if tip is not None:
        # Clients that name a session may send only what is new: everything after the last reply followed the newest turn.
        answers = [m for m in history.runs if m.role == "assistant"]
        return _continuation_link(history, tip, answers[-1] if answers else None, kind, LinkReason.NAMED_SESSION_TIP) if answers else TurnLink(
            relation=Relation.NEXT,
            kind=kind,
            session_id=session,
            parent_turn_id=tip.turn_id,
            turn_index=tip.turn_index + 1,
            answered_turn_id=tip.turn_id if kind is TurnKind.MAIN else None,
            messages_after=history.messages,
            confidence=0.9,
            reason=LinkReason.NAMED_SESSION_TIP,
        )  # fmt: skip
    return _link_first(kind, session, LinkReason.NAMED_SESSION, 1.0)
