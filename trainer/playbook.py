"""The playbook: what the policy is asked to be, as a short list of wishes in the person's own words. Sans-IO.

The teacher's prompt holds the playbook at every step, whatever the newest complaint is. So an old wish stays while people complain about other things,
and a new one adds to it. A wish enters when its words change how the base model answers *other* questions
(`trainer.hint_effect`); a correction of one answer, or words that the model does not understand, never do. Words without a label
(`store.wishes`) may change other replies by accident: they are a candidate until the user states the same in other words.

===============  ================================================================================================
reworded         the new words change the same tokens as those of a wish (cosine): one more wording of that wish
overruled        a later wish leaves nothing for an earlier one to do, and no label says whether they exclude each other:
                 the earlier one is kept, and neither used nor watched while the later one stands
refused          words without a label that undo a labelled wish and do not speak of it (`Playbook.breaks_a_named_wish`)
withdrawn        the new words undo a wish ("in English again"), by their label (`store.wishes`), or because they speak of
                 it and undo what it does to the model, or the owner edits it into another wish: the wish leaves, and training
                 goes on until the policy shows it no more
===============  ================================================================================================

A version's state keeps turn ids, no words: the record has the words, and what is forgotten there is gone here too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from store.errors import AdapterError
from store.wishes import CANONICAL, OPPOSITES
from trainer.hint_effect import EMPTY_COMPLAINTS, Effect

#: Least mean effect on other replies of a wish, nats: wishes have .22 and more, corrections .05 and less (2 M test model).
#: Measured on the 2 M test model; issue "Say it once" replaces it.
LEAST_EFFECT = 0.1
#: Cosine from which two wordings are one wish: rewordings have .95 and more, different wishes .45 and less.
SAME_DIRECTION = 0.7
#: Share of a wish's effect below which words behind it have undone it.
UNDONE = 0.25
#: Effect under a later wish below which a wish is overruled, nats.
LEFT_OVER = 0.08
#: Letters from which a word tells what is spoken of, and by how many it is known again.
_CONTENT, _STEM = 4, 5
#: Wishes kept, and wordings of each.
MAX_WISHES, MAX_WORDINGS = 8, 4


class Meter(Protocol):
    """What is asked of `trainer.hint_effect.HintMeter`."""

    def effect(self, *hints: str) -> Effect: ...

    def effect_under(self, old: str, new: str) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """One way in which the person stated a wish.

    Attributes:
        turn_id: the turn whose reaction it was.
        text: the wording in the teacher's prompt: the person's words, or a canonical wording of `labels` where the model does not act on those.
        labels: what `store.wishes` calls it; () where it has no name.
    """

    turn_id: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Wordings of one wish, at most `MAX_WORDINGS` with a turn each, the newest last.

    Attributes:
        version: the newest version whose teacher used it.
        best: largest share of replies of a published version that followed it; see `HintMeter.compliance`.
        overruled_by: turn id of a wording of the wish that leaves nothing for this one to do; "" when there is none.
        is_as_stated: its wordings are the person's own, whatever the owner made of those turns since.
    """

    wordings: tuple[Wording, ...]
    version: int
    best: float = 0.0
    overruled_by: str = ""
    is_as_stated: bool = False

    @property
    def text(self) -> str:
        """The newest wording."""
        return self.wordings[-1].text

    @property
    def texts(self) -> tuple[str, ...]:
        """The different wordings, each where it was stated last."""
        return tuple(dict.fromkeys(one.text for one in reversed(self.wordings)))[::-1]

    @property
    def turn_ids(self) -> tuple[str, ...]:
        return tuple(wording.turn_id for wording in self.wordings)

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(label for wording in self.wordings for label in wording.labels)

    def without_labels(self, labels: Collection[str]) -> Wish | None:
        """What is left of a wish that asks for several things when some are withdrawn; None: nothing.

        Wordings without a label go with the wish: they are in it because they mean the same.
        """
        if not self.labels - {*labels}:
            return None if self.labels else self
        kept = []
        for wording in self.wordings:
            rest = tuple(label for label in wording.labels if label not in labels)
            if rest == wording.labels:
                kept.append(wording)
            elif rest:
                kept.append(replace(wording, labels=rest, text=canonical_text(rest)))
        return replace(self, wordings=tuple(kept)) if kept else None

    def is_named_in(self, text: str) -> bool:
        """Whether a text shares a content word with one of the wordings, words of empty complaints left out."""
        words = _content(text).difference(*map(_content, EMPTY_COMPLAINTS))
        return any(words & _content(one.text) for one in self.wordings)

    def is_like(self, effect: Effect, meter: Meter) -> bool:
        """Whether one of the wordings changes other replies in the direction of this effect."""
        return any(effect.cosine(meter.effect(one.text)) >= SAME_DIRECTION for one in self.wordings)

    def is_undone_by(self, text: str, meter: Meter) -> bool:
        """Whether these words behind it take each wording its effect."""
        return all(
            meter.effect(one.text, text).size < UNDONE * meter.effect(one.text).size for one in self.wordings
        )

    def with_wording(self, wording: Wording, version: int) -> Wish:
        """Stated again. The same words stay with several turns: where one is forgotten, the others have still stated the wish.

        Of too many the oldest leaves whose words another turn has too, else the oldest.
        """
        kept = [*(one for one in self.wordings if one.turn_id != wording.turn_id), wording]
        if len(kept) > MAX_WORDINGS:
            counts = Counter(one.text for one in kept)
            kept.remove(next((one for one in kept if counts[one.text] > 1), kept[0]))
        return replace(self, wordings=tuple(kept), version=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """A value: every change gives a new one.

    Attributes:
        wishes: the one stated last at the end.
        withdrawn: wishes that were taken back and that the policy may still show.
        candidates: words without a label that no others confirm yet; the teacher does not read them.
    """

    wishes: tuple[Wish, ...] = ()
    withdrawn: tuple[Wish, ...] = ()
    candidates: tuple[Wish, ...] = ()

    @property
    def active(self) -> tuple[Wish, ...]:
        """The wishes in the teacher's prompt, which the gate watches too: those that no later one overrules."""
        return tuple(wish for wish in self.wishes if not wish.overruled_by)

    @property
    def turn_ids(self) -> tuple[str, ...]:
        return tuple(i for wish in (*self.wishes, *self.withdrawn, *self.candidates) for i in wish.turn_ids)

    def without_best(self) -> Playbook:
        """The same wishes, none of which any version has followed yet: for weights of which a part was taken off."""
        return replace(self, wishes=tuple(replace(wish, best=0.0) for wish in self.wishes))

    def stated(self, wording: Wording, meter: Meter, *, version: int) -> Playbook:
        """The playbook after these words of the person; itself where they neither ask for nor undo anything."""
        rest = self._without_opposites(wording.labels)
        effect = meter.effect(wording.text)
        if effect.size < LEAST_EFFECT:
            return rest.without(rest._undone_by(wording.text, meter))._ranked(meter)
        same = rest._same_wish(wording, effect, meter)
        candidates = rest.candidates
        if same is None:
            wish = Wish(wordings=(wording,), version=version)
            if not wording.labels:
                known = next((one for one in candidates if one.is_like(effect, meter)), None)
                candidates = tuple(one for one in candidates if one is not known)
                wish = known.with_wording(wording, version) if known else wish
                if len(wish.texts) == 1:
                    return replace(rest, candidates=(*candidates, wish)[-MAX_WISHES:])
        else:
            wish = rest.wishes[same].with_wording(wording, version)
        others = [one for i, one in enumerate(rest.wishes) if i != same]
        # What is asked for again is not withdrawn any more.
        withdrawn = tuple(
            one
            for one in rest.withdrawn
            if effect.cosine(meter.effect(one.text)) < SAME_DIRECTION and not one.labels & {*wording.labels}
        )
        wishes = tuple([*others, wish][-MAX_WISHES:])
        return Playbook(wishes=wishes, withdrawn=withdrawn, candidates=candidates)._ranked(meter)

    def _without_opposites(self, labels: Sequence[str]) -> Playbook:
        """Without what these labels withdraw. A small model does not see that "more emoji" undoes "no emoji"."""
        opposed = {opposite for label in labels for opposite in OPPOSITES.get(label, ())}
        wishes: list[Wish] = []
        gone: list[Wish] = []
        for wish in self.wishes:
            hit = wish.labels & opposed
            left = wish.without_labels(hit)
            if left is not None:
                wishes.append(left)
            if hit:
                part = None if left is None else wish.without_labels(wish.labels - hit)
                gone.append(part or wish)
        return self if not gone else replace(self, wishes=tuple(wishes), withdrawn=(*self.withdrawn, *gone))

    def _same_wish(self, wording: Wording, effect: Effect, meter: Meter) -> int | None:
        for i, wish in enumerate(self.wishes):
            if any(one.text == wording.text for one in wish.wordings):
                return i
            if wording.labels and wish.labels == {*wording.labels}:
                return i
        cosines = [
            max(effect.cosine(meter.effect(one.text)) for one in wish.wordings) for wish in self.wishes
        ]
        best = max(range(len(cosines)), key=cosines.__getitem__, default=None)
        return best if best is not None and cosines[best] >= SAME_DIRECTION else None

    def _undone_by(self, text: str, meter: Meter) -> list[Wish]:
        """Wishes of which these words speak and whose every wording they undo.

        That words undo a wish is not enough: a small model also forgets one when the person says "no, look it up again". Where "That is
        wrong." undoes it, too, the model does not show what the words mean, and only a label withdraws the wish.
        """
        return [
            wish
            for wish in self.wishes
            if wish.is_named_in(text)
            and wish.is_undone_by(text, meter)
            and not any(wish.is_undone_by(words, meter) for words in EMPTY_COMPLAINTS)
        ]

    def breaks_a_named_wish(self, wording: Wording, meter: Meter) -> bool:
        """Whether words without a label would undo a labelled wish of which they do not speak.

        A small model drops "only JSON" when it reads "Same failure again, nothing has changed.": its teacher must not read that.
        """
        if wording.labels:
            return False
        for wish in self.active:
            effect = meter.effect(wish.text)
            if (
                wish.labels
                and effect.norm
                and not wish.is_named_in(wording.text)
                and meter.effect(wish.text, wording.text).share_of(effect) < UNDONE
            ):
                return True
        return False

    def without(self, wishes: Collection[Wish]) -> Playbook:
        """With these wishes withdrawn."""
        if not wishes:
            return self
        rest = tuple(wish for wish in self.wishes if wish not in wishes)
        gone = tuple(wish for wish in self.wishes if wish in wishes)
        left = {i for wish in rest for i in wish.turn_ids}
        rest = tuple(wish if wish.overruled_by in left else replace(wish, overruled_by="") for wish in rest)
        return replace(self, wishes=rest, withdrawn=(*self.withdrawn, *gone))

    def edited(self, before: Playbook, turn_ids: Collection[str], meter: Meter) -> Playbook:
        """With the wishes withdrawn that the owner made into others, in the words in which they were stated.

        Args:
            before: the playbook without these edits.
            turn_ids: whose words were edited.
        """
        wishes, gone = list(self.wishes), []
        for old in before.wishes:
            if not {*turn_ids} & {*old.turn_ids} or meter.effect(old.text).size < LEAST_EFFECT:
                continue
            place = next((i for i, one in enumerate(wishes) if {*one.turn_ids} & {*old.turn_ids}), None)
            if place is None or wishes[place].is_like(meter.effect(old.text), meter):
                continue
            wishes[place] = replace(wishes[place], best=0.0)
            gone.append(replace(old, is_as_stated=True, overruled_by=""))
        return replace(self, wishes=tuple(wishes), withdrawn=(*self.withdrawn, *gone))

    def _ranked(self, meter: Meter) -> Playbook:
        """With `overruled_by` of each wish as the later ones have it."""
        ranked = []
        for i, wish in enumerate(self.wishes):
            later = next(
                (
                    other.wordings[-1].turn_id
                    for other in self.wishes[i + 1 :]
                    # Labels say which wishes exclude each other. The model is asked about wishes without a label, and about words
                    # without one that name a labelled wish.
                    if (not wish.labels or (not other.labels and wish.is_named_in(other.text)))
                    and meter.effect_under(wish.text, other.text) < LEFT_OVER
                ),
                "",
            )
            ranked.append(replace(wish, overruled_by=later))
        return replace(self, wishes=tuple(ranked))

    def hints(self, own: str, present: Iterable[str], most: int) -> list[str]:
        """Further wordings for a teacher whose prompt holds ``own``: one of each other wish first, then more; the newest wish last.

        Args:
            own: the hint of the turn; "" for none.
            present: texts that the conversation holds already.
            most: how many.
        """
        texts = tuple(present)
        lists = [
            [
                wording
                for wording in wish.texts
                if wording != own and not any(wording in text for text in texts)
            ]
            for wish in self.active
        ]
        mine = next(
            (i for i, wish in enumerate(self.active) if any(w.text == own for w in wish.wordings)), None
        )
        newest_first = [i for i in reversed(range(len(lists))) if i != mine]
        order = [*newest_first, *([mine] if mine is not None else [])]
        chosen: list[tuple[int, str]] = []
        while len(chosen) < most and any(lists):
            for i in order:
                if lists[i] and len(chosen) < most:
                    chosen.append((i, lists[i].pop()))
        return [text for _, text in sorted(chosen, key=lambda pair: pair[0])]

    def to_json(self) -> dict[str, Any]:
        """For the version's state: ids and numbers, no words."""
        return {
            "wishes": [_row(wish) for wish in self.wishes],
            "withdrawn": [_row(wish) for wish in self.withdrawn],
            "candidates": [_row(wish) for wish in self.candidates],
        }

    @classmethod
    def from_json(
        cls,
        value: Mapping[str, Any],
        wordings: Mapping[str, Wording],
        stated: Mapping[str, Wording] = MappingProxyType({}),
    ) -> Playbook:
        """What `to_json` gave, with the words of its turns; what has none any more, because the record forgot it, is left out.

        Args:
            stated: the person's own wordings where the owner edited them, for wishes that keep those.

        Raises:
            AdapterError: the version's state holds something else.
        """
        own = {**wordings, **stated}
        try:
            found = {
                name: tuple(
                    Wish(
                        wordings=tuple(
                            _restored(words[turn_id], tuple(map(str, labels)))
                            for turn_id, labels in zip(row["turns"], row["labels"], strict=True)
                            if turn_id in words
                        ),
                        version=int(row["version"]),
                        best=float(row["best"]),
                        overruled_by=str(row["overruled_by"]),
                        is_as_stated=words is own,
                    )
                    for row in (value.get(name, ()) if name == "candidates" else value[name])
                    for words in [own if row.get("as_stated") else wordings]
                )
                for name in ("wishes", "withdrawn", "candidates")
            }
        except (KeyError, TypeError, ValueError) as error:
            raise AdapterError(f"the saved playbook cannot be read: {error}") from error
        holder = {
            turn_id: wish
            for row, wish in zip(value["wishes"], found["wishes"], strict=True)
            for turn_id in row["turns"]
        }
        found["wishes"] = tuple(_overruled(wish, holder.get(wish.overruled_by)) for wish in found["wishes"])
        return cls(**{name: tuple(wish for wish in some if wish.wordings) for name, some in found.items()})


def _content(text: str) -> set[str]:
    """The first letters of the longer words, so that "emoji" and "emojis" are one."""
    return {word[:_STEM] for word in re.findall(r"\w+", text.casefold()) if len(word) >= _CONTENT}


def canonical_text(labels: Sequence[str]) -> str:
    """A wording of these wishes that models understand; "" where one of them has none."""
    texts = [CANONICAL.get(label, "") for label in labels]
    return " ".join(texts) if all(texts) else ""


def _restored(wording: Wording, labels: tuple[str, ...]) -> Wording:
    """The wording as it was when it was saved: of some it is only a part that is still wanted."""
    if not wording.labels or labels == wording.labels:  # without labels: the owner gave it other words
        return wording
    return replace(wording, labels=labels, text=canonical_text(labels) or wording.text)


def _overruled(wish: Wish, later: Wish | None) -> Wish:
    """With a turn of the later wish that is left; nothing overrules a wish whose later one the record forgot."""
    turn_ids = later.turn_ids if later else ()
    if wish.overruled_by in turn_ids:
        return wish
    return replace(wish, overruled_by=turn_ids[-1] if turn_ids else "")


def _row(wish: Wish) -> dict[str, Any]:
    return {
        "turns": list(wish.turn_ids),
        "labels": [list(one.labels) for one in wish.wordings],
        "version": wish.version,
        "best": round(wish.best, 4),
        "overruled_by": wish.overruled_by,
        "as_stated": wish.is_as_stated,
    }
