"""What a request may continue: one small finder for each reason to link. Sans-IO, over the index of turns.

`recorder.linking` decides among the candidates. Finders that cost more than a few look-ups are run only where keys find nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from recorder.canonical import History, Message, parse_history_from
from recorder.lazy import LazyMapping, LazySequence
from recorder.linking import MIN_ECHO_CHARS, MIN_QUOTE_CHARS, LinkCandidates, Orphan, history_answer_keys
from recorder.text_overlap import (
    Overlap,
    PromptLines,
    Quote,
    TurnLines,
    edge_lines,
    line_forms,
    measure_overlap,
    newest_user_text,
    next_speaker,
    read_prompt_lines,
    words_behind,
)
from recorder.turn_index import (
    INDEPENDENT_SIDE_REASONS,
    MIN_EDITED_OPENING_CHARS,
    IndexedTurn,
    TurnIndex,
    call_ids,
    form_ending,
    frame_of,
    newest_reply,
    opening_key,
    opening_text,
    sampling_of,
    system_lines,
    user_text,
)
from recorder.turns import ClassifiedExchange
from store.hashing import digest
from store.texts import content_text
from store.values import Tip, TurnKind
from wire.classify import is_structured
from wire.user_text import next_state_text, strip_reasoning

#: Turns that are measured against one prompt, newest first.
_MAX_MEASURED_TURNS = 48
#: Turns that share lines with a prompt, at most; those of its last lines come first.
_MAX_TURNS_FOUND = 1024
#: Time that a side turn waits for the conversation it is about: clients send both at the same time.
ORPHAN_TTL_S = 120.0
#: Side requests that come in parts, or repeatedly.
_REPEATABLE_SIDE_REASONS = frozenset(
    {"summary", "memory", "heartbeat", "text_function", "quoted_conversation"}
)
#: Side requests that concern only past conversations.
_PAST_SIDE_REASONS = frozenset({"summary", "memory"})
#: Side turns whose replies are an agent's words.
_AGENT_REASONS = frozenset({"agent_to_agent", "subagent"})
#: Characters at the end of a system prompt that are searched for a summary.
_SUMMARY_TAIL_CHARS = 4000
_LABEL = re.compile(r"^[^\n:.]{3,80}:(?=[ \t]+\S)", re.MULTILINE)
#: Seconds between a reply's end and the same request again within which a person may have asked again: below it a program samples or polls,
#: above it a schedule runs.
ASKED_AGAIN_S = (1.0, 900.0)
#: Newest runs of a history whose turns are told apart.
_MAX_RIVAL_RUNS = 16
#: Newest replies of a history whose exchange is looked for with other text around it.
_MAX_ECHOES = 4


class PrefixTips(Mapping[str, Sequence[Tip]]):
    """Turns under the keys of a history, looked up on access: a long history has hundreds of keys, and the newest decide."""

    def __init__(self, index: TurnIndex, kind: str, history: History) -> None:
        self._index, self._kind, self._history = index, kind, history

    def __getitem__(self, key: str) -> Sequence[Tip]:
        if not self._index.has(self._kind, key):
            raise KeyError(key)
        return self._index.tips(self._kind, key)

    def __iter__(self) -> Iterator[str]:
        return (run.key for run in self._history.runs if self._index.has(self._kind, run.key))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def find_candidates(
    index: TurnIndex,
    captured: ClassifiedExchange,
    *,
    replies: Mapping[str, Sequence[Tip]],
    requests: Mapping[str, Sequence[Tip]],
) -> LinkCandidates:
    """Return the candidates for a request, beside those that its exact keys find."""
    history = captured.history
    replies = _under_other_users(index, captured, replies)
    # If the newest reply is recorded exactly, most else is not looked up.
    is_exact = not history.is_opening and bool(replies.get(newest_reply(history).key))
    repeated = _entries(index, requests.get(history.request_key, ()))
    rivals = [tips for run in history.runs[-_MAX_RIVAL_RUNS:] if len(tips := replies.get(run.key, ())) > 1]
    quotable = history.messages if history.is_opening else history.messages[: history.runs[0].end]
    return LinkCandidates(
        replies=replies,
        requests=requests,
        exchanges={} if is_exact else LazyMapping(lambda: _exchanges(index, history)),
        same_body=_same_body(index, captured) if repeated else (),
        is_sample=_is_sample(captured, repeated),
        asked_again={e.tip.turn_id for e in repeated if _may_ask_again(captured, e)},
        same_calls=_same_calls(index, history, chain(*rivals)) if rivals else (),
        nearest_system={t for tips in rivals for t in _nearest_system(index, history, tips)},
        turn_order=LazyMapping(lambda: {e.tip.turn_id: e.number for e in _entries(index, chain(*rivals))}),
        openings=LazySequence(lambda: _edited_openings(index, history)),
        quotes=() if is_exact else LazySequence(lambda: _quotes(index, captured, quotable)),
        echoes=LazySequence(lambda: _echoes(index, history)),
        orphans=LazySequence(lambda: _orphans(index, captured)),
        rejected=LazySequence(lambda: _rejected(index, history)),
        echoed_answer=_echoed_answer(index, captured),
        inspected=_inspected(index, captured, replies),
        awaits_next_line=not is_exact and next_speaker(quotable, with_system=not history.is_opening) is not None,
        same_form=LazySequence(lambda: filter(None, [continued_form(index, captured)])),
        concerns_past_only=captured.kind.reason in _PAST_SIDE_REASONS,
        is_structured=is_structured(captured.chat.body),
        is_delegated=not is_exact and history.is_opening and _is_delegated(index, history),
    )  # fmt: skip


def _entries(index: TurnIndex, tips: Iterable[Tip]) -> list[IndexedTurn]:
    return [entry for tip in tips if (entry := index.get(tip.turn_id)) is not None]


# ----------------------------------------------------------------- of equal ones


def _exchanges(index: TurnIndex, history: History) -> dict[str, list[Tip]]:
    """Return the turns found by the answer keys of the history."""
    keys = {exchange.key for exchange in history_answer_keys(history)}
    return {key: index.tips("exchange", key) for key in keys if index.has("exchange", key)}


def _same_body(index: TurnIndex, captured: ClassifiedExchange) -> set[str]:
    """Return the turns with the same body that had ended before the request came: one in flight is of another conversation."""
    same = index.find("body", captured.key_name, captured.body_key)
    return {e.tip.turn_id for e in same if e.finished_at <= captured.created_at}


def _is_sample(captured: ClassifiedExchange, repeated: Sequence[IndexedTurn]) -> bool:
    """Whether a request draws another sample for the prompt of ``repeated`` (newest first) instead of asking again.

    It asks for several, or for another seed than the newest, or it came before an earlier reply was complete or faster than a person
    reads one.
    """
    return (
        captured.chat.n > 1
        or any(
            captured.created_at - e.finished_at < (ASKED_AGAIN_S[0] if e.client == captured.client else 0.0)
            for e in repeated
        )
        or (bool(repeated) and repeated[0].sampling != sampling_of(captured.chat.body))
    )


def _may_ask_again(captured: ClassifiedExchange, entry: IndexedTurn) -> bool:
    """Whether a person may ask a turn again with this request: same client, a person's pace, a complete reply."""
    least, most = ASKED_AGAIN_S
    is_same = entry.client == captured.client and entry.is_complete
    return is_same and least <= captured.created_at - entry.finished_at <= most


def _same_calls(index: TurnIndex, history: History, tips: Iterable[Tip]) -> set[str]:
    """Return which of the turns made, or ended a loop of, tool calls whose ids the request has."""
    entries = [e for e in _entries(index, tips) if e.call_ids]
    mine = call_ids(history.messages) if entries else frozenset()
    return {e.tip.turn_id for e in entries if not mine.isdisjoint(e.call_ids)}


def _nearest_system(index: TurnIndex, history: History, tips: Iterable[Tip]) -> set[str]:
    """Return which of the turns had this request's system prompt, or else the one that shares most lines with it."""
    entries = _entries(index, tips)
    equal = {e.tip.turn_id for e in entries if e.system_key == history.system_key}
    mine = system_lines(history)
    if equal or not mine:
        return equal
    shares = {e.tip.turn_id: len(mine & e.system_lines) / len(mine | e.system_lines) for e in entries}
    most = max(shares.values(), default=0.0)
    return {t for t, share in shares.items() if share == most} if most else set()


def _rejected(index: TurnIndex, history: History) -> list[Tip]:
    """Return the newest turns whose prompt a framework's text extends where their reply stood."""
    before = history.messages[:-1]
    if not before or before[-1].get("role") not in ("user", "tool"):
        return []
    spoken = next_state_text(history.messages[-1:], system=history.system_text)
    is_programs = spoken is not None and spoken[0] in ("validator", "framework")
    return index.tips("request", parse_history_from(history, before).request_key) if is_programs else []


def _edited_openings(index: TurnIndex, history: History) -> list[Tip]:
    """Return the first turns that this opening extends or shortens, newest first."""
    words = opening_text(history)
    if len(words) < MIN_EDITED_OPENING_CHARS:
        return []
    return [
        index.refresh(entry.tip)
        for entry in index.find(*opening_key(history.root, words))
        if len(entry.opening) != len(words)
        and (entry.opening.startswith(words) or words.startswith(entry.opening))
        and entry.system_key == history.system_key
    ]


# --------------------------------------------------------------- agents and tools


def _is_delegated(index: TurnIndex, history: History) -> bool:
    """Whether a fresh request repeats what a recorded turn passed to a tool: another agent was given the task."""
    words = edge_lines(newest_user_text(history.messages))
    return any(
        lines[-1] == line and set(lines) <= set(words)
        for line in reversed(words)
        for entry in index.find("order", history.root, line)
        for lines in entry.delegated_texts
    )


def _inspected(
    index: TurnIndex, captured: ClassifiedExchange, replies: Mapping[str, Sequence[Tip]]
) -> set[str]:
    """Return the turns that this request reads under another system prompt, to fill in a form."""
    if not is_structured(captured.chat.body):
        return set()
    mine = captured.history.system_key
    entries = _entries(index, chain(*replies.values()))
    return {e.tip.turn_id for e in entries if e.system_key != mine and e.freedom[0]}


def _echoed_answer(index: TurnIndex, captured: ClassifiedExchange) -> str | None:
    """Return the recorded turn whose reply, an agent's, equals this request's newest user message."""
    newest = captured.history.messages[-1] if captured.history.messages else {}
    words = edge_lines(content_text(newest.get("content"))) if newest.get("role") == "user" else ()
    for entry in index.find("answer", captured.history.root, words[-1]) if words else ():
        # What a client's own request got (a title, a question written anew) is repeated by no agent, and a person may write a few words of it.
        is_agents = entry.is_main or entry.side_reason in _AGENT_REASONS
        is_repeated = entry.trace.answer == words != entry.trace.question
        if is_agents and is_repeated and sum(map(len, words)) >= MIN_ECHO_CHARS:
            return entry.tip.turn_id
    return None


# ------------------------------------------------------------------------ quotes


def _orphans(index: TurnIndex, captured: ClassifiedExchange) -> list[Orphan]:
    """Return side turns that quote this opening (or what this side request quotes) and have no conversation yet, oldest first."""
    history, reason = captured.history, captured.kind.reason
    if not index.orphans or not history.is_opening or reason in INDEPENDENT_SIDE_REASONS:
        return []
    recent = [
        (session, orphan)
        for session, orphan in index.orphans.items()
        if orphan.root == history.root and abs(captured.created_at - orphan.created_at) < ORPHAN_TTL_S
    ]
    if captured.kind.kind is TurnKind.SIDE:
        last = read_prompt_lines(history.messages).last
        return [
            Orphan(session_id=session)
            for session, orphan in recent
            if orphan.prompt_lines.last == last and reason not in orphan.side_reasons
        ]
    wanted = edge_lines(newest_user_text(history.messages))
    return [
        Orphan(session_id=session)
        for session, orphan in recent
        if wanted
        and (
            wanted[-1] == orphan.prompt_lines.last
            or all(line in orphan.prompt_lines.positions for line in wanted)
        )
    ]


def _quotes(index: TurnIndex, captured: ClassifiedExchange, quotable: Sequence[Message]) -> list[Quote]:
    history = captured.history
    is_side = captured.kind.kind is TurnKind.SIDE
    prompt_lines = read_prompt_lines(quotable, with_system=is_side or not history.is_opening)
    # The question alone makes no main opening a quotation: many begin with the same file or template.
    is_answer_needed = history.is_opening and not is_side
    found = [
        quote
        for root in (history.root, *_other_roots(index, captured))
        for quote in _measure_quotes(
            index, root, prompt_lines, captured.kind.reason, is_answer_needed=is_answer_needed
        )
    ]
    return found + _summaries(index, history) if is_answer_needed else found


def _other_roots(index: TurnIndex, captured: ClassifiedExchange) -> list[str]:
    """Return the roots of the other users of a key whom a side request without a `user` may be about: it trains and answers nothing."""
    is_main, options = captured.kind.kind is TurnKind.MAIN, captured.options
    if is_main or options.user is not None or options.session is not None:
        return []
    return [root for root in reversed(index.roots[captured.key_name]) if root != captured.history.root]


def _under_other_users(
    index: TurnIndex, captured: ClassifiedExchange, replies: Mapping[str, Sequence[Tip]]
) -> Mapping[str, Sequence[Tip]]:
    """Return ``replies`` with those that the same messages have under other users."""
    found: dict[str, Sequence[Tip]] = {}
    for key in _other_roots(index, captured):
        for run in captured.history.runs:
            key = digest(key, run.own)
            if index.has("reply", key):
                found.setdefault(run.key, index.tips("reply", key))
    return {**found, **replies} if found else replies


def continued_form(index: TurnIndex, captured: ClassifiedExchange) -> tuple[Tip, str] | None:
    """Return the main turn whose answer this request writes out in that turn's own form, and the words behind it."""
    history, frame = captured.history, frame_of(captured.history, captured.chat.body)
    ending, text = form_ending(history), user_text(history)
    for line in reversed(text.splitlines()) if ending else ():
        for form in line_forms(line):
            for entry in index.find("answer", history.root, form):
                is_same = entry.is_main and (entry.ending, entry.frame) == (ending, frame)
                if is_same and entry.trace.bare_answer[-1:] == (form,) and len(form) >= MIN_QUOTE_CHARS:
                    words = words_behind(text[: -len(ending)], form)
                    return (index.refresh(entry.tip), words) if words else None
    return None


def _summaries(index: TurnIndex, history: History) -> list[Quote]:
    """Return the recorded summaries at the end of a system prompt, where a conversation continues without its beginning."""
    text = history.system_text[-_SUMMARY_TAIL_CHARS:]
    if not text:
        return []
    # "Summary of the conversation so far: …" stands on one line with the beginning of the summary.
    prompt_lines = read_prompt_lines([{"role": "user", "content": _LABEL.sub("\\g<0>\n", text)}])
    return [q for q in _measure_quotes(index, history.root, prompt_lines) if q.tip.kind is TurnKind.SIDE]


def _measure_quotes(
    index: TurnIndex,
    root: str,
    prompt_lines: PromptLines,
    side_reason: str = "",
    *,
    is_answer_needed: bool = False,
) -> list[Quote]:
    """Return the turns of which a prompt contains enough; on request only those of whose reply it contains something."""
    found: dict[str, IndexedTurn] = {}
    for line in reversed(list(prompt_lines.positions)):
        for kind in ("answer",) if is_answer_needed else ("question", "answer"):
            found.update((e.tip.turn_id, e) for e in index.find(kind, root, line))
        if len(found) >= _MAX_TURNS_FOUND:
            break
    newest = sorted(found.values(), key=lambda e: e.tip.created_at, reverse=True)
    measured: dict[TurnLines, Overlap] = {}  # repeated turns have equal lines
    side_at: dict[tuple[str, ...], float] = {}
    quotes = []
    for entry in islice(newest, _MAX_MEASURED_TURNS):
        overlap = measured.get(entry.trace)
        if overlap is None:
            overlap = measured[entry.trace] = measure_overlap(prompt_lines, entry.trace)
        if overlap.is_match:
            quotes.append(_quote(index, entry, overlap, side_reason, side_at))
    return quotes


def _quote(
    index: TurnIndex,
    entry: IndexedTurn,
    overlap: Overlap,
    side_reason: str,
    side_at: dict[tuple[str, ...], float],
) -> Quote:
    """Return a quote; ``side_at`` keeps when the newest side turn of this kind was sent, by session."""
    session = entry.session
    if session not in side_at:
        same = (
            e.tip.created_at
            for e in index.find("side", *session)
            if e.side_reason == side_reason and side_reason not in _REPEATABLE_SIDE_REASONS
        )
        side_at[session] = max(same, default=-math.inf)
    newest = next(index.find("session", *session), None)
    since = entry.tip.created_at - (0.0 if entry.tip.turn_index else ORPHAN_TTL_S)
    return Quote(
        tip=index.refresh(entry.tip),
        question_share=overlap.question_share,
        answer_share=overlap.answer_share,
        size=overlap.size,
        position=overlap.position,
        newest=None if newest is None else newest.tip,
        is_left_behind=newest is not None
        and newest.tip.created_at > entry.tip.created_at
        and not newest.is_on_summary,
        has_no_question=not entry.trace.question,
        has_same_side_turn=side_at[session] >= since,
    )


def _echoes(index: TurnIndex, history: History) -> Iterator[tuple[Quote, int]]:
    """Yield recorded turns whose prompt and reply the history contains with other text around them, newest first.

    Each comes with the number of the run that holds its reply.
    """
    answers = [i for i, run in enumerate(history.runs) if run.role == "assistant"]
    for i in reversed(answers[-_MAX_ECHOES:]):
        start = history.runs[i - 1].end if i else 0
        before = history.runs[i - 2].end if i > 1 else 0
        question = newest_user_text(history.messages[before:start])
        answer = "\n".join(
            strip_reasoning(content_text(m.get("content")))
            for m in history.messages[start : history.runs[i].end]
        )
        both = [{"role": "user", "content": question}, {"role": "user", "content": answer}]
        for quote in _measure_quotes(index, history.root, read_prompt_lines(both)):
            yield quote, i
