"""Chat requests: parsing, and the fields that the proxy adds for the backend. Sans-IO.

To record exact tokens the proxy asks the backend for more than the client asked for (`Injection`). The fields are added to the bytes, never by
writing the JSON anew: numbers, escapes, key order and white space stay as the client wrote them. `reply_strip` removes the additions from the
reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from store.errors import WireError
from store.values import Json
from wire.json_splice import members, set_members
from wire.lenient_json import load_json
from wire.prefix_cache import ParsedPrefix, PrefixCache
from wire.redaction import redact_body


@dataclass(slots=True, kw_only=True)
class ChatRequest:
    """A parsed chat request.

    Attributes:
        body: as the client sent it, secrets redacted.
        messages: its messages, all of them JSON objects.
        temperature: None when the client leaves it to the backend.
        previous: the cached request whose message objects this request begins with.
        cached: this request's own cache entry.
        is_redacted: the request contains a secret that ``body`` does not.
        is_completion: it is a completion request, read as chat (`wire.completion_request`).
        unreadable: why it is served and cannot be recorded; "": it can.
    """

    body: Json
    messages: tuple[Json, ...]
    model: str | None
    stream: bool
    n: int
    temperature: float | None
    previous: ParsedPrefix | None = None
    cached: ParsedPrefix | None = None
    is_redacted: bool = False
    is_completion: bool = False
    unreadable: str = ""


@dataclass(slots=True, kw_only=True)
class Injection:
    """The additions to a request that must be removed from the reply.

    Attributes:
        logprobs, token_ids, usage: requested by the proxy and not by the client.
        served_model: model name that the backend was given, when it is not the client's.
        client_model: model name to restore.
        wish_tokens: prompt tokens of added wishes, to be named in the reply's usage; None: not known, or none.
    """

    logprobs: bool = False
    token_ids: bool = False
    usage: bool = False
    served_model: str | None = None
    client_model: str | None = None
    wish_tokens: int | None = None

    @property
    def changes_reply(self) -> bool:
        adds = self.logprobs or self.token_ids or self.usage or self.wish_tokens is not None
        return adds or self.served_model is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the field names under which a backend would refuse the additions."""
        names = (
            ("logprobs", self.logprobs),
            ("return_token_ids", self.token_ids),
            ("stream_options", self.usage),
        )
        return tuple(name for name, is_added in names if is_added)


#: A body of millions of tiny values takes many times its size once parsed: it is only forwarded.
_MANY, _MOST_VALUES = 1 << 20, 4_000_000


#: Bodies nested deeper are only forwarded: orjson writes 254 levels, and the record adds some of its own.
MAX_DEPTH = 240


def load_object(raw: bytes) -> Json:
    """Return a request's JSON object. Raises: WireError: it is none."""
    try:
        body: Json = load_json(raw)
    except ValueError as exc:
        raise WireError(f"the request is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise WireError("the request is not a JSON object")
    return body


def parse_chat(raw: bytes, prefix_cache: PrefixCache | None = None) -> ChatRequest:
    """Parse a chat request.

    Args:
        prefix_cache: recent requests; of a request that extends one of them only the rest is parsed.

    Raises:
        WireError: it is not a JSON object with a list of messages (the backend reports what is wrong), or it cannot be recorded.
            The text before a colon is one of a few fixed reasons.
    """
    if len(raw) > _MANY and sum(raw.count(sign) for sign in (b",", b"[", b"{")) > _MOST_VALUES:
        raise WireError("the request has too many values to be read")
    previous: ParsedPrefix | None = None
    found = prefix_cache.lookup(raw) if prefix_cache is not None else None
    if found is not None:
        body, previous = found
        fresh = body["messages"][len(previous.messages) :]
        is_deep = exceeds_depth(raw[len(previous.prefix or b"") :], {**body, "messages": fresh}, MAX_DEPTH)
    else:
        body = load_object(raw)
        fresh = body.get("messages")
        is_deep = exceeds_depth(raw, body, MAX_DEPTH)
    if is_deep:
        raise WireError("the request is nested too deeply to be recorded")
    unredacted, body = body, redact_body(body)
    is_redacted = body != unredacted or (previous is not None and previous.is_redacted)
    if not isinstance(fresh, list) or not fresh or not all(_is_message(m) for m in fresh):
        raise WireError("the request has no list of messages")
    messages = tuple(body["messages"])
    model = body.get("model")
    n = body.get("n")
    cached = prefix_cache.add(raw, body, messages, previous) if prefix_cache is not None else None
    if cached is not None:
        cached.is_redacted = is_redacted
    return ChatRequest(
        body=body,
        messages=messages,
        model=model if isinstance(model, str) else None,
        stream=body.get("stream") is True,
        n=n if isinstance(n, int) and n > 0 else 1,
        temperature=read_temperature(body),
        previous=previous,
        cached=cached,
        is_redacted=is_redacted,
    )


def read_temperature(body: Json) -> float | None:
    """Return a request's temperature; None where it has none that is a number."""
    found = body.get("temperature")
    return float(found) if isinstance(found, int | float) and abs(found) < 1e9 else None


def exceeds_depth(raw: bytes, value: Any, most: int) -> bool:
    """Whether a JSON value, written as ``raw``, has more than ``most`` levels of lists and objects."""
    return raw.count(b"[") + raw.count(b"{") > most and is_nested_deeper(
        value, most
    )  # the cheap count almost always decides


def is_nested_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role", ""), str | None)


def build_request(
    raw: bytes, chat: ChatRequest, *, fields: frozenset[str], served_model: str | None = None
) -> tuple[bytes, Injection]:
    """Return the body for the backend and what was added; nothing else differs from the client's body.

    Args:
        raw: the body that ``chat`` was parsed from.
        fields: which of "logprobs", "return_token_ids", "stream_options" the backend accepts.
        served_model: the backend's name of the policy version; None keeps the client's.

    Raises:
        WireError: it cannot be edited and must be forwarded unchanged.
    """
    body = chat.body
    added: dict[str, bytes] = {}
    # `top_logprobs` without `logprobs` is the client's error: the backend reports it.
    # A completion's `logprobs` is a number of alternatives.
    has_logprobs = body.get("logprobs") is not None if chat.is_completion else body.get("logprobs") is True
    logprobs = "logprobs" in fields and not has_logprobs and not body.get("top_logprobs")
    if logprobs:
        added["logprobs"] = b"0" if chat.is_completion else b"true"
    token_ids = "return_token_ids" in fields and body.get("return_token_ids") is not True
    if token_ids:
        added["return_token_ids"] = b"true"
    options = body.get("stream_options")
    usage = (
        "stream_options" in fields
        and chat.stream
        and (options is None or isinstance(options, dict))
        and not (options or {}).get("include_usage")
    )
    renamed = served_model is not None and served_model != chat.model
    if renamed:
        added["model"] = orjson.dumps(served_model)
    injection = Injection(
        logprobs=logprobs,
        token_ids=token_ids,
        usage=usage,
        served_model=served_model if renamed else None,
        client_model=chat.model if renamed else None,
    )
    try:
        if usage:
            added["stream_options"] = _with_usage(raw, options)
        return set_members(raw, added, body), injection
    except ValueError as exc:
        raise WireError(f"the request cannot be edited: {exc}") from exc


def _with_usage(raw: bytes, options: Json | None) -> bytes:
    """Return the member `stream_options`, as the client wrote it, with usage requested."""
    wanted = {"include_usage": b"true"}
    if options is None:
        return b'{"include_usage":true}'
    written = [member for member in members(raw) if member.name == "stream_options"][
        -1
    ]  # the last one counts
    return set_members(raw[written.value : written.end], wanted, options)
