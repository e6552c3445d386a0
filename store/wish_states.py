"""Where a wish acts, in the order and the words that all processes use. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from store.values import Json, Wish, WishState

#: Most wishes in a prompt: those that were stated or edited last.
MAX_WISHES = 8
#: Least gain of a wish by asking (share of replies, asked less not asked) with which there is something to learn.
LEAST_GAIN = 0.3


def by_age(wishes: Iterable[Wish]) -> list[Wish]:
    """Return wishes in the order of a prompt: the one that was stated or edited last at the end."""
    return sorted(wishes, key=lambda wish: (wish.changed_at, wish.wish_id))


def in_prompt(wishes: Iterable[Wish]) -> list[Wish]:
    """Return those of these wishes that are in the prompts of their policies, in the order in which a prompt has them.

    The one that was stated or edited last comes last: of two that contradict each other a model follows the later one.
    """
    active: dict[str, list[Wish]] = {}
    for wish in by_age(wishes):
        if wish.state is WishState.PROMPT:
            active.setdefault(wish.policy, []).append(wish)
    return [wish for found in active.values() for wish in found[-MAX_WISHES:]]


def learnt_rows(metrics: Json) -> list[Json]:
    """Return the rows of the wishes that a version learnt; versions before 0.3 have rows of another form, which say nothing here."""
    return [row for row in metrics.get("wishes") or () if "wish_id" in row]


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
    return ", ".join(filter(None, (acts, learnt, _refusal(wish.measures))))


def _refusal(measures: Json) -> str:
    """Return why a wish is not taught to the weights; "" where it is, or was not measured yet."""
    told, base = measures.get("told"), measures.get("base")
    if isinstance(told, int | float) and isinstance(base, int | float) and told - base < LEAST_GAIN:
        return f"this model hardly follows it when asked ({told:.0%} of replies, {base:.0%} without)"
    return ""


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
