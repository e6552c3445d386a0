"""One finished request with its reply, as a gateway hands it to the recorder, and its form in the journal. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import orjson

from store.hashing import wire_json
from store.lifecycle import DropReason
from store.values import Completion, Json, LogprobMode, TurnKind
from wire.chat_request import ChatRequest, parse_chat
from wire.completion_request import API_NAME, parse_completion, write_completion
from wire.headers import RequestOptions
from wire.prefix_cache import PrefixCache
from wire.reply_assembly import AssembledReply


@dataclass(slots=True, kw_only=True)
class CapturedExchange:
    """A finished request with its reply.

    Attributes:
        fault: why the whole exchange cannot train (the client disconnected, an error), or None.
        size: bytes of request and reply.
        api: the API that the client speaks, where it is not chat: its name and what the chat request does not hold of its request.
        sent_at: when the request went to the backend (Unix time, seconds); None: it did not.
        first_chunk_at, backend_ended_at: when the first and the last bytes of the reply's body came.
        traceparent: of the request (W3C Trace Context), or "".
        wish_text, wish_place: the wishes that the gateway added to the request, and where (`wire.wish_text`); "": none.
        drawn: name of the conversation where a canary release drew which version serves it (`store.canary_arms`); "": none did.
    """

    turn_id: str
    created_at: float
    finished_at: float
    key_name: str
    client: str
    options: RequestOptions
    policy: str
    adapter_version: int
    status_code: int
    streamed: bool
    chat: ChatRequest
    reply: AssembledReply
    fault: tuple[DropReason, str] | None
    temperature: float
    logprob_mode: LogprobMode
    size: int
    api: Json | None = None
    sent_at: float | None = None
    first_chunk_at: float | None = None
    backend_ended_at: float | None = None
    traceparent: str = ""
    wish_text: str = ""
    wish_place: str = ""
    drawn: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the client received a complete reply: sending the same request again is then an opinion, not a second attempt."""
        return self.fault is None and self.reply.is_finished


_SCALAR_FIELDS = (
    "turn_id", "created_at", "finished_at", "key_name", "client", "policy", "adapter_version", "status_code", "streamed",
    "temperature", "size",
)  # fmt: skip
#: Fields that entries of earlier versions do not have.
_NEWER_FIELDS = (
    "sent_at",
    "first_chunk_at",
    "backend_ended_at",
    "traceparent",
    "wish_text",
    "wish_place",
    "drawn",
)


def dump_exchange(captured: CapturedExchange, raw: bytes | None) -> bytes:
    """Return an exchange as the payload of a journal entry: a line of JSON, then the request's bytes. `load_exchange` reads it.

    Args:
        raw: the request as it was sent; used when no secret had to be redacted in it.
    """
    chat = captured.chat
    head = orjson.dumps(
        {
            **{name: getattr(captured, name) for name in (*_SCALAR_FIELDS, *_NEWER_FIELDS)},
            "options": captured.options,
            "reply": captured.reply,
            "fault": captured.fault,
            "logprob_mode": captured.logprob_mode,
            "api": captured.api,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
    if raw is not None and not chat.is_redacted:
        return head + raw
    return head + wire_json(write_completion(chat) if chat.is_completion else chat.body).encode()


def load_exchange(payload: bytes, prefix_cache: PrefixCache | None = None) -> CapturedExchange:
    """Read what `dump_exchange` wrote.

    Raises:
        ValueError, KeyError, TypeError, WireError: it is no such payload.
    """
    head, _, raw = payload.partition(b"\n")
    value: Json = orjson.loads(head)
    if "scope" in value:  # written by 0.2.0
        value["key_name"] = value.pop("scope")
    options, reply, fault = value["options"], value["reply"], value["fault"]
    options.pop("identifiers", None)  # written by earlier versions
    is_completion = (value.get("api") or {}).get("name") == API_NAME
    completions = tuple(_restore_completion(values) for values in reply.pop("completions"))
    return CapturedExchange(
        **{name: value[name] for name in _SCALAR_FIELDS},
        **{name: value[name] for name in _NEWER_FIELDS if name in value},
        options=RequestOptions(
            **{
                **options,
                "kind": None if options["kind"] is None else TurnKind(options["kind"]),
            }
        ),
        chat=parse_completion(raw) if is_completion else parse_chat(raw, prefix_cache),
        reply=_restore_dataclass(AssembledReply, {**reply, "completions": completions}),
        fault=None if fault is None else (DropReason(fault[0]), fault[1]),
        logprob_mode=LogprobMode(value["logprob_mode"]),
        api=value.get("api"),
    )


def _restore_completion(values: Json) -> Completion:
    # JSON has no NaN and no infinity: such a log-probability was written as null.
    logprobs = [float("nan") if value is None else value for value in values["sampling_logprobs"]]
    completion: Completion = _restore_dataclass(Completion, {**values, "sampling_logprobs": logprobs})
    return completion


def _restore_dataclass(kind: Any, values: Json) -> Any:
    """Return a dataclass value whose lists are tuples."""
    names = {field.name for field in fields(kind)}
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if n in names})
