"""The complaints that taught nothing, for `status`. Pure: values in, sentences out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from store.drop_reasons import SENTENCES, sentence_of
from store.lifecycle import DropReason
from store.texts import clip, counted
from store.values import Json, UnusedComplaint

#: `status` counts the complaints of so many days. Since the live version would be too short: what a batch drops is dropped just
#: before its version is made.
DAYS = 7
#: Texts of each kind that are shown, and the characters of each.
_SHOWN, _CHARACTERS = 3, 60


def lines_of(complaints: Sequence[UnusedComplaint], days: int = DAYS) -> list[str]:
    """Return one line for each reason: how many, in which words (newest first), and what would help.

    Args:
        complaints: newest first.
        days: over which they were counted.
    """
    kinds: dict[str, list[UnusedComplaint]] = {}
    for complaint in complaints:
        kinds.setdefault(_reason(complaint), []).append(complaint)
    return [
        f"{len(some)} of your complaints in the last {counted(days, 'day')} changed nothing: {_quoted(some)} ({reason})"
        for reason, some in kinds.items()
    ]


def to_json(complaint: UnusedComplaint) -> Json:
    return {**asdict(complaint), "sentence": _reason(complaint)}


def _reason(complaint: UnusedComplaint) -> str:
    if complaint.drop_reason is DropReason.NO_SIGNAL and complaint.hint is None:
        return SENTENCES[DropReason.NO_SIGNAL]
    sentence = sentence_of(complaint.drop_reason, complaint.detail)
    if complaint.drop_reason is DropReason.HINT_IRRELEVANT:
        return sentence + "; say what to do differently"
    return sentence


def _quoted(complaints: Sequence[UnusedComplaint]) -> str:
    texts = list(dict.fromkeys(clip(complaint.text, _CHARACTERS) for complaint in complaints))
    shown = ", ".join(f"“{text}”" for text in texts[:_SHOWN])
    return shown + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
