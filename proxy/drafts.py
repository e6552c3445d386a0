"""From one exchange and its link to the turns that are recorded. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import orjson

from proxy.canonical import History, read_history, reply_key
from proxy.classify import Kind
from proxy.linking import Link
from proxy.ours import Wishes
from proxy.wire import Assembled, ChatRequest, parse_chat, token_fault
from proxy.words import following
from store.hashing import wire_json
from store.lifecycle import DropReason
from store.values import Completion, Json, LogprobMode, NewTurn, NextState, Relation, TurnKind


@dataclass(slots=True, kw_only=True)
class Draft:
    """An exchange that has ended, before it is known what it continues.

    Attributes:
        fault: why the whole exchange cannot train (the client left, an error), or None.
        body_key: same for requests that are identical field by field.
        size: bytes of request and reply, for the bound on what waits in memory.
    """

    turn_id: str
    created_at: float
    finished_at: float
    scope: str
    client: str
    wishes: Wishes
    kind: Kind
    policy: str
    adapter_version: int
    status_code: int
    streamed: bool
    chat: ChatRequest
    history: History
    body_key: str
    reply: Assembled
    fault: tuple[DropReason, str] | None
    temperature: float
    logprob_mode: LogprobMode
    size: int

    @property
    def is_whole(self) -> bool:
        """The client got a whole answer: asking again is an opinion about it, not a second attempt."""
        return self.fault is None and self.reply.is_finished


def choice_id(turn_id: str, index: int) -> str:
    """Return the id of a choice: the first is the turn itself, the others its siblings."""
    return turn_id if index == 0 else f"{turn_id}.{index}"


def build_turns(draft: Draft, link: Link, session_id: str) -> tuple[NewTurn, ...]:
    """Return the turn and, for n > 1, a sibling for each further choice: whichever is continued, that one links."""
    completions = draft.reply.completions or (Completion(),)
    return tuple(
        _build_turn(draft, link, session_id, position, completion)
        for position, completion in enumerate(completions)
    )


def request_of(chat: ChatRequest) -> Json:
    """Return the body without its messages, which are stored on their own."""
    return {name: value for name, value in chat.body.items() if name != "messages"}


def _build_turn(draft: Draft, link: Link, session_id: str, position: int, completion: Completion) -> NewTurn:
    drop = _drop(draft, link, completion)
    turn_id = choice_id(draft.turn_id, position)
    is_empty = not completion.text and not completion.tool_calls
    return NewTurn(
        turn_id=turn_id,
        completion_id=draft.reply.completion_id,
        session_id=session_id,
        parent_turn_id=link.parent_turn_id,
        turn_index=link.turn_index,
        kind=link.kind,
        relation=link.relation,
        link_reason=f"{link.reason}; {link.kind.value}: {kind_reason(draft, link)}",
        link_confidence=link.confidence,
        policy=draft.policy,
        scope=draft.scope,
        adapter_version=draft.adapter_version,
        client=draft.client,
        user=draft.wishes.user,
        created_at=draft.created_at,
        finished_at=draft.finished_at,
        status_code=draft.status_code,
        streamed=draft.streamed,
        messages=draft.chat.messages,
        request=request_of(draft.chat),
        completion=completion,
        prompt_token_ids=draft.reply.prompt_token_ids,
        temperature=draft.temperature,
        logprob_mode=draft.logprob_mode,
        usage=draft.reply.usage,
        request_key=draft.history.request_key,
        reply_key=None if is_empty else reply_key(draft.history, completion),
        drop_reason=drop[0] if drop else None,
        drop_detail=drop[1] if drop else "",
        next_state=_next_state(draft, link) if position == 0 else None,
    )


def kind_reason(draft: Draft, link: Link) -> str:
    """Return why the turn is of its kind: what the conversation tells outweighs what the request tells by itself."""
    return link.kind_reason or draft.kind.reason


def _drop(draft: Draft, link: Link, completion: Completion) -> tuple[DropReason, str] | None:
    """Return why this turn will never train: what happened to the exchange first, then who wished what, then its tokens."""
    if draft.fault is not None:
        return draft.fault
    if draft.reply.error is not None:
        return DropReason.UPSTREAM_ERROR, draft.reply.error
    if draft.reply.problem:
        return DropReason.UNREADABLE, draft.reply.problem
    if completion.finish_reason is None:
        return DropReason.UNFINISHED, "the reply ended without a finish reason"
    if draft.wishes.is_opted_out:
        return DropReason.OPTED_OUT, ""
    if link.kind is TurnKind.SIDE:
        return DropReason.SIDE_TURN, kind_reason(draft, link)
    if constraint := constraint_of(draft.chat.body):
        return DropReason.CONSTRAINED, constraint
    return token_fault(completion, draft.reply.completions, draft.reply.usage)


#: Fields that make engines decode under a grammar.
_GRAMMARS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def constraint_of(body: Json) -> str:
    """Return what of a request forces tokens on the sampler, or "".

    A forced token was not sampled: engines report it with logprob 0 or with the one the model would have given it, and neither
    is what it was drawn with.
    """
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        return "tool_choice forces a call"
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") not in (None, "text"):
        return f"response_format {wanted.get('type')}"
    return next((name for name in _GRAMMARS if body.get(name) is not None), "")


def _next_state(draft: Draft, link: Link) -> NextState | None:
    if link.answered is None:
        return None
    if link.relation is Relation.RETRY:
        # Nobody said a word; asking again is the message.
        role, text = "user", ""
    else:
        said = following(link.following)
        if said is None:
            return None
        role, text = said
    return NextState(
        turn_id=link.answered,
        by_turn_id=draft.turn_id,
        role=role,
        text=text,
        messages=tuple(dict(m) for m in link.following),
        relation=link.relation,
        created_at=draft.created_at,
    )


# ------------------------------------------------------------------------------------------- to and from the journal

_PLAIN = (
    "turn_id", "created_at", "finished_at", "scope", "client", "policy", "adapter_version", "status_code", "streamed",
    "body_key", "temperature", "size",
)  # fmt: skip


def dump_draft(draft: Draft) -> bytes:
    """Return a draft as one line of JSON; `load_draft` makes the same draft of it."""
    return orjson.dumps(
        {
            **{name: getattr(draft, name) for name in _PLAIN},
            "wishes": draft.wishes,
            "kind": draft.kind,
            "body": wire_json(draft.chat.body),  # a text: it may be nested deeper than a line may be
            "reply": draft.reply,
            "fault": draft.fault,
            "logprob_mode": draft.logprob_mode,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


_ID = b'{"turn_id":"'


def id_of(line: bytes) -> str | None:
    """Return which turn a line of `dump_draft` is about, without reading it; None when it is no such line."""
    end = line.find(b'"', len(_ID))
    return line[len(_ID) : end].decode("ascii", "replace") if line.startswith(_ID) and end > 0 else None


def load_draft(line: bytes) -> Draft:
    """Read what `dump_draft` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is no such line, or a torn one.
    """
    value: Json = orjson.loads(line)
    chat = parse_chat(value["body"].encode())
    wishes = value["wishes"]
    reply = value["reply"]
    completions = tuple(_restored(Completion, said) for said in reply.pop("completions"))
    return Draft(
        **{name: value[name] for name in _PLAIN},
        wishes=Wishes(**{**wishes, "kind": None if wishes["kind"] is None else TurnKind(wishes["kind"])}),
        kind=Kind(**{**value["kind"], "kind": TurnKind(value["kind"]["kind"])}),
        chat=chat,
        history=read_history(chat.messages, value["scope"], wishes["user"]),
        reply=_restored(Assembled, {**reply, "completions": completions}),
        fault=None if value["fault"] is None else (DropReason(value["fault"][0]), value["fault"][1]),
        logprob_mode=LogprobMode(value["logprob_mode"]),
    )


def _restored(kind: Any, said: Json) -> Any:
    """Return a value of a dataclass whose sequences are tuples."""
    names = {field.name for field in fields(kind)}
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in said.items() if n in names})
