"""What each drop reason means and what a user can do about it. The record keeps the codes."""

from __future__ import annotations

from store.lifecycle import DropReason
from store.version import COMMAND

#: Each completes "this turn taught nothing: …".
SENTENCES: dict[DropReason, str] = {
    DropReason.SIDE_TURN: "a program asked it, not a person: a title, a summary, a check",
    DropReason.OPTED_OUT: "its client asked not to train on it",
    DropReason.UNFINISHED: "the reply was cut off",
    DropReason.REQUEST_REFUSED: "the backend refused the request",
    DropReason.UPSTREAM_ERROR: "the reply was an error",
    DropReason.NO_TOKENS: "the backend reported no token ids or log-probabilities",
    DropReason.TOKEN_MISMATCH: "token ids and log-probabilities do not fit together",
    DropReason.CONSTRAINED: "a schema or a forced call constrained the reply, and no wish says what to do differently",
    DropReason.UNREADABLE: "the reply was not in the OpenAI format",
    DropReason.NO_NEXT_STATE: "its session ended and nothing had followed",
    DropReason.ABSTAINED: "no scorer had an opinion",
    DropReason.NO_SIGNAL: "it does not say what to do differently",
    DropReason.OVER_LIMIT: "its key had as many verdicts within the hour as most_verdicts_per_hour lets train",
    DropReason.STALE: "its reply came from a version that is too old",
    DropReason.TEACHER_FAILED: "the teacher could not read it",
    DropReason.HINT_IRRELEVANT: "the model does not act on these words",
    DropReason.TOO_LONG: "it does not fit the trainer's context, or the memory and time that it plans with",
    DropReason.OUT_OF_MEMORY: "alone in a pass it took more memory than there is",
    DropReason.TRAINER_DIED: "the trainer died each time it trained on it",
    DropReason.GATE_REJECTED: "the gate rejected two versions made of it",
    DropReason.STEP_FAILED: "every step that it was part of failed",
    DropReason.FORGOTTEN: "you asked for it to be forgotten",
}

#: Only in records of earlier programs.
OLD = frozenset({DropReason.TEACHER_FAILED, DropReason.HINT_IRRELEVANT})

#: What a user can do, where anything helps.
REMEDIES: dict[DropReason, str] = {
    DropReason.SIDE_TURN: f"`{COMMAND} explain TURN`; send the header `X-Turn-Type: main` where that is wrong",
    DropReason.REQUEST_REFUSED: "read the error; usually a parameter is wrong",
    DropReason.UPSTREAM_ERROR: "see `logs/backend.log`",
    DropReason.NO_TOKENS: "use a backend that reports them",
    DropReason.TOKEN_MISMATCH: "report it as a defect",
    DropReason.CONSTRAINED: "say what to do differently",
    DropReason.ABSTAINED: "say what to do differently",
    DropReason.NO_SIGNAL: "say what to do differently",
    DropReason.OVER_LIMIT: "raise `--set most_verdicts_per_hour=N`",
    DropReason.STALE: "raise `--learning max_staleness`",
    DropReason.TOO_LONG: "use shorter contexts or a machine with more memory",
    DropReason.OUT_OF_MEMORY: "use shorter contexts or a machine with more memory",
    DropReason.TRAINER_DIED: "see `logs/trainer.log`",
    DropReason.GATE_REJECTED: f"`{COMMAND} versions` has the reason",
    DropReason.STEP_FAILED: "see `logs/trainer.log`",
}


def sentence_of(reason: DropReason, detail: str = "") -> str:
    """Return why a turn taught nothing.

    Args:
        detail: what the record says beside the code; of a hint its head is the reason, figures follow a colon.
    """
    if reason is DropReason.HINT_IRRELEVANT and detail.startswith("the "):
        return detail.partition(":")[0]
    if reason is DropReason.NO_SIGNAL and detail:
        return detail
    return SENTENCES[reason]
