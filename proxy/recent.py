"""What the last few thousand turns looked like. In memory, bounded.

A conversation that is being held is found here, without asking the record: this process writes every turn, so what it saw is what
there is (turns of the batch that is being written included). Some things are only here: the exchanges and lines by which a
conversation is recognised whose history was rewritten or quoted, which bodies were identical, and which housekeeping came
before the conversation it is about. They can all be told from stored turns: after a restart the newest are read back (`add`).
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from proxy.canonical import History, Message, body_key, read_history, reply_mark
from proxy.classify import is_silent, is_structured
from proxy.drafts import Draft
from proxy.linking import SUMMARISED, Known, Orphan, exchange_keys, exchanges_of
from proxy.quotes import (
    FOUND,
    Page,
    Quote,
    Trace,
    bare,
    edges,
    find_inside,
    flat_of,
    measure,
    newest_words,
    read_page,
    read_trace,
)
from proxy.words import content_text, spoken
from store.values import Completion, NewTurn, Relation, Remembered, Tip, TurnKind

#: So many turns are remembered, and so many of the newest are read back when the proxy starts.
REMEMBERED, READ_BACK = 5000, 2000
#: A line that so many turns have in common tells nothing.
_COMMON = 64
#: Of one prompt, at most so many turns are measured, the newest first.
_MEASURED = 48
#: Housekeeping waits so long for the conversation it is about: they are sent at the same time.
ORPHAN_S = 120.0
#: Housekeeping that is asked for in pieces, or again and again.
_REPEATED = frozenset({"summary", "memory", "heartbeat"})
#: A line shorter than this stands inside others by chance.
_TELLING_LINE = 12
#: So many of the newest turns are searched for in a prompt that quotes inside its lines.
_SEARCHED = 32
_KINDS = ("request", "body", "session", "chores", "line", "reply", "exchange", "order", "opening")
#: Housekeeping that only conversations need which have been held, and what runs on its own beside all of them.
_OF_THE_PAST = frozenset({"summary", "memory"})
_ON_ITS_OWN = frozenset({"subagent", "cron"})
#: So much of a system prompt's end is searched for a summary.
_SUMMARISED = 4000
#: By so many letters edited openings are found again.
_OPENS = 24
#: A chore that names nobody may be about any of so many people who spoke last with the same key.
_PEOPLE = 16
#: What a turn tells a tool is remembered from so many characters on: another agent may be asked just that.
_TELLING_ORDER = 24
#: A first message shorter than this is not recognised when it comes back edited.
_TELLING_OPENING = 40


@dataclass(slots=True, kw_only=True)
class _Entry:
    tip: Tip
    keys: tuple[tuple[str, str], ...]  #: (index, key) under which the turn is found
    finished_at: float
    root: str
    trace: Trace
    preamble: str
    is_structured: bool
    chore: str  #: what kind of housekeeping it was; "" for a main turn
    number: int  #: which main turn of its scope
    opening: str  #: the person's words of a first turn, as far as they are compared
    orders: tuple[tuple[str, ...], ...]  #: the lines of each text that it gave to a tool
    is_on_summary: bool  #: nothing but a summary stood before its question


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orphaned:
    """Housekeeping whose conversation has not come yet."""

    root: str
    page: Page
    flat: str
    chores: set[str]
    created_at: float


class _Found(Mapping[str, "list[Tip]"]):
    """The turns under the keys of a history, looked up where somebody asks: a long history has hundreds, and its newest tell."""

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
        return iter([mark.key for mark in self._history.marks if mark.key in self._index])

    def __len__(self) -> int:
        return sum(mark.key in self._index for mark in self._history.marks)

    def several(self) -> list[list[Tip]]:
        """Return the turns under those keys that several have."""
        index = self._index
        return [
            self._tips(index[m.key]) for m in self._history.marks if m.key in index and len(index[m.key]) > 1
        ]


class Recent:
    """An index over the newest turns, oldest dropped first."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        #: By kind of key: key -> turns, oldest first.
        self._index: dict[str, dict[str, list[str]]] = {kind: {} for kind in _KINDS}
        self._extended: OrderedDict[str, set[str]] = OrderedDict()  # parent -> main turns that extend it
        self._mains: defaultdict[str, int] = defaultdict(int)  # main turns seen, by scope
        self._orphans: OrderedDict[str, _Orphaned] = OrderedDict()  # by session, housekeeping first
        self._people: defaultdict[str, OrderedDict[str, None]] = defaultdict(
            OrderedDict
        )  # by scope: `user`s, newest last

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, draft: Draft, turns: Iterable[NewTurn]) -> None:
        """Take in the turns of one exchange, linked but perhaps not written yet."""
        for turn in turns:
            self._enter(
                turn,
                draft.history,
                body=draft.body_key,
                chore=draft.kind.reason if turn.kind is TurnKind.SIDE else "",
                is_structured=is_structured(draft.chat.body),
            )
            if draft.wishes.session is None:
                self._adopt(draft, turn)
        self._trim()

    def recall(self, turns: Iterable[Remembered]) -> None:
        """Take in stored turns, oldest first: after a restart all is told from the record that was known before."""
        for turn in turns:
            if turn.turn_id in self._entries:
                continue
            history = read_history(turn.messages, turn.scope, turn.user)
            self._enter(
                turn,
                history,
                body=body_key(history, turn.request) if turn.is_whole else "",
                chore=turn.link_reason.rpartition(" side: ")[2] if turn.kind is TurnKind.SIDE else "",
                is_structured=is_structured(turn.request),
            )
        self._trim()

    def _enter(
        self, turn: NewTurn | Remembered, history: History, *, body: str, chore: str, is_structured: bool
    ) -> None:
        keys = [("request", turn.request_key), ("body", f"{turn.scope}:{body}")]
        index = "session" if turn.kind is TurnKind.MAIN else "chores"
        keys.append((index, f"{turn.scope}:{turn.session_id}"))
        trace = read_trace(history.messages, turn.completion)
        if turn.kind is TurnKind.SIDE:
            trace = Trace(asked=(), said=trace.said)  # a chore's template says nothing about the conversation
        keys += [("line", f"{history.root}:{line}") for line in {*trace.asked, *trace.said}]
        orders = _orders(turn.completion)
        opening = _opening(history) if turn.kind is TurnKind.MAIN else ""
        if len(opening) >= _TELLING_OPENING:
            keys.append(("opening", f"{history.root}:{bare(opening)[:_OPENS]}"))
        keys += [("order", f"{history.root}:{order[-1]}") for order in orders]
        if turn.user is not None:
            people = self._people[turn.scope]
            people[turn.user] = None
            people.move_to_end(turn.user)
            if len(people) > _PEOPLE:
                people.popitem(last=False)
        if turn.reply_key is not None:
            own, size = reply_mark(turn.completion)
            marks = history.marks
            found = exchange_keys(history.root, marks[-1] if marks else None, own, size)
            keys += [("reply", turn.reply_key), *(("exchange", exchange.key) for exchange in found)]
        is_newest = not self._extended.get(turn.turn_id)
        tip = Tip(
            turn_id=turn.turn_id,
            session_id=turn.session_id,
            turn_index=turn.turn_index,
            kind=turn.kind,
            parent_turn_id=turn.parent_turn_id,
            key=turn.reply_key or turn.request_key,
            is_newest=is_newest,
            created_at=turn.created_at,
        )
        self._entries[turn.turn_id] = _Entry(
            tip=tip,
            keys=tuple(keys),
            finished_at=turn.finished_at,
            root=history.root,
            trace=trace,
            preamble=history.preamble,
            is_structured=is_structured,
            chore=chore,
            number=self._mains[turn.scope],
            opening=opening,
            orders=orders,
            is_on_summary=turn.link_reason.startswith(SUMMARISED),
        )
        self._mains[turn.scope] += turn.kind is TurnKind.MAIN
        for kind, key in keys:
            holders = self._index[kind].get(key)
            if holders is None:
                self._index[kind][key] = [turn.turn_id]
            else:
                holders.append(turn.turn_id)
        is_extension = turn.kind is TurnKind.MAIN and turn.relation is not Relation.RETRY
        if turn.parent_turn_id is not None and is_extension:
            self._extended.setdefault(turn.parent_turn_id, set()).add(turn.turn_id)
            self._renew(turn.parent_turn_id, is_newest=False)

    def _trim(self) -> None:
        while len(self._entries) > self._capacity:
            self._unlist(*self._entries.popitem(last=False))
        while len(self._extended) > 2 * self._capacity:
            self._extended.popitem(last=False)

    def _adopt(self, draft: Draft, turn: NewTurn) -> None:
        """Keep housekeeping that came before its conversation; forget it once a conversation has taken it in."""
        if turn.kind is TurnKind.MAIN:
            self._orphans.pop(turn.session_id, None)
        elif turn.relation is Relation.FIRST and draft.kind.reason not in _ON_ITS_OWN:
            waiting = self._orphans.get(turn.session_id)
            chores = {draft.kind.reason} | (waiting.chores if waiting is not None else set())
            messages = draft.history.messages
            self._orphans[turn.session_id] = _Orphaned(
                root=draft.history.root,
                page=waiting.page if waiting is not None else read_page(messages),
                flat=waiting.flat if waiting is not None else flat_of(messages),
                chores=chores,
                created_at=turn.created_at,
            )
            while len(self._orphans) > 256:
                self._orphans.popitem(last=False)

    def remove(self, turn_ids: Iterable[str]) -> None:
        """Forget turns that could not be written: nothing may link to them."""
        for turn_id in turn_ids:
            entry = self._entries.pop(turn_id, None)
            if entry is not None:
                self._unlist(turn_id, entry)
                self._orphans.pop(entry.tip.session_id, None)
                children = self._extended.get(entry.tip.parent_turn_id or "")
                if children is not None:
                    children.discard(turn_id)
                    if not children:
                        self._renew(entry.tip.parent_turn_id or "", is_newest=True)

    def _renew(self, turn_id: str, *, is_newest: bool) -> None:
        """Keep an entry's tip true, so that it can be handed out as it is."""
        entry = self._entries.get(turn_id)
        if entry is not None and entry.tip.is_newest != is_newest:
            entry.tip = replace(entry.tip, is_newest=is_newest)

    def _unlist(self, turn_id: str, entry: _Entry) -> None:
        for kind, key in entry.keys:
            holders = self._index[kind][key]
            holders.remove(turn_id)
            if not holders:
                del self._index[kind][key]

    def today(self, tip: Tip) -> Tip:
        """Return ``tip`` as it stands now: something may have extended it since it was read."""
        if tip.is_newest and self._extended.get(tip.turn_id):
            return replace(tip, is_newest=False)
        return tip

    def _find(self, index: str, key: str) -> list[Tip]:
        """Return the turns under a key, newest first."""
        holders = self._index[index].get(key)
        return self._tips(holders) if holders else []

    def _find_all(self, index: str, keys: Iterable[str]) -> dict[str, list[Tip]]:
        return {key: tips for key in keys if (tips := self._find(index, key))}

    def ends_main(self, key: str) -> bool:
        """Whether the prompt and reply of a main turn have this key."""
        holders = self._index["reply"].get(key, ())
        return any(self._entries[t].tip.kind is TurnKind.MAIN for t in holders)

    def replies(self, history: History) -> Mapping[str, list[Tip]]:
        """Return the turns after whose reply a prefix of the history ends."""
        return _Found(history, self._index["reply"], self._tips)

    def requests(self, history: History) -> Mapping[str, list[Tip]]:
        """Return the turns whose prompt is a prefix of the history, or all of it."""
        return _Found(history, self._index["request"], self._tips)

    def _tips(self, holders: Sequence[str]) -> list[Tip]:
        return [self._entries[t].tip for t in reversed(holders)]

    def exchanges(self, history: History) -> dict[str, list[Tip]]:
        """Return the turns found by single exchanges of the history."""
        return self._find_all("exchange", {exchange.key for exchange in exchanges_of(history)})

    def identical(self, draft: Draft) -> set[str]:
        """Return the turns that had the very body of ``draft`` and had ended when it came.

        A request that came while the other was still running is somebody else's with the same words.
        """
        holders = self._index["body"].get(f"{draft.scope}:{draft.body_key}", ())
        return {t for t in holders if self._entries[t].finished_at <= draft.created_at}

    def newest(self, scope: str, session: str) -> Tip | None:
        """Return the newest main turn of a session."""
        found = self._find("session", f"{scope}:{session}")
        return found[0] if found else None

    def known(
        self, draft: Draft, *, replies: Mapping[str, Sequence[Tip]], requests: Mapping[str, Sequence[Tip]]
    ) -> Known:
        """Return all that is known of the turns a request may rest on; what costs more is only asked where keys tell nothing."""
        history = draft.history
        # The newest answer is a recorded one, word for word: nothing else has to be asked.
        newest = next((m for m in reversed(history.marks) if m.role == "assistant"), None)
        is_told = newest is not None and bool(replies.get(newest.key))
        page = None if is_told else read_page(_front(history), with_system=not history.is_opening)
        others = self._others(draft)
        if others:
            replies = _joined(replies, others, self.replies, history)
        several = replies.several() if isinstance(replies, _Found) else replies.values()
        rivals = [t for tips in several if len(tips) > 1 for t in tips]
        return Known(
            replies=replies,
            requests=requests,
            exchanges={} if is_told else self.exchanges(history),
            identical=self.identical(draft) if requests.get(history.request_key) else (),
            same_setting=self.same_setting(history, rivals) if rivals else (),
            order={t.turn_id: self._entries[t.turn_id].number for t in rivals if t.turn_id in self._entries},
            openings=self._openings(history) if history.is_opening else (),
            quotes=[] if page is None else self._quotes(draft, page, others),
            echoes=[] if is_told else self.echoes(history),
            orphans=self.orphans(draft),
            echo_of=self.echo_of(draft),
            checked=self._checked(draft, replies),
            is_silent=any(map(is_silent, draft.reply.completions)),
            waits_for_line=page is not None and page.waits_for is not None,
            is_of_the_past=draft.kind.reason in _OF_THE_PAST,
            is_ordered=page is not None and history.is_opening and self._is_ordered(history),
        )

    def _others(self, draft: Draft) -> list[History]:
        """Return the request's history as those people would have sent it whom a chore may be about that names nobody.

        Only for housekeeping, which is never trained on and answers nobody: what a person says is looked for under their own name alone.
        """
        if (
            draft.kind.kind is TurnKind.MAIN
            or draft.wishes.user is not None
            or draft.wishes.session is not None
        ):
            return []
        people = self._people.get(draft.scope)
        messages = draft.history.messages
        return [read_history(messages, draft.scope, user) for user in reversed(people)] if people else []

    def _is_ordered(self, history: History) -> bool:
        """Whether a fresh request says what a recorded turn told a tool: another agent was sent to do it."""
        words = edges(newest_words(history.messages))
        if not words:
            return False
        page = None
        for line in reversed(words):
            for turn_id in self._index["order"].get(f"{history.root}:{line}", [])[-_COMMON:]:
                page = page or frozenset(words)
                if any(
                    order[-1] == line and page.issuperset(order) for order in self._entries[turn_id].orders
                ):
                    return True
        return False

    def _checked(self, draft: Draft, replies: Mapping[str, Sequence[Tip]]) -> set[str]:
        """Return the turns which this request looks at as somebody else, to fill in a form about them."""
        if not is_structured(draft.chat.body):
            return set()
        mine = draft.history.preamble
        entries = (self._entries.get(t.turn_id) for tips in replies.values() for t in tips)
        return {
            e.tip.turn_id for e in entries if e is not None and e.preamble != mine and not e.is_structured
        }

    def _openings(self, history: History) -> list[Tip]:
        """Return the first turns that this opening extends or cuts short, newest first."""
        words = _opening(history)
        if len(words) < _TELLING_OPENING:
            return []
        found = []
        for turn_id in reversed(
            self._index["opening"].get(f"{history.root}:{bare(words)[:_OPENS]}", [])[-_COMMON:]
        ):
            entry = self._entries[turn_id]
            shorter, longer = sorted((entry.opening, words), key=len)
            is_part = longer.startswith(shorter) and _TELLING_OPENING <= len(shorter) < len(longer)
            if is_part and entry.preamble == history.preamble:
                found.append(self.today(entry.tip))
        return found

    def same_setting(self, history: History, tips: Iterable[Tip]) -> set[str]:
        """Return which of the turns had the very system prompt of this request."""
        mine = history.preamble
        return {
            t.turn_id
            for t in tips
            if t.turn_id in self._entries and self._entries[t.turn_id].preamble == mine
        }

    def orphans(self, draft: Draft) -> list[Orphan]:
        """Return the housekeeping that quotes this opening (or what this chore quotes) and has no conversation yet, oldest first."""
        history = draft.history
        if not self._orphans or not history.is_opening or draft.kind.reason in _ON_ITS_OWN:
            return []
        if draft.kind.kind is TurnKind.SIDE:
            last = read_page(history.messages).last
            return [
                Orphan(session_id=session)
                for session, orphan in self._orphans.items()
                if self._is_near(orphan, draft)
                and orphan.page.last == last
                and draft.kind.reason not in orphan.chores
            ]
        wanted = edges(newest_words(history.messages))
        return [
            Orphan(session_id=session)
            for session, orphan in self._orphans.items()
            if self._is_near(orphan, draft)
            and wanted
            and (
                wanted[-1] == orphan.page.last
                or all(line in orphan.page.places for line in wanted)
                or all(len(line) >= _TELLING_LINE and line in orphan.flat for line in wanted)
            )
        ]

    def _is_near(self, orphan: _Orphaned, draft: Draft) -> bool:
        return orphan.root == draft.history.root and abs(draft.created_at - orphan.created_at) < ORPHAN_S

    def _quotes(self, draft: Draft, page: Page, others: Sequence[History]) -> list[Quote]:
        history = draft.history
        found = self._measured(history, page, draft.kind.reason)
        for other in others:
            found += self._measured(other, page, draft.kind.reason)
        if history.is_opening and draft.kind.kind is TurnKind.MAIN:
            found += self._summaries(history)
        if found or draft.kind.kind is TurnKind.MAIN or not history.is_opening:
            return found
        # A chore that quotes inside its lines: only the newest turns are searched for, which is what chores are about.
        flat = flat_of(history.messages)
        inside = []
        roots = {history.root, *(other.root for other in others)}
        newest = (e for t in reversed(self._entries) if (e := self._entries[t]).root in roots)
        for entry in islice(newest, _SEARCHED):
            asked, said, size = find_inside(flat, entry.trace)
            if asked >= FOUND or said >= FOUND:
                inside.append(self._quote(entry, asked, said, size, 0, draft.kind.reason))
        return inside

    def _summaries(self, history: History) -> list[Quote]:
        """Return the recorded summaries that stand at the end of a system prompt: so a conversation goes on without its beginning."""
        told = [m for m in history.messages if m.get("role") in ("system", "developer")]
        text = "\n".join(content_text(m.get("content")) for m in told)[-_SUMMARISED:]
        if not text:
            return []
        page = read_page([{"role": "user", "content": text}])
        return [q for q in self._measured(history, page) if q.tip.kind is TurnKind.SIDE]

    def _measured(self, history: History, page: Page, chore: str = "") -> list[Quote]:
        found: dict[str, None] = {}
        for line in page.places:
            holders = self._index["line"].get(f"{history.root}:{line}", ())
            for turn_id in holders[-_COMMON:]:
                found[turn_id] = None
        newest = sorted((self._entries[t] for t in found), key=lambda e: e.tip.created_at, reverse=True)
        quotes = []
        for entry in newest[:_MEASURED]:
            asked, said, size, place = measure(page, entry.trace)
            if asked < FOUND and said < FOUND:
                continue
            quotes.append(self._quote(entry, asked, said, size, place, chore))
        return quotes

    def _quote(self, entry: _Entry, asked: float, said: float, size: int, place: int, chore: str) -> Quote:
        session = self._session_key(entry)
        mains = self._find("session", session)
        since = entry.tip.created_at - (0.0 if entry.tip.turn_index else ORPHAN_S)
        chores = (self._entries[t] for t in self._index["chores"].get(session, ()))
        return Quote(
            tip=self.today(entry.tip),
            asked=asked,
            said=said,
            size=size,
            place=place,
            newest=mains[0] if mains else None,
            is_left_behind=bool(mains)
            and mains[0].created_at > entry.tip.created_at
            and not self._entries[mains[0].turn_id].is_on_summary,
            asks_nothing=not entry.trace.asked,
            has_chore=chore not in _REPEATED
            and any(e.chore == chore and e.tip.created_at >= since for e in chores),
        )

    def _session_key(self, entry: _Entry) -> str:
        return next(key for index, key in entry.keys if index in ("session", "chores"))

    def echoes(self, history: History) -> list[tuple[Quote, int]]:
        """Return recorded turns whose question and answer stand in the history in other words around them, newest first.

        With each the number of the mark that holds its answer.
        """
        found: list[tuple[Quote, int]] = []
        answers = [i for i, mark in enumerate(history.marks) if mark.role == "assistant"]
        for i in reversed(answers[-4:]):
            start = history.marks[i - 1].end if i else 0
            before = history.marks[i - 2].end if i > 1 else 0
            said = "\n".join(
                spoken(content_text(m.get("content"))) for m in history.messages[start : history.marks[i].end]
            )
            page = _page_of(newest_words(history.messages[before:start]), said)
            found += [(quote, i) for quote in self._measured(history, page)]
        return found

    def echo_of(self, draft: Draft) -> Quote | None:
        """Return the recorded turn whose answer is, word for word, what this request's newest user message says."""
        messages = draft.history.messages
        newest = next((m for m in reversed(messages) if m.get("role") in ("user", "assistant", "tool")), None)
        if newest is None or newest.get("role") != "user":
            return None
        words = edges(content_text(newest.get("content")))
        for turn_id in (
            reversed(self._index["line"].get(f"{draft.history.root}:{words[-1]}", ())) if words else ()
        ):
            entry = self._entries[turn_id]
            if entry.trace.said == words and entry.trace.asked != words:
                return Quote(
                    tip=self.today(entry.tip), asked=0.0, said=1.0, size=sum(map(len, words)), place=0
                )
        return None


def _orders(completion: Completion) -> tuple[tuple[str, ...], ...]:
    """Return the lines of each longer text among the arguments of a reply's tool calls."""
    found = []
    for call in completion.tool_calls:
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if not isinstance(arguments, str) or len(arguments) < _TELLING_ORDER:
            continue
        try:
            given = json.loads(arguments)
        except (ValueError, RecursionError):
            continue
        for value in given.values() if isinstance(given, dict) else ():
            if isinstance(value, str) and len(value) >= _TELLING_ORDER and (told := edges(value)):
                found.append(told)
    return tuple(found)


def _joined(
    known: Mapping[str, Sequence[Tip]],
    others: Iterable[History],
    find: Callable[[History], Mapping[str, Sequence[Tip]]],
    mine: History,
) -> dict[str, Sequence[Tip]]:
    """Return what is known under the keys of ``mine``, with what is known of the same messages as others sent them."""
    found = {key: list(tips) for key, tips in known.items()}
    for other in others:
        theirs = find(other)
        for own, key in zip(mine.keys, other.keys, strict=True):
            found.setdefault(own, []).extend(theirs.get(key, ()))
    return {
        key: sorted(tips, key=lambda t: t.created_at, reverse=True) for key, tips in found.items() if tips
    }


def _opening(history: History) -> str:
    """Return the person's first words, without the stop at their end; "" where somebody has answered before."""
    return newest_words(history.messages)[:400].rstrip(" .!?。！？\n") if history.is_opening else ""


def _front(history: History) -> Sequence[Message]:
    """Return what may quote other turns: all of a fresh request, and what was put before a history."""
    return history.messages if history.is_opening else history.messages[: history.marks[0].end]


def _page_of(asked: str, said: str) -> Page:
    return read_page([{"role": "user", "content": asked}, {"role": "user", "content": said}])
