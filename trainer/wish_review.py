"""Which wishes of the record a version learns, and how well: merged by what they do to this model, tested whether it follows them when asked.

A wish that the base model does not follow when it is asked is not trained: what the model cannot do when asked, training does not repair. It
stays in the prompt, and `run.py wishes` says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from store.calibration import Calibration
from store.values import Json, Wish
from store.wish_states import LEAST_GAIN, by_age
from trainer.protocol import Merge, Policy, Weights
from trainer.wish_meter import MAX_TOKENS, Followed, Ids, WishMeter, share
from wire.wish_text import join_wishes

#: A version has a wish in its weights when they follow it in this share of what asking gives.
IN_WEIGHTS = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """The wishes of a version.

    Attributes:
        learnt: those that it learns, the oldest first.
        reworded: those that are merged into one of them.
        merged: what the record is to make one.
        measures: what was measured of each wish, by wish_id.
        told: questions with the base model's replies behind all these wishes.
    """

    learnt: tuple[Wish, ...] = ()
    reworded: tuple[Wish, ...] = ()
    merged: tuple[Merge, ...] = ()
    measures: Mapping[int, Json] | None = None
    told: Sequence[tuple[str, Ids]] = ()

    @property
    def stated(self) -> frozenset[str]:
        """Ids of the turns that state what is learnt."""
        return frozenset(one.turn_id for wish in (*self.learnt, *self.reworded) for one in wish.statements)

    @property
    def wordings(self) -> frozenset[str]:
        """Every wording of what is learnt."""
        found = (*self.learnt, *self.reworded)
        return frozenset(
            words for wish in found for words in (wish.text, *(one.text for one in wish.statements))
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """The words of what is learnt, in the order in which the gateway adds them to a prompt."""
        return tuple(wish.text for wish in by_age(self.learnt))


class WishReview:
    """Reviews wishes by the base model of a policy."""

    def __init__(self, policy: Policy, meter: WishMeter, calibration: Calibration) -> None:
        self._policy = policy
        self._meter = meter
        self._calibration = calibration

    def review(self, wishes: Sequence[Wish]) -> Reviewed:
        """Merge wishes that do the same to the model, and leave out those that it does not follow when asked."""
        groups: list[list[Wish]] = []
        measures: dict[int, Json] = {}
        for wish in wishes:
            same = next((one for one in groups if self._is_same(one[0], wish)), None)
            if same is None:
                groups.append([wish])
            else:
                same.append(wish)
        kept = [self._worded(group) for group in groups]
        learnt = []
        told = self._told(kept) if kept else []
        for wish in kept:
            base, asked = self._meter.base_share(wish.text), self._share(wish, told)
            measures[wish.wish_id] = {"base": base, "told": asked}
            if asked - base >= LEAST_GAIN:
                learnt.append(wish)
        kept_ids = {wish.wish_id for wish in learnt}
        return Reviewed(
            learnt=tuple(learnt),
            reworded=tuple(one for group in groups if group[0].wish_id in kept_ids for one in group[1:]),
            merged=tuple(
                Merge(into=wish.wish_id, others=tuple(one.wish_id for one in group[1:]), text=wish.text)
                for wish, group in zip(kept, groups, strict=True)
                if len(group) > 1
            ),
            measures=measures,
            told=told,
        )

    def _worded(self, group: Sequence[Wish]) -> Wish:
        """The oldest of several wordings of one wish, with the owner's words or else the clearest ones, and as new as the newest."""
        first = group[0]
        texts = [words for wish in group for words in (wish.text, *(one.text for one in wish.statements))]
        edited = next((wish.text for wish in reversed(group) if wish.edited), None)
        return replace(
            first,
            text=edited or self._meter.clearest(dict.fromkeys(texts)),
            changed_at=max(wish.changed_at for wish in group),
        )

    def _is_same(self, one: Wish, other: Wish) -> bool:
        """Whether both do the same to the model. What changes no more than neutral words has no direction."""
        sizes = (self._meter.size(one.text), self._meter.size(other.text))
        return one.text == other.text or (
            min(sizes) > self._calibration.neutral
            and self._meter.cosine(one.text, other.text) >= self._calibration.same_wish
        )

    def _told(self, wishes: Sequence[Wish]) -> list[tuple[str, Ids]]:
        """Questions with the base model's replies behind all these wishes."""
        text = join_wishes(wish.text for wish in by_age(wishes))
        return self._replies(text, Weights.BASE)

    def _replies(self, text: str, weights: Weights) -> list[tuple[str, Ids]]:
        questions = [question for question, _ in self._meter.probes]
        replies = self._policy.sample(
            [self._meter.prompt(question, text) for question in questions],
            max_tokens=MAX_TOKENS,
            temperature=0.0,
            weights=weights,
        )
        return [(q, reply.token_ids) for q, reply in zip(questions, replies, strict=True) if reply.token_ids]

    def _share(self, wish: Wish, replies: Sequence[tuple[str, Ids]]) -> float:
        return share(self._meter.follows(wish.text, replies))

    def followed(self, reviewed: Reviewed) -> dict[int, Followed]:
        """How many of the policy's replies, without any wish in the prompt, follow each wish; by wish_id. Nothing of weights that are no numbers."""
        if not reviewed.learnt or not self._policy.is_finite():
            return {}
        replies = self._replies("", Weights.STUDENT)
        found = {}
        for wish in reviewed.learnt:
            known = (reviewed.measures or {})[wish.wish_id]
            way = self._way(wish, replies, reviewed.told)
            weights = known["base"] + way * (known["told"] - known["base"])
            found[wish.wish_id] = Followed(
                base=known["base"], told=known["told"], weights=weights, replies=len(replies)
            )
        return found

    def _way(self, wish: Wish, replies: Sequence[tuple[str, Ids]], told: Sequence[tuple[str, Ids]]) -> float:
        """How far replies are from the base model's to the teacher's, in [0, 1]; see `trainer.wish_meter`."""
        base, asked, now = (
            self._meter.log_ratio(wish.text, some) for some in (self._meter.plain, told, replies)
        )
        return min(1.0, max(0.0, (now - base) / (asked - base))) if asked > base else 0.0


def falls_behind(rows: Sequence[Json], live: Sequence[Json]) -> tuple[str, ...]:
    """Why a version that learnt the wishes of the live one may not replace it: its weights follow them less, by more than one reply. Pure."""
    now, before = (
        {row["wish_id"]: row["weights"] for row in some if "weights" in row} for some in (rows, live)
    )
    if not now or now.keys() != before.keys():
        return ()
    share, live_share = (sum(some.values()) / len(some) for some in (now, before))
    if share >= live_share - 1 / max(1, *(row["replies"] for row in rows)):
        return ()
    return (f"the wishes are followed in {share:.0%} of replies, by the live version in {live_share:.0%}",)


def wish_rows(followed: Mapping[int, Followed]) -> list[Json]:
    """What a version's metrics say of its wishes: ids and numbers, no words."""
    rows = []
    for wish_id, found in followed.items():
        assert found.weights is not None
        rows.append(
            {
                "wish_id": wish_id,
                "base": found.base,
                "told": found.told,
                "weights": found.weights,
                "replies": found.replies,
                "retired": found.weights >= IN_WEIGHTS * found.told - 1e-9,
            }
        )
    return rows
