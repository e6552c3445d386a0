"""Where a wish acts, in the order and the words that all processes use. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from store.values import Json, Wish, WishState

#: Most wishes in a prompt: those that were stated or edited last.
MAX_WISHES = 8


def in_prompt(wishes: Iterable[Wish]) -> list[Wish]:
    """Return those of these wishes that are in the prompts of their policies, in the order in which a prompt has them.

    The one that was stated or edited last comes last: of two that contradict each other a model follows the later one.
    """
    active: dict[str, list[Wish]] = {}
    for wish in sorted(wishes, key=lambda wish: (wish.changed_at, wish.wish_id)):
        if wish.state is WishState.PROMPT:
            active.setdefault(wish.policy, []).append(wish)
    return [wish for found in active.values() for wish in found[-MAX_WISHES:]]


def describe_state(wish: Wish, *, is_in_prompt: bool) -> str:
    """Return the state of a wish in words, with the share of replies in which the weights follow it where that was measured."""
    share = wish.measures.get("weights")
    learnt = f"in the weights {share:.0%}" if isinstance(share, int | float) else ""
    if wish.state is WishState.PROMPT:
        acts = "in the prompt" if is_in_prompt else "heard, not in the prompt"
    elif wish.state is WishState.RETIRED:
        acts = "retired: the weights follow it alone"
    else:
        acts = wish.state.value
    return ", ".join(filter(None, (acts, learnt)))


def wish_to_json(wish: Wish, *, is_in_prompt: bool) -> Json:
    """Return a wish as `wishes --json` shows it."""
    return {
        "number": wish.wish_id,
        "policy": wish.policy,
        "text": wish.text,
        "state": wish.state.value,
        "in_prompt": is_in_prompt,
        "edited": wish.edited,
        "measures": wish.measures,
        "stated": len(wish.statements),
        "statements": [
            {"turn_id": one.turn_id, "text": one.text, "created_at": one.created_at}
            for one in wish.statements
        ],
        "created_at": wish.created_at,
        "changed_at": wish.changed_at,
    }
