"""The kind of a turn by its relations to recorded turns. Sans-IO, over the index of turns.

What happens says more than words, and in every language. Six relations decide alone, some of them later (`Revision`):

1. A person's words follow a reply in a later history: the turn of that reply is main, whatever its own request looked like.
2. A request that brings the results of tools is of the kind of the turn that called them.
3. A fresh request that writes out a recorded exchange and does not wait for a next line is side (`recorder.linking`); so is one that holds
   the serialised message of a turn sent beside it.
4. A fresh request under a system prompt and tools under which people continue conversations is main.
5. An identical body is of the kind that it was before.
6. A system prompt whose replies stand in no later history, where those that another one got for the same text do: side, until one of them is
   continued. Routers, checks and suggestions are sent beside or behind a person's turn like that.

Words and structure (`wire.classify`) decide the rest, measured on the newest text less what the client put around continued words before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from recorder.canonical import History, Message
from recorder.finders import ASKED_AGAIN_S, continued_form
from recorder.linking import LinkReason, answer_keys
from recorder.text_overlap import newest_user_text, squeeze, utterance_lines
from recorder.turn_index import (
    IndexedTurn,
    TurnIndex,
    ends_with_tool_output,
    frame_of,
    freedom_of,
    label_of,
    newest_reply,
    serialised_texts,
    system_lines,
    tool_count,
)
from recorder.turns import ClassifiedExchange, read_next_messages
from store.texts import content_text
from store.values import KindCorrection, LinkCorrection, NextState, Relation, Tip, TurnKind
from wire.classify import LINKED, Classification, classify, is_machines, is_programs, reconsider, related
from wire.line_text import normalise_line

#: Seconds within which one text is sent twice for two purposes.
TWIN_S = 60.0
#: Newest replies of a history among which clients put canned ones of their own.
_MAX_CANNED = 8
#: Characters of a question that are compared.
_MAX_ASKED_CHARS = 300


@dataclass(slots=True, kw_only=True)
class Revision:
    """What a request shows about earlier turns: kinds, what they answered, and places."""

    corrections: list[KindCorrection] = field(default_factory=list)
    states: list[NextState] = field(default_factory=list)
    moved: list[LinkCorrection] = field(default_factory=list)


class KindDecider:
    """Decides kinds over an index of turns, which it keeps in step."""

    def __init__(self, turn_index: TurnIndex, weights: Mapping[str, float]) -> None:
        self._index = turn_index
        self._weights = weights

    def decide(self, captured: ClassifiedExchange, *, is_named: bool) -> Revision:
        """Decide the kind of a request (``captured.kind``) and return what it shows about earlier turns.

        Args:
            is_named: the client named the session, and no earlier turn is doubted.
        """
        revision = Revision()
        if captured.kind.reason == "client_header":
            return revision
        codes = _record_evidence(self._index, captured)
        for entry in _passed_over(self._index, captured) if "extends_main" in codes and not is_named else ():
            self._correct(captured, entry, related(entry.found, TurnKind.SIDE, "passed_over"), revision)
        captured.kind = self._by_words(captured, codes)
        may_continue_side = not is_named and not captured.history.is_opening and "extends_main" not in codes
        if may_continue_side and self._correct_followed(captured, codes, revision):
            codes = _as_continuing_main(_record_evidence(self._index, captured))
            captured.kind = self._by_words(captured, codes)
        relation = _relation_of(self._index, captured)
        if relation is not None:
            captured.kind = related(captured.kind, *relation)
        if not is_named and captured.kind.kind is TurnKind.MAIN:
            for entry in _lesser_twins(self._index, captured):
                found = related(entry.found, TurnKind.SIDE, "beside_main")
                self._correct(captured, entry, found, revision)
        return revision

    def _by_words(self, captured: ClassifiedExchange, codes: Sequence[str]) -> Classification:
        found = reconsider(captured.kind, *codes, weights=self._weights)
        newer = _without_known_lines(self._index, captured) if found.kind is TurnKind.SIDE else None
        return found if newer is None else classify(newer, captured.chat.body, codes, self._weights)

    def _correct_followed(
        self, captured: ClassifiedExchange, codes: Sequence[str], revision: Revision
    ) -> bool:
        """Correct the side turns whose reply a person continues with this request; return whether it continues a main turn now."""
        follower = _follower(captured)
        if follower not in ("user", "tool"):
            return False
        asked_at = None
        if "extends_side" in codes:
            # A program's orders about its own results ("many entities were missed: 1. … 2. …") show no person.
            as_main = _as_continuing_main(codes, by_person=follower == "user")
            if "instructed_side" in codes or self._by_words(captured, as_main).kind is TurnKind.SIDE:
                return False
            side_turns = list(_continued_side_turns(self._index, newest_reply(captured.history).key))
        else:
            echoed, asked_at = _echoed_turn(self._index, captured.history)
            if echoed is None or echoed.is_main:
                return echoed is not None
            side_turns = [echoed]
        corrected: list[IndexedTurn] = []
        for entry in side_turns:
            before = entry.found
            if is_machines(before) or before.reason in LINKED or not before.evidence:
                break
            found = related(before, TurnKind.MAIN, "continued")
            if follower == "tool":  # a loop shows only that it is no function of one reply
                found = reconsider(before, "tools_followed", weights=self._weights)
                if found.kind is TurnKind.SIDE:
                    break
            self._correct(captured, entry, found, revision)
            corrected.append(entry)
        for entry in reversed(corrected):  # oldest first: each continues the one before
            self._place(captured, entry, asked_at, revision)
        return bool(corrected)

    def _place(
        self, captured: ClassifiedExchange, entry: IndexedTurn, asked_at: int | None, revision: Revision
    ) -> None:
        """Note what a turn that became a main turn says about the main turn before it, and its place behind that one.

        Args:
            asked_at: number of the run in ``captured``'s history that is its prompt; None where its messages are the beginning of that history.
        """
        tip, history, at = entry.tip, captured.history, captured.created_at
        runs = history.runs
        if asked_at is None:
            asked_at = next((i for i, run in enumerate(runs) if run.key == entry.request_key), None)
            above = None
        else:
            above = self._index.tip_of(tip.parent_turn_id)
        if asked_at is None:
            return
        before = [run for run in reversed(runs[:asked_at]) if run.role == "assistant"]
        for run in before:
            parent = self._index.main_turn(run.key) or above
            if parent is None or parent.kind is TurnKind.SIDE:
                continue
            relation = Relation.NEXT if parent.is_newest else Relation.BRANCH
            messages = history.messages[run.end : runs[asked_at].end]
            reply = content_text(history.messages[run.end - 1].get("content"))
            following = read_next_messages(messages, reply, relation, history.system_text)
            revision.moved.append(self.move(tip.turn_id, parent.session_id, parent, at, relation))
            if following is not None:
                role, text, relation = following
                revision.states.append(
                    NextState(
                        turn_id=parent.turn_id,
                        by_turn_id=tip.turn_id,
                        role=role,
                        text=text,
                        messages=tuple(dict(m) for m in messages),
                        relation=relation,
                        created_at=tip.created_at,
                    )
                )
            return
        if tip.parent_turn_id is not None and not before:  # an opening of its own, not about another
            revision.moved.append(self.move(tip.turn_id, new_session(tip.turn_id), None, at))

    def _correct(
        self, captured: ClassifiedExchange, entry: IndexedTurn, found: Classification, revision: Revision
    ) -> None:
        self._index.correct(entry.tip.turn_id, found)
        revision.corrections.append(
            KindCorrection(
                turn_id=entry.tip.turn_id,
                kind=found.kind,
                reason=found.reason,
                evidence=tuple((e.code, round(e.weight, 3)) for e in found.evidence),
                drop_reason=entry.main_drop_reason if found.kind is TurnKind.MAIN else None,
                at=captured.created_at,
            )
        )

    def separate(self, tip: Tip, session_id: str, at: float) -> list[LinkCorrection]:
        """Move an opening that waits for its next turn to a session of its own, where another one with the same text went on.

        Its side turns and the samples beside it move too. Nothing moves where there is no such other opening.
        """
        entry = self._index.get(tip.turn_id)
        if entry is None or entry.tip.parent_turn_id is not None or not entry.tip.is_newest:
            return []
        same = [
            e
            for e in self._index.find("request", entry.request_key)
            if e is not entry and e.session == entry.session
        ]
        base = tip.turn_id.split(".")[0]
        if not any(e.is_main and not e.tip.is_newest and e.tip.turn_id.split(".")[0] != base for e in same):
            return []
        samples = [
            e
            for e in same
            if e.tip.is_newest
            and e.tip.created_at - entry.finished_at < ASKED_AGAIN_S[0]
            and entry.tip.created_at - e.finished_at < ASKED_AGAIN_S[0]
        ]
        sides = [e for e in self._index.find("side", *entry.session) if e.tip.parent_turn_id == tip.turn_id]
        moved = [self.move(one.tip.turn_id, session_id, None, at) for one in (entry, *samples)]
        return moved + [self.move(side.tip.turn_id, session_id, entry.tip, at) for side in sides]

    def move(
        self, turn_id: str, session_id: str, parent: Tip | None, at: float, relation: Relation | None = None
    ) -> LinkCorrection:
        """Move a turn below ``parent``, or to the beginning of a session."""
        found = LinkCorrection(
            turn_id=turn_id,
            session_id=session_id,
            parent_turn_id=None if parent is None else parent.turn_id,
            turn_index=0 if parent is None else parent.turn_index + 1,
            relation=relation or (Relation.FIRST if parent is None else Relation.NEXT),
            link_reason=LinkReason.CORRECTED,
            at=at,
        )
        self._index.relink(found)
        return found


def new_session(turn_id: str) -> str:
    """Return the name of the session that a turn begins."""
    return f"session_{turn_id.removeprefix('turn_')}"


def _as_continuing_main(codes: Sequence[str], *, by_person: bool = True) -> list[str]:
    """Return the evidence of a request if what it continues is a main turn; under that one's system prompt, its words are no evidence."""
    kept = [code for code in codes if code not in ("extends_side", "instructed_side")]
    same = ["same_system"] if by_person and "new_system" not in codes else []
    return ["extends_main", *kept, *same]


def _follower(captured: ClassifiedExchange) -> str | None:
    """Return who speaks behind the newest reply: "user" (a person), "tool", or a framework."""
    history = captured.history
    answer = newest_reply(history)
    reply = content_text(history.messages[answer.end - 1].get("content"))
    following = read_next_messages(history.messages_after(answer.end), reply, system=history.system_text)
    if following is None or history.runs[-1].role not in ("user", "tool"):
        return None
    return following[0]


# --------------------------------------------------------------------- relations


def _record_evidence(index: TurnIndex, captured: ClassifiedExchange) -> list[str]:
    """Return the evidence codes for the kind of a request that the recorded turns give (`wire.classify`)."""
    history = captured.history
    frame = frame_of(history, captured.chat.body)
    codes = ["same_system"] if (history.root, captured.client, frame) in index.known else []
    if history.is_opening:
        return [*codes, "same_form"] if continued_form(index, captured) is not None else codes
    entries = list(index.find("reply", newest_reply(history).key))
    if not entries:
        return codes
    of_main = [e for e in entries if e.is_main]
    codes.append("extends_main" if of_main else "extends_side")
    if not of_main and any(e.code == "long_instruction" for e in captured.kind.evidence):
        codes.append("instructed_side")
    before = of_main or entries
    mine, tools = system_lines(history), tool_count(captured.chat.body)
    if not any(e.frame[5:] == frame[5:] or _is_similar(mine, e.system_lines) for e in before):
        codes.append("new_system")
    elif of_main:
        codes.append("same_system")
    if all(e.tool_count > 1 and 2 * tools < e.tool_count for e in before):
        codes.append("fewer_tools")
    return codes


def _is_similar(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two system prompts share most lines, lists in them apart: memories and documents change in a conversation."""
    one, other = (frozenset(line for line in lines if line[0] not in "-*•") for lines in (one, other))
    return 2 * len(one & other) >= max(1, len(one | other))


def _relation_of(index: TurnIndex, captured: ClassifiedExchange) -> tuple[TurnKind, str] | None:
    """Return (kind, relation) where a recorded turn decides the kind of a request: relations 2 to 6 of this module."""
    history, body = captured.history, captured.chat.body
    same = next(index.find("body", captured.key_name, captured.body_key), None)
    if same is not None and same.found.reason != "client_header":
        return same.tip.kind, "same_body"
    place = (history.root, captured.client, frame_of(history, body))
    if place in index.passed_over:
        return TurnKind.SIDE, "passed_over"
    if not history.is_opening:
        is_loop = ends_with_tool_output(history) and index.main_turn(newest_reply(history).key) is not None
        return (TurnKind.MAIN, "tool_loop") if is_loop else None
    serialised = (
        entry.trace.question == lines and _is_at_once(captured, entry)
        for lines in serialised_texts(history)
        for entry in index.find("question", history.root, lines[-1])
    )
    if any(serialised):
        return TurnKind.SIDE, "serialised"
    if any(freedom_of(body) < twin.freedom for twin in _twins(index, captured)):
        return TurnKind.SIDE, "beside_main"
    is_mains = place in index.known and not is_programs(captured.kind)
    return (TurnKind.MAIN, "known_frame") if is_mains else None


def _passed_over(index: TurnIndex, captured: ClassifiedExchange) -> list[IndexedTurn]:
    """Return the turns under another system prompt beside the turn that this request continues: none of their replies stands anywhere.

    They have that turn's text, or continue it where this request does so under its system prompt.
    """
    history = captured.history
    continued = next((e for e in index.find("reply", newest_reply(history).key) if e.is_main), None)
    if continued is None:
        return []
    beside = list(index.find("request", continued.request_key))
    if continued.frame == frame_of(history, captured.chat.body):
        beside += index.extending(continued.tip.turn_id)
    return [
        entry
        for entry in beside
        if entry.is_main and entry.tip.is_newest and entry.client == continued.client
        and entry.frame not in ("", continued.frame) and entry.tip.key != continued.tip.key
        and abs(entry.tip.created_at - continued.tip.created_at) < TWIN_S
        and (entry.root, entry.client, entry.frame) not in index.known
    ]  # fmt: skip


def _is_at_once(captured: ClassifiedExchange, entry: IndexedTurn) -> bool:
    """Whether a turn was sent at the time of a request under another system prompt."""
    is_near = abs(captured.created_at - entry.tip.created_at) < TWIN_S
    return is_near and entry.system_key != captured.history.system_key


def _twins(index: TurnIndex, captured: ClassifiedExchange) -> Iterator[IndexedTurn]:
    """Yield the turns of the same text that were sent at the same time by the same client under another system prompt."""
    for entry in index.find("request", captured.history.request_key):
        if entry.client == captured.client and _is_at_once(captured, entry):
            yield entry


def _lesser_twins(index: TurnIndex, captured: ClassifiedExchange) -> list[IndexedTurn]:
    """Return the main turns beside this request that a program sent: serialised, with a schema or for a few tokens only."""
    mine, root = freedom_of(captured.chat.body), captured.history.root
    found = [e for e in _twins(index, captured) if e.freedom < mine]
    if captured.history.is_opening:
        words = utterance_lines(newest_user_text(captured.history.messages))
        same = index.find("serialised", root, words[-1]) if words else ()
        found += [e for e in same if words in e.serialised and _is_at_once(captured, e)]
    return [e for e in found if e.is_main and e.tip.is_newest and e.found.reason != "client_header"]


def _without_known_lines(index: TurnIndex, captured: ClassifiedExchange) -> list[Message] | None:
    """Return the messages without the lines that this client put around words which people continued; None where it has none of them."""
    history = captured.history
    start = 0 if history.is_opening else newest_reply(history).end
    found = list(history.messages)
    for i in range(start, len(found)):
        if found[i].get("role") == "user":
            lines = content_text(found[i].get("content")).splitlines()
            kept = [part for line in lines if (part := _unknown_part(index, captured, line))]
            if kept != lines:
                found[i] = {**found[i], "content": "\n".join(kept)}
    return None if found == list(history.messages) else found


def _unknown_part(index: TurnIndex, captured: ClassifiedExchange, line: str) -> str:
    """Return a line without a label that is known, "" where all of it is."""
    place = (captured.history.root, captured.client)
    if (*place, normalise_line(line)) in index.known:
        return ""
    label = label_of(line)
    return line[len(label) :] if label and (*place, f"{normalise_line(label)}:") in index.known else line


def _continued_side_turns(index: TurnIndex, key: str) -> Iterator[IndexedTurn]:
    """Yield the side turns whose prompt and reply have this key, and those whose tool results it brings, newest first.

    None if a main turn has the key.
    """
    entry = None if index.main_turn(key) is not None else next(index.find("reply", key), None)
    while entry is not None and not entry.is_main:
        yield entry
        before = entry.tip.parent_turn_id if entry.side_reason == "side_tool_results" else None
        entry = index.get(before)


def _echoed_turn(index: TurnIndex, history: History) -> tuple[IndexedTurn | None, int]:
    """Return the turn whose reply stands near the end of a history, behind the words that it answered, whatever surrounded both.

    With it comes the number of the run that holds those words. A main turn, if there is one.
    """
    answers = [i for i, run in enumerate(history.runs) if run.role == "assistant" and i]
    for number in reversed(answers[-_MAX_CANNED:]):
        run, question = history.runs[number], history.runs[number - 1]
        keys = answer_keys(history.root, question, run.own, run.size, run)
        holders = [entry for key in keys for entry in index.find("exchange", key.key)]
        asked = squeeze(newest_user_text(history.messages[: question.end]))[:_MAX_ASKED_CHARS]
        for entry in sorted(holders, key=lambda e: not e.is_main):
            if entry.asked and asked and (asked in entry.asked or entry.asked in asked):
                return entry, number - 1
        if any(e.is_main for e in holders):
            break
    return None, 0
