"""Scored turns that a real policy sampled, for the tests of step and worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from store.values import (
    Completion,
    LogprobMode,
    NewTurn,
    Relation,
    ScoredTurn,
    WishReading,
    WishScope,
)
from tests.making import make_answer, make_turn, make_verdict
from trainer.batch import Sample, SampleKind
from trainer.protocol import Policy
from trainer.samples import ActiveWishes
from wire.wish_text import add_wishes


def sampled_turn(policy: Policy, turn_id: str, question: str, **changes: Any) -> ScoredTurn:
    """Let the policy answer, and complain about it; ``changes`` are fields of ScoredTurn, ``verdict`` fields under that name.

    With a ``wish_text`` the reply is one to the question with these wishes.
    """
    messages = ({"role": "user", "content": question},)
    text, place = changes.get("wish_text", ""), changes.setdefault("wish_place", "behind")
    prompt = policy.render(add_wishes(messages, text, place))
    temperature = changes.pop("temperature", 1.0)
    (reply,) = policy.sample([prompt], max_tokens=12, temperature=temperature, seed=len(turn_id))
    verdict: dict[str, Any] = changes.pop("verdict", {})
    fields: dict[str, Any] = {
        "turn_id": turn_id,
        "session_id": f"session-{turn_id}",
        "turn_index": 0,
        "policy": "patina-tiny",
        "key_name": "alice",
        "adapter_version": 0,
        "messages": messages,
        "request": {"model": "patina-tiny"},
        "completion": Completion(
            text=policy.decode(reply.token_ids),
            token_ids=reply.token_ids,
            sampling_logprobs=reply.logprobs,
            finish_reason="stop",
        ),
        "prompt_token_ids": tuple(prompt),
        "temperature": temperature,
        "logprob_mode": LogprobMode.RAW,
        "verdict": make_verdict(turn_id, **{"value": -1, **verdict}),
        "next_text": "shorter please",
        "created_at": 1_000.0,
    }
    return ScoredTurn(**{**fields, **changes})


def wishing_turn(policy: Policy, turn_id: str, question: str, wish: str, **changes: Any) -> ScoredTurn:
    """Let the policy answer, and state a lasting wish about it."""
    reading = WishReading(text=wish, scope=WishScope.LASTING)
    return sampled_turn(policy, turn_id, question, verdict={"wish": reading, "hint": wish}, **changes)


def accepted(policy: Policy, turn_id: str, question: str, wish_text: str, **changes: Any) -> ScoredTurn:
    """A reply that was served with wishes, and for which a person thanks."""
    verdict = {"value": 1, "hint": None, **changes.pop("verdict", {})}
    return sampled_turn(policy, turn_id, question, wish_text=wish_text, verdict=verdict, **changes)


def anchor_of(sample: Sample) -> Sample:
    """The same reply as an anchor: its teacher is the base model without wishes."""
    return replace(
        sample,
        turn_id="anchor",
        kind=SampleKind.ANCHOR,
        sampling_logprobs=None,
        teacher_prompt_ids=sample.prompt_ids,
    )


def as_recorded(turn: ScoredTurn) -> Sequence[NewTurn]:
    """The two turns that put ``turn`` into a record, answered."""
    first = make_turn(
        turn.turn_id,
        list(turn.messages),
        session_id=turn.session_id,
        policy=turn.policy,
        adapter_version=turn.adapter_version,
        completion=turn.completion,
        prompt_token_ids=turn.prompt_token_ids,
        temperature=turn.temperature,
        logprob_mode=turn.logprob_mode,
        wish_text=turn.wish_text,
        wish_place=turn.wish_place,
    )
    follow = make_turn(
        f"{turn.turn_id}-next",
        session_id=turn.session_id,
        policy=turn.policy,
        parent_turn_id=turn.turn_id,
        turn_index=1,
        relation=Relation.NEXT,
        next_state=make_answer(turn.turn_id, f"{turn.turn_id}-next", turn.next_text),
    )
    return first, follow


def stated_in(wishes: ActiveWishes, turns: Iterable[ScoredTurn]) -> ActiveWishes:
    """The wishes, stated by those of these turns that state one."""
    stating = (one.turn_id for one in turns if one.verdict.states_wish)
    return replace(wishes, stated=frozenset(stating))
