"""Clients whose traffic looks wrong, for `clients`, `status` and the web page. Pure: values in, sentences out.

A client of which nothing can be learned is named here while its user can still mend it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from store.drop_reasons import sentence_of
from store.lifecycle import DropReason
from store.values import ClientTraffic, Json
from store.version import COMMAND

#: The newest turns that are looked at: bounds the cost, and lets a warning end when the client is mended.
WINDOW = 2_000
#: A client is judged from so many turns on.
_ENOUGH = 20
#: From this share on, nearly all; up to this share, never.
_NEARLY_ALL, _NEVER = 0.9, 0.02


class WarningCode(StrEnum):
    """What looks wrong in a client's traffic. Only the first that holds is reported: the later ones follow from it."""

    NEARLY_ALL_SIDE = "nearly_all_side"
    NEVER_LINKED = "never_linked"
    NEVER_FOLLOWED = "never_followed"
    NEVER_TRAINED = "never_trained"


#: What helps against a drop reason. Where it is not named, the reason's own sentence is all there is to do.
_MENDS: dict[DropReason, str] = {
    DropReason.OPTED_OUT: "remove its opt-out: the header `X-Patina-Train: off`, the field `metadata.patina_train`, or its key's",
    DropReason.UNFINISHED: "raise its time limit or its `max_tokens`",
    DropReason.REQUEST_REFUSED: "read the error that it gets: usually a parameter that the backend does not take",
    DropReason.UPSTREAM_ERROR: "see logs/backend.log",
    DropReason.NO_TOKENS: "use a backend that reports token ids (docs/backends.md)",
    DropReason.CONSTRAINED: "let it ask without a schema or forced tools where it can",
    DropReason.NO_NEXT_STATE: "keep its conversations going, or send `POST /v1/feedback`",
    DropReason.ABSTAINED: "say in the next message what was right or wrong",
    DropReason.NO_SIGNAL: "say in the next message what to do differently",
    DropReason.TOO_LONG: "shorten its context, or give the trainer more memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWarning:
    """One client whose traffic looks wrong.

    Attributes:
        reason: the code behind it: of the kind for side turns, of the drop for turns that never train; else "".
        what: a clause about the client; mend: what to do, a clause too.
    """

    client: str
    code: WarningCode
    reason: str
    what: str
    mend: str

    @property
    def sentence(self) -> str:
        return f"{self.client}: {self.what}; {self.mend}"

    def to_json(self) -> Json:
        return {
            "client": self.client,
            "code": self.code.value,
            "reason": self.reason,
            "sentence": self.sentence,
        }


def warnings_of(traffic: Sequence[ClientTraffic]) -> list[ClientWarning]:
    """Return the clients whose traffic looks wrong, at most one warning each, in the order of ``traffic``."""
    found = []
    for one in traffic:
        warning = None if _is_part_of_another(one, traffic) else _warning(one)
        if warning is not None:
            found.append(warning)
    return found


def status_lines(warnings: Sequence[ClientWarning]) -> list[str]:
    """Return the one line of `status`, or none."""
    if not warnings:
        return []
    first = warnings[0]
    more = f" (and {len(warnings) - 1} more)" if len(warnings) > 1 else ""
    return [f"traffic looks wrong: {first.client}: {first.what}{more}; see `{COMMAND} clients`"]


def to_json(one: ClientTraffic) -> Json:
    return {
        "client": one.client,
        "turns": one.turns,
        "main": one.main,
        "side": one.side,
        "linked": one.linked,
        "followed": one.followed,
        "trained": one.trained,
        "side_reasons": dict(one.side_reasons),
        "drop_reasons": {reason.value: count for reason, count in one.drop_reasons.items()},
        "last_seen_at": one.last_seen_at,
    }


def _is_part_of_another(one: ClientTraffic, traffic: Sequence[ClientTraffic]) -> bool:
    """Whether these may be the side requests of a program that names itself only in its main ones."""
    return any(other.main and other.client.endswith(f" ({one.client})") for other in traffic)


def _warning(one: ClientTraffic) -> ClientWarning | None:
    if one.turns >= _ENOUGH and one.side >= _NEARLY_ALL * one.turns:
        reason, count = max(one.side_reasons.items(), key=lambda item: item[1])
        return ClientWarning(
            client=one.client,
            code=WarningCode.NEARLY_ALL_SIDE,
            reason=reason,
            what=f"{one.side} of its {one.turns} turns are side turns, {count} of them `{reason}`, and never train",
            mend=f"if a person wrote them, `{COMMAND} explain {one.last_side_turn}` shows why, and the header "
            "`X-Turn-Type: main` corrects it",
        )
    if one.main < _ENOUGH:
        return None
    if one.linked <= _NEVER * one.main:
        return ClientWarning(
            client=one.client,
            code=WarningCode.NEVER_LINKED,
            reason="",
            what=f"{one.main - one.linked} of its {one.main} main turns begin a conversation, so that nothing follows them",
            mend="let it send the history with each request, or name the conversation in the header `X-Session-Id`",
        )
    if one.followed <= _NEVER * one.main:
        return ClientWarning(
            client=one.client,
            code=WarningCode.NEVER_FOLLOWED,
            reason="",
            what=f"no person continued {one.main - one.followed} of its {one.main} main turns",
            mend=f"`{COMMAND} explain {one.last_main_turn}` shows what one was linked to; `POST /v1/feedback` needs no next message",
        )
    return _never_trained(one)


def _never_trained(one: ClientTraffic) -> ClientWarning | None:
    dropped = sum(one.drop_reasons.values())
    if one.trained or dropped < _ENOUGH:
        return None
    reason, count = max(one.drop_reasons.items(), key=lambda item: item[1])
    return ClientWarning(
        client=one.client,
        code=WarningCode.NEVER_TRAINED,
        reason=reason.value,
        what=f"none of its {dropped + one.trained} settled main turns trained; of {count}: {sentence_of(reason)}",
        mend=_MENDS.get(reason, f"`{COMMAND} explain {one.last_main_turn}` shows the newest of its turns"),
    )
