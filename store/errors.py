"""Every error this program raises on purpose, and whose fault it is.

* PatinaError
  + OurError                 something of ours is wrong: the program, its set-up, its record
    - ConfigError            a setting is missing or impossible; raised at start-up only, exit code 2
    - RecordError            the record cannot be read or written
      . RecordTooNew         the database was written by a newer Patina
      . RecordUnavailable    locked, full, or gone: try again, nothing is lost
      . RecordCorrupt        its file is damaged
    - IllegalTransition      a turn was asked to skip or repeat a stage of its life
    - AdapterError           an adapter folder is missing, torn, or not what its hash says
      . AdapterMismatch      its content is not what the trainer wrote: the version never serves again
    - ClaimLost              a worker asked to end the life of turns that it does not hold any more: nothing is written
    - AliasMoved             the live version is not the one a new version was trained from: it is not published
    - GateRejected           a trained version failed the gate; the old one stays live
  + TheirError               another party's input or service is wrong
    - WireError              bytes that are not the OpenAI format
    - AlignmentError         per-token streams differ in length; never repaired by padding
    - UpstreamError          the serving backend failed; carries its status and body
      . UpstreamUnreachable  no answer at its address
      . UpstreamTimeout      it answered too late
    - JudgeError             the judge answered in a form that cannot be parsed
      . JudgeUnavailable     the judge cannot be reached: the turn waits, it is never mis-scored
    - RewardError            the user's own reward function raised or returned nonsense
"""

from __future__ import annotations


class PatinaError(Exception):
    """Base class, so that a caller can catch all of ours and none of anybody else's."""


class OurError(PatinaError):
    """Something of ours is wrong."""


class ConfigError(OurError):
    """A setting is missing or impossible: one sentence, and how to mend it."""


class RecordError(OurError):
    """The record cannot be read or written."""


class RecordTooNew(RecordError):
    """The database was written by a newer Patina than this one."""


class RecordUnavailable(RecordError):
    """The database is locked, full or gone; the same call may succeed later."""


class RecordCorrupt(RecordError):
    """The database file is damaged: SQLite cannot make sense of it."""


class IllegalTransition(OurError):
    """A turn was asked to skip or repeat a stage of its life."""


class AdapterError(OurError):
    """An adapter folder is missing, torn, or not what its hash says."""


class AdapterMismatch(AdapterError):
    """A version is not what the trainer made: other bytes, another model, or other log-probabilities."""


class ClaimLost(OurError):
    """A worker's lease ran out, and its turns wait again or another worker has claimed them."""


class MadeOfForgotten(ClaimLost):
    """A version was computed from what was forgotten meanwhile."""


class AliasMoved(OurError):
    """The live version changed while another was trained from it: what a person undid is not built upon."""


class GateRejected(OurError):
    """A trained version failed the gate."""


class TheirError(PatinaError):
    """Another party's input or service is wrong."""


class WireError(TheirError):
    """Bytes that are not the OpenAI format."""


class AlignmentError(TheirError):
    """Per-token streams differ in length."""


class UpstreamError(TheirError):
    """The serving backend failed; ``status`` and ``body`` are its response."""

    def __init__(self, message: str, *, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class UpstreamUnreachable(UpstreamError):
    """The backend's address does not answer."""


class UpstreamTimeout(UpstreamError):
    """The backend did not answer in time."""


class UpstreamConnectTimeout(UpstreamTimeout):
    """No connection to the backend was made in time: the request was not sent."""


class JudgeError(TheirError):
    """The judge answered in a form that cannot be parsed."""


class JudgeUnavailable(JudgeError):
    """The judge cannot be reached or refuses to serve; the turn waits."""


class RewardError(TheirError):
    """The user's own reward function raised or returned something that is not a verdict."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; its class where it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
