"""The kind of a turn by its relations to recorded turns. Sans-IO, over the index of turns.

What happens says more than words, and in every language. Five relations decide alone, some of them later (`Revision`):

1. A person's words follow a reply in a later history: the turn of that reply is main, whatever its own request looked like.
2. A request that brings the results of tools is of the kind of the turn that called them.
3. A fresh request that writes out a recorded exchange and does not wait for a next line is side (`recorder.linking`).
4. A fresh request under a system prompt and tools under which people continue conversations is main.
5. An identical body is of the kind that it was before.

Words and structure (`wire.classify`) decide the rest, measured on the newest text less what the client put around continued words before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recorder.linking import LinkReason
from recorder.turn_index import TurnIndex
from recorder.turns import ClassifiedExchange, read_next_messages
from store.lifecycle import DropReason
from store.texts import content_text
from store.values import KindCorrection, LinkCorrection, NextState, Relation, Tip, TurnKind
from wire.classify import LINKED, Classification, classify, is_machines, reconsider, related


@dataclass(slots=True, kw_only=True)
class Revision:
    """What a request shows about earlier turns: kinds, what they answered, and places."""

    corrections: list[KindCorrection] = field(default_factory=list)
    states: list[NextState] = field(default_factory=list)
    moved: list[LinkCorrection] = field(default_factory=list)


class KindDecider:
    """Decides kinds over an index of turns, which it keeps in step."""

    def __init__(self, turn_index: TurnIndex, weights: Mapping[str, float]) -> None:
        self._turn_index = turn_index
        self._weights = weights

    def decide(self, captured: ClassifiedExchange, *, is_named: bool) -> Revision:
        """Decide the kind of a request (``captured.kind``) and return what it shows about earlier turns.

        Args:
            is_named: the client named the session, and no earlier turn is doubted.
        """
        revision = Revision()
        if captured.kind.reason == "client_header":
            return revision
        codes = self._turn_index.record_evidence(captured)
        captured.kind = self._by_words(captured, codes)
        may_continue_side = not is_named and not captured.history.is_opening and "extends_main" not in codes
        if may_continue_side and self._correct_followed(captured, codes, revision):
            codes = _as_continuing_main(self._turn_index.record_evidence(captured))
            captured.kind = self._by_words(captured, codes)
        relation = self._turn_index.related_kind(captured)
        if relation is not None:
            captured.kind = related(captured.kind, *relation)
        if not is_named and captured.kind.kind is TurnKind.MAIN:
            self._correct_beside(captured, revision)
        return revision

    def _by_words(self, captured: ClassifiedExchange, codes: Sequence[str]) -> Classification:
        found = reconsider(captured.kind, *codes, weights=self._weights)
        newer = self._turn_index.without_known_lines(captured) if found.kind is TurnKind.SIDE else None
        return found if newer is None else classify(newer, captured.chat.body, codes, self._weights)

    def _correct_followed(
        self, captured: ClassifiedExchange, codes: Sequence[str], revision: Revision
    ) -> bool:
        """Correct the side turns whose reply a person continues with this request; return whether it continues a main turn now."""
        follower = _follower(captured)
        if follower not in ("user", "tool"):
            return False
        index, history = self._turn_index, captured.history
        if "extends_side" in codes:
            # A program's orders about its own results ("many entities were missed: 1. … 2. …") show no person.
            if "instructed_side" in codes:
                return False
            as_main = _as_continuing_main(codes, by_person=follower == "user")
            if self._by_words(captured, as_main).kind is TurnKind.SIDE:
                return False
            newest = next(run for run in reversed(history.runs) if run.role == "assistant")
            side_turns = dict.fromkeys(index.continued_side_turns(newest.key))
        else:
            echoed, asked_at = index.echoed_turn(history)
            if echoed is None or echoed.kind is TurnKind.MAIN:
                return echoed is not None
            side_turns = {echoed.turn_id: asked_at}
        corrected: list[str] = []
        for turn_id in side_turns:
            before, drop_reason = index.kind_of(turn_id)
            if is_machines(before) or before.reason in LINKED or not before.evidence:
                break
            found = related(before, TurnKind.MAIN, "continued")
            if follower == "tool":  # a loop shows only that it is no function of one reply
                found = reconsider(before, "tools_followed", weights=self._weights)
                if found.kind is TurnKind.SIDE:
                    break
            revision.corrections.append(self._correction(captured, turn_id, found, drop_reason))
            corrected.append(turn_id)
        for turn_id in reversed(corrected):  # oldest first: each continues the one before
            state, move = self._answer_of(captured, turn_id, side_turns[turn_id])
            revision.states += [state] if state is not None else []
            revision.moved += [move] if move is not None else []
        return bool(corrected)

    def _answer_of(
        self, captured: ClassifiedExchange, turn_id: str, asked_at: int | None
    ) -> tuple[NextState | None, LinkCorrection | None]:
        """Return what a turn that became a main turn says about the main turn before it, and its place behind that one.

        Args:
            asked_at: number of the run in ``captured``'s history that is its prompt; None where its messages are the beginning of that history.
        """
        tip, runs = self._turn_index.tip_of(turn_id), captured.history.runs
        asked = self._turn_index.request_key_of(turn_id)
        end = (
            asked_at
            if asked_at is not None
            else next((i for i, run in enumerate(runs) if run.key == asked), None)
        )
        if tip is None or end is None:
            return None, None
        for run in reversed(runs[:end]):
            if run.role != "assistant":
                continue
            parent = self._turn_index.main_turn(run.key)
            if parent is None and asked_at is not None:
                parent = self._turn_index.tip_of(tip.parent_turn_id or "")
            if parent is None or parent.kind is TurnKind.SIDE:
                continue
            relation = Relation.NEXT if parent.is_newest else Relation.BRANCH
            messages = captured.history.messages[run.end : runs[end].end]
            reply = content_text(captured.history.messages[run.end - 1].get("content"))
            following = read_next_messages(messages, reply, relation, captured.history.system_text)
            place = self.move(turn_id, parent.session_id, parent, captured.created_at, relation)
            if following is None:
                return None, place
            role, text, relation = following
            return (
                NextState(
                    turn_id=parent.turn_id,
                    by_turn_id=turn_id,
                    role=role,
                    text=text,
                    messages=tuple(dict(m) for m in messages),
                    relation=relation,
                    created_at=tip.created_at,
                ),
                place,
            )
        if tip.parent_turn_id is None or any(run.role == "assistant" for run in runs[:end]):
            return None, None
        # An opening of its own, not about another.
        return None, self.move(turn_id, new_session(turn_id), None, captured.created_at)

    def _correct_beside(self, captured: ClassifiedExchange, revision: Revision) -> None:
        """Correct main turns of the same text that came beside this one in a program's form."""
        for turn_id in self._turn_index.lesser_twins(captured):
            before, _ = self._turn_index.kind_of(turn_id)
            if before.reason != "client_header":
                found = related(before, TurnKind.SIDE, "beside_main")
                revision.corrections.append(self._correction(captured, turn_id, found, None))

    def _correction(
        self,
        captured: ClassifiedExchange,
        turn_id: str,
        found: Classification,
        drop_reason: DropReason | None,
    ) -> KindCorrection:
        self._turn_index.correct(turn_id, found)
        return KindCorrection(
            turn_id=turn_id,
            kind=found.kind,
            reason=found.reason,
            evidence=tuple((e.code, round(e.weight, 3)) for e in found.evidence),
            drop_reason=drop_reason,
            at=captured.created_at,
        )

    def separate(self, tip: Tip, session_id: str, at: float) -> list[LinkCorrection]:
        """Move an opening and its side turns to a session of their own: another conversation began with the same words."""
        sides = self._turn_index.side_turns_of(tip)
        together = [tip, *self._turn_index.samples_of(tip)]
        moved = [self.move(one.turn_id, session_id, None, at) for one in together]
        above = self._turn_index.tip_of(tip.turn_id)
        return moved + [self.move(side.turn_id, session_id, above, at) for side in sides]

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
        self._turn_index.relink(found)
        return found


def new_session(turn_id: str) -> str:
    """Return the name of the session that a turn begins."""
    return f"session_{turn_id.removeprefix('turn_')}"


def _as_continuing_main(codes: Sequence[str], *, by_person: bool = True) -> list[str]:
    """Return the evidence of a request if what it continues is a main turn; under that one's system prompt, its words are no evidence."""
    kept = [code for code in codes if code not in ("extends_side", "instructed_side")]
    return ["extends_main", *kept, *(["same_system"] if by_person and "new_system" not in codes else [])]


def _follower(captured: ClassifiedExchange) -> str | None:
    """Return who speaks behind the newest reply: "user" (a person), "tool", or a framework."""
    history = captured.history
    answer = next(run for run in reversed(history.runs) if run.role == "assistant")
    reply = content_text(history.messages[answer.end - 1].get("content"))
    following = read_next_messages(history.messages_after(answer.end), reply, system=history.system_text)
    if following is None or history.runs[-1].role not in ("user", "tool"):
        return None
    return following[0]
