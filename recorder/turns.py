"""One captured exchange, classified, and the turns that are stored for it. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from recorder.canonical import History, body_key, parse_history, reply_key
from recorder.linking import TurnLink
from store.lifecycle import DropReason
from store.texts import content_text
from store.values import Completion, Json, NewTurn, NextState, Relation, ReplyOutcome, TurnKind, outcome_of
from wire.captured_exchange import CapturedExchange
from wire.chat_request import ChatRequest
from wire.classify import WEIGHTS, Classification, classify_request
from wire.reply_assembly import token_drop_reason
from wire.user_text import next_state_text


@dataclass(slots=True, kw_only=True)
class ClassifiedExchange(CapturedExchange):
    """A captured exchange with what its request says about itself.

    Attributes:
        body_key: equal for requests that are identical field by field.
    """

    history: History
    kind: Classification
    body_key: str


def classify_exchange(
    captured: CapturedExchange, weights: Mapping[str, float] = WEIGHTS
) -> ClassifiedExchange:
    """Compute keys and kind of an exchange, reusing the keys of the cached request that it extends."""
    chat, options = captured.chat, captured.options
    previous = chat.previous.history if chat.previous is not None else None
    history = parse_history(chat.messages, captured.key_name, options.user, previous)
    if chat.cached is not None:
        chat.cached.history = history
    return ClassifiedExchange(
        **{field.name: getattr(captured, field.name) for field in fields(CapturedExchange)},
        history=history,
        kind=classify_request(chat.messages, chat.body, options.kind, (), weights),
        body_key=body_key(history, request_parameters(chat)),
    )


def choice_id(turn_id: str, index: int) -> str:
    """Return the id of a choice: the first choice is the turn itself, the others are its siblings."""
    return turn_id if index == 0 else f"{turn_id}.{index}"


def build_turns(captured: ClassifiedExchange, link: TurnLink, session_id: str) -> tuple[NewTurn, ...]:
    """Return the turn and, for n > 1, a sibling for each further choice; a later request links to the choice that it continues."""
    completions = captured.reply.completions or (Completion(),)
    return tuple(
        _build_turn(captured, link, session_id, position, completion)
        for position, completion in enumerate(completions)
    )


def request_parameters(chat: ChatRequest) -> Json:
    """Return the body without its messages, which are stored separately."""
    return {name: value for name, value in chat.body.items() if name != "messages"}


def _build_turn(
    captured: ClassifiedExchange, link: TurnLink, session_id: str, position: int, completion: Completion
) -> NewTurn:
    drop = _drop_reason(captured, link, completion)
    turn_id = choice_id(captured.turn_id, position)
    is_empty = not completion.text and not completion.tool_calls
    next_state = _next_state(captured, link) if position == 0 else None
    return NewTurn(
        turn_id=turn_id,
        completion_id=captured.reply.completion_id,
        session_id=session_id,
        parent_turn_id=link.parent_turn_id,
        turn_index=link.turn_index,
        kind=link.kind,
        relation=link.relation if next_state is None else next_state.relation,
        link_reason=link.reason,
        kind_reason=kind_reason(captured, link),
        link_confidence=link.confidence,
        policy=captured.policy,
        key_name=captured.key_name,
        adapter_version=captured.adapter_version,
        client=captured.client,
        user=captured.options.user,
        created_at=captured.created_at,
        finished_at=captured.finished_at,
        status_code=captured.status_code,
        streamed=captured.streamed,
        messages=captured.chat.messages,
        request=request_parameters(captured.chat),
        completion=completion,
        prompt_token_ids=captured.reply.prompt_token_ids,
        temperature=captured.temperature,
        logprob_mode=captured.logprob_mode,
        usage=captured.reply.usage,
        request_key=captured.history.request_key,
        reply_key=None if is_empty else reply_key(captured.history, completion),
        evidence=tuple((e.code, round(e.weight, 3)) for e in captured.kind.evidence),
        drop_reason=drop[0] if drop else None,
        main_drop_reason=_main_drop_reason(captured, completion),
        drop_detail=drop[1] if drop else "",
        next_state=next_state,
        api=captured.api if position == 0 else None,
        wish_text=captured.wish_text,
        wish_place=captured.wish_place,
        drawn=captured.drawn,
    )


def kind_reason(captured: ClassifiedExchange, link: TurnLink) -> str:
    """Return the code of the turn's kind: the conversation's evidence outweighs the request's."""
    return link.kind_reason or captured.kind.reason


def _drop_reason(
    captured: ClassifiedExchange, link: TurnLink, completion: Completion
) -> tuple[DropReason, str] | None:
    """Return why this turn never trains. Order: fault of the exchange, options of the client, tokens."""
    if captured.fault is not None:
        return captured.fault
    if captured.reply.error is not None:
        return DropReason.UPSTREAM_ERROR, captured.reply.error
    if captured.reply.problem:
        return DropReason.UNREADABLE, captured.reply.problem
    if completion.finish_reason is None:
        return DropReason.UNFINISHED, "the reply ended without a finish reason"
    if outcome_of(completion.finish_reason) is not ReplyOutcome.WHOLE:
        return DropReason.UNFINISHED, f"the reply ended with the finish reason {completion.finish_reason!r}"
    if captured.options.is_opted_out:
        return DropReason.OPTED_OUT, ""
    if link.kind is TurnKind.SIDE:
        return DropReason.SIDE_TURN, kind_reason(captured, link)
    return token_drop_reason(completion, captured.reply.completions, captured.reply.usage)


def _main_drop_reason(captured: ClassifiedExchange, completion: Completion) -> DropReason | None:
    """Return why the tokens of a main turn do not train."""
    found = token_drop_reason(completion, captured.reply.completions, captured.reply.usage)
    return None if found is None else found[0]


def _next_state(captured: ClassifiedExchange, link: TurnLink) -> NextState | None:
    if link.answered_turn_id is None:
        return None
    history = captured.history
    values = read_next_messages(
        link.messages_after, _reply_before(history.messages, link), link.relation, history.system_text
    )
    if values is None:
        return None
    role, text, relation = values
    return NextState(
        turn_id=link.answered_turn_id,
        by_turn_id=captured.turn_id,
        role=role,
        text=text,
        messages=tuple(dict(m) for m in link.messages_after),
        relation=relation,
        created_at=captured.created_at,
    )


def read_next_messages(
    messages: Sequence[Mapping[str, Any]], reply: str, relation: Relation = Relation.NEXT, system: str = ""
) -> tuple[str, str, Relation] | None:
    """Return (role, text, relation) of the messages that followed ``reply``; a framework's text has a relation of its own."""
    values = next_state_text(messages, reply, system)
    if values is None:
        return None
    role, text = values
    return role, text, Relation.FRAMEWORK_RETRY if role in ("validator", "framework") else relation


def _reply_before(messages: Sequence[Mapping[str, Any]], link: TurnLink) -> str:
    """Return the text of the reply that ``link.messages_after`` follow."""
    before = messages[: len(messages) - len(link.messages_after)]
    reply = next((m for m in reversed(before) if m.get("role") == "assistant"), None)
    return "" if reply is None else content_text(reply.get("content"))
