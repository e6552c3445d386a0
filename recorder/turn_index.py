"""An index of the newest few thousand turns. In memory, bounded.

An active conversation is found here without a query: this process writes every turn, so the index is complete (it includes the batch that is
being written). Some data exist only here: the lines and answer keys that identify a rewritten or quoted history, identical bodies, and side
turns that preceded their conversation. All of it can be computed from stored turns; after a restart the newest are read back (`restore`).
What is looked up for a request is in `recorder.finders` and `recorder.kinds`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import orjson

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
)
from recorder.linking import LinkReason, answer_keys
from recorder.text_overlap import (
    FORM_CHARS,
    PromptLines,
    TurnLines,
    edge_lines,
    json_strings,
    newest_user_text,
    read_prompt_lines,
    read_turn_lines,
    squeeze,
    utterance_lines,
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
from wire.classify import MANY_TOKENS, Classification, Evidence, is_structured
from wire.line_text import normalise_line
from wire.user_text import is_tool_output, strip_client_context

#: Number of turns that are indexed, and of turns that are read back at the start.
TURN_INDEX_CAPACITY, RESTORED_TURNS = 5000, 2000
#: Turns that are looked at under one key, the newest ones: a key of more identifies none of them.
_MAX_TURNS_PER_KEY = 64
#: Side turns that run independently of any conversation.
INDEPENDENT_SIDE_REASONS = frozenset({"subagent", "cron"})
#: A side request without a `user` may be about any of this many recent users of the same key.
_MAX_USERS = 16
#: Side turns that wait for the conversation they are about.
_MAX_ORPHANS = 256
#: Characters of the key under which edited openings are found; a shorter first message is not recognised after an edit.
_OPENING_KEY_CHARS, MIN_EDITED_OPENING_CHARS = 24, 40
#: Shorter tool arguments are not indexed; longer ones may be another agent's task.
_MIN_DELEGATED_CHARS = 24
#: Characters of a reply in which a text is looked for, and texts of one reply.
_MAX_WRAPPED_CHARS, _MAX_UNWRAPPED = 20_000, 2
#: Turns of one tool loop that a person's next words reach, the newest ones.
_MAX_LOOP_TURNS = 32
#: Characters at the end of a fresh request in which JSON strings are read.
_MAX_SERIALISED_CHARS = 1500
#: Characters at each end of a question that are compared.
_ASKED_EDGE_CHARS = 2000
#: Characters of a line's beginning in which a label ends, and lines at each end of a request's newest messages that are remembered.
_MAX_LABEL_CHARS, _MAX_SENT_LINES = 80, 40
#: Newest messages of a request in which the ids of tool results are looked for.
_MAX_RESULTS = 8
#: Characters of a system prompt of which the lines are compared, and of its beginning that tells it from another one.
_MAX_SYSTEM_CHARS, _SYSTEM_HEAD_CHARS = 20_000, 120
_DIGITS = re.compile(r"\d+")

#: (kind of key, …): what a turn is found by.
Key = tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class IndexedTurn:
    """An indexed turn."""

    tip: Tip
    keys: tuple[Key, ...]  #: under which it is found
    client: str
    is_complete: bool  #: a reply in text that ended by itself
    finished_at: float
    sampling: tuple[Any, Any]  #: of its request (`sampling_of`)
    root: str
    trace: TurnLines
    session: Key  #: (key name, session)
    system_key: str
    number: int  #: number of the main turn of its key
    opening: str  #: the user text of a first turn, as far as it is compared
    delegated_texts: tuple[tuple[str, ...], ...]  #: lines of each text that it passed to a tool
    is_on_summary: bool  #: only a summary preceded its prompt
    asked_again: tuple[str, ...]  #: turns that it asks again, or that the tool loop before it asked again
    loop: tuple[str, ...]  #: earlier turns of the tool loop that it is part of
    found: Classification  #: its kind with the evidence
    frame: str  #: `frame_of`
    system_lines: frozenset[str]  #: of its system prompt, without digits
    call_ids: frozenset[
        str
    ]  #: of its tool calls, else those that it brings results of, else those of its parent
    tool_count: int  #: tools offered
    main_drop_reason: DropReason | None  #: why it would not train as a main turn
    freedom: tuple[bool, bool]  #: of its reply (`freedom_of`)
    ending: str  #: of a fresh request that may be made from a form
    asked: str  #: beginning and end of its newest user text, squeezed
    lines: tuple[str, ...]  #: of its newest user messages, as they were sent
    serialised: tuple[tuple[str, ...], ...]  #: lines of each text inside JSON in its message
    retried: str  #: key of its prompt; of a framework's retry, of the first prompt

    @property
    def request_key(self) -> str:
        return self.keys[0][1]

    @property
    def is_main(self) -> bool:
        return self.tip.kind is TurnKind.MAIN

    @property
    def side_reason(self) -> str:
        return "" if self.is_main else self.found.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSideTurn:
    """A side turn whose conversation has not started yet."""

    root: str
    prompt_lines: PromptLines
    side_reasons: frozenset[str]
    created_at: float


class TurnIndex:
    """An index over the newest turns; the oldest are evicted first.

    Attributes:
        orphans: side turns that preceded their conversation, by session.
        known: (root, client, system prompt or line) around words that people continued.
        passed_over: (root, client, system prompt) of turns beside those that people continued.
        roots: of the newest users, by key: a side request may name none.
    """

    def __init__(self, capacity: int = TURN_INDEX_CAPACITY) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, IndexedTurn] = OrderedDict()
        self._index: dict[Key, list[str]] = {}  # turns, oldest first
        self._extended: OrderedDict[str, set[str]] = OrderedDict()  # parent -> main turns that extend it
        self._main_counts: defaultdict[str, int] = defaultdict(int)  # main turns seen, by key
        self.orphans: OrderedDict[str, WaitingSideTurn] = OrderedDict()
        self.known: OrderedDict[Key, None] = OrderedDict()
        self.passed_over: OrderedDict[Key, None] = OrderedDict()
        self.roots: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)

    def __len__(self) -> int:
        return len(self._entries)

    # ------------------------------------------------------------------ reading

    def get(self, turn_id: str | None) -> IndexedTurn | None:
        """Return an indexed turn."""
        return None if turn_id is None else self._entries.get(turn_id)

    def tip_of(self, turn_id: str | None) -> Tip | None:
        """Return the tip of an indexed turn."""
        entry = self.get(turn_id)
        return None if entry is None else entry.tip

    def has(self, *key: str) -> bool:
        return key in self._index

    def find(self, *key: str) -> Iterator[IndexedTurn]:
        """Yield the newest turns under a key, newest first."""
        return (self._entries[t] for t in self._index.get(key, ())[: -_MAX_TURNS_PER_KEY - 1 : -1])

    def tips(self, *key: str) -> list[Tip]:
        """Return the newest turns under a key, newest first."""
        return [entry.tip for entry in self.find(*key)]

    def main_turn(self, key: str) -> Tip | None:
        """Return the newest main turn whose prompt and reply have this key."""
        return next((entry.tip for entry in self.find("reply", key) if entry.is_main), None)

    def newest(self, key_name: str, session: str) -> Tip | None:
        """Return the newest main turn of a session."""
        return next((entry.tip for entry in self.find("session", key_name, session)), None)

    def extending(self, turn_id: str) -> list[IndexedTurn]:
        """Return the main turns that extend a turn."""
        return [self._entries[t] for t in self._extended.get(turn_id, ()) if t in self._entries]

    def refresh(self, tip: Tip) -> Tip:
        """Return ``tip`` with its current state: it may have been extended since it was read."""
        return replace(tip, is_newest=False) if tip.is_newest and self._extended.get(tip.turn_id) else tip

    def earlier_next_states(self, turn: NewTurn) -> tuple[NextState, ...]:
        """Return what a person's message says about turns before its parent.

        A reply that was asked again is judged only now that the newer one is continued. The turns of the tool loop that led to the answer
        share in the reaction to it.
        """
        state = turn.next_state
        entry = self.get(state.turn_id) if state is not None else None
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

    # ------------------------------------------------------------------ writing

    def add(self, captured: ClassifiedExchange, turns: Iterable[NewTurn]) -> None:
        """Add the turns of one exchange, linked but perhaps not written yet."""
        for turn in turns:
            found = replace(captured.kind, kind=turn.kind, reason=turn.kind_reason)
            self._insert(turn, captured.history, captured.body_key, found)
            if captured.options.session is None:
                self._attach_orphan(captured, turn)
        self._evict()

    def restore(self, turns: Iterable[Remembered]) -> None:
        """Add stored turns, oldest first: after a restart, this rebuilds the index."""
        for turn in turns:
            if turn.turn_id in self._entries:
                continue
            history = parse_history(turn.messages, turn.key_name, turn.user)
            evidence = tuple(Evidence(code=code, weight=weight) for code, weight in turn.evidence)
            found = Classification(kind=turn.kind, reason=turn.kind_reason, evidence=evidence)
            self._insert(turn, history, body_key(history, turn.request) if turn.is_whole else "", found)
        self._evict()

    def _insert(
        self,
        turn: NewTurn | Remembered,
        history: History,
        body: str,
        found: Classification,
    ) -> None:
        root, parent = history.root, self.get(turn.parent_turn_id)
        is_retried = parent is not None and turn.relation is Relation.FRAMEWORK_RETRY
        asked_again, loop = self._earlier_turns(turn, history, parent)
        entry = IndexedTurn(
            tip=_tip(turn, is_newest=not self._extended.get(turn.turn_id)),
            keys=(),
            client=turn.client,
            is_complete=turn.completion.finish_reason == "stop" and bool(turn.completion.text.strip()),
            finished_at=turn.finished_at,
            sampling=sampling_of(turn.request),
            root=root,
            trace=_turn_lines(turn, history),
            session=(turn.key_name, turn.session_id),
            system_key=history.system_key,
            number=self._main_counts[turn.key_name],
            opening=opening_text(history) if turn.kind is TurnKind.MAIN else "",
            delegated_texts=_delegated_texts(turn),
            is_on_summary=turn.link_reason == LinkReason.RECORDED_SUMMARY,
            asked_again=asked_again,
            loop=loop,
            found=found,
            frame=frame_of(history, turn.request),
            system_lines=system_lines(history),
            call_ids=_own_call_ids(turn, history) or (parent.call_ids if parent else frozenset()),
            tool_count=tool_count(turn.request),
            main_drop_reason=turn.main_drop_reason,
            freedom=freedom_of(turn.request),
            ending=form_ending(history),
            asked=_asked(history),
            lines=_sent_lines(history) if any(e.weight > 0 for e in found.evidence) else (),
            serialised=serialised_texts(history),
            retried=parent.retried if parent is not None and is_retried else turn.request_key,
        )
        entry.keys = tuple(dict.fromkeys(_keys_of(entry, turn, history, body, is_retried=is_retried)))
        self._entries[turn.turn_id] = entry
        self._note_passed_over(entry)
        for key in entry.keys:
            self._index.setdefault(key, []).append(turn.turn_id)
        is_persons = (
            history.runs[-1:] and history.runs[-1].role == "user" and not ends_with_tool_output(history)
        )
        if (
            parent is not None
            and parent.is_main
            and entry.is_main
            and parent.frame == entry.frame != ""
            and is_persons
        ):
            self._note_continued(parent)
        roots = self.roots[turn.key_name]
        roots[root] = None
        roots.move_to_end(root)
        if len(roots) > _MAX_USERS:
            roots.popitem(last=False)
        self._main_counts[turn.key_name] += turn.kind is TurnKind.MAIN
        if turn.parent_turn_id is not None and entry.is_main and turn.relation is not Relation.RETRY:
            self._extend(turn.parent_turn_id, turn.turn_id)

    def _extend(self, parent_id: str, turn_id: str) -> None:
        self._extended.setdefault(parent_id, set()).add(turn_id)
        self._set_is_newest(parent_id, is_newest=False)

    def _earlier_turns(
        self, turn: NewTurn | Remembered, history: History, parent: IndexedTurn | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return (turns that this one asks again, earlier turns of its tool loop); see `IndexedTurn`."""
        loop: tuple[str, ...] = ()
        asked_again: tuple[str, ...] = ()
        if turn.kind is TurnKind.SIDE:
            return asked_again, loop
        if parent is not None and ends_with_tool_output(history):
            loop = (*parent.loop, parent.tip.turn_id)[-_MAX_LOOP_TURNS:]
            asked_again = parent.asked_again
        if turn.relation is Relation.RETRY:
            same = self.find("request", turn.request_key)
            repeated = next((e for e in same if e.tip.session_id == turn.session_id), None)
            if repeated is not None:
                asked_again = (repeated.tip.turn_id, *repeated.asked_again)
        return asked_again, loop

    def _note_continued(self, entry: IndexedTurn) -> None:
        """Learn what a client puts around words of a person: the system prompt with or without tools, and the lines of the message."""
        self.passed_over.pop((entry.root, entry.client, entry.frame), None)
        for text in filter(None, (entry.frame, *entry.lines)):
            key = (entry.root, entry.client, text)
            self.known[key] = None
            self.known.move_to_end(key)
        while len(self.known) > 10 * self._capacity:
            self.known.popitem(last=False)

    def _note_passed_over(self, entry: IndexedTurn) -> None:
        key = (entry.root, entry.client, entry.frame)
        if entry.found.reason == "passed_over" and entry.frame and key not in self.known:
            self.passed_over[key] = None
            if len(self.passed_over) > self._capacity:
                self.passed_over.popitem(last=False)

    def _attach_orphan(self, captured: ClassifiedExchange, turn: NewTurn) -> None:
        """Keep a side turn that preceded its conversation; drop it once a conversation includes it."""
        if turn.kind is TurnKind.MAIN:
            self.orphans.pop(turn.session_id, None)
        elif turn.relation is Relation.FIRST and captured.kind.reason not in INDEPENDENT_SIDE_REASONS:
            waiting = self.orphans.get(turn.session_id)
            reasons = waiting.side_reasons if waiting is not None else frozenset[str]()
            lines = waiting.prompt_lines if waiting else read_prompt_lines(captured.history.messages)
            self.orphans[turn.session_id] = WaitingSideTurn(
                root=captured.history.root,
                prompt_lines=lines,
                side_reasons=reasons | {captured.kind.reason},
                created_at=turn.created_at,
            )
            while len(self.orphans) > _MAX_ORPHANS:
                self.orphans.popitem(last=False)

    def relink(self, found: LinkCorrection) -> None:
        """Move an indexed turn."""
        entry = self._entries[found.turn_id]
        new = (entry.session[0], found.session_id)
        entry.tip = replace(
            entry.tip,
            session_id=found.session_id,
            parent_turn_id=found.parent_turn_id,
            turn_index=found.turn_index,
        )
        if entry.session != new:
            kind = "session" if entry.is_main else "side"
            self._rekey(entry, (kind, *entry.session), (kind, *new))
            entry.session = new
        if entry.is_main and found.parent_turn_id is not None:
            self._extend(found.parent_turn_id, found.turn_id)

    def correct(self, turn_id: str, found: Classification) -> None:
        """Change the kind of an indexed turn."""
        entry = self._entries[turn_id]
        entry.found = found
        self._note_passed_over(entry)
        if entry.tip.kind is found.kind:
            return
        entry.tip = replace(entry.tip, kind=found.kind)
        old, new = ("side", "session") if entry.is_main else ("session", "side")
        if entry.is_main:
            self._note_continued(entry)
        self._rekey(entry, (old, *entry.session), (new, *entry.session))

    def _rekey(self, entry: IndexedTurn, old: Key, new: Key) -> None:
        turn_id, created_at = entry.tip.turn_id, entry.tip.created_at
        entry.keys = tuple(new if key == old else key for key in entry.keys)
        self._drop(old, turn_id)
        holders = self._index.setdefault(new, [])
        later = (i for i, t in enumerate(holders) if self._entries[t].tip.created_at > created_at)
        holders.insert(next(later, len(holders)), turn_id)

    def remove(self, turn_ids: Iterable[str]) -> None:
        """Remove turns that could not be written: nothing may link to them."""
        for turn_id in turn_ids:
            entry = self._entries.pop(turn_id, None)
            if entry is None:
                continue
            self._drop_keys(entry)
            self.orphans.pop(entry.tip.session_id, None)
            children = self._extended.get(entry.tip.parent_turn_id or "")
            if children is not None:
                children.discard(turn_id)
                if not children:
                    self._set_is_newest(entry.tip.parent_turn_id or "", is_newest=True)

    def _evict(self) -> None:
        while len(self._entries) > self._capacity:
            self._drop_keys(self._entries.popitem(last=False)[1])
        while len(self._extended) > 2 * self._capacity:
            self._extended.popitem(last=False)

    def _drop_keys(self, entry: IndexedTurn) -> None:
        for key in entry.keys:
            self._drop(key, entry.tip.turn_id)

    def _drop(self, key: Key, turn_id: str) -> None:
        holders = self._index[key]
        holders.remove(turn_id)
        if not holders:
            del self._index[key]

    def _set_is_newest(self, turn_id: str, *, is_newest: bool) -> None:
        entry = self._entries.get(turn_id)
        if entry is not None and entry.tip.is_newest != is_newest:
            entry.tip = replace(entry.tip, is_newest=is_newest)


def _keys_of(
    entry: IndexedTurn, turn: NewTurn | Remembered, history: History, body: str, *, is_retried: bool
) -> Iterator[Key]:
    """Yield the keys under which a turn is found."""
    root = entry.root
    yield "request", turn.request_key
    yield "body", turn.key_name, body
    yield ("session" if entry.is_main else "side"), *entry.session
    if len(entry.opening) >= MIN_EDITED_OPENING_CHARS:
        yield opening_key(root, entry.opening)
    yield from (("order", root, lines[-1]) for lines in entry.delegated_texts)
    yield from (("serialised", root, lines[-1]) for lines in entry.serialised)
    yield from (("question", root, line) for line in entry.trace.question)
    yield from (("answer", root, line) for line in entry.trace.answers)
    if turn.reply_key is None:
        return
    own, size = reply_run_key(turn.completion)
    exchanges = answer_keys(root, history.runs[-1] if history.runs else None, own, size)
    yield "reply", turn.reply_key
    forms = [own]
    for text in _unwrapped(turn.completion):
        form, size = reply_run_key(Completion(text=text))
        exchanges += answer_keys(root, history.runs[-1] if history.runs else None, form, size)
        forms.append(form)
    yield from (("reply", digest(turn.request_key, form)) for form in forms[1:])
    if (without_tools := _reply_key_without_tools(history, turn)) is not None:
        yield "reply", without_tools
    if is_retried:  # some frameworks keep the corrected reply only
        yield from (("reply", digest(entry.retried, form)) for form in forms)
    yield from (("exchange", exchange.key) for exchange in exchanges)


def _unwrapped(completion: Completion) -> list[str]:
    """Return what programs keep of a reply that is one JSON object, or one call: the longest texts inside it."""
    single = completion.tool_calls[0].get("function") if len(completion.tool_calls) == 1 else None
    text = single.get("arguments") if isinstance(single, Mapping) else completion.text
    if not isinstance(text, str) or not text.lstrip().startswith("{") or len(text) > _MAX_WRAPPED_CHARS:
        return []
    inside = sorted((t for t in json_strings(text) if len(t) >= _MIN_DELEGATED_CHARS), key=len)[
        -_MAX_UNWRAPPED:
    ]
    with contextlib.suppress(ValueError):  # the arguments as a message, written by a program
        inside += [orjson.dumps(orjson.loads(text)).decode()] if single is not None else ()
    return inside


def opening_key(root: str, text: str) -> Key:
    """Return the key under which edits of an opening are found."""
    return "opening", root, normalise_line(text)[:_OPENING_KEY_CHARS]


def _tip(turn: NewTurn | Remembered, *, is_newest: bool) -> Tip:
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


def _turn_lines(turn: NewTurn | Remembered, history: History) -> TurnLines:
    """Return the lines by which a turn is found in later prompts."""
    trace = read_turn_lines(history.messages, turn.completion)
    if turn.kind is TurnKind.SIDE:
        return replace(trace, question=())  # the template of a side request is not text of the conversation
    if trace.question or not history.runs or history.runs[-1].role != "tool":
        return trace
    # What a loop of tool calls answers.
    last = next((m for m in reversed(history.messages) if m.get("role") == "user"), {})
    return replace(trace, question=edge_lines(strip_client_context(content_text(last.get("content")))))


def _reply_key_without_tools(history: History, turn: NewTurn | Remembered) -> str | None:
    """Return the key of prompt and reply with the tool traffic taken out, as some clients send it back; None where there is none."""
    whole = not isinstance(turn, Remembered) or turn.is_whole
    if turn.completion.tool_calls or not whole or not any(run.role == "tool" for run in history.runs):
        return None
    rest = [
        m for m in history.messages if m.get("role") not in ("tool", "function") and not m.get("tool_calls")
    ]
    return reply_key(parse_history_from(history, rest), turn.completion)


def _delegated_texts(turn: NewTurn | Remembered) -> tuple[tuple[str, ...], ...]:
    """Return the lines of each longer text among the arguments of a reply's tool calls."""
    found = []
    for call in turn.completion.tool_calls:
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        try:
            given = json.loads(arguments) if isinstance(arguments, str) else None
        except (ValueError, RecursionError):
            continue
        texts = given.values() if isinstance(given, dict) else ()
        found += [edge_lines(t) for t in texts if isinstance(t, str) and len(t) >= _MIN_DELEGATED_CHARS]
    return tuple(filter(None, found))


def _asked(history: History) -> str:
    text, edge = newest_user_text(history.messages), _ASKED_EDGE_CHARS
    return squeeze(f"{text[:edge]}{text[-edge:]}" if len(text) > 2 * edge else text)


def _sent_lines(history: History) -> tuple[str, ...]:
    """Return the lines of the messages behind the newest reply and their labels, beginning and end, normalised."""
    new = history.messages if history.is_opening else history.messages_after(newest_reply(history).end)
    lines = [
        line for m in new if m.get("role") == "user" for line in content_text(m.get("content")).splitlines()
    ]
    if len(lines) > 2 * _MAX_SENT_LINES:
        lines = lines[:_MAX_SENT_LINES] + lines[-_MAX_SENT_LINES:]
    labels = (f"{normalise_line(label)}:" for line in lines if (label := label_of(line)))
    return tuple(dict.fromkeys(filter(None, (*map(normalise_line, lines), *labels))))


def form_ending(history: History) -> str:
    """Return the end of a fresh request that is long enough to be made from a form, else ""."""
    text = user_text(history) if history.is_opening else ""
    return text[-FORM_CHARS:] if len(text) > 2 * FORM_CHARS else ""


def user_text(history: History) -> str:
    return "\n".join(content_text(m.get("content")) for m in history.messages if m.get("role") == "user")


def label_of(line: str) -> str:
    """Return the beginning of a line up to its last colon: "- User Question: yes"."""
    end = line.rfind(": ", 0, _MAX_LABEL_CHARS)
    return line[: end + 2] if end > 0 else ""


def serialised_texts(history: History) -> tuple[tuple[str, ...], ...]:
    """Return the lines of each text that stands as a JSON string at the end of a fresh request's message."""
    last = content_text(history.messages[-1].get("content")) if history.is_opening else ""
    text = last[-_MAX_SERIALISED_CHARS:]
    return tuple(filter(None, map(utterance_lines, json_strings(text)))) if '":' in text else ()


def newest_reply(history: History) -> RoleRun:
    return next(run for run in reversed(history.runs) if run.role == "assistant")


def opening_text(history: History) -> str:
    """Return the first user text, without its final punctuation; "" where a reply precedes."""
    return newest_user_text(history.messages)[:400].rstrip(" .!?。！？\n") if history.is_opening else ""


def ends_with_tool_output(history: History) -> bool:
    """Whether a request only brings tool results."""
    last = history.messages[-1] if history.messages else {}
    if last.get("role") == "user":
        return is_tool_output(content_text(last.get("content")))
    return last.get("role") in ("tool", "function")


def frame_of(history: History, request: Json) -> str:
    """Return what stays the same around an agent's conversations: the beginning of the system prompt, without digits, and whether tools are offered."""
    head = _DIGITS.sub("", history.system_text[:_SYSTEM_HEAD_CHARS])
    return f"{bool(tool_count(request))}:{head}" if head else ""


def system_lines(history: History) -> frozenset[str]:
    """Return the lines of a history's system prompt without digits, as far as they are compared."""
    return _lines_without_digits(history.system_text[:_MAX_SYSTEM_CHARS])


@lru_cache(maxsize=256)  # system prompts recur, and the turns under one share the set
def _lines_without_digits(text: str) -> frozenset[str]:
    return frozenset(filter(None, (_DIGITS.sub("", line).strip() for line in text.splitlines())))


def call_ids(messages: Iterable[Message]) -> frozenset[str]:
    """Return the ids of the tool calls and of the results in messages, as their bytes are."""
    found: list[object] = []
    for message in messages:  # a client may send anything in their place
        calls = message.get("tool_calls")
        found += [c.get("id") for c in calls if isinstance(c, Mapping)] if isinstance(calls, list) else ()
        found += [message.get("tool_call_id")] if message.get("role") == "tool" else ()
    return frozenset(i for i in found if isinstance(i, str) and i)


def _own_call_ids(turn: NewTurn | Remembered, history: History) -> frozenset[str]:
    """Return the ids of a reply's tool calls, else those of the newest results that its request brings."""
    return call_ids([assistant_message(turn.completion)]) or call_ids(history.messages[-_MAX_RESULTS:])


def freedom_of(request: Json) -> tuple[bool, bool]:
    """Return (no schema, no low token limit)."""
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    return not is_structured(request), not isinstance(limit, int) or limit > MANY_TOKENS


def tool_count(request: Json) -> int:
    tools = request.get("tools")
    return len(tools) if isinstance(tools, list) else 0


def sampling_of(request: Json) -> tuple[Any, Any]:
    """Return the fields of a request by which several samples of one prompt are drawn."""
    return request.get("n") or 1, request.get("seed")
