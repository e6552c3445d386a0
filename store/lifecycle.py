"""The life of a turn, as one table.

Rule 1: everything that decides which stage may follow which lives in this file.
Rule 2: this file does not know who asks (recorder, scorer or trainer) nor how a stage is stored.
(Both rules after h11's `_state.py`.)

    recorded -> answered -> scored -> claimed -> trained      or dropped, always with the reason in the row
"""

from __future__ import annotations

from enum import StrEnum

from store.errors import IllegalTransition


class Stage(StrEnum):
    RECORDED = "recorded"  #: written; nothing has followed it yet
    ANSWERED = "answered"  #: its next state, or explicit feedback, is known
    SCORED = "scored"  #: a scorer gave a verdict
    CLAIMED = "claimed"  #: in the batch of a running train step
    TRAINED = "trained"  #: in the version that `trained_in_version` names
    DROPPED = "dropped"  #: will never train; the row says why


class Event(StrEnum):
    NEXT_STATE = "next_state"  #: the next user or tool message, a retry, or explicit feedback came
    VERDICT = "verdict"
    CLAIM = "claim"
    RELEASE = "release"  #: the step failed, or the worker died and its lease ran out
    STEPPED = "stepped"
    DROP = "drop"  #: with a reason, always
    RECONSIDER = "reconsider"  #: explicit feedback came after the verdict and before the claim: score again
    RECLASSIFY = "reclassify"  #: a side turn was continued by a person: it is a main turn
    FORGET = "forget"  #: a person asked to forget what taught it; the turn itself stays
    UNTRAIN = (
        "untrain"  #: the version of its batch was taken back: it is trained again without what was forgotten
    )
    TEACH_AGAIN = "teach_again"  #: words about a trained or stale turn came: its prompt is answered anew
    NOTHING_NEW = "nothing_new"  #: those words hold no hint: it stays trained
    REVIVE = "revive"  #: later knowledge (explicit feedback) made a dropped turn worth scoring after all


class DropReason(StrEnum):
    """Why a turn will never train. `status` counts these."""

    SIDE_TURN = "side_turn"  #: housekeeping: title, summary, heartbeat
    OPTED_OUT = "opted_out"  #: the client asked for it
    UNFINISHED = "unfinished"  #: the client left or the backend broke the stream
    REQUEST_REFUSED = "request_refused"  #: the backend is well and would not take the request as it was
    UPSTREAM_ERROR = "upstream_error"  #: the reply was an error
    NO_TOKENS = "no_tokens"  #: the backend reported no token ids or logprobs
    TOKEN_MISMATCH = "token_mismatch"  #: ids and logprobs of different length, or not what usage counted
    CONSTRAINED = "constrained"  #: a grammar forced its tokens, and no hint says what to do differently
    UNREADABLE = "unreadable"  #: the reply was not the OpenAI format
    NO_NEXT_STATE = "no_next_state"  #: the session was closed and nothing had followed
    ABSTAINED = "abstained"  #: no scorer had an opinion
    NO_SIGNAL = "no_signal"  #: it has nothing to teach: verdict 0 and no hint, or thanks as always
    OVER_LIMIT = "over_limit"  #: its key has had as many verdicts within the hour as may train
    STALE = "stale"  #: sampled by a version too long ago, or too unlike today's policy
    TEACHER_FAILED = "teacher_failed"  #: the teacher could not be asked; never replaced by zeros
    HINT_IRRELEVANT = "hint_irrelevant"  #: the hint does not move the teacher: nothing to distil
    TOO_LONG = "too_long"  #: does not fit the trainer's context, or the memory and time it plans with
    OUT_OF_MEMORY = "out_of_memory"  #: alone in a pass it took more memory than there is
    TRAINER_DIED = "trainer_died"  #: the trainer died with it alone, again and again, and not for memory
    GATE_REJECTED = "gate_rejected"  #: its step failed the gate, and again
    STEP_FAILED = "step_failed"  #: its step raised an error, again and again
    FORGOTTEN = "forgotten"  #: the person asked for it


TRANSITIONS: dict[Stage, dict[Event, Stage]] = {
    Stage.RECORDED: {Event.NEXT_STATE: Stage.ANSWERED, Event.DROP: Stage.DROPPED},
    Stage.ANSWERED: {
        Event.VERDICT: Stage.SCORED,
        Event.DROP: Stage.DROPPED,
        Event.NOTHING_NEW: Stage.TRAINED,
    },
    Stage.SCORED: {Event.CLAIM: Stage.CLAIMED, Event.DROP: Stage.DROPPED, Event.RECONSIDER: Stage.ANSWERED},
    Stage.CLAIMED: {
        Event.STEPPED: Stage.TRAINED,
        Event.RELEASE: Stage.SCORED,
        Event.DROP: Stage.DROPPED,
    },
    Stage.TRAINED: {Event.UNTRAIN: Stage.SCORED, Event.TEACH_AGAIN: Stage.ANSWERED},
    Stage.DROPPED: {
        Event.TEACH_AGAIN: Stage.ANSWERED,
        Event.REVIVE: Stage.ANSWERED,
        Event.RECLASSIFY: Stage.RECORDED,
        Event.UNTRAIN: Stage.SCORED,
    },
}
for _stage in Stage:
    TRANSITIONS[_stage][Event.FORGET] = Stage.DROPPED

#: Only these drops may be revived: the turn itself is sound, there only was no feedback yet.
REVIVABLE = frozenset({DropReason.ABSTAINED, DropReason.NO_SIGNAL, DropReason.NO_NEXT_STATE})
#: Those of turns that are scored when something follows. A turn without tokens has a verdict then, and stays dropped.
RESCORED = REVIVABLE | {DropReason.NO_TOKENS}
#: Drops after which a prompt may be answered anew, by today's policy with the words of explicit feedback as the hint.
TEACHABLE_AGAIN = frozenset({DropReason.STALE, DropReason.HINT_IRRELEVANT, DropReason.GATE_REJECTED})


def may_teach(stage: Stage, drop_reason: DropReason | None, *, has_words: bool) -> bool:
    """Whether a version may still learn from explicit feedback on a turn.

    Args:
        has_words: the feedback has a text, and its score, if any, is no praise.
    """
    if drop_reason is not None:
        return drop_reason in REVIVABLE or (has_words and drop_reason in TEACHABLE_AGAIN)
    return stage is not Stage.CLAIMED and (has_words or stage is not Stage.TRAINED)


def advance(stage: Stage, event: Event) -> Stage:
    """Return the stage that follows.

    Raises:
        IllegalTransition: the table does not list it; the turn stays where it was.
    """
    try:
        return TRANSITIONS[stage][event]
    except KeyError:
        raise IllegalTransition(f"{event.value} cannot follow {stage.value}") from None


def sources(event: Event) -> tuple[Stage, ...]:
    """Return the stages from which ``event`` is legal, in the order of life."""
    return tuple(stage for stage in Stage if event in TRANSITIONS[stage])
