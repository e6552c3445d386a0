"""What the trainer at home and the training worker send each other: JSON, and the files of versions as bytes. Pure.

A request says everything that an attempt depends on, so that a worker that was started a moment ago answers it like one that made the
version before: the settings of training, what was measured of the base model, the job, and for methods that go on from a version its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from store.calibration import Calibration
from store.errors import WireError
from store.values import BASE_VERSION, Json
from trainer.protocol import Outcome, VersionJob

#: Both sides have the same number, or the request is refused.
FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """A request to the training worker.

    Attributes:
        settings: `store.settings.training_settings`.
        policy, version: what is live.
        content_hash, manifest_hash: of the version whose weights to begin from; "": the base model.
        calibration: what is known of the base model; None: let the worker measure it.
        job: None: only describe the worker.
    """

    format: int = FORMAT
    settings: Json
    policy: str
    version: int = BASE_VERSION
    content_hash: str = ""
    manifest_hash: str = ""
    calibration: Calibration | None = None
    job: VersionJob | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReply:
    """The worker's reply.

    Attributes:
        error: class of `store.errors` and sentence; None: there was none.
        needs_files: the worker does not have the version to begin from: the same request, with its files, is answered.
        notes: of the worker's trainer.
        calibration: that it uses.
        outcome: of the attempt; its version's files come beside the reply, and its path is the worker's.
    """

    error: tuple[str, str] | None = None
    needs_files: bool = False
    notes: tuple[str, ...] = ()
    calibration: Calibration | None = None
    outcome: Outcome | None = None


M = TypeVar("M", TrainRequest, TrainReply)
_CODECS: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (TrainRequest, TrainReply)}


def encode(message: TrainRequest | TrainReply) -> str:
    """Return a message as JSON in ASCII, so that every text survives, also one with half a surrogate pair."""
    return json.dumps(_CODECS[type(message)].dump_python(message, mode="json"), sort_keys=True)


def decode(kind: type[M], text: str) -> M:
    """Return the message that `encode` was given.

    Raises:
        WireError: it is none.
    """
    try:
        message: M = _CODECS[kind].validate_python(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise WireError(f"this is no {kind.__name__} of format {FORMAT}: {error}") from error
    return message


def request_id(request: str) -> str:
    """Return the SHA-256 of an encoded request: the same attempt has the same."""
    return hashlib.sha256(request.encode()).hexdigest()
