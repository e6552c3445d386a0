"""An index of the newest few thousand turns. In memory, bounded.

An active conversation is found here without a query: this process writes every turn, so the index is complete (it includes the batch that is
being written). Some data exist only here: the lines and answer keys that identify a rewritten or quoted history, identical bodies, and side
turns that preceded their conversation. All of it can be computed from stored turns; after a restart the newest are read back (`restore`).
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from recorder.canonical import (
    History,
    Message,
    RoleRun,
    assistant_message,
    body_key,
    parse_history,
    parse_history_from,
    reply_key,
    reply_run_key,
    unanswered_prompts,
)
from recorder.identifiers import LearnedIdentifiers
from recorder.lazy import LazyMapping, LazySequence
from recorder.linking import (
    MIN_ECHO_CHARS,
    LinkCandidates,
    LinkReason,
    Orphan,
    answer_keys,
    history_answer_keys,
)
from recorder.text_overlap import (
    Overlap,
    PromptLines,
    Quote,
    TurnLines,
    edge_lines,
    flatten_user_text,
    json_strings,
    measure_overlap,
    measure_substrings,
    newest_user_text,
    next_speaker,
    read_prompt_lines,
    read_turn_lines,
    squeeze,
    utterance_lines,
    words_in_form,
)
from recorder.turns import ClassifiedExchange
from store.hashing import digest
from store.lifecycle import DropReason
from store.texts import content_text
from store.values import (
    Completion,
    Json,
    LinkCorrection,
    NewTurn,
    NextState,
    Relation,
    Remembered,
    Tip,
    TurnKind,
)
from wire.classify import MANY_TOKENS, Classification, Evidence, is_programs, is_silent_reply, is_structured
from wire.line_text import normalise_line
from wire.user_text import is_tool_output, strip_client_context, strip_reasoning

#: Number of turns that are indexed, and of turns that are read back at the start.
TURN_INDEX_CAPACITY, RESTORED_TURNS = 5000, 2000
#: Turns that are looked at under one key, the newest ones: a key of more identifies none of them.
_MAX_TURNS_PER_KEY = 64
#: Turns that are measured against one prompt, newest first.
_MAX_MEASURED_TURNS = 48
#: Time that a side turn waits for the conversation it is about: clients send both at the same time.
ORPHAN_TTL_S = 120.0
#: Side requests that come in parts, or repeatedly.
_REPEATABLE_SIDE_REASONS = frozenset(
    {"summary", "memory", "heartbeat", "text_function", "quoted_conversation"}
)
#: A shorter line occurs inside others by chance.
_MIN_LINE_CHARS = 12
#: Characters of a reply in which a text is looked for, and texts of one reply.
_MAX_WRAPPED_CHARS, _MAX_UNWRAPPED = 20_000, 2
#: Newest turns that are searched in a prompt that quotes inside its lines.
_MAX_SEARCHED_TURNS = 32
#: Turns that share lines with a prompt, at most; those of its last lines come first.
_MAX_TURNS_FOUND = 1024
_KEY_KINDS = (
    "serialised",
    "request",
    "body",
    "session",
    "side",
    "reply",
    "exchange",
    "order",
    "opening",
    "form",
)
#: Side requests that concern only past conversations, and those that run independently of any conversation.
_PAST_SIDE_REASONS = frozenset({"summary", "memory"})
_AGENT_REASONS = frozenset({"agent_to_agent", "subagent"})
_INDEPENDENT_SIDE_REASONS = frozenset({"subagent", "cron"})
#: Characters at the end of a system prompt that are searched for a summary.
_SUMMARY_TAIL_CHARS = 4000
_LABEL = re.compile(r"^[^\n:.]{3,80}:(?=[ \t]+\S)", re.MULTILINE)
#: Characters of the key under which edited openings are found.
_OPENING_KEY_CHARS = 24
#: A side request without a `user` may be about any of this many recent users of the same key.
_MAX_USERS = 16
#: Shorter tool arguments are not indexed; longer ones may be another agent's task.
_MIN_DELEGATED_CHARS = 24
#: Seconds within which one text is sent twice for two purposes.
TWIN_S = 60.0
#: Seconds between a reply's end and the same request again within which a person may have asked again: below it a program samples or polls,
#: above it a schedule runs.
ASKED_AGAIN_S = (1.0, 900.0)
#: Turns of one tool loop that a person's next words reach, the newest ones.
_MAX_LOOP_TURNS = 32
#: Characters of a template's literal beginning or end.
_TEMPLATE_CHARS = 80
#: Characters of a prompt's end that are kept to recognise its form.
_FORM_CHARS = 1500
#: Newest replies of a history among which clients put canned ones of their own.
_MAX_CANNED = 8
#: Characters of a question that are compared, of the history and of the recorded turn (each end).
_MAX_ASKED_CHARS, _ASKED_EDGE_CHARS = 300, 2000
#: Characters of a line's beginning in which a label ends.
_MAX_LABEL_CHARS = 80
#: Lines at each end of a request's newest messages that are remembered.
_MAX_SENT_LINES = 40
#: Newest messages of a request in which the ids of tool results are looked for.
_MAX_RESULTS = 8
#: Characters of a system prompt of which the lines are compared.
_MAX_SYSTEM_CHARS = 20_000
#: Characters of a system prompt that tell it from another one.
_SYSTEM_HEAD_CHARS = 120
_DIGITS = re.compile(r"\d+")
#: A word that a client puts in front of a session's name, or behind it, for its side turns.
_AFFIX, _AFFIX_END = re.compile(r"\A[A-Za-z]+[-_:/.]"), re.compile(r"[-_:/.][A-Za-z]+\Z")
#: A shorter first message is not recognised after an edit.
_MIN_EDITED_OPENING_CHARS = 40


@dataclass(slots=True, kw_only=True)
class _Entry:
    tip: Tip
    keys: tuple[tuple[str, str], ...]  #: (index, key) under which the turn is found
    client: str
    is_complete: bool  #: a reply in text that ended by itself
    finished_at: float
    sampling: tuple[Any, Any]  #: of its request (`_sampling`)
    root: str
    trace: TurnLines
    session_key: str
    system_key: str
    is_structured: bool
    side_reason: str  #: kind reason of a side turn; "" for a main turn
    number: int  #: number of the main turn of its key
    opening: str  #: the user text of a first turn, as far as it is compared
    delegated_texts: tuple[tuple[str, ...], ...]  #: lines of each text that it passed to a tool
    is_on_summary: bool  #: only a summary preceded its prompt
    asked_again: tuple[str, ...]  #: turns that it asks again, or that the tool loop before it asked again
    loop: tuple[str, ...]  #: earlier turns of the tool loop that it is part of
    found: Classification  #: its kind with the evidence
    system_head: str  #: beginning of its system prompt, without digits
    system_lines: frozenset[str]  #: of its system prompt, without digits
    call_ids: frozenset[
        str
    ]  #: of its tool calls, else those that it brings results of, else those of its parent
    tool_count: int  #: tools offered
    identifiers: tuple[tuple[str, str], ...]  #: fields of its request that may name the conversation
    main_drop_reason: DropReason | None  #: why it would not train as a main turn
    key_name: str
    freedom: tuple[bool, bool]  #: of its reply (`_freedom`)
    form: str  #: the end of a prompt that may be made from a form
    asked: str  #: beginning and end of its newest user text, squeezed
    lines: tuple[str, ...]  #: of its newest user messages, as they were sent
    frame: str  #: `_frame`
    serialised: tuple[tuple[str, ...], ...]  #: lines of each text inside JSON in its message
    retried: str  #: key of its prompt; of a framework's retry, of the first prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class _OrphanEntry:
    """A side turn whose conversation has not started yet."""

    root: str
    prompt_lines: PromptLines
    flat: str
    side_reasons: set[str]
    created_at: float


class _LazyTips(Mapping[str, "list[Tip]"]):
    """Turns under the keys of a history, looked up on access: a long history has hundreds of keys, and the newest decide."""

    def __init__(
        self,
        history: History,
        index: Mapping[str, Sequence[str]],
        tips: Callable[[Sequence[str]], list[Tip]],
    ) -> None:
        self._history = history
        self._index = index
        self._tips = tips

    def __getitem__(self, key: str) -> list[Tip]:
        return self._tips(self._index[key])

    def __iter__(self) -> Iterator[str]:
        return iter([run.key for run in self._history.runs if run.key in self._index])

    def __len__(self) -> int:
        return sum(run.key in self._index for run in self._history.runs)

    def several(self) -> list[list[Tip]]:
        """Return the turns of those keys that several turns share."""
        index = self._index
        return [
            self._tips(index[m.key]) for m in self._history.runs if m.key in index and len(index[m.key]) > 1
        ]


class _TurnOrder(Mapping[str, int]):
    """The number of each indexed main turn under its key."""

    def __init__(self, entries: Mapping[str, _Entry]) -> None:
        self._entries = entries

    def __getitem__(self, turn_id: str) -> int:
        return self._entries[turn_id].number

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class TurnIndex:
    """An index over the newest turns; the oldest are evicted first."""

    def __init__(self, capacity: int = TURN_INDEX_CAPACITY) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        #: By kind of key: key -> turns, oldest first.
        self._index: dict[str, dict[str, list[str]]] = {kind: {} for kind in _KEY_KINDS}
        #: By root: normalised line of the question, of the answer -> turns, oldest first.
        self._questions: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
        self._answers: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
        self._extended: OrderedDict[str, set[str]] = OrderedDict()  # parent -> main turns that extend it
        self._main_counts: defaultdict[str, int] = defaultdict(int)  # main turns seen, by key
        self._orphans: OrderedDict[str, _OrphanEntry] = OrderedDict()  # by session, housekeeping first
        self._identifiers = LearnedIdentifiers()
        self._known_systems: OrderedDict[tuple[str, str, str], None] = (
            OrderedDict()
        )  # root, client, system head
        self._known_frames: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._known_lines: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._users: defaultdict[str, OrderedDict[str, None]] = defaultdict(
            OrderedDict
        )  # by key: `user`s, newest last

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, captured: ClassifiedExchange, turns: Iterable[NewTurn]) -> None:
        """Add the turns of one exchange, linked but perhaps not written yet."""
        for turn in turns:
            self._insert(
                turn,
                captured.history,
                body=captured.body_key,
                found=replace(captured.kind, kind=turn.kind, reason=turn.kind_reason),
                client=captured.client,
                identifiers=captured.options.identifiers,
            )
            if captured.options.session is None:
                self._attach_orphan(captured, turn)
        self._evict()

    def restore(self, turns: Iterable[Remembered]) -> None:
        """Add stored turns, oldest first: after a restart, this rebuilds the index."""
        for turn in turns:
            if turn.turn_id in self._entries:
                continue
            history = parse_history(turn.messages, turn.key_name, turn.user)
            self._insert(
                turn,
                history,
                body=body_key(history, turn.request) if turn.is_whole else "",
                found=Classification(
                    kind=turn.kind,
                    reason=turn.kind_reason,
                    evidence=tuple(Evidence(code=code, weight=weight) for code, weight in turn.evidence),
                ),
                client=turn.client,
            )
        self._evict()

    def _insert(
        self,
        turn: NewTurn | Remembered,
        history: History,
        *,
        body: str,
        found: Classification,
        client: str,
        identifiers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        keys = [("request", turn.request_key), ("body", f"{turn.key_name}:{body}")]
        index = "session" if turn.kind is TurnKind.MAIN else "side"
        session_key = f"{turn.key_name}:{turn.session_id}"
        keys.append((index, session_key))
        trace = _turn_lines(turn, history)
        delegated_texts = _delegated_texts(turn.completion)
        opening = _opening_text(history) if turn.kind is TurnKind.MAIN else ""
        if len(opening) >= _MIN_EDITED_OPENING_CHARS:
            keys.append(("opening", f"{history.root}:{normalise_line(opening)[:_OPENING_KEY_CHARS]}"))
        keys += [("order", f"{history.root}:{turn_order[-1]}") for turn_order in delegated_texts]
        serialised = _serialised_texts(history)
        keys += [
            ("serialised", f"{history.root}:{last}")
            for last in dict.fromkeys(lines[-1] for lines in serialised)
        ]
        templates = _template_keys(history, client)
        keys += [("form", key) for key in templates]
        self._note_user(turn.key_name, turn.user)
        before = self._entries.get(turn.parent_turn_id or "")
        retried = before.retried if before is not None and turn.relation is Relation.FRAMEWORK_RETRY else None
        keys += _reply_keys(history, turn, retried)
        asked_again, loop = self._earlier_turns(turn, history)
        self._entries[turn.turn_id] = _Entry(
            tip=_tip_of(turn, is_newest=not self._extended.get(turn.turn_id)),
            keys=tuple(keys),
            client=turn.client,
            is_complete=turn.completion.finish_reason == "stop" and bool(turn.completion.text.strip()),
            finished_at=turn.finished_at,
            sampling=_sampling(turn.request),
            root=history.root,
            trace=trace,
            session_key=session_key,
            system_key=history.system_key,
            is_structured=is_structured(turn.request),
            side_reason=found.reason if turn.kind is TurnKind.SIDE else "",
            number=self._main_counts[turn.key_name],
            opening=opening,
            delegated_texts=delegated_texts,
            is_on_summary=turn.link_reason == LinkReason.RECORDED_SUMMARY,
            asked_again=asked_again,
            loop=loop,
            found=found,
            system_head=_system_head(history),
            system_lines=_system_lines(history),
            call_ids=_own_call_ids(turn, history) or (before.call_ids if before is not None else frozenset()),
            tool_count=_tool_count(turn.request),
            identifiers=identifiers,
            main_drop_reason=turn.main_drop_reason,
            key_name=turn.key_name,
            freedom=_freedom(turn.request),
            form=_user_text(history)[-_FORM_CHARS:] if templates else "",
            asked=_asked(history),
            lines=_sent_lines(history),
            frame=_frame(history, turn.request),
            serialised=serialised,
            retried=retried or turn.request_key,
        )
        self._learn(turn, history, client)
        self._main_counts[turn.key_name] += turn.kind is TurnKind.MAIN
        for kind, key in keys:
            _append(self._index[kind], key, turn.turn_id)
        for by_root, lines in ((self._questions, trace.question), (self._answers, trace.answers)):
            by_line = by_root[history.root]
            for line in dict.fromkeys(lines):
                _append(by_line, line, turn.turn_id)
        is_extension = turn.kind is TurnKind.MAIN and turn.relation is not Relation.RETRY
        if turn.parent_turn_id is not None and is_extension:
            self._extended.setdefault(turn.parent_turn_id, set()).add(turn.turn_id)
            self._set_is_newest(turn.parent_turn_id, is_newest=False)

    def _note_user(self, key_name: str, user: str | None) -> None:
        if user is not None:
            users = self._users[key_name]
            users[user] = None
            users.move_to_end(user)
            if len(users) > _MAX_USERS:
                users.popitem(last=False)

    def _earlier_turns(
        self, turn: NewTurn | Remembered, history: History
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return (turns that this one asks again, earlier turns of its tool loop); see `_Entry`."""
        parent = self._entries.get(turn.parent_turn_id or "")
        loop: tuple[str, ...] = ()
        asked_again: tuple[str, ...] = ()
        if turn.kind is TurnKind.SIDE:
            return asked_again, loop
        if parent is not None and _ends_with_tool_output(history):
            loop = (*parent.loop, parent.tip.turn_id)[-_MAX_LOOP_TURNS:]
            asked_again = parent.asked_again
        if turn.relation is Relation.RETRY:
            same = (self._entries[t] for t in self._holders("request", turn.request_key))
            repeated = next((e for e in same if e.tip.session_id == turn.session_id), None)
            if repeated is not None:
                asked_again = (repeated.tip.turn_id, *repeated.asked_again)
        return asked_again, loop

    def earlier_next_states(self, turn: NewTurn) -> tuple[NextState, ...]:
        """Return what a person's message says about turns before its parent.

        A reply that was asked again is judged only now that the newer one is continued. The turns of the tool loop that led to the answer
        share in the reaction to it.
        """
        state = turn.next_state
        entry = self._entries.get(state.turn_id) if state is not None else None
        if state is None or entry is None or state.role != "user" or not entry.tip.is_newest:
            return ()
        if turn.link_reason == LinkReason.NAMED_SESSION_TIP:
            return ()  # the history does not show which reply was continued
        retried = [
            replace(state, turn_id=t, by_turn_id=state.turn_id, text="", messages=(), relation=Relation.RETRY)
            for t in entry.asked_again
            if not self._extended.get(t)
        ]
        loop = [replace(state, turn_id=t, messages=(), relation=Relation.TOOL_LOOP) for t in entry.loop]
        return (*retried, *loop)

    def _learn(self, turn: NewTurn | Remembered, history: History, client: str) -> None:
        """Learn what the client's conversations have in common, and what names them."""
        entry = self._entries[turn.turn_id]
        parent = self._entries.get(turn.parent_turn_id or "")
        if turn.kind is TurnKind.MAIN and entry.identifiers:
            was_named = turn.link_reason == LinkReason.LEARNED_IDENTIFIER
            self._identifiers.note(
                history.root,
                client,
                entry.identifiers,
                turn.turn_id,
                is_opening=history.is_opening,
                parent=None if parent is None or was_named else parent.identifiers,
                was_named=was_named,
            )
        if parent is not None and _is_continued_by_person(parent, entry, history):
            self._note_continued(parent)

    def _note_continued(self, entry: _Entry) -> None:
        """Learn what a client puts around words of a person: the system prompt, the tools, and the lines of the message."""
        place = (entry.root, entry.client)
        if entry.system_head:
            _remember(self._known_systems, (*place, entry.system_head), self._capacity)
            _remember(self._known_frames, (*place, entry.frame), self._capacity)
        for line in entry.lines:
            _remember(self._known_lines, (*place, line), 10 * self._capacity)

    def record_evidence(self, captured: ClassifiedExchange) -> list[str]:
        """Return the evidence codes for the kind of a request that the recorded turns give (`wire.classify.STRUCTURE`)."""
        history = captured.history
        head = _system_head(history)
        is_known = bool(head) and (history.root, captured.client, head) in self._known_systems
        codes = ["known_system" if history.is_opening else "same_system"] if is_known else []
        if history.is_opening:
            return [*codes, *(["same_form"] if self._continued_form(captured) is not None else [])]
        newest = next(run for run in reversed(history.runs) if run.role == "assistant")
        entries = [self._entries[t] for t in self._holders("reply", newest.key)]
        if not entries:
            return codes
        of_main = [e for e in entries if e.tip.kind is TurnKind.MAIN]
        codes.append("extends_main" if of_main else "extends_side")
        if not of_main and any(e.code == "long_instruction" for e in captured.kind.evidence):
            codes.append("instructed_side")
        before = of_main or entries
        tools = _tool_count(captured.chat.body)
        mine = _system_lines(history)
        if not any(e.system_head == head or _is_similar(mine, e.system_lines) for e in before):
            codes.append("new_system")
        elif of_main:
            codes.append("same_system")
        if all(e.tool_count > 1 and 2 * tools < e.tool_count for e in before):
            codes.append("fewer_tools")
        return codes

    def _continued_form(self, captured: ClassifiedExchange) -> tuple[Tip, str] | None:
        """Return the main turn whose question and answer this request writes out in the same form, and the request's new words."""
        history = captured.history
        keys = _template_keys(history, captured.client)
        found = {t: self._entries[t] for key in keys for t in _newest(self._holders("form", key))}
        if not found:
            return None
        text, head = _user_text(history), _system_head(history)
        squeezed = squeeze(text)
        for entry in sorted(found.values(), key=lambda e: e.tip.created_at, reverse=True):
            if entry.tip.kind is TurnKind.MAIN and entry.system_head == head:
                words = words_in_form(text, entry.form, entry.trace.bare_answer, squeezed)
                if words is not None:
                    return self.refresh(entry.tip), words
        return None

    def _twins(self, captured: ClassifiedExchange) -> Iterator[_Entry]:
        """Yield the turns of the same text that were sent at the same time by the same client under another system prompt."""
        history = captured.history
        for turn_id in self._holders("request", history.request_key):
            entry = self._entries[turn_id]
            if self._is_beside(captured, entry):
                yield entry

    def _is_beside(self, captured: ClassifiedExchange, entry: _Entry) -> bool:
        """Whether a turn was sent at the time of a request by the same client under another system prompt."""
        return entry.client == captured.client and self._is_at_once(captured, entry)

    def _is_at_once(self, captured: ClassifiedExchange, entry: _Entry) -> bool:
        is_near = abs(captured.created_at - entry.tip.created_at) < TWIN_S
        return is_near and entry.system_key != captured.history.system_key

    def lesser_twins(self, captured: ClassifiedExchange) -> list[str]:
        """Return the main turns beside this request that a program sent: serialised, with a schema or for a few tokens only."""
        mine = _freedom(captured.chat.body)
        found = [e for e in self._twins(captured) if e.freedom < mine]
        if captured.history.is_opening:
            words = utterance_lines(newest_user_text(captured.history.messages))
            holders = self._holders("serialised", f"{captured.history.root}:{words[-1]}") if words else ()
            same = (self._entries[t] for t in holders)
            found += [e for e in same if words in e.serialised and self._is_at_once(captured, e)]
        return [e.tip.turn_id for e in found if e.tip.kind is TurnKind.MAIN and e.tip.is_newest]

    def related_kind(self, captured: ClassifiedExchange) -> tuple[TurnKind, str] | None:
        """Return (kind, relation) where a recorded turn decides the kind of a request: `recorder.kinds`, relations 2, 4 and 5."""
        history = captured.history
        same = self._holders("body", f"{captured.key_name}:{captured.body_key}")
        if same and self._entries[same[0]].found.reason != "client_header":
            return self._entries[same[0]].tip.kind, "same_body"
        if not history.is_opening:
            is_loop = _ends_with_tool_output(history) and self.ends_main(_newest_reply(history).key)
            return (TurnKind.MAIN, "tool_loop") if is_loop else None
        if self._is_serialised_twin(captured):
            return TurnKind.SIDE, "serialised"
        mine = _freedom(captured.chat.body)
        if any(mine < twin.freedom for twin in self._twins(captured)):
            return TurnKind.SIDE, "beside_main"
        is_known = (history.root, captured.client, _frame(history, captured.chat.body)) in self._known_frames
        if is_known and not is_programs(captured.kind):
            return TurnKind.MAIN, "known_frame"
        return None

    def _is_serialised_twin(self, captured: ClassifiedExchange) -> bool:
        """Whether a fresh request's text is the serialised message of a turn that its client sent beside it under another system prompt."""
        questions = self._questions.get(captured.history.root, {})
        return any(
            entry.trace.question == lines and self._is_at_once(captured, entry)
            for lines in _serialised_texts(captured.history)
            for entry in (self._entries[t] for t in _newest(questions.get(lines[-1], ())))
        )

    def without_known_lines(self, captured: ClassifiedExchange) -> list[Message] | None:
        """Return the messages without the lines that this client put around words which people continued; None where it has none of them."""
        history = captured.history
        place = (history.root, captured.client)
        start = 0 if history.is_opening else _newest_reply(history).end
        found, is_changed = list(history.messages), False
        for i in range(start, len(found)):
            if found[i].get("role") != "user":
                continue
            lines = content_text(found[i].get("content")).splitlines()
            kept = list(filter(None, (self._unknown_part(place, line) for line in lines)))
            if kept != lines:
                found[i], is_changed = {**found[i], "content": "\n".join(kept)}, True
        return found if is_changed else None

    def _unknown_part(self, place: tuple[str, str], line: str) -> str:
        """Return a line without a label that is known, "" where all of it is."""
        if (*place, normalise_line(line)) in self._known_lines:
            return ""
        label = _label_of(line)
        return (
            line[len(label) :]
            if label and (*place, f"{normalise_line(label)}:") in self._known_lines
            else line
        )

    def echoed_turn(self, history: History) -> tuple[Tip | None, int]:
        """Return the turn whose reply stands near the end of a history, behind the words that it answered, whatever surrounded both.

        With it comes the number of the run that holds those words. A main turn, if there is one.
        """
        answers = [i for i, run in enumerate(history.runs) if run.role == "assistant" and i]
        for number in reversed(answers[-_MAX_CANNED:]):
            run, start = history.runs[number], history.runs[number - 1].end
            keys = answer_keys(history.root, history.runs[number - 1], run.own, run.size, run)
            holders = [self._entries[t] for key in keys for t in self._holders("exchange", key.key)]
            asked = squeeze(newest_user_text(history.messages[:start]))[:_MAX_ASKED_CHARS]
            for entry in sorted(holders, key=lambda e: e.tip.kind is not TurnKind.MAIN):
                if entry.asked and asked and (asked in entry.asked or entry.asked in asked):
                    return entry.tip, number - 1
            if any(e.tip.kind is TurnKind.MAIN for e in holders):
                break
        return None, 0

    def continued_side_turns(self, key: str) -> list[str]:
        """Return the side turns whose prompt and reply have this key, and those whose tool results it brings, newest first.

        None if a main turn has the key.
        """
        tips = [self._entries[t].tip for t in self._holders("reply", key)]
        if any(tip.kind is TurnKind.MAIN for tip in tips):
            return []
        found: list[str] = []
        entry = self._entries[tips[0].turn_id] if tips else None
        while entry is not None and entry.tip.kind is TurnKind.SIDE:
            found.append(entry.tip.turn_id)
            before = entry.tip.parent_turn_id if entry.side_reason == "side_tool_results" else None
            entry = self._entries.get(before or "")
        return found

    def tip_of(self, turn_id: str) -> Tip | None:
        """Return the tip of an indexed turn."""
        entry = self._entries.get(turn_id)
        return None if entry is None else entry.tip

    def request_key_of(self, turn_id: str) -> str:
        """Return the key of an indexed turn's prompt."""
        return dict(self._entries[turn_id].keys)["request"]

    def main_turn(self, key: str) -> Tip | None:
        """Return the newest main turn whose prompt and reply have this key."""
        tips = (self._entries[t].tip for t in self._holders("reply", key))
        return next((tip for tip in tips if tip.kind is TurnKind.MAIN), None)

    def kind_of(self, turn_id: str) -> tuple[Classification, DropReason | None]:
        """Return an indexed turn's classification, and why it would not train as a main turn."""
        entry = self._entries[turn_id]
        return entry.found, entry.main_drop_reason

    def separate_opening(self, tip: Tip) -> bool:
        """Whether an opening that waits for its next turn has the same text as another one that went on: a conversation of its own."""
        entry = self._entries.get(tip.turn_id)
        if entry is None or tip.parent_turn_id is not None or not self._entries[tip.turn_id].tip.is_newest:
            return False
        same = (self._entries[t].tip for t in self._holders("request", self.request_key_of(tip.turn_id)))
        return any(
            other.session_id == tip.session_id
            and other.kind is TurnKind.MAIN
            and not other.is_newest
            and other.turn_id.split(".")[0] != tip.turn_id.split(".")[0]
            for other in same
        )

    def side_turns_of(self, tip: Tip) -> list[Tip]:
        """Return the side turns that hang below a turn."""
        holders = self._holders("side", self._entries[tip.turn_id].session_key)
        tips = (self._entries[t].tip for t in holders)
        return [t for t in tips if t.parent_turn_id == tip.turn_id]

    def samples_of(self, tip: Tip) -> list[Tip]:
        """Return the turns of the same prompt and session that were sent so close to a turn that they are samples beside it."""
        entry = self._entries[tip.turn_id]
        same = (self._entries[t] for t in self._holders("request", self.request_key_of(tip.turn_id)))
        return [
            e.tip
            for e in same
            if e is not entry
            and e.session_key == entry.session_key
            and e.tip.is_newest
            and e.tip.created_at - entry.finished_at < ASKED_AGAIN_S[0]
            and entry.tip.created_at - e.finished_at < ASKED_AGAIN_S[0]
        ]

    def relink(self, found: LinkCorrection) -> None:
        """Move an indexed turn."""
        entry = self._entries[found.turn_id]
        index = "session" if entry.tip.kind is TurnKind.MAIN else "side"
        old, new = entry.session_key, f"{entry.key_name}:{found.session_id}"
        entry.tip = replace(
            entry.tip,
            session_id=found.session_id,
            parent_turn_id=found.parent_turn_id,
            turn_index=found.turn_index,
        )
        if old != new:
            _remove(self._index[index], old, found.turn_id)
            entry.session_key = new
            entry.keys = tuple(
                (kind, new) if (kind, key) == (index, old) else (kind, key) for kind, key in entry.keys
            )
            self._insert_in_order(index, new, found.turn_id)
        if entry.tip.kind is TurnKind.MAIN and found.parent_turn_id is not None:
            self._extended.setdefault(found.parent_turn_id, set()).add(found.turn_id)
            self._set_is_newest(found.parent_turn_id, is_newest=False)

    def correct(self, turn_id: str, found: Classification) -> None:
        """Change the kind of an indexed turn."""
        entry = self._entries[turn_id]
        entry.found, entry.side_reason = found, found.reason if found.kind is TurnKind.SIDE else ""
        if entry.tip.kind is found.kind:
            return
        entry.tip = replace(entry.tip, kind=found.kind)
        if found.kind is TurnKind.MAIN:
            self._note_continued(entry)
        session = entry.session_key
        old, new = ("session", "side") if found.kind is TurnKind.SIDE else ("side", "session")
        entry.keys = tuple((new, key) if kind == old else (kind, key) for kind, key in entry.keys)
        _remove(self._index[old], session, turn_id)
        self._insert_in_order(new, session, turn_id)

    def _insert_in_order(self, index: str, key: str, turn_id: str) -> None:
        holders = self._index[index].setdefault(key, [])
        created = self._entries[turn_id].tip.created_at
        later = next(
            (i for i, t in enumerate(holders) if self._entries[t].tip.created_at > created), len(holders)
        )
        holders.insert(later, turn_id)

    def _evict(self) -> None:
        while len(self._entries) > self._capacity:
            self._remove_keys(*self._entries.popitem(last=False))
        while len(self._extended) > 2 * self._capacity:
            self._extended.popitem(last=False)

    def _attach_orphan(self, captured: ClassifiedExchange, turn: NewTurn) -> None:
        """Keep a side turn that preceded its conversation; drop it once a conversation includes it."""
        if turn.kind is TurnKind.MAIN:
            self._orphans.pop(turn.session_id, None)
        elif turn.relation is Relation.FIRST and captured.kind.reason not in _INDEPENDENT_SIDE_REASONS:
            waiting = self._orphans.get(turn.session_id)
            side_reasons = {captured.kind.reason} | (waiting.side_reasons if waiting is not None else set())
            messages = captured.history.messages
            self._orphans[turn.session_id] = _OrphanEntry(
                root=captured.history.root,
                prompt_lines=waiting.prompt_lines if waiting is not None else read_prompt_lines(messages),
                flat=waiting.flat if waiting is not None else flatten_user_text(messages),
                side_reasons=side_reasons,
                created_at=turn.created_at,
            )
            while len(self._orphans) > 256:
                self._orphans.popitem(last=False)

    def remove(self, turn_ids: Iterable[str]) -> None:
        """Remove turns that could not be written: nothing may link to them."""
        for turn_id in turn_ids:
            entry = self._entries.pop(turn_id, None)
            if entry is not None:
                self._remove_keys(turn_id, entry)
                self._orphans.pop(entry.tip.session_id, None)
                children = self._extended.get(entry.tip.parent_turn_id or "")
                if children is not None:
                    children.discard(turn_id)
                    if not children:
                        self._set_is_newest(entry.tip.parent_turn_id or "", is_newest=True)

    def _set_is_newest(self, turn_id: str, *, is_newest: bool) -> None:
        """Update an entry's tip."""
        entry = self._entries.get(turn_id)
        if entry is not None and entry.tip.is_newest != is_newest:
            entry.tip = replace(entry.tip, is_newest=is_newest)

    def _remove_keys(self, turn_id: str, entry: _Entry) -> None:
        for kind, key in entry.keys:
            _remove(self._index[kind], key, turn_id)
        for by_root, lines in (
            (self._questions, entry.trace.question),
            (self._answers, entry.trace.answers),
        ):
            by_line = by_root[entry.root]
            for line in dict.fromkeys(lines):
                _remove(by_line, line, turn_id)
            if not by_line:
                del by_root[entry.root]

    def refresh(self, tip: Tip) -> Tip:
        """Return ``tip`` with its current state: it may have been extended since it was read."""
        if tip.is_newest and self._extended.get(tip.turn_id):
            return replace(tip, is_newest=False)
        return tip

    def _holders(self, index: str, key: str) -> Sequence[str]:
        """Return the newest turns under a key, newest first."""
        return _newest(self._index[index].get(key, ()))

    def ends_main(self, key: str) -> bool:
        """Whether the prompt and reply of a main turn have this key."""
        return any(self._entries[t].tip.kind is TurnKind.MAIN for t in self._holders("reply", key))

    def replies(self, history: History) -> Mapping[str, list[Tip]]:
        """Return the turns whose prompt + reply is a prefix of the history."""
        return _LazyTips(history, self._index["reply"], self._tips)

    def requests(self, history: History) -> Mapping[str, list[Tip]]:
        """Return the turns whose prompt is a prefix of the history, or all of it."""
        return _LazyTips(history, self._index["request"], self._tips)

    def _tips(self, holders: Sequence[str]) -> list[Tip]:
        return [self._entries[t].tip for t in _newest(holders)]

    def exchanges(self, history: History) -> dict[str, list[Tip]]:
        """Return the turns found by the answer keys of the history."""
        keys = {exchange.key for exchange in history_answer_keys(history)}
        index = self._index["exchange"]
        return {key: self._tips(index[key]) for key in keys if key in index}

    def same_body(self, captured: ClassifiedExchange) -> set[str]:
        """Return the turns with the same body as ``captured`` that had ended before it came.

        A request that arrived while the other was in flight belongs to another conversation with the same text.
        """
        holders = self._holders("body", f"{captured.key_name}:{captured.body_key}")
        return {t for t in holders if self._entries[t].finished_at <= captured.created_at}

    def is_sample(self, captured: ClassifiedExchange, repeated: Sequence[Tip]) -> bool:
        """Whether a request draws another sample for the prompt of ``repeated`` (newest first) instead of asking again.

        It asks for several, or for another seed than the newest, or it came before an earlier reply was complete or faster than a person
        reads one.
        """
        entries = [e for t in repeated if (e := self._entries.get(t.turn_id)) is not None]
        return (
            captured.chat.n > 1
            or any(e.finished_at > captured.created_at for e in entries)
            or any(
                e.client == captured.client and captured.created_at - e.finished_at < ASKED_AGAIN_S[0]
                for e in entries
            )
            or (bool(entries) and entries[0].sampling != _sampling(captured.chat.body))
        )

    def asked_again(self, captured: ClassifiedExchange, repeated: Sequence[Tip]) -> set[str]:
        """Return which of ``repeated`` a person may have asked again: same client, a person's pace, a complete reply."""
        least, most = ASKED_AGAIN_S
        entries = [e for t in repeated if (e := self._entries.get(t.turn_id)) is not None]
        return {
            e.tip.turn_id
            for e in entries
            if e.client == captured.client
            and e.is_complete
            and least <= captured.created_at - e.finished_at <= most
        }

    def newest(self, key_name: str, session: str) -> Tip | None:
        """Return the newest main turn of a session."""
        return self._newest_main(f"{key_name}:{session}")

    def base_session(self, key_name: str, session: str) -> str:
        """Return the known session whose name a side turn's session extends ("title-<session>"), or ``session``."""
        index = self._index["session"]
        if f"{key_name}:{session}" not in index:
            parts = (
                _AFFIX.sub("", session, count=1),
                session[: -len(found[0])] if (found := _AFFIX_END.search(session)) else "",
            )
            return next((part for part in parts if part and f"{key_name}:{part}" in index), session)
        return session

    def _newest_main(self, session_key: str) -> Tip | None:
        holders = self._index["session"].get(session_key)
        return self._entries[holders[-1]].tip if holders else None

    def candidates(
        self,
        captured: ClassifiedExchange,
        *,
        replies: Mapping[str, Sequence[Tip]],
        requests: Mapping[str, Sequence[Tip]],
    ) -> LinkCandidates:
        """Return the candidates for a request; expensive lookups are made only where keys find nothing."""
        history = captured.history
        # If the newest reply is recorded exactly, nothing else is looked up.
        newest = next((m for m in reversed(history.runs) if m.role == "assistant"), None)
        is_exact = newest is not None and bool(replies.get(newest.key))
        other_histories = self._histories_of_other_users(captured)
        if other_histories:
            replies = _merge_tips(replies, other_histories, self.replies, history)
        repeated = requests.get(history.request_key, ())
        several = replies.several() if isinstance(replies, _LazyTips) else replies.values()
        rivals = [tips for tips in several if len(tips) > 1]
        quotable = _quotable_messages(history)
        return LinkCandidates(
            replies=replies,
            requests=requests,
            exchanges={} if is_exact else LazyMapping(lambda: self.exchanges(history)),
            same_body=self.same_body(captured) if repeated else (),
            is_sample=self.is_sample(captured, repeated),
            asked_again=self.asked_again(captured, repeated) if repeated else (),
            same_calls=self._same_calls(history, chain(*rivals)) if rivals else (),
            nearest_system={t for tips in rivals for t in self._nearest_system(history, tips)},
            turn_order=_TurnOrder(self._entries),
            openings=LazySequence(lambda: self._edited_openings(history) if history.is_opening else ()),
            quotes=()
            if is_exact
            else LazySequence(lambda: self._find_quotes(captured, quotable, other_histories)),
            echoes=LazySequence(lambda: self.echoes(history)),
            orphans=LazySequence(lambda: self.orphans(captured)),
            unanswered=LazySequence(lambda: self._unanswered(history)),
            identified=self._identified(captured),
            echoed_answer=self.echoed_answer(captured),
            inspected=self._inspected(captured, replies),
            is_silent_reply=any(map(is_silent_reply, captured.reply.completions)),
            awaits_next_line=not is_exact
            and next_speaker(quotable, with_system=not history.is_opening) is not None,
            same_form=LazySequence(lambda: filter(None, [self._continued_form(captured)])),
            concerns_past_only=captured.kind.reason in _PAST_SIDE_REASONS,
            is_delegated=not is_exact and history.is_opening and self._is_delegated(history),
        )

    def _unanswered(self, history: History) -> Iterator[tuple[Tip, int]]:
        """Yield the newest recorded main turns whose prompt the history extends without their reply, longest first."""
        for key, end in unanswered_prompts(history):
            for turn_id in self._holders("request", key):
                tip = self._entries[turn_id].tip
                if tip.kind is TurnKind.MAIN and tip.is_newest:
                    yield tip, end

    def _identified(self, captured: ClassifiedExchange) -> Tip | None:
        """Return the newest main turn of the conversation that a learned identifier of the request names."""
        history, given = captured.history, captured.options.identifiers
        if not given or captured.kind.kind is TurnKind.SIDE:
            return None
        turn_id = self._identifiers.find(history.root, captured.client, given, is_opening=history.is_opening)
        entry = self._entries.get(turn_id or "")
        return None if entry is None else self._newest_main(entry.session_key)

    def _histories_of_other_users(self, captured: ClassifiedExchange) -> list[History]:
        """Return the request's history as each recent user of the key would have sent it, for a side request without a `user`.

        Only for side requests, which never train and answer nothing. A main request is looked up under its own user only.
        """
        if (
            captured.kind.kind is TurnKind.MAIN
            or captured.options.user is not None
            or captured.options.session is not None
        ):
            return []
        users = self._users.get(captured.key_name)
        messages = captured.history.messages
        return [parse_history(messages, captured.key_name, user) for user in reversed(users)] if users else []

    def _is_delegated(self, history: History) -> bool:
        """Whether a fresh request repeats what a recorded turn passed to a tool: another agent was given the task."""
        if not self._index["order"]:
            return False
        words = edge_lines(newest_user_text(history.messages))
        prompt_lines = None
        for line in reversed(words):
            for turn_id in self._holders("order", f"{history.root}:{line}"):
                prompt_lines = prompt_lines or frozenset(words)
                if any(
                    turn_order[-1] == line and prompt_lines.issuperset(turn_order)
                    for turn_order in self._entries[turn_id].delegated_texts
                ):
                    return True
        return False

    def _inspected(self, captured: ClassifiedExchange, replies: Mapping[str, Sequence[Tip]]) -> set[str]:
        """Return the turns that this request reads under another system prompt, to fill in a form."""
        if not is_structured(captured.chat.body):
            return set()
        mine = captured.history.system_key
        entries = (self._entries.get(t.turn_id) for tips in replies.values() for t in tips)
        return {
            e.tip.turn_id for e in entries if e is not None and e.system_key != mine and not e.is_structured
        }

    def _edited_openings(self, history: History) -> list[Tip]:
        """Return the first turns that this opening extends or shortens, newest first."""
        words = _opening_text(history)
        if len(words) < _MIN_EDITED_OPENING_CHARS:
            return []
        found = []
        key = f"{history.root}:{normalise_line(words)[:_OPENING_KEY_CHARS]}"
        for turn_id in self._holders("opening", key):
            entry = self._entries[turn_id]
            theirs = entry.opening  # only one that is long enough has this key
            is_part = len(theirs) != len(words) and (theirs.startswith(words) or words.startswith(theirs))
            if is_part and entry.system_key == history.system_key:
                found.append(self.refresh(entry.tip))
        return found

    def _same_calls(self, history: History, tips: Iterable[Tip]) -> set[str]:
        """Return which of the turns made, or ended a loop of, tool calls whose ids the request has."""
        entries = [e for t in tips if (e := self._entries.get(t.turn_id)) is not None and e.call_ids]
        mine = _call_ids(history.messages) if entries else frozenset()
        return {e.tip.turn_id for e in entries if not mine.isdisjoint(e.call_ids)}

    def _nearest_system(self, history: History, tips: Iterable[Tip]) -> set[str]:
        """Return which of the turns had this request's system prompt, or else the one that shares most lines with it."""
        entries = {t.turn_id: e for t in tips if (e := self._entries.get(t.turn_id)) is not None}
        equal = {t for t, e in entries.items() if e.system_key == history.system_key}
        if equal or not entries:
            return equal
        mine = _system_lines(history)
        shares = {
            t: len(mine & e.system_lines) / len(mine | e.system_lines) if mine else 0.0
            for t, e in entries.items()
        }
        most = max(shares.values())
        return {t for t, share in shares.items() if share == most} if most else set()

    def orphans(self, captured: ClassifiedExchange) -> list[Orphan]:
        """Return side turns that quote this opening (or what this side request quotes) and have no conversation yet, oldest first."""
        history = captured.history
        if not self._orphans or not history.is_opening or captured.kind.reason in _INDEPENDENT_SIDE_REASONS:
            return []
        if captured.kind.kind is TurnKind.SIDE:
            last = read_prompt_lines(history.messages).last
            return [
                Orphan(session_id=session)
                for session, orphan in self._orphans.items()
                if self._is_recent_orphan(orphan, captured)
                and orphan.prompt_lines.last == last
                and captured.kind.reason not in orphan.side_reasons
            ]
        wanted = edge_lines(newest_user_text(history.messages))
        return [
            Orphan(session_id=session)
            for session, orphan in self._orphans.items()
            if self._is_recent_orphan(orphan, captured)
            and wanted
            and (
                wanted[-1] == orphan.prompt_lines.last
                or all(line in orphan.prompt_lines.positions for line in wanted)
                or all(len(line) >= _MIN_LINE_CHARS and line in orphan.flat for line in wanted)
            )
        ]

    def _is_recent_orphan(self, orphan: _OrphanEntry, captured: ClassifiedExchange) -> bool:
        return (
            orphan.root == captured.history.root
            and abs(captured.created_at - orphan.created_at) < ORPHAN_TTL_S
        )

    def _find_quotes(
        self, captured: ClassifiedExchange, quotable: Sequence[Message], other_histories: Sequence[History]
    ) -> list[Quote]:
        history = captured.history
        is_side = captured.kind.kind is TurnKind.SIDE
        prompt_lines = read_prompt_lines(quotable, with_system=is_side or not history.is_opening)
        # The question alone makes no main opening a quotation: many begin with the same file or template.
        is_answer_needed = history.is_opening and captured.kind.kind is TurnKind.MAIN
        found = self._measure_quotes(
            history, prompt_lines, captured.kind.reason, is_answer_needed=is_answer_needed
        )
        for other in other_histories:
            found += self._measure_quotes(other, prompt_lines, captured.kind.reason)
        if history.is_opening and captured.kind.kind is TurnKind.MAIN:
            found += self._find_summaries(history)
        if found or captured.kind.kind is TurnKind.MAIN or not history.is_opening:
            return found
        # Quotes inside lines: only the newest turns are searched, which is what side requests are about.
        flat = flatten_user_text(history.messages)
        inside = []
        roots = {history.root, *(other.root for other in other_histories)}
        newest = (e for t in reversed(self._entries) if (e := self._entries[t]).root in roots)
        side_at: dict[str, float] = {}
        for entry in islice(newest, _MAX_SEARCHED_TURNS):
            overlap = measure_substrings(flat, entry.trace)
            if overlap.is_match:
                inside.append(self._build_quote(entry, overlap, captured.kind.reason, side_at))
        return inside

    def _find_summaries(self, history: History) -> list[Quote]:
        """Return the recorded summaries at the end of a system prompt, where a conversation continues without its beginning."""
        found_text = [m for m in history.messages if m.get("role") in ("system", "developer")]
        text = "\n".join(content_text(m.get("content")) for m in found_text)[-_SUMMARY_TAIL_CHARS:]
        if not text:
            return []
        # "Summary of the conversation so far: …" stands on one line with the beginning of the summary.
        prompt_lines = read_prompt_lines([{"role": "user", "content": _LABEL.sub("\\g<0>\n", text)}])
        return [q for q in self._measure_quotes(history, prompt_lines) if q.tip.kind is TurnKind.SIDE]

    def _measure_quotes(
        self,
        history: History,
        prompt_lines: PromptLines,
        side_reason: str = "",
        *,
        is_answer_needed: bool = False,
    ) -> list[Quote]:
        """Return the turns of which a prompt contains enough; on request only those of whose reply it contains something."""
        questions: Mapping[str, Sequence[str]] = {}
        if not is_answer_needed:
            questions = self._questions.get(history.root, {})
        answers: Mapping[str, Sequence[str]] = self._answers.get(history.root, {})
        found: dict[str, None] = {}
        known = [line for line in prompt_lines.positions if line in answers or line in questions]
        for line in reversed(known):
            found.update(dict.fromkeys(_newest(questions.get(line, ()))))
            found.update(dict.fromkeys(_newest(answers.get(line, ()))))
            if len(found) >= _MAX_TURNS_FOUND:
                break
        newest = sorted((self._entries[t] for t in found), key=lambda e: e.tip.created_at, reverse=True)
        measured: dict[TurnLines, Overlap] = {}  # repeated turns have equal lines
        side_at: dict[str, float] = {}
        quotes = []
        for entry in newest[:_MAX_MEASURED_TURNS]:
            overlap = measured.get(entry.trace)
            if overlap is None:
                overlap = measured[entry.trace] = measure_overlap(prompt_lines, entry.trace)
            if overlap.is_match:
                quotes.append(self._build_quote(entry, overlap, side_reason, side_at))
        return quotes

    def _newest_side_at(self, session_key: str, side_reason: str) -> float:
        """Return when the newest side turn of a kind was sent in a session; minus infinity when there is none."""
        side_turns = (self._entries[t] for t in self._holders("side", session_key))
        return max((e.tip.created_at for e in side_turns if e.side_reason == side_reason), default=-math.inf)

    def _build_quote(
        self, entry: _Entry, overlap: Overlap, side_reason: str, side_at: dict[str, float]
    ) -> Quote:
        """Return a quote; ``side_at`` keeps `_newest_side_at` by session."""
        session = entry.session_key
        if session not in side_at and side_reason not in _REPEATABLE_SIDE_REASONS:
            side_at[session] = self._newest_side_at(session, side_reason)
        newest = self._newest_main(session)
        since = entry.tip.created_at - (0.0 if entry.tip.turn_index else ORPHAN_TTL_S)
        return Quote(
            tip=self.refresh(entry.tip),
            question_share=overlap.question_share,
            answer_share=overlap.answer_share,
            size=overlap.size,
            position=overlap.position,
            newest=newest,
            is_left_behind=newest is not None
            and newest.created_at > entry.tip.created_at
            and not self._entries[newest.turn_id].is_on_summary,
            has_no_question=not entry.trace.question,
            has_same_side_turn=side_at.get(session, -math.inf) >= since,
        )

    def echoes(self, history: History) -> Iterator[tuple[Quote, int]]:
        """Yield recorded turns whose prompt and reply the history contains with other text around them, newest first.

        Each comes with the number of the run that holds its reply.
        """
        answers = [i for i, run in enumerate(history.runs) if run.role == "assistant"]
        for i in reversed(answers[-4:]):
            start = history.runs[i - 1].end if i else 0
            before = history.runs[i - 2].end if i > 1 else 0
            answer_text = "\n".join(
                strip_reasoning(content_text(m.get("content")))
                for m in history.messages[start : history.runs[i].end]
            )
            prompt_lines = _lines_of(newest_user_text(history.messages[before:start]), answer_text)
            for quote in self._measure_quotes(history, prompt_lines):
                yield quote, i

    def echoed_answer(self, captured: ClassifiedExchange) -> Quote | None:
        """Return the recorded turn whose reply equals this request's newest user message."""
        messages = captured.history.messages
        newest = next((m for m in reversed(messages) if m.get("role") in ("user", "assistant", "tool")), None)
        if newest is None or newest.get("role") != "user":
            return None
        words = edge_lines(content_text(newest.get("content")))
        size = sum(map(len, words))
        answers = self._answers.get(captured.history.root, {})
        for turn_id in _newest(answers.get(words[-1], ())) if words else ():
            entry = self._entries[turn_id]
            if entry.trace.answer != words or entry.trace.question == words:
                continue
            # What a client's own request got (a title, a question written anew) is repeated by no agent.
            if entry.tip.kind is TurnKind.SIDE and entry.side_reason not in _AGENT_REASONS:
                continue
            # A person may write the same few words, but not at once and under another system prompt.
            at_once = captured.created_at - entry.finished_at < ASKED_AGAIN_S[0]
            if size >= MIN_ECHO_CHARS or (at_once and entry.system_key != captured.history.system_key):
                return Quote(
                    tip=self.refresh(entry.tip),
                    question_share=0.0,
                    answer_share=1.0,
                    size=size,
                    position=0,
                )
        return None


def _tip_of(turn: NewTurn | Remembered, *, is_newest: bool) -> Tip:
    return Tip(
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        turn_index=turn.turn_index,
        kind=turn.kind,
        parent_turn_id=turn.parent_turn_id,
        key=turn.reply_key or turn.request_key,
        is_newest=is_newest,
        created_at=turn.created_at,
    )


def _newest(holders: Sequence[str]) -> Sequence[str]:
    """Return the newest turns under a key, newest first."""
    return holders[: -_MAX_TURNS_PER_KEY - 1 : -1]


def _append(index: dict[str, list[str]], key: str, turn_id: str) -> None:
    holders = index.get(key)
    if holders is None:
        index[key] = [turn_id]
    else:
        holders.append(turn_id)


def _remove(index: dict[str, list[str]], key: str, turn_id: str) -> None:
    holders = index[key]
    holders.remove(turn_id)
    if not holders:
        del index[key]


def _turn_lines(turn: NewTurn | Remembered, history: History) -> TurnLines:
    """Return the lines by which a turn is found in later prompts."""
    trace = read_turn_lines(history.messages, turn.completion)
    question = trace.question
    if turn.kind is TurnKind.SIDE:
        question = ()  # the template of a side request is not text of the conversation
    elif not question and history.runs and history.runs[-1].role == "tool":
        question = edge_lines(_last_user_text(history))
    return replace(trace, question=question)


def _reply_keys(history: History, turn: NewTurn | Remembered, retried: str | None) -> list[tuple[str, str]]:
    """Return the keys under which a turn's prompt and reply are found, in the forms in which clients send them back.

    Args:
        retried: key of the prompt that a framework asked again with this turn.
    """
    if turn.reply_key is None:
        return []
    own, size = reply_run_key(turn.completion)
    exchanges = answer_keys(history.root, history.runs[-1] if history.runs else None, own, size)
    forms = [turn.completion, *_unwrapped(turn.completion)]
    replies = {turn.reply_key: None, **{reply_key(history, form): None for form in forms[1:]}}
    if (key := _reply_key_without_tools(history, turn)) is not None:
        replies[key] = None
    if retried is not None:
        # Some frameworks keep the corrected reply only.
        replies.update((digest(retried, reply_run_key(form)[0]), None) for form in forms)
    return [*(("reply", key) for key in replies), *(("exchange", exchange.key) for exchange in exchanges)]


def _reply_key_without_tools(history: History, turn: NewTurn | Remembered) -> str | None:
    """Return the key of prompt and reply with the tool traffic taken out, as some clients send it back; None where there is none."""
    whole = not isinstance(turn, Remembered) or turn.is_whole
    if turn.completion.tool_calls or not whole or not any(run.role == "tool" for run in history.runs):
        return None
    rest = [
        m for m in history.messages if m.get("role") not in ("tool", "function") and not m.get("tool_calls")
    ]
    return reply_key(parse_history_from(history, rest), turn.completion)


def _unwrapped(completion: Completion) -> list[Completion]:
    """Return what programs keep of a reply that is one JSON object, or one call: a text inside it, or the call that it writes out."""
    single = completion.tool_calls[0].get("function") if len(completion.tool_calls) == 1 else None
    text = single.get("arguments") if isinstance(single, Mapping) else completion.text
    if not isinstance(text, str) or not text.lstrip().startswith("{") or len(text) > _MAX_WRAPPED_CHARS:
        return []
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return []
    inside = list(_inside(given))
    texts = sorted((v for v in inside if isinstance(v, str) and len(v) >= _MIN_DELEGATED_CHARS), key=len)
    calls = [call for v in inside if isinstance(v, dict) and (call := _written_call(v)) is not None]
    return [Completion(text=t) for t in texts[-_MAX_UNWRAPPED:]] + [
        Completion(tool_calls=(c,)) for c in calls[:1]
    ]


def _inside(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the texts and objects inside a JSON object, itself included."""
    yield value
    for item in value.values() if isinstance(value, dict) and depth else ():
        yield from _inside(item, depth - 1)


def _written_call(value: Json) -> Json | None:
    """Return the tool call that an object with a name and arguments writes out."""
    name = next(
        (v for k in ("name", "tool", "tool_name", "function") if isinstance(v := value.get(k), str)), None
    )
    given = next(
        (v for k in ("arguments", "parameters", "args", "input") if isinstance(v := value.get(k), dict)), None
    )
    return (
        None
        if name is None or given is None
        else {"function": {"name": name, "arguments": json.dumps(given)}}
    )


def _last_user_text(history: History) -> str:
    """Return the last user message: what a loop of tool calls answers."""
    last = next((m for m in reversed(history.messages) if m.get("role") == "user"), None)
    return "" if last is None else strip_client_context(content_text(last.get("content")))


def _system_head(history: History) -> str:
    """Return the beginning of a history's system prompt without digits: the time and counters in it change."""
    for message in history.messages[:4]:
        if message.get("role") in ("system", "developer"):
            return _DIGITS.sub("", content_text(message.get("content"))[:_SYSTEM_HEAD_CHARS])
    return ""


def _system_lines(history: History) -> frozenset[str]:
    """Return the lines of a history's system prompt without digits, as far as they are compared."""
    return _lines_without_digits(history.system_text[:_MAX_SYSTEM_CHARS])


def _is_similar(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two system prompts share most lines, lists in them apart: memories and documents change in a conversation."""
    one, other = (frozenset(line for line in lines if line[0] not in "-*•") for lines in (one, other))
    return 2 * len(one & other) >= max(1, len(one | other))


@lru_cache(maxsize=256)  # system prompts recur, and the turns under one share the set
def _lines_without_digits(text: str) -> frozenset[str]:
    return frozenset(filter(None, (_DIGITS.sub("", line).strip() for line in text.splitlines())))


def _call_ids(messages: Iterable[Message]) -> frozenset[str]:
    """Return the ids of the tool calls and of the results in messages, as their bytes are."""
    found = {m.get("tool_call_id") for m in messages if m.get("role") == "tool"}
    found |= {c.get("id") for m in messages for c in m.get("tool_calls") or () if isinstance(c, Mapping)}
    return frozenset(i for i in found if isinstance(i, str) and i)


def _own_call_ids(turn: NewTurn | Remembered, history: History) -> frozenset[str]:
    """Return the ids of a reply's tool calls, else those of the newest results that its request brings."""
    return _call_ids([assistant_message(turn.completion)]) or _call_ids(history.messages[-_MAX_RESULTS:])


def _is_continued_by_person(parent: _Entry | None, entry: _Entry, history: History) -> bool:
    """Whether a person's words continue a conversation under the system prompt that it had."""
    return (
        parent is not None
        and parent.tip.kind is entry.tip.kind is TurnKind.MAIN
        and bool(entry.system_head)
        and parent.system_head == entry.system_head
        and history.runs[-1].role == "user"
        and not _ends_with_tool_output(history)
    )


def _freedom(request: Json) -> tuple[bool, bool]:
    """Return (no schema, no low token limit)."""
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    return not is_structured(request), not isinstance(limit, int) or limit > MANY_TOKENS


def _tool_count(request: Json) -> int:
    tools = request.get("tools")
    return len(tools) if isinstance(tools, list) else 0


def _template_keys(history: History, client: str) -> tuple[str, ...]:
    """Return the keys of the literal beginning and end of a fresh request that is long enough to be made from a template."""
    if not history.is_opening:
        return ()
    text = _user_text(history)
    if len(text) < 2 * _TEMPLATE_CHARS:
        return ()
    return (
        digest("begins", history.root, client, text[:_TEMPLATE_CHARS]),
        digest("ends", history.root, client, text[-_TEMPLATE_CHARS:]),
    )


def _serialised_texts(history: History) -> tuple[tuple[str, ...], ...]:
    """Return the lines of each text that stands as a JSON string at the end of a fresh request's message."""
    text = content_text(history.messages[-1].get("content"))[-_FORM_CHARS:] if history.is_opening else ""
    return (
        tuple(filter(None, (utterance_lines(quoted) for quoted in json_strings(text))))
        if '":' in text
        else ()
    )


def _newest_reply(history: History) -> RoleRun:
    return next(run for run in reversed(history.runs) if run.role == "assistant")


def _frame(history: History, request: Json) -> str:
    """Return what stays the same around an agent's conversations: the beginning of the system prompt, and whether tools are offered."""
    head = _system_head(history)
    return f"{bool(_tool_count(request))}:{head}" if head else ""


def _asked(history: History) -> str:
    text = newest_user_text(history.messages)
    return squeeze(
        f"{text[:_ASKED_EDGE_CHARS]}{text[-_ASKED_EDGE_CHARS:]}"
        if len(text) > 2 * _ASKED_EDGE_CHARS
        else text
    )


def _sent_lines(history: History) -> tuple[str, ...]:
    """Return the lines of the messages behind the newest reply, beginning and end, normalised."""
    start = 0 if history.is_opening else _newest_reply(history).end
    lines = [
        line
        for m in history.messages[start:]
        if m.get("role") == "user"
        for line in content_text(m.get("content")).splitlines()
    ]
    if len(lines) > 2 * _MAX_SENT_LINES:
        lines = lines[:_MAX_SENT_LINES] + lines[-_MAX_SENT_LINES:]
    labels = (f"{normalise_line(label)}:" for line in lines if (label := _label_of(line)))
    return tuple(dict.fromkeys(filter(None, (*map(normalise_line, lines), *labels))))


def _label_of(line: str) -> str:
    """Return the beginning of a line up to its last colon: "- User Question: yes"."""
    end = line.rfind(": ", 0, _MAX_LABEL_CHARS)
    return line[: end + 2] if end > 0 else ""


def _remember(
    known: OrderedDict[tuple[str, str, str], None], key: tuple[str, str, str], capacity: int
) -> None:
    known[key] = None
    known.move_to_end(key)
    if len(known) > capacity:
        known.popitem(last=False)


def _user_text(history: History) -> str:
    return "\n".join(content_text(m.get("content")) for m in history.messages if m.get("role") == "user")


def _sampling(request: Json) -> tuple[Any, Any]:
    """Return the fields of a request by which several samples of one prompt are drawn."""
    return request.get("n") or 1, request.get("seed")


def _ends_with_tool_output(history: History) -> bool:
    """Whether a request only brings tool results."""
    last = history.messages[-1] if history.messages else {}
    if last.get("role") == "user":
        return is_tool_output(content_text(last.get("content")))
    return last.get("role") in ("tool", "function")


def _delegated_texts(completion: Completion) -> tuple[tuple[str, ...], ...]:
    """Return the lines of each longer text among the arguments of a reply's tool calls."""
    found = []
    for call in completion.tool_calls:
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if not isinstance(arguments, str) or len(arguments) < _MIN_DELEGATED_CHARS:
            continue
        try:
            given = json.loads(arguments)
        except (ValueError, RecursionError):
            continue
        for value in given.values() if isinstance(given, dict) else ():
            if (
                isinstance(value, str)
                and len(value) >= _MIN_DELEGATED_CHARS
                and (found_text := edge_lines(value))
            ):
                found.append(found_text)
    return tuple(found)


def _merge_tips(
    candidates: Mapping[str, Sequence[Tip]],
    other_histories: Iterable[History],
    find: Callable[[History], Mapping[str, Sequence[Tip]]],
    mine: History,
) -> dict[str, Sequence[Tip]]:
    """Return ``known`` with the tips of the same messages under other users, by the keys of ``mine``."""
    found = {key: list(tips) for key, tips in candidates.items()}
    for other in other_histories:
        theirs = find(other)
        for own, key in zip(mine.keys, other.keys, strict=True):
            found.setdefault(own, []).extend(theirs.get(key, ()))
    return {
        key: sorted(tips, key=lambda t: t.created_at, reverse=True) for key, tips in found.items() if tips
    }


def _opening_text(history: History) -> str:
    """Return the first user text, without its final punctuation; "" where a reply precedes."""
    return newest_user_text(history.messages)[:400].rstrip(" .!?。！？\n") if history.is_opening else ""


def _quotable_messages(history: History) -> Sequence[Message]:
    """Return what may quote other turns: all of a fresh request, or what precedes a history."""
    return history.messages if history.is_opening else history.messages[: history.runs[0].end]


def _lines_of(question: str, answer: str) -> PromptLines:
    return read_prompt_lines([{"role": "user", "content": question}, {"role": "user", "content": answer}])
